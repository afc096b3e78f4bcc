import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Producers and consumers that come and go, while somebody else kills the broker.
 * args: NAMESRV TOPIC SEED PRODUCERS CONSUMERS DRAIN_S
 * Runs until a line comes on stdin; then the producers stop, and the consumers go on until everything is delivered, DRAIN_S at most.
 * Prints {"at":"running"} once messages flow, and one line at the end: acked, lost (acknowledged but delivered to nobody, some of
 * them by name), missing (acknowledged but not in the topic), failed sends, delivered, duplicates, unknown (delivered without an
 * acknowledgement: the answer was lost), joined.
 */
public class Campaign {
    static final Set<String> acked = ConcurrentHashMap.newKeySet();
    static final ConcurrentHashMap<String, Integer> delivered = new ConcurrentHashMap<>();
    static final LongAdder failed = new LongAdder(), deliveries = new LongAdder(), joined = new LongAdder();
    static final AtomicBoolean stop = new AtomicBoolean(), over = new AtomicBoolean();

    public static void main(String[] a) throws Exception {
        String ns = a[0], topic = a[1]; long seed = Long.parseLong(a[2]); int producers = Integer.parseInt(a[3]), consumers = Integer.parseInt(a[4]);
        double drain = Double.parseDouble(a[5]); String group = topic + "-group";
        List<Thread> makers = new ArrayList<>(), takers = new ArrayList<>();
        for (int i = 0; i < producers; i++) { int n = i; makers.add(start(() -> produce(ns, topic, n, new Random(seed + n)))); }
        for (int i = 0; i < consumers; i++) { int n = i; takers.add(start(() -> consume(ns, topic, group, n, new Random(seed * 31 + n)))); }
        while (acked.size() < 100 || delivered.size() < 100) Thread.sleep(50);
        System.out.println("{\"at\":\"running\"}"); System.out.flush();
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        stop.set(true);
        for (Thread t : makers) t.join();
        long end = System.nanoTime() + (long) (drain * 1e9);
        while (lost().size() > 0 && System.nanoTime() < end) Thread.sleep(200);
        over.set(true);
        List<String> lost = lost(), missing = missing(ns, topic);
        long unknown = delivered.keySet().stream().filter(k -> !acked.contains(k)).count();
        System.out.println("{\"at\":\"end\",\"acked\":" + acked.size() + ",\"failed\":" + failed.sum() + ",\"delivered\":" + delivered.size() + ",\"duplicates\":" + (deliveries.sum() - delivered.size())
            + ",\"unknown\":" + unknown + ",\"joined\":" + joined.sum() + ",\"lost\":" + lost.size() + ",\"lost_names\":" + names(lost) + ",\"missing\":" + missing.size() + ",\"missing_names\":" + names(missing) + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static List<String> lost() { List<String> l = new ArrayList<>(); for (String s : acked) if (!delivered.containsKey(s)) l.add(s); return l; }

    static String names(List<String> l) { StringBuilder b = new StringBuilder("["); for (int i = 0; i < Math.min(10, l.size()); i++) b.append(i == 0 ? "" : ",").append(Json.j(l.get(i))); return b.append("]").toString(); }

    interface Work { void run() throws Exception; }

    static Thread start(Work w) {
        Thread t = new Thread(() -> { try { w.run(); } catch (Throwable e) { e.printStackTrace(); System.exit(3); } });
        t.setDaemon(true); t.start(); return t;
    }

    /** One producer after another, each for some seconds. */
    static void produce(String ns, String topic, int n, Random r) throws Exception {
        int sent = 0;
        for (int life = 0; !stop.get(); life++) {
            DefaultMQProducer p = new DefaultMQProducer("campaign-makers"); p.setNamesrvAddr(ns); p.setInstanceName("maker-" + n + "-" + life);
            p.setRetryTimesWhenSendFailed(0); p.setSendMsgTimeout(2000); p.setPollNameServerInterval(1000); p.setHeartbeatBrokerInterval(1000); p.start();
            long end = System.nanoTime() + (2_000_000_000L + r.nextInt(1000) * 4_000_000L);
            while (!stop.get() && System.nanoTime() < end) {
                int count = r.nextInt(10) == 0 ? 1 + r.nextInt(16) : 1; List<Message> l = new ArrayList<>(); List<String> ids = new ArrayList<>();
                for (int i = 0; i < count; i++) { String id = n + "." + sent++; byte[] pad = new byte[r.nextInt(400)]; Arrays.fill(pad, (byte) '.'); ids.add(id); l.add(new Message(topic, "c", id, (id + " " + new String(pad, StandardCharsets.US_ASCII)).getBytes(StandardCharsets.US_ASCII))); }
                try {
                    SendResult s = count == 1 ? p.send(l.get(0)) : p.send(l);
                    if (s.getSendStatus() == SendStatus.SEND_OK) acked.addAll(ids); else failed.increment();
                } catch (Exception e) { failed.increment(); Thread.sleep(20); }
                if (r.nextInt(8) == 0) Thread.sleep(1);
            }
            p.shutdown();
        }
    }

    /** One consumer after another; now and then one leaves without the others' knowing for a moment. */
    static void consume(String ns, String topic, String group, int n, Random r) throws Exception {
        for (int life = 0; !over.get(); life++) {
            DefaultMQPushConsumer c = new DefaultMQPushConsumer(group); c.setNamesrvAddr(ns); c.setInstanceName("taker-" + n + "-" + life);
            c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "*"); c.setConsumeThreadMin(2); c.setConsumeThreadMax(2);
            c.setHeartbeatBrokerInterval(1000); c.setPollNameServerInterval(1000); c.setPersistConsumerOffsetInterval(1000); c.setPullTimeDelayMillsWhenException(300);
            c.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> {
                for (MessageExt m : ms) { deliveries.increment(); delivered.merge(m.getKeys(), 1, Integer::sum); }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            try { c.start(); } catch (Exception e) { c.shutdown(); Thread.sleep(300); continue; }   // the broker is down at this moment
            joined.increment();
            long stay = 3000 + r.nextInt(8000);
            for (long t = 0; t < stay || stop.get(); t += 100) { if (over.get()) break; Thread.sleep(100); }   // those there at the end stay
            c.shutdown();
        }
    }

    /** What was acknowledged and is not in the topic. */
    static List<String> missing(String ns, String topic) throws Exception {
        DefaultMQPullConsumer c = new DefaultMQPullConsumer("campaign-audit"); c.setNamesrvAddr(ns); c.setInstanceName("campaign-audit"); c.start();
        Set<String> left = new HashSet<>(acked);
        for (MessageQueue q : c.fetchSubscribeMessageQueues(topic))
            for (long at = c.minOffset(q), max = c.maxOffset(q); at < max; ) {
                PullResult r = c.pull(q, "*", at, 1024, 10000);
                if (r.getPullStatus() != PullStatus.FOUND) throw new IllegalStateException(q + " at " + at + " of " + max + ": " + r.getPullStatus());
                for (MessageExt m : r.getMsgFoundList()) left.remove(m.getKeys());
                at = r.getNextBeginOffset();
            }
        return new ArrayList<>(left);
    }
}
