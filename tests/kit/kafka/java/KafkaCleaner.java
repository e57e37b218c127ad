import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import kafka.log.Cleaner;
import kafka.log.LogCleanerManager;
import kafka.log.LogToClean;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * Kafka's own log cleaner on stdin and stdout, one tab-separated line per case, answered by one line:
 *
 *   fill directory settings batch...       -> ok end-offset; appended as a follower does, in hex, with their offsets
 *   recover directory settings             -> ok end-offset; opened as after a crash
 *   clean directory settings now first-dirty-offset map-bytes  -> ok next-dirty-offset
 *
 * A directory is a partition's, its name topic-partition; settings are a topic's, name=value, separated by commas.
 */
public class KafkaCleaner {
    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                answer = words[0].equals("clean") ? clean(words) : fill(words);
            } catch (Throwable e) {
                e.printStackTrace();
                answer = "error\t" + e;
            }
            out.print(answer.replace('\n', ' '));
            out.print('\n');
            out.flush();
        }
        System.exit(0);
    }

    private static String fill(String[] words) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = open(words[1], words[2], Time.SYSTEM, scheduler, !words[0].equals("recover"));
        for (int i = 3; i < words.length; i++) {
            log.appendAsFollower(MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(words[i]))), 0);
        }
        long end = log.logEndOffset();
        log.close();
        scheduler.shutdown();
        return "ok\t" + end;
    }

    private static String clean(String[] words) throws Exception {
        Time time = new StandingTime(Long.parseLong(words[3]));
        long firstDirty = Long.parseLong(words[4]);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = open(words[1], words[2], time, scheduler, true);
        log.updateHighWatermark(log.logEndOffset());
        long uncleanable = LogCleanerManager.cleanableOffsets(log, scala.Option.apply((Object) firstDirty), time.milliseconds())
            .firstUncleanableDirtyOffset();
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(Integer.parseInt(words[5])), 65536, 1 << 20, 1.0,
            new Throttler(Double.MAX_VALUE, Long.MAX_VALUE, "cleaner-io", "bytes", time), time,
            partition -> scala.runtime.BoxedUnit.UNIT);
        Object next = cleaner.clean(new LogToClean(log.topicPartition(), log, firstDirty, uncleanable, false))._1();
        log.close();
        scheduler.shutdown();
        return "ok\t" + next;
    }

    private static UnifiedLog open(String directory, String settings, Time time, KafkaScheduler scheduler,
                                   boolean clean) {
        Properties given = new Properties();
        for (String each : settings.split(",")) {
            given.setProperty(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        }
        given.setProperty("cleanup.policy", "compact");
        given.setProperty("file.delete.delay.ms", "0");
        return UnifiedLog.apply(new File(directory), new LogConfig(given), 0, 0, scheduler, new BrokerTopicStats(false),
            time, 60000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600000, new LogDirFailureChannel(10), clean,
            scala.Option.empty(), true, new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    }

    private record StandingTime(long now) implements Time {
        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return System.nanoTime();
        }

        @Override
        public void sleep(long ms) {
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {
            throw new UnsupportedOperationException();
        }
    }
}
