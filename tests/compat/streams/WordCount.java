// Kafka Streams: counts words exactly once. `WordCount <bootstrap> <application id> <state directory> <input> <output>`.
// Prints each state that it comes to, and goes on until it is killed or its standard input ends.

import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

public class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, -1);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        // Without a cache every count is an output of its own: 1, 2, 3, ... for each word.
        properties.put("statestore.cache.max.bytes", 0);
        properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        properties.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.consumerPrefix("max.poll.records"), 50);

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[3])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((state, before) -> System.out.println(state));
        streams.start();
        while (System.in.read() >= 0) continue;
        streams.close();
    }
}
