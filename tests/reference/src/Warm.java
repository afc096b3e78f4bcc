import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.*;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * A name server, a broker and clients in one process, which ends when they have met: what they load is archived for
 * those that start later (`reference setup`).
 * args: FOLDER, in which the store goes
 */
public class Warm {
    public static void main(String[] a) throws Exception {
        Thread limit = new Thread(() -> { try { Thread.sleep(300_000); } catch (InterruptedException e) { } Runtime.getRuntime().halt(1); }); limit.setDaemon(true); limit.start();
        Path folder = Path.of(a[0]); String names = "127.0.0.1:" + free();
        Path namesConf = folder.resolve("namesrv.conf"), brokerConf = folder.resolve("broker.conf");
        Files.writeString(namesConf, "listenPort=" + names.split(":")[1] + "\n");
        Files.writeString(brokerConf, String.join("\n", "brokerName=broker-a", "brokerIP1=127.0.0.1", "listenPort=" + free(), "namesrvAddr=" + names, "storePathRootDir=" + folder, "storePathCommitLog=" + folder.resolve("commitlog"),
            "mappedFileSizeCommitLog=1048576", "enablePropertyFilter=true", "transientStorePoolEnable=false", ""));
        NamesrvStartup.main(new String[] {"-c", namesConf.toString()});
        BrokerStartup.main(new String[] {"-c", brokerConf.toString()});
        Scenarios.main(new String[] {"send-sync,push-concurrent,query,topics", names, "4"});
    }

    static int free() throws IOException { try (ServerSocket s = new ServerSocket(0)) { return s.getLocalPort(); } }
}
