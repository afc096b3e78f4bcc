package rocketmq.demo;

import java.util.Map;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/** A Spring Cloud Stream program with RocketMQ's binder: three messages out, two functions that get them. Prints what each got. */
@SpringBootApplication
public class CloudClient {
    static final ConcurrentSkipListSet<String> ALL = new ConcurrentSkipListSet<>(), PAID = new ConcurrentSkipListSet<>();

    @Bean
    public Consumer<Message<String>> all() { return message -> ALL.add(message.getPayload()); }

    @Bean
    public Consumer<Message<String>> paid() { return message -> PAID.add(message.getPayload()); }

    public static void main(String[] args) throws Exception {
        ConfigurableApplicationContext context = SpringApplication.run(CloudClient.class, args);
        StreamBridge bridge = context.getBean(StreamBridge.class);
        for (String body : new String[] {"plain", "tagged", "delayed"}) {
            MessageBuilder<String> message = MessageBuilder.withPayload(body);
            if (body.equals("tagged")) message.setHeader("TAGS", "paid");
            if (body.equals("delayed")) message.setHeader("DELAY", 1);
            if (!bridge.send("out-0", message.build())) throw new IllegalStateException(body + " was not sent");
        }
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(240);
        while (System.nanoTime() < end && !(ALL.contains("plain") && ALL.contains("tagged") && ALL.contains("delayed") && PAID.contains("tagged"))) {
            Thread.sleep(50);
        }
        Map.of("all", ALL, "paid", PAID).forEach((name, got) -> System.out.println(name + " " + String.join(",", got)));
        System.out.flush();
        context.close();
        System.exit(0);
    }
}
