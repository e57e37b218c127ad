// The scenario `transactions` of tests/compat/README.md.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One transactional producer, and one member of a group where it is to move records. */
class Transactions {
    KafkaProducer<byte[], byte[]> producer;
    KafkaConsumer<byte[], byte[]> reader;

    static KafkaConsumer<byte[], byte[]> consumer(String group, String isolation, String protocol) {
        Properties properties = Driver.properties("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "isolation.level", isolation, "fetch.max.wait.ms", 100, "max.poll.records", 1);
        if (protocol.equals("consumer")) properties.put("group.protocol", protocol);
        else properties.putAll(Map.of("session.timeout.ms", "6000", "heartbeat.interval.ms", "1000"));
        if (group.equals("readers")) properties.put("max.poll.records", "500");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    void step(JsonNode step, ObjectNode answer) throws Exception {
        switch (step.get("do").asText()) {
            case "init" -> {
                int timeoutMs = step.get("timeout_ms").asInt();
                producer = Driver.producer("transactional.id", step.get("id").asText(), "transaction.timeout.ms", timeoutMs, "linger.ms", 0,
                    "delivery.timeout.ms", 60000, "request.timeout.ms", 10000, "reconnect.backoff.max.ms", 200);
                producer.initTransactions();
                if (step.hasNonNull("source")) {
                    reader = consumer(step.get("group").asText(), "read_committed", step.path("protocol").asText("classic"));
                    reader.subscribe(List.of(step.get("source").asText()));
                }
            }
            case "begin" -> producer.beginTransaction();
            case "send" -> answer.put("offset", producer.send(new ProducerRecord<>(step.get("topic").asText(), step.get("partition").asInt(), null,
                Driver.bytes(step.get("value").asText()))).get().offset());
            case "move" -> move(step, answer.putArray("values"));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "read" -> read(step, answer.putObject("values"));
            case "leave" -> {
                if (reader != null) reader.close();
            }
            default -> throw new IllegalArgumentException(step.toString());
        }
    }

    void move(JsonNode step, ArrayNode values) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        long until = System.nanoTime() + 60_000_000_000L;
        while (values.size() < step.get("count").asInt() && System.nanoTime() < until)
            for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofMillis(200))) {
                String value = new String(record.value(), StandardCharsets.UTF_8);
                values.add(value);
                offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                producer.send(new ProducerRecord<>(step.get("topic").asText(), record.partition(), null, Driver.bytes(value + "!")));
            }
        producer.sendOffsetsToTransaction(offsets, reader.groupMetadata());
    }

    void read(JsonNode step, ObjectNode values) {
        List<TopicPartition> places = new ArrayList<>();
        for (int p = 0; p < step.get("partitions").asInt(); p++) {
            places.add(new TopicPartition(step.get("topic").asText(), p));
            values.putArray("" + p);
        }
        long count = 0, until = System.nanoTime() + step.get("timeout_s").asLong() * 1_000_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("readers", step.get("isolation").asText(), "classic")) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            while (System.nanoTime() < until)
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    ((ArrayNode) values.get("" + record.partition())).add(new String(record.value(), StandardCharsets.UTF_8));
                    if (++count == step.get("count").asLong()) // what is too much comes soon after
                        until = System.nanoTime() + step.get("more_ms").asLong() * 1_000_000L;
                }
        }
    }

    static void converse() throws Exception {
        Transactions told = new Transactions();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = Driver.JSON.createObjectNode();
            try {
                told.step(Driver.JSON.readTree(line), answer);
                answer.put("ok", true);
            } catch (KafkaException | ExecutionException error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put("ok", false).put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            System.out.println(Driver.JSON.writeValueAsString(answer));
        }
    }
}
