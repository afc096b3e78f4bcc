import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * A member of a consumer group that others are in too. args: NAMESRV TOPIC GROUP [PRODUCER_GROUP]
 * Prints "ready", then the body of each message, until a line comes on stdin. With PRODUCER_GROUP it also sends java-0, java-1 and
 * so on to the topic, as a member of that group, and prints "acknowledged BODY" of those that were; the first line on stdin then
 * ends the sends ("quiet" is printed), the second one all.
 */
public class Member {
    static volatile boolean quiet;

    public static void main(String[] a) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(a[2]);
        consumer.setNamesrvAddr(a[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(a[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) print(new String(m.getBody(), StandardCharsets.UTF_8));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        print("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        if (a.length > 3) {
            Thread sender = new Thread(() -> send(a[0], a[1], a[3]));
            sender.start();
            in.readLine();
            quiet = true;
            sender.join();
            print("quiet");
        }
        in.readLine();
        consumer.shutdown();
        Runtime.getRuntime().halt(0);
    }

    static void print(String line) {
        synchronized (System.out) { System.out.println(line); System.out.flush(); }
    }

    static void send(String namesrv, String topic, String group) {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(2000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setPollNameServerInterval(1000);
        try {
            producer.start();
            for (int n = 0; !quiet; n++) {
                String body = "java-" + n;
                try {
                    if (producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8))).getSendStatus() == SendStatus.SEND_OK) print("acknowledged " + body);
                } catch (Exception failed) { Thread.sleep(20); }   // the broker is down at this moment
                Thread.sleep(5);
            }
            producer.shutdown();
        } catch (Exception failed) { failed.printStackTrace(); System.exit(3); }
    }
}
