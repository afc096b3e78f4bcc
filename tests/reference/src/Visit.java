import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

/**
 * The official client visits a running broker: reads whole topics, looks up keys and message ids, then sends.
 * args: NAMESRV SENDS TOPIC...   SENDS: messages to send to each topic afterwards.
 * Prints a JSON line per fact: {"at":"got"} a message pulled · {"at":"key"} a lookup of its first key · {"at":"id"} of its offset id
 *   · {"at":"sent"} an acknowledged send.
 */
public class Visit {
    static String body(byte[] sent) { byte[] b = sent == null ? new byte[0] : sent; CRC32 c = new CRC32(); c.update(b); return "\"body_len\":" + b.length + ",\"body_crc32\":\"" + String.format("%08x", c.getValue()) + "\""; }

    /** A broker's topics reach the name server some seconds after its start. */
    static Set<MessageQueue> queues(DefaultMQPullConsumer c, String topic) throws Exception {
        for (int tries = 0; ; tries++)
            try { return new TreeSet<>(c.fetchSubscribeMessageQueues(topic)); } catch (MQClientException e) { if (tries > 100) throw e; Thread.sleep(200); }
    }

    public static void main(String[] a) {
        try { visit(a); System.exit(0); } catch (Throwable e) { e.printStackTrace(); System.exit(1); }   // the client's threads would keep it alive
    }

    static void visit(String[] a) throws Exception {
        int sends = Integer.parseInt(a[1]);
        DefaultMQPullConsumer c = new DefaultMQPullConsumer("visit-" + System.nanoTime()); c.setNamesrvAddr(a[0]); c.setMqClientApiTimeout(60000); c.start();
        DefaultMQProducer p = new DefaultMQProducer("visit-producer"); p.setNamesrvAddr(a[0]); p.setSendMsgTimeout(60000); p.setMqClientApiTimeout(60000); p.start();
        for (int i = 2; i < a.length; i++) {
            int n = 0;
            for (MessageQueue q : queues(c, a[i])) {
                long at = c.minOffset(q), max = c.maxOffset(q);
                while (at < max) {
                    PullResult r = c.pull(q, "*", at, 32, 10000);
                    if (r.getPullStatus() != PullStatus.FOUND) { System.out.println("{\"at\":\"bad\",\"status\":\"" + r.getPullStatus() + "\"}"); break; }
                    for (MessageExt m : r.getMsgFoundList()) {
                        System.out.println("{\"at\":\"got\",\"topic\":" + Json.j(m.getTopic()) + ",\"queue\":" + m.getQueueId() + ",\"queue_offset\":" + m.getQueueOffset()
                            + ",\"phy\":" + m.getCommitLogOffset() + ",\"tags\":" + Json.j(String.valueOf(m.getTags())) + ",\"keys\":" + Json.j(String.valueOf(m.getKeys())) + "," + body(m.getBody()) + "}");
                        if (m.getKeys() == null || n++ % 25 != 0) continue;
                        String key = m.getKeys().split(" ")[0];
                        QueryResult found = c.queryMessage(m.getTopic(), key, 64, 0, Long.MAX_VALUE);
                        System.out.println("{\"at\":\"key\",\"topic\":" + Json.j(m.getTopic()) + ",\"key\":" + Json.j(key) + ",\"found\":" + found.getMessageList().size() + "}");
                        MessageExt same = p.viewMessage(m.getTopic(), ((MessageClientExt) m).getOffsetMsgId());
                        System.out.println("{\"at\":\"id\",\"asked\":" + m.getCommitLogOffset() + ",\"phy\":" + same.getCommitLogOffset() + "}");
                    }
                    at = r.getNextBeginOffset();
                }
            }
            for (int k = 0; k < sends; k++) {
                Message m = new Message(a[i], "visit", "visit-" + i + "-" + k + " visitor", ("from java " + k).getBytes(StandardCharsets.UTF_8));
                SendResult r = p.send(m);
                System.out.println("{\"at\":\"sent\",\"topic\":" + Json.j(a[i]) + ",\"queue\":" + r.getMessageQueue().getQueueId() + ",\"queue_offset\":" + r.getQueueOffset()
                    + ",\"status\":\"" + r.getSendStatus() + "\",\"offset_msg_id\":\"" + r.getOffsetMsgId() + "\",\"msg_id\":\"" + r.getMsgId() + "\",\"keys\":" + Json.j(m.getKeys()) + "," + body(m.getBody()) + "}");
            }
        }
        c.shutdown(); p.shutdown();
    }
}
