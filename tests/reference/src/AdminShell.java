import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many command lines of mqadmin in one process: each line of stdin is one, its words with tabs between; what it printed
 * comes on stdout, and a line with one character U+0004 after it. Besides the admin tool's own verbs there are
 *   +send NAMESRV TOPIC KEY...        a message a key, its body `body of KEY`; prints `KEY MSGID OFFSETMSGID QUEUE OFFSET`
 *   +consume NAMESRV GROUP TOPIC      a consumer that runs until the process ends; prints its client id
 *   +produce NAMESRV GROUP TOPIC      a producer that runs until then
 */
public class AdminShell {
    static final List<Object> alive = new ArrayList<>();

    public static void main(String[] a) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
            String[] words = line.split("\t", -1);
            try { if (words[0].startsWith("+")) own(words); else { forget(); MQAdminStartup.main0(words, null); } }
            catch (Throwable t) { t.printStackTrace(System.out); }
            System.out.flush();
            said.writeTo(out); out.println("\n\u0004"); out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** Each command line makes its verbs anew: some of them keep an admin client, which they have shut down. */
    static void forget() throws Exception {
        for (var f : MQAdminStartup.class.getDeclaredFields())
            if (List.class.isAssignableFrom(f.getType())) { f.setAccessible(true); ((List<?>) f.get(null)).clear(); }
    }

    static void own(String[] w) throws Exception {
        if (w[0].equals("+consume")) {
            DefaultMQPushConsumer c = new DefaultMQPushConsumer(w[2]); c.setNamesrvAddr(w[1]); c.setInstanceName(w[2]);
            c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(w[3], "*");
            c.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            c.start(); alive.add(c);
            System.out.print(c.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
            return;
        }
        DefaultMQProducer p = new DefaultMQProducer(w[0].equals("+produce") ? w[2] : "shell"); p.setNamesrvAddr(w[1]); p.setInstanceName(p.getProducerGroup());
        p.setSendMsgTimeout(120_000);  // a busy machine takes more than three seconds now and then
        p.start();
        if (w[0].equals("+produce")) { p.send(new Message(w[3], "hello".getBytes(StandardCharsets.UTF_8))); alive.add(p); return; }
        for (int i = 3; i < w.length; i++) {
            SendResult r = p.send(new Message(w[2], "TagA", w[i], ("body of " + w[i]).getBytes(StandardCharsets.UTF_8)));
            System.out.println(w[i] + " " + r.getMsgId() + " " + r.getOffsetMsgId() + " " + r.getMessageQueue().getQueueId() + " " + r.getQueueOffset());
        }
        p.shutdown();
    }
}
