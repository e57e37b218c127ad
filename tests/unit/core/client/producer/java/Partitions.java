import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Reads the number of partitions and keys in hex, a line each; prints the partition of each key. */
public class Partitions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        int partitions = Integer.parseInt(in.readLine());
        StringBuilder out = new StringBuilder();
        String line;
        while ((line = in.readLine()) != null)
            out.append(BuiltInPartitioner.partitionForKey(HexFormat.of().parseHex(line), partitions)).append('\n');
        System.out.print(out);
    }
}
