import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.Message;

/**
 * The official producer with its defaults sends one message after the other until it is ended, and prints of each that was
 * acknowledged when it was: microseconds since 1970. args: NAMESRV TOPIC POLL_MS, how often it asks for routes (30,000 by default).
 */
public class Acks {
    public static void main(String[] a) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("acks");
        producer.setNamesrvAddr(a[0]);
        producer.setPollNameServerInterval(Integer.parseInt(a[2]));
        producer.start();
        byte[] body = "x".repeat(128).getBytes(StandardCharsets.UTF_8);
        while (true) {
            try {
                if (producer.send(new Message(a[1], body)).getSendStatus() != SendStatus.SEND_OK) continue;
                System.out.println(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
                System.out.flush();
            } catch (Exception failed) { Thread.sleep(5); }   // nobody is the master at this moment
            Thread.sleep(2);
        }
    }
}
