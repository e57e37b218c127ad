import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;

/**
 * Kafka's own codecs on stdin and stdout, one tab-separated line per case, answered by one line:
 *
 *   encode name version json            -> ok hex
 *   decode name version hex             -> ok left json hex-of-encoding-it-again
 *   refuse key version hex code message -> ok hex of the request's error response; ok "none" when there is none
 *
 * Anything Kafka refuses is answered by "error class: message".
 */
public class KafkaCodec {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
    };
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final Map<String, Class<?>> CLASSES = new HashMap<>();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.print(answer(line.split("\t", -1)));
            out.print('\n');
            if (!in.ready()) {
                out.flush();
            }
        }
    }

    private static String answer(String[] words) {
        try {
            short version = Short.parseShort(words[2]);
            switch (words[0]) {
                case "encode":
                    return "ok\t" + encode(words[1], version, words[3]);
                case "decode":
                    return "ok\t" + decode(words[1], version, HEX.parseHex(words[3]));
                case "refuse":
                    return "ok\t" + refuse(Short.parseShort(words[1]), version, HEX.parseHex(words[3]),
                        Short.parseShort(words[4]), words[5].isEmpty() ? null : words[5]);
                default:
                    return "error\tno such command";
            }
        } catch (InvocationTargetException error) {
            return "error\t" + oneLine(error.getCause());
        } catch (Throwable error) {
            return "error\t" + oneLine(error);
        }
    }

    private static String encode(String name, short version, String json) throws Exception {
        Method read = converter(name).getMethod("read", JsonNode.class, short.class);
        Message message = (Message) read.invoke(null, MAPPER.readTree(json), version);
        return bytes(message, version);
    }

    private static String decode(String name, short version, byte[] body) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(body);
        Class<?> type = find(name);
        Message message =
            (Message) type.getConstructor(Readable.class, short.class).newInstance(new ByteBufferAccessor(buffer), version);
        Method write = converter(name).getMethod("write", type, short.class, boolean.class);
        return buffer.remaining() + "\t" + write.invoke(null, message, version, false) + "\t" + bytes(message, version);
    }

    private static String refuse(short key, short version, byte[] body, short code, String text) throws Exception {
        AbstractRequest request = parse(ApiKeys.forId(key), version, ByteBuffer.wrap(body));
        AbstractResponse response = request.getErrorResponse(0, Errors.forCode(code).exception(text));
        return response == null ? "none" : bytes(response.data(), version);
    }

    /** The last argument is a ByteBuffer up to 3.9, a Readable since 4.0. */
    private static AbstractRequest parse(ApiKeys key, short version, ByteBuffer body) throws Exception {
        for (Method method : AbstractRequest.class.getMethods()) {
            if (method.getName().equals("parseRequest") && method.getParameterCount() == 3) {
                boolean older = method.getParameterTypes()[2] == ByteBuffer.class;
                Object parsed = method.invoke(null, key, version, older ? body : new ByteBufferAccessor(body));
                return ((org.apache.kafka.common.requests.RequestAndSize) parsed).request;
            }
        }
        throw new NoSuchMethodException("parseRequest");
    }

    private static String bytes(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HEX.formatHex(buffer.array());
    }

    private static Class<?> converter(String name) throws ClassNotFoundException {
        return Class.forName(find(name).getName() + "JsonConverter");
    }

    private static Class<?> find(String name) throws ClassNotFoundException {
        Class<?> known = CLASSES.get(name);
        if (known != null) {
            return known;
        }
        for (String place : PACKAGES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    Class<?> type = Class.forName(place + name + suffix);
                    CLASSES.put(name, type);
                    return type;
                } catch (ClassNotFoundException error) {
                    continue;
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static String oneLine(Throwable error) {
        return (error.getClass().getSimpleName() + ": " + error.getMessage()).replaceAll("\\s+", " ");
    }
}
