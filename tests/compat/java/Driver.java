// Java kafka-clients: the scenarios of tests/compat/README.md. Runs from source: java -cp <kafka-clients and its jars> Driver.java

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    static JsonNode a;

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] sha256(byte[] data) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(data);
    }

    static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte b : data) text.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
        return text.toString();
    }

    static ProducerRecord<byte[], byte[]> record(long i) throws Exception {
        int size = a.get("size").asInt();
        boolean nulls = a.get("nulls").asBoolean();
        StringBuilder value = new StringBuilder(i + ":");
        String digest = hex(sha256(bytes(Long.toString(i))));
        while (value.length() < size) value.append(digest);
        List<Header> headers = new ArrayList<>();
        if (a.get("headers").asBoolean()) {
            headers.add(new RecordHeader("i", bytes(Long.toString(i))));
            headers.add(new RecordHeader("empty", null));
        }
        return new ProducerRecord<>(
            a.get("topic").asText(), null, nulls && i % 7 == 0 ? null : bytes("k" + i),
            nulls && i % 11 == 0 && i % 7 != 0 ? null : bytes(value.substring(0, size)), headers);
    }

    static long fingerprint(byte[] key, byte[] value, Iterable<Header> headers) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        byte[] none = bytes("~");
        digest.update(key == null ? none : key);
        digest.update((byte) '\n');
        digest.update(value == null ? none : value);
        digest.update((byte) '\n');
        for (Header header : headers) {
            digest.update(bytes(header.key()));
            digest.update((byte) '=');
            digest.update(header.value() == null ? none : header.value());
            digest.update((byte) '\n');
        }
        return ByteBuffer.wrap(digest.digest()).getLong();
    }

    static Properties properties(Object... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", a.get("bootstrap").asText());
        for (int i = 0; i < pairs.length; i += 2) properties.put(pairs[i], pairs[i + 1].toString());
        return properties;
    }

    static KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        return new KafkaProducer<>(properties(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor", "roundrobin", "RoundRobinAssignor", "sticky", "StickyAssignor", "cooperative-sticky", "CooperativeStickyAssignor");

    static boolean isNewProtocol(String instance) {
        return switch (a.path("protocol").asText("classic")) {
            case "consumer" -> true;
            case "upgrade" -> "two".equals(instance);
            case "downgrade" -> "one".equals(instance);
            default -> false;
        };
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group) {
        return consumer(group, null);
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, String instance) {
        Properties properties = properties("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "max.poll.records", 200);
        if (isNewProtocol(instance)) properties.put("group.protocol", "consumer");
        else properties.putAll(Map.of("session.timeout.ms", "6000", "heartbeat.interval.ms", "1000"));
        if (isNewProtocol(instance) && a.hasNonNull("assignor")) properties.put("group.remote.assignor", a.get("assignor").asText());
        else
        if (a.hasNonNull("assignor"))
            properties.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + ASSIGNORS.get(a.get("assignor").asText()));
        if (instance != null && a.get("static").asBoolean()) properties.put("group.instance.id", instance);
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void produce(ObjectNode result) throws Exception {
        AtomicLong acked = new AtomicLong(), total = new AtomicLong();
        int acks = a.get("acks").asInt();
        try (KafkaProducer<byte[], byte[]> producer = producer("compression.type", a.get("codec").asText(), "acks", acks == -1 ? "all" : acks,
            "linger.ms", 20, "delivery.timeout.ms", 60000, "request.timeout.ms", 20000, "batch.size", 65536)) {
            long first = a.get("first").asLong(), end = first + a.get("count").asLong();
            for (long i = first; i < end; i++) {
                ProducerRecord<byte[], byte[]> record = record(i);
                long mark = fingerprint(record.key(), record.value(), record.headers());
                producer.send(record, (metadata, error) -> {
                    if (error == null) {
                        acked.incrementAndGet();
                        total.addAndGet(mark);
                    }
                });
                if (i % 1000 == 0) Thread.sleep(a.get("pause_ms").asLong());
            }
            producer.flush();
        }
        result.put("acked", acked.get()).put("checksum", Long.toUnsignedString(total.get()));
    }

    static void consume(ObjectNode result) throws Exception {
        long count = 0, total = 0, deadline = System.nanoTime() + a.get("timeout_s").asLong() * 1_000_000_000L;
        Map<Integer, Object[]> seen = new TreeMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("read-" + System.nanoTime())) {
            consumer.subscribe(List.of(a.get("topic").asText()));
            while (count < a.get("count").asLong() && System.nanoTime() < deadline)
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    count++;
                    total += fingerprint(record.key(), record.value(), record.headers());
                    Object[] range = seen.computeIfAbsent(record.partition(), p -> new Object[] {record.offset(), record.offset() - 1, true});
                    range[2] = (boolean) range[2] && record.offset() > (long) range[1];
                    range[1] = record.offset();
                }
        }
        result.put("count", count).put("checksum", Long.toUnsignedString(total));
        ObjectNode partitions = result.putObject("partitions");
        seen.forEach((partition, range) ->
            partitions.putArray(partition.toString()).add((long) range[0]).add((long) range[1]).add((boolean) range[2]));
    }

    /** A member polls in its own thread, as Java programs do. */
    static class Member extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Set<String> distinct;
        final Map<Integer, Long> committed;
        volatile long read, again;
        volatile boolean stop;

        Member(String instance, Set<String> distinct, Map<Integer, Long> committed) {
            this.distinct = distinct;
            this.committed = committed;
            consumer = consumer(a.get("group").asText(), instance);
        }

        /** By name: clients of 3.9, which the same source is compiled with, have no such class. */
        void subscribeToPattern() {
            try {
                Class<?> kind = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
                Object pattern = kind.getConstructor(String.class).newInstance(a.get("pattern").asText());
                KafkaConsumer.class.getMethod("subscribe", kind).invoke(consumer, pattern);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void run() {
            if (a.hasNonNull("pattern")) subscribeToPattern();
            else consumer.subscribe(List.of(a.get("topic").asText()));
            while (!stop) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    read++;
                    distinct.add(record.partition() + ":" + record.offset());
                    if (record.offset() < committed.getOrDefault(record.partition(), 0L)) again++;
                }
                try {
                    consumer.commitSync();
                    for (TopicPartition partition : records.partitions()) {
                        List<ConsumerRecord<byte[], byte[]>> these = records.records(partition);
                        if (consumer.assignment().contains(partition))
                            committed.merge(partition.partition(), these.get(these.size() - 1).offset() + 1, Math::max);
                    }
                    Thread.sleep(20); // leave something for the other member
                } catch (CommitFailedException | InterruptedException | org.apache.kafka.common.errors.RebalanceInProgressException e) {
                    continue; // a rebalance came between
                }
            }
            consumer.close();
        }
    }

    static void group(ObjectNode result) throws Exception {
        long count = a.get("count").asLong(), deadline = System.nanoTime() + a.get("timeout_s").asLong() * 1_000_000_000L;
        Set<String> distinct = Collections.synchronizedSet(new HashSet<>());
        Map<Integer, Long> acknowledged = new ConcurrentHashMap<>();
        Member first = new Member("one", distinct, acknowledged), second = new Member("two", distinct, acknowledged);
        first.start();
        while (distinct.size() < count / 10 && System.nanoTime() < deadline) Thread.sleep(5);
        second.start();
        while ((second.read == 0 || distinct.size() < count / 2) && System.nanoTime() < deadline) Thread.sleep(5);
        first.stop = true;
        first.join();
        while (distinct.size() < count && System.nanoTime() < deadline) Thread.sleep(5);
        Thread.sleep(300);
        second.stop = true;
        second.join();
        long committed = 0;
        try (Admin admin = Admin.create(properties())) {
            Map<TopicPartition, OffsetAndMetadata> offsets =
                admin.listConsumerGroupOffsets(a.get("group").asText()).partitionsToOffsetAndMetadata().get();
            for (OffsetAndMetadata offset : offsets.values()) committed += offset.offset();
        }
        result.putArray("members").add(first.read).add(second.read);
        result.put("distinct", distinct.size()).put("committed", committed).put("again", first.again + second.again);
    }

    /** One member, until standard input ends. */
    static void member(ObjectNode result) throws Exception {
        Set<String> distinct = Collections.synchronizedSet(new HashSet<>());
        Member member = new Member("java", distinct, new ConcurrentHashMap<>());
        member.start();
        while (System.in.read() >= 0) {}
        member.stop = true;
        member.join();
        distinct.forEach(result.putArray("read")::add);
    }

    static void seek(ObjectNode result) {
        TopicPartition partition = new TopicPartition(a.get("topic").asText(), a.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("seek-" + System.nanoTime())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, a.get("offset").asLong());
            for (int i = 0; i < 30 && !result.has("at_offset"); i++)
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1)))
                    if (!result.has("at_offset")) result.put("at_offset", record.offset());
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, a.get("timestamp_ms").asLong())).get(partition);
            result.put("by_time", found == null ? -1 : found.offset());
            result.put("earliest", consumer.beginningOffsets(List.of(partition)).get(partition));
            result.put("latest", consumer.endOffsets(List.of(partition)).get(partition));
        }
    }

    static void limits(ObjectNode result) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("max.request.size", 100_000_000, "batch.size", 1, "delivery.timeout.ms", 20000, "request.timeout.ms", 10000)) {
            producer.send(new ProducerRecord<>(a.get("topic").asText(), new byte[a.get("size").asInt()])).get();
            result.put("ok", true).putNull("error");
        } catch (ExecutionException e) {
            result.put("ok", false).put("error", e.getCause().getClass().getSimpleName());
        }
    }

    static void admin(ObjectNode result) throws Exception {
        String topic = a.get("prefix").asText() + "-a";
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "3600000")))).all().get();
            try {
                admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
                result.putNull("duplicate_error");
            } catch (ExecutionException e) {
                result.put("duplicate_error", e.getCause().getClass().getSimpleName());
            }
            result.put("created", admin.listTopics().names().get().contains(topic));
            result.put("retention_before", admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            result.put("retention_after", admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            result.put("partitions", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            try (KafkaProducer<byte[], byte[]> producer = producer()) {
                for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(topic, 0, null, bytes("" + i)));
            }
            TopicPartition partition = new TopicPartition(topic, 0);
            result.put("low_watermark",
                admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(5))).lowWatermarks().get(partition).get().lowWatermark());
            admin.listConsumerGroups().all().get();
            admin.describeCluster().nodes().get();
            admin.deleteTopics(List.of(topic)).all().get();
            long deadline = System.nanoTime() + 10_000_000_000L;
            while (admin.listTopics().names().get().contains(topic) && System.nanoTime() < deadline) Thread.sleep(100);
            result.put("deleted", !admin.listTopics().names().get().contains(topic));
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < arguments.length; i += 2) run(arguments[i], arguments[i + 1]);
    }

    static void run(String scenario, String told) throws Exception {
        a = JSON.readTree(told);
        ObjectNode result = JSON.createObjectNode();
        switch (scenario) {
            case "produce" -> produce(result);
            case "consume" -> consume(result);
            case "group" -> group(result);
            case "member" -> member(result);
            case "seek" -> seek(result);
            case "limits" -> limits(result);
            case "admin" -> admin(result);
            case "transactions" -> Transactions.converse();
            default -> throw new IllegalArgumentException(scenario);
        }
        System.out.println(JSON.writeValueAsString(result));
    }
}
