import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A resource manager and two node managers, until the input ends; their settings are in the file that is named. */
public final class YarnCluster {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration settings = new YarnConfiguration();
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        settings.setInt("yarn.nodemanager.resource.memory-mb", 4096);
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
        settings.set("yarn.nodemanager.env-whitelist", "JAVA_HOME");
        settings.set("fs.defaultFS", "file:///");
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
        settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.8");
        try (MiniYARNCluster cluster = new MiniYARNCluster("yarn", 2, 1, 1)) {
            cluster.init(settings);
            cluster.start();
            try (OutputStream file = new FileOutputStream(arguments[0])) {
                new Configuration(cluster.getConfig()).writeXml(file);
            }
            System.out.println("started");
            System.in.read();
        }
    }
}
