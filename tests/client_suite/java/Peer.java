import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Java clients on stdin and stdout, one JSON object per line and one for its answer; compiled with kafka-clients from
 * 0.10.2 to 4.3. Bytes are in hex. The arguments are the address of the broker, and whether its producers are idempotent.
 *
 *   produce topic codec records [text_keys] -> placed: [partition, offset] of each
 *       a record is [partition, key, value, timestamp, headers], all but the headers may be null;
 *       text_keys: keys are strings, which Java makes bytes of
 *   read topic partitions count             -> records: [partition, offset, timestamp, key, value, headers]
 *   join topic group assignor [instance]    -> owns what it is given, reads and commits in a thread; with `uniform`
 *                                              by the consumer protocol
 *   assigned                                -> partitions: what it owns now
 *   leave                                   -> records: [partition, offset] that it has read
 */
public class Peer {
    static final ObjectMapper JSON = new ObjectMapper();
    static final HexFormat HEX = HexFormat.of();
    static String bootstrap, idempotence;
    static Member member;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        bootstrap = arguments[0];
        idempotence = arguments.length > 1 ? arguments[1] : "true";
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode asked = JSON.readTree(line);
                switch (asked.get("do").asText()) {
                    case "produce" -> produce(asked, answer.putArray("placed"));
                    case "read" -> read(asked, answer.putArray("records"));
                    case "join" -> (member = new Member(asked)).start();
                    case "assigned" -> member.owned.forEach(answer.putArray("partitions")::add);
                    case "leave" -> member.leave(answer.putArray("records"));
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (Throwable error) {
                answer.put("error", error.toString());
            }
            out.println(answer);
        }
    }

    static Map<String, Object> settings(Object... pairs) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        for (int i = 0; i < pairs.length; i += 2) settings.put((String) pairs[i], pairs[i + 1]);
        return settings;
    }

    static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : HEX.parseHex(node.asText());
    }

    static String hex(byte[] data) {
        return data == null ? null : HEX.formatHex(data);
    }

    // --- records ----------------------------------------------------------------------------------------------

    static ProducerRecord<Object, byte[]> record(String topic, JsonNode row, boolean textKeys) throws Exception {
        Integer partition = row.get(0).isNull() ? null : row.get(0).asInt();
        Object key = textKeys && !row.get(1).isNull() ? row.get(1).asText() : bytes(row.get(1));
        Long timestamp = row.get(3).isNull() ? null : row.get(3).asLong();
        ProducerRecord<Object, byte[]> record = new ProducerRecord<>(topic, partition, timestamp, key, bytes(row.get(2)));
        for (JsonNode header : row.get(4)) { // Kafka 0.10 has none, and is given none
            Object headers = ProducerRecord.class.getMethod("headers").invoke(record);
            Class<?> kind = Class.forName("org.apache.kafka.common.header.Headers");
            kind.getMethod("add", String.class, byte[].class).invoke(headers, header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    @SuppressWarnings("unchecked")
    static void produce(JsonNode asked, ArrayNode placed) throws Exception {
        boolean textKeys = asked.path("text_keys").asBoolean();
        Serializer<Object> keys = (Serializer<Object>) (Serializer<?>) (textKeys ? new StringSerializer() : new ByteArraySerializer());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<Object, byte[]> producer = new KafkaProducer<>(
            settings("compression.type", asked.get("codec").asText(), "linger.ms", 20, "enable.idempotence", idempotence), keys, new ByteArraySerializer())) {
            for (JsonNode row : asked.get("records"))
                sent.add(producer.send(record(asked.get("topic").asText(), row, textKeys)));
            producer.flush();
        }
        for (Future<RecordMetadata> one : sent) placed.addArray().add(one.get().partition()).add(one.get().offset());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... pairs) {
        Map<String, Object> settings = settings(pairs);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 100);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** With a Duration since Kafka 2.0; without one no longer since 4.0. */
    @SuppressWarnings("unchecked")
    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer, long ms) throws Exception {
        for (Method method : KafkaConsumer.class.getMethods())
            if (method.getName().equals("poll") && method.getParameterTypes()[0] == java.time.Duration.class)
                return (ConsumerRecords<byte[], byte[]>) method.invoke(consumer, java.time.Duration.ofMillis(ms));
        return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, ms);
    }

    static void addHeaders(ConsumerRecord<byte[], byte[]> record, ArrayNode found) throws Exception {
        try {
            Class<?> kind = Class.forName("org.apache.kafka.common.header.Header");
            for (Object header : (Iterable<?>) ConsumerRecord.class.getMethod("headers").invoke(record))
                found.addArray().add((String) kind.getMethod("key").invoke(header)).add(hex((byte[]) kind.getMethod("value").invoke(header)));
        } catch (ClassNotFoundException isOlder) {
            return;
        }
    }

    static void read(JsonNode asked, ArrayNode records) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (JsonNode one : asked.get("partitions")) partitions.add(new TopicPartition(asked.get("topic").asText(), one.asInt()));
        long deadline = System.nanoTime() + 60_000_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (records.size() < asked.get("count").asInt() && System.nanoTime() < deadline)
                for (ConsumerRecord<byte[], byte[]> record : poll(consumer, 200)) {
                    ArrayNode row = records.addArray();
                    row.add(record.partition()).add(record.offset()).add(record.timestamp()).add(hex(record.key())).add(hex(record.value()));
                    addHeaders(record, row.addArray());
                }
        }
    }

    // --- groups -----------------------------------------------------------------------------------------------

    static class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final String topic;
        final List<long[]> read = new ArrayList<>();
        volatile Set<Integer> owned = Set.of();
        volatile boolean leaving;
        Throwable failure;

        Member(JsonNode asked) {
            topic = asked.get("topic").asText();
            String group = asked.get("group").asText(), assignor = asked.get("assignor").asText();
            List<Object> pairs = new ArrayList<>(assignor.equals("uniform")
                ? List.of("group.id", group, "group.protocol", "consumer", "group.remote.assignor", assignor)
                : List.of(
                    "group.id", group, "session.timeout.ms", 6000, "heartbeat.interval.ms", 300,
                    "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor));
            if (asked.hasNonNull("instance")) pairs.addAll(List.of("group.instance.id", asked.get("instance").asText()));
            setDaemon(true); // it ends with standard input
            consumer = consumer(pairs.toArray());
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            Set<Integer> now = new TreeSet<>();
            for (TopicPartition one : consumer.assignment()) now.add(one.partition());
            owned = now;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            Set<Integer> now = new TreeSet<>(owned);
            for (TopicPartition one : revoked) now.remove(one.partition());
            owned = now;
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(List.of(topic), this);
                while (!leaving) {
                    for (ConsumerRecord<byte[], byte[]> record : poll(consumer, 100))
                        read.add(new long[] {record.partition(), record.offset()});
                    commit();
                }
            } catch (Throwable error) {
                failure = error;
            } finally {
                consumer.close();
            }
        }

        /** A rebalance may come between. */
        void commit() {
            try {
                consumer.commitSync();
            } catch (KafkaException error) {
                if (!Set.of("CommitFailedException", "RebalanceInProgressException").contains(error.getClass().getSimpleName()))
                    throw error;
            }
        }

        void leave(ArrayNode records) throws Exception {
            leaving = true;
            join();
            if (failure != null) throw new IllegalStateException(failure);
            for (long[] one : read) records.addArray().add(one[0]).add(one[1]);
        }
    }
}
