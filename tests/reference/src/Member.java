import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a consumer group that others are in too. args: NAMESRV TOPIC GROUP
 * Prints "ready", then the body of each message, until a line comes on stdin.
 */
public class Member {
    public static void main(String[] a) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(a[2]);
        consumer.setNamesrvAddr(a[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(a[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (System.out) {
                for (MessageExt m : messages) System.out.println(new String(m.getBody(), StandardCharsets.UTF_8));
                System.out.flush();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("ready");
        System.out.flush();
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        consumer.shutdown();
        Runtime.getRuntime().halt(0);
    }
}
