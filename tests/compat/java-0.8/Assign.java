import java.io.BufferedReader;
import java.io.InputStreamReader;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.PartitionAssignor;
import kafka.consumer.PartitionAssignor$;
import kafka.utils.ZKStringSerializer$;
import org.I0Itec.zkclient.ZkClient;
import scala.Tuple2;
import scala.collection.Iterator;

/** What Kafka 0.8.2's assignors give to members that are registered in a ZooKeeper: a line "strategy group consumer" on the
 * standard input each, answered by lines "topic partition thread", and an empty one; "!" for what it refuses. */
public final class Assign {
    public static void main(String[] arguments) throws Exception {
        ZkClient client = new ZkClient(arguments[0], 60000, 60000, ZKStringSerializer$.MODULE$);
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] words = line.split(" ");
            StringBuilder answer = new StringBuilder();
            try {
                PartitionAssignor assignor = PartitionAssignor$.MODULE$.createInstance(words[0]);
                AssignmentContext context = new AssignmentContext(words[1], words[2], true, client);
                Iterator<Tuple2<TopicAndPartition, ConsumerThreadId>> found = assignor.assign(context).iterator();
                while (found.hasNext()) {
                    Tuple2<TopicAndPartition, ConsumerThreadId> each = found.next();
                    answer.append(each._1().topic()).append(' ').append(each._1().partition()).append(' ')
                        .append(each._2().toString()).append('\n');
                }
            } catch (IllegalArgumentException refused) {
                answer.append("!\n");
            } catch (NullPointerException none) {
                // A group that reads no topic at all trips it: nobody gets anything.
                answer.setLength(0);
            }
            System.out.println(answer);
        }
        client.close();
    }
}
