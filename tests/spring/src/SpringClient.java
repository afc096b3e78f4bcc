package rocketmq.demo;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/** A Spring Boot program of RocketMQ's starter: every way to send, listeners, transactions. Prints what each listener got. */
@SpringBootApplication
public class SpringClient {
    static final Map<String, ConcurrentSkipListSet<String>> GOT = Map.of("all", new ConcurrentSkipListSet<>(), "paid", new ConcurrentSkipListSet<>());

    @Component
    @RocketMQMessageListener(topic = "${demo.topic}", consumerGroup = "${demo.topic}-all")
    static class All implements RocketMQListener<String> {
        public void onMessage(String body) { GOT.get("all").add(body); }
    }

    @Component
    @RocketMQMessageListener(topic = "${demo.topic}", consumerGroup = "${demo.topic}-paid", selectorType = SelectorType.TAG, selectorExpression = "paid")
    static class Paid implements RocketMQListener<String> {
        public void onMessage(String body) { GOT.get("paid").add(body); }
    }

    @RocketMQTransactionListener
    static class Local implements RocketMQLocalTransactionListener {
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return "commit".equals(argument) ? RocketMQLocalTransactionState.COMMIT : RocketMQLocalTransactionState.ROLLBACK;
        }
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) { return RocketMQLocalTransactionState.ROLLBACK; }
    }

    public static void main(String[] arguments) throws Exception {
        try (ConfigurableApplicationContext context = SpringApplication.run(SpringClient.class, arguments)) {
            String topic = context.getEnvironment().getProperty("demo.topic");
            RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
            template.syncSend(topic, "sync");
            template.syncSend(topic + ":paid", MessageBuilder.withPayload("tagged").setHeader("KEYS", "key-1").build());
            template.syncSendOrderly(topic, "orderly", "order-17");
            template.sendOneWay(topic, "oneway");
            CountDownLatch stored = new CountDownLatch(1);
            template.asyncSend(topic, "async", new SendCallback() {
                public void onSuccess(SendResult result) { stored.countDown(); }
                public void onException(Throwable failed) { failed.printStackTrace(); }
            });
            stored.await(60, TimeUnit.SECONDS);
            template.syncSend(topic, MessageBuilder.withPayload("delayed").build(), 3000, 1);
            template.sendMessageInTransaction(topic, MessageBuilder.withPayload("committed").build(), "commit");
            template.sendMessageInTransaction(topic, MessageBuilder.withPayload("rolled back").build(), "roll back");
            for (int n = 0; n < 600 && GOT.get("all").size() < 7; n++) Thread.sleep(100);
            Thread.sleep(500);
            new TreeMap<>(GOT).forEach((name, found) -> System.out.println(name + " " + String.join(",", found)));
        }
    }
}
