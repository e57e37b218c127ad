import java.io.FileInputStream;
import java.io.PrintStream;
import java.util.Collections;
import java.util.Properties;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;
import org.apache.log4j.BasicConfigurator;
import org.apache.log4j.ConsoleAppender;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.SimpleLayout;

/** A member of a group of Kafka 0.8.2's consumers that reads one topic until it is killed, a line "partition offset value"
 * for each record on the standard output. Arguments: its properties' file and the topic. */
public final class Member {
    public static void main(String[] arguments) throws Exception {
        BasicConfigurator.configure(new ConsoleAppender(new SimpleLayout(), ConsoleAppender.SYSTEM_ERR));
        Logger.getRootLogger().setLevel(Level.WARN);
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        String topic = arguments[1];
        KafkaStream<byte[], byte[]> stream =
            connector.createMessageStreams(Collections.singletonMap(topic, 1)).get(topic).get(0);
        PrintStream output = new PrintStream(System.out, false, "UTF-8");
        for (ConsumerIterator<byte[], byte[]> records = stream.iterator(); records.hasNext(); ) {
            MessageAndMetadata<byte[], byte[]> record = records.next();
            output.println(record.partition() + " " + record.offset() + " " + new String(record.message(), "UTF-8"));
            output.flush();
        }
    }
}
