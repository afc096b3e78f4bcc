import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in one process. Prints the port of WebHDFS; ends with its stdin. */
public class Hdfs {
    public static void main(String[] words) throws Exception {
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", words[0]);
        conf.setBoolean("dfs.permissions.enabled", false);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("port " + cluster.getNameNode().getHttpAddress().getPort());
        while (System.in.read() >= 0) {}
        cluster.shutdown();
    }
}
