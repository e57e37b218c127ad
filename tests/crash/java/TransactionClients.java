// One process of clients of the transaction rounds, as tests/crash/transaction_clients.py is one: unmodified kafka-clients, in a thread
// each, with the same settings and the same journal (tests/kit/crash/transaction_journal.py). From 4.0 on they speak transactions of version 2.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionClients {
    static final String IN = "in", LOG = "log", OUT = "out", GROUP = "java-movers";
    static final int PARTITIONS = 3, MOST_POLL_MS = 3000;
    static final double ABORTED_SHARE = 0.2, OVERDUE_SHARE = 0.01;
    static final long MOST_ERRORS_NS = 8_000_000_000L, FINISH_S = 25;
    static final Duration CLOSE = Duration.ofSeconds(5);
    static final ObjectMapper JSON = new ObjectMapper();
    static final CountDownLatch stop = new CountDownLatch(1);
    static JsonNode settings;
    static FileOutputStream journal;

    /** CLOCK_MONOTONIC on Linux, as Python's time.monotonic_ns(). */
    static ObjectNode step(String name) {
        return JSON.createObjectNode().put("step", name).put("at", System.nanoTime());
    }

    static void write(ObjectNode step) {
        try {
            journal.write((JSON.writeValueAsString(step) + "\n").getBytes(StandardCharsets.UTF_8)); // O_APPEND
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static boolean isStopping() {
        return stop.getCount() == 0;
    }

    static ArrayNode place(TopicPartition place) {
        return JSON.createArrayNode().add(place.topic()).add(place.partition());
    }

    /** `live` is one life: it returns when the client is to stop, and throws KafkaException when it cannot go on. */
    abstract static class Client extends Thread {
        final Random chance;
        KafkaProducer<String, String> producer;
        int life, count, stretch;

        Client(String name) {
            super(name);
            setDaemon(true);
            chance = new Random(Objects.hash(settings.get("seed").asLong(), name, settings.get("life").asInt()));
        }

        abstract void live() throws InterruptedException;

        String fullName() {
            return getName() + "." + settings.get("life").asInt() + "." + life;
        }

        void note(String what) {
            write(step("note").put("client", fullName()).put("what", what));
        }

        @Override
        public void run() {
            try {
                while (!isStopping()) {
                    life++;
                    note("begins");
                    try {
                        live();
                    } catch (KafkaException error) {
                        note(error.toString());
                        stop.await(10 + chance.nextInt(190), TimeUnit.MILLISECONDS);
                    } finally {
                        // What is still open is left to the broker when the life ended in an error.
                        if (producer != null) producer.close(isStopping() ? CLOSE : Duration.ZERO);
                        producer = null;
                    }
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            note("ends");
        }

        // --- producing ----------------------------------------------------------------------------------
        static Properties properties(Object... pairs) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", settings.get("bootstrap").asText());
            properties.putAll(Map.of("reconnect.backoff.ms", "20", "reconnect.backoff.max.ms", "200", "retry.backoff.ms", "20",
                "retry.backoff.max.ms", "200", "request.timeout.ms", "2500"));
            for (int i = 0; i < pairs.length; i += 2) properties.put(pairs[i], pairs[i + 1].toString());
            return properties;
        }

        void initProducer() {
            int lingerMs = new int[] {0, 1, 5}[chance.nextInt(3)], timeoutMs = settings.get("timeout_ms").asInt();
            producer = new KafkaProducer<>(
                properties("transactional.id", getName(), "transaction.timeout.ms", timeoutMs, "linger.ms", lingerMs, "max.block.ms", 5000,
                    "delivery.timeout.ms", timeoutMs),
                new StringSerializer(), new StringSerializer());
            insist(producer::initTransactions);
        }

        /** Again where that is allowed: what ran into a timeout goes on when it is asked for once more. */
        void insist(Runnable step) {
            long deadline = System.nanoTime() + MOST_ERRORS_NS;
            while (true) {
                try {
                    step.run();
                    return;
                } catch (TimeoutException error) {
                    if (System.nanoTime() > deadline) throw error;
                    note("again: " + error);
                }
            }
        }

        /** The records of the transaction under way. */
        final List<Future<RecordMetadata>> sent = new ArrayList<>();
        /** Whether offsets were handed over in the transaction under way, and not yet answered. */
        boolean offsetsWait = false;

        String begin() {
            sent.clear();
            offsetsWait = false;
            String transaction = fullName() + "." + ++count;
            write(step("begin").put("transaction", transaction).put("client", fullName()));
            try {
                producer.beginTransaction();
            } catch (IllegalStateException error) {
                // An abort that is asked for again after a timeout may return before the new epoch that it asks for is there.
                throw new KafkaException(error);
            }
            return transaction;
        }

        void send(String transaction, TopicPartition place, int number) {
            String value = transaction + "." + number;
            write(step("send").put("transaction", transaction).put("value", value).set("place", place(place)));
            sent.add(producer.send(new ProducerRecord<>(place.topic(), place.partition(), value, value), (metadata, error) -> {
                if (error == null && metadata.hasOffset()) write(step("sent").put("value", value).put("offset", metadata.offset()));
            }));
        }

        /** A commit in doubt stays in doubt: this life is over, and the next one's InitProducerId decides it. */
        static class InDoubt extends KafkaException {
            InDoubt(Throwable cause) {
                super(cause);
            }
        }

        /**
         * A record is neither sent nor given up although its transaction is aborted: kafka-clients 4.3 would send it in the next one.
         * Its sender asks whether records wait before it takes the request that ends the transaction, and between the two the last
         * record and the abort may come. This life is over then.
         *
         * The same holds for offsets: those that an error keeps from being sent stay in the producer's map of offsets to commit, from
         * which the request of the next transaction is made, whatever is in it then.
         */
        static class LeftOver extends KafkaException {
            LeftOver(String transaction) {
                super("a record or an offset of " + transaction + " is left over");
            }
        }

        void abort(String transaction) {
            insist(producer::abortTransaction); // after a fatal error it throws
            write(step("end").put("transaction", transaction).put("outcome", "aborted"));
            if (offsetsWait || !sent.stream().allMatch(Future::isDone)) throw new LeftOver(transaction);
        }

        /** Records that wait are sent before: as in `LeftOver`, the commit may overtake the last one and succeed without it. */
        void commit(String transaction) {
            producer.flush();
            write(step("commit").put("transaction", transaction));
            try {
                insist(producer::commitTransaction);
            } catch (TimeoutException error) {
                throw new InDoubt(error);
            }
            write(step("end").put("transaction", transaction).put("outcome", "committed"));
        }

        /** `step`, then the commit if it is wanted; returns whether it was committed. */
        boolean end(String transaction, Runnable step, boolean isWanted) {
            try {
                step.run();
                if (isWanted) {
                    commit(transaction);
                    return true;
                }
            } catch (InDoubt error) {
                throw error;
            } catch (KafkaException error) {
                note(error.toString());
            }
            abort(transaction);
            return false;
        }
    }

    /** Small transactions over several partitions; some are aborted, some left alone until they time out. */
    static class Writer extends Client {
        Writer(String name) {
            super(name);
        }

        @Override
        void live() throws InterruptedException {
            initProducer();
            while (!isStopping()) {
                String transaction = begin();
                end(transaction, () -> fill(transaction), chance.nextDouble() >= ABORTED_SHARE);
                Thread.sleep(chance.nextInt(20));
            }
        }

        void fill(String transaction) {
            int most = 1 + chance.nextInt(6);
            for (int number = 0; number < most; number++) {
                send(transaction, new TopicPartition(chance.nextInt(3) < 2 ? IN : LOG, chance.nextInt(PARTITIONS)), number);
                if (chance.nextDouble() < 0.3) producer.flush();
            }
            if (chance.nextDouble() < OVERDUE_SHARE) {
                try {
                    stop.await(settings.get("timeout_ms").asInt() + 1000, TimeUnit.MILLISECONDS);
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
    }

    /** Member of a group that makes one output of each input, in one transaction with the offsets of what it read. */
    static class Mover extends Client implements ConsumerRebalanceListener {
        KafkaConsumer<String, String> consumer;

        Mover(String name) {
            super(name);
        }

        @Override
        void live() {
            initProducer();
            consumer = new KafkaConsumer<>(
                properties("group.id", GROUP, "isolation.level", "read_committed", "enable.auto.commit", false, "auto.offset.reset", "earliest",
                    "session.timeout.ms", 2500, "heartbeat.interval.ms", 500, "max.poll.interval.ms", MOST_POLL_MS, "fetch.max.wait.ms", 50, "default.api.timeout.ms", 5000,
                    "max.poll.records", 1 + chance.nextInt(20),
                    "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
                new StringDeserializer(), new StringDeserializer());
            try {
                consumer.subscribe(List.of(IN), this);
                while (!isStopping()) {
                    ConsumerRecords<String, String> records = poll();
                    if (!records.isEmpty() && !move(records)) goBack();
                }
            } finally {
                consumer.close(CloseOptions.timeout(CLOSE));
            }
        }

        ConsumerRecords<String, String> poll() {
            long began = System.nanoTime();
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (!records.isEmpty())
                write(step("poll").put("client", fullName()).put("stretch", stretch).put("began", began).put("is_committed", true)
                    .set("records", rows(records)));
            return records;
        }

        static ArrayNode rows(ConsumerRecords<String, String> records) {
            ArrayNode rows = JSON.createArrayNode();
            for (ConsumerRecord<String, String> record : records)
                rows.addArray().add(record.topic()).add(record.partition()).add(record.offset()).add(record.value());
            return rows;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            stretch++;
            askOffsets(Set.copyOf(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            stretch++;
        }

        Map<TopicPartition, OffsetAndMetadata> askOffsets(Set<TopicPartition> places) {
            Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
            long[] began = {0};
            insist(() -> {
                began[0] = System.nanoTime();
                found.putAll(consumer.committed(places));
            });
            found.forEach((place, offset) -> write(step("offset").put("group", GROUP).put("offset", offset == null ? -1 : offset.offset())
                .put("began", began[0]).set("place", place(place))));
            return found;
        }

        void goBack() {
            stretch++;
            askOffsets(consumer.assignment()).forEach((place, offset) -> consumer.seek(place, offset == null ? 0 : offset.offset()));
        }

        boolean move(ConsumerRecords<String, String> records) {
            String transaction = begin();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            ArrayNode ends = JSON.createArrayNode();
            for (TopicPartition place : records.partitions()) {
                List<ConsumerRecord<String, String>> of = records.records(place);
                long end = of.get(of.size() - 1).offset() + 1;
                offsets.put(place, new OffsetAndMetadata(end));
                ends.addArray().add(place.topic()).add(place.partition()).add(end);
            }
            return end(transaction, () -> {
                int number = 0;
                for (ConsumerRecord<String, String> record : records) send(transaction, new TopicPartition(OUT, record.partition()), number++);
                ObjectNode use = step("use").put("transaction", transaction).put("group", GROUP);
                use.set("offsets", ends);
                write(use.set("records", rows(records)));
                offsetsWait = true;
                insist(() -> producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata()));
                offsetsWait = false;
            }, chance.nextDouble() >= ABORTED_SHARE / 2);
        }
    }

    public static void main(String[] arguments) throws Exception {
        settings = JSON.readTree(arguments[0]);
        journal = new FileOutputStream(settings.get("journal").asText(), true);
        List<Client> clients = new ArrayList<>();
        settings.get("clients").fields().forEachRemaining(one -> clients.add(switch (one.getValue().asText()) {
            case "Writer" -> new Writer(one.getKey());
            case "Mover" -> new Mover(one.getKey());
            default -> throw new IllegalArgumentException(one.toString());
        }));
        for (Client client : clients) client.start();
        System.in.read();
        stop.countDown();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(FINISH_S);
        boolean hangs = false;
        for (Client client : clients) {
            client.join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())));
            if (!client.isAlive()) continue;
            hangs = true;
            System.err.println(client.fullName() + " hangs in " + Arrays.toString(client.getStackTrace()));
        }
        Runtime.getRuntime().halt(hangs ? 1 : 0); // nothing waits for what was left alone
    }
}
