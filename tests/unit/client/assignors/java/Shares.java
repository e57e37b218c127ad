import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/** What Kafka's assignors give to members. Lines on the standard input, words with blanks between, "-" for nothing:
 * "topic NAME RACK,RACK;RACK..." (of the replicas of each partition), "member ID INSTANCE RACK USERDATA(hex) TOPIC,TOPIC",
 * and "assign range|sticky", which is answered by lines "member topic partition" and a dot. */
public final class Shares {
    private static final Map<String, Node> nodes = new HashMap<>();

    private static Node node(String rack) {
        return nodes.computeIfAbsent(rack, name -> new Node(nodes.size(), "host", 1, name.equals("-") ? null : name));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Subscription> members = new HashMap<>();
        StringBuilder answer = new StringBuilder();
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("topic")) {
                int number = 0;
                for (String racks : words[2].split(";")) {
                    Node[] replicas = List.of(racks.split(",")).stream().map(Shares::node).toArray(Node[]::new);
                    partitions.add(new PartitionInfo(words[1], number++, replicas[0], replicas, replicas));
                }
            } else if (words[0].equals("member")) {
                ByteBuffer data = words[4].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(words[4]));
                Optional<String> rack = words[3].equals("-") ? Optional.empty() : Optional.of(words[3]);
                Subscription made = new Subscription(List.of(words[5].split(",")), data, List.of(), -1, rack);
                if (!words[2].equals("-"))
                    made.setGroupInstanceId(Optional.of(words[2]));
                members.put(words[1], made);
            } else {
                ConsumerPartitionAssignor assignor = words[1].equals("range") ? new RangeAssignor() : new StickyAssignor();
                Cluster cluster = new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
                assignor.assign(cluster, new GroupSubscription(members)).groupAssignment().forEach((member, given) ->
                    given.partitions().forEach(each ->
                        answer.append(member).append(' ').append(each.topic()).append(' ').append(each.partition()).append('\n')));
                answer.append(".\n");
                partitions = new ArrayList<>();
                members = new HashMap<>();
            }
        }
        System.out.print(answer);
    }
}
