import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.function.Supplier;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Kafka's own record batches on stdin and stdout, one tab-separated line per case, answered by one line; bytes are in hex:
 *
 *   produce batch compacted log-append-time now before-max after-max  -> ok, or the error's code
 *       what a broker says to a client's batch: ProduceRequest, then the checks of UnifiedLog, then LogValidator;
 *       with "ok" come the bytes it would append at offset 1000 in epoch 5, and their largest timestamp
 *   produce-old messages  -> ok batch; the same for messages of magic 0 or 1, with create time and no bounds
 *   down magic first-offset batches  -> ok messages; what a fetch of an old version gets
 *   read batches       -> ok offset timestamp key value name=value... for each record, separated by blanks and |
 *   write codec level records   -> ok batches; records are timestamp key value name=value...
 */
public class KafkaBatches {
    private static final HexFormat HEX = HexFormat.of();
    private static final TopicPartition PARTITION = new TopicPartition("topic", 0);

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                answer = switch (words[0]) {
                    case "produce" -> produce(words);
                    case "produce-old" -> produceOld(words);
                    case "down" -> down(words);
                    case "read" -> read(words[1]);
                    case "write" -> write(words);
                    default -> throw new IllegalArgumentException(words[0]);
                };
            } catch (RecordValidationException e) {
                answer = "error\t" + Errors.forException(e.invalidException()).code() + "\t" + e.invalidException().getMessage();
            } catch (Throwable e) {
                answer = "error\t" + Errors.forException(e).code() + "\t" + e;
            }
            out.print(answer.replace('\n', ' '));
            out.print('\n');
            if (!in.ready()) {
                out.flush();
            }
        }
    }

    private static String produce(String[] words) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(words[1])));
        ProduceRequest.validateRecords((short) 9, records);
        CompressionType source = CompressionType.NONE;
        for (MutableRecordBatch batch : records.batches()) {
            if (batch.baseOffset() != 0) {
                throw new InvalidRecordException("base offset");
            }
            if (!batch.isValid()) {
                throw new CorruptRecordException("crc");
            }
            source = batch.compressionType();
        }
        ByteBuffer whole = records.buffer();
        whole.limit(records.validBytes());
        records = MemoryRecords.readableRecords(whole);
        LogValidator validator = new LogValidator(records, PARTITION, new Fixed(Long.parseLong(words[4])), source,
            Compression.of(source).build(), words[2].equals("1"), RecordBatch.MAGIC_VALUE_V2,
            words[3].equals("1") ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME,
            Long.parseLong(words[5]), Long.parseLong(words[6]), 5, AppendOrigin.CLIENT, MetadataVersion.latestTesting());
        LogValidator.ValidationResult result =
            validator.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(1000), new Silent(), BufferSupplier.NO_CACHING);
        return "ok\t" + hex(result.validatedRecords.buffer()) + "\t" + result.maxTimestampMs;
    }

    private static String produceOld(String[] words) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(words[1])));
        CompressionType source = CompressionType.NONE;
        for (MutableRecordBatch batch : records.batches()) {
            if (!batch.isValid()) {
                throw new CorruptRecordException("crc");
            }
            if (batch.compressionType() != CompressionType.NONE) {
                source = batch.compressionType();
            }
        }
        LogValidator validator = new LogValidator(records, PARTITION, new Fixed(0), source, Compression.of(source).build(), false,
            RecordBatch.MAGIC_VALUE_V2, TimestampType.CREATE_TIME, Long.MAX_VALUE, Long.MAX_VALUE, 5, AppendOrigin.CLIENT,
            MetadataVersion.latestTesting());
        return "ok\t" + hex(validator.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(1000), new Silent(),
            BufferSupplier.NO_CACHING).validatedRecords.buffer());
    }

    private static String down(String[] words) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(words[3])));
        return "ok\t" + hex(((MemoryRecords) records.downConvert(Byte.parseByte(words[1]), Long.parseLong(words[2]),
            new Fixed(0)).records()).buffer());
    }

    private static String read(String hex) {
        StringBuilder found = new StringBuilder("ok\t");
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(hex))).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                found.append(record.offset()).append(' ').append(record.timestamp()).append(' ');
                found.append(hex(record.key())).append(' ').append(hex(record.value()));
                for (Header header : record.headers()) {
                    found.append(' ').append(hex(ByteBuffer.wrap(header.key().getBytes(StandardCharsets.UTF_8)))).append('=');
                    found.append(header.value() == null ? "null" : HEX.formatHex(header.value()));
                }
                found.append('|');
            }
        }
        return found.toString();
    }

    private static String write(String[] words) {
        CompressionType type = CompressionType.forName(words[1]);
        Compression compression = Compression.of(type).build();
        if (!words[2].isEmpty()) {
            int level = Integer.parseInt(words[2]);
            compression = switch (type) {
                case GZIP -> Compression.gzip().level(level).build();
                case LZ4 -> Compression.lz4().level(level).build();
                case ZSTD -> Compression.zstd().level(level).build();
                default -> throw new IllegalArgumentException(words[1] + " has no levels");
            };
        }
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1024), RecordBatch.MAGIC_VALUE_V2, compression,
            TimestampType.CREATE_TIME, 0L);
        for (String record : words[3].split("\\|")) {
            String[] fields = record.split(" ");
            Header[] headers = new Header[fields.length - 3];
            for (int i = 3; i < fields.length; i++) {
                String[] pair = fields[i].split("=", -1);
                headers[i - 3] = new RecordHeader(new String(bytes(pair[0]), StandardCharsets.UTF_8), bytes(pair[1]));
            }
            builder.append(Long.parseLong(fields[0]), bytes(fields[1]), bytes(fields[2]), headers);
        }
        return "ok\t" + hex(builder.build().buffer());
    }

    private static byte[] bytes(String hex) {
        return hex.equals("null") ? null : HEX.parseHex(hex.equals("empty") ? "" : hex);
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "null";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes.length == 0 ? "empty" : HEX.formatHex(bytes);
    }

    private record Fixed(long milliseconds) implements Time {
        public long nanoseconds() {
            return milliseconds * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }

    private static class Silent implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() { }
        public void recordInvalidOffset() { }
        public void recordInvalidSequence() { }
        public void recordInvalidChecksums() { }
        public void recordNoKeyCompactedTopic() { }
    }
}
