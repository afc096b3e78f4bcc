import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * Load through RocketMQ 5's official gRPC client, one virtual machine for many pieces of work, so that it is warm.
 * Reads a line for each, answers one of JSON: seconds, done, errors.
 *   send ENDPOINT TOPIC COUNT [KIND]    128 bytes each, 64 in flight; KIND real: tag, keys and properties, in Chinese, too; ordered: of 64 groups
 *   take ENDPOINT TOPIC GROUP COUNT [KIND]   receives up to 32 at once and acknowledges each, 8 threads; ends when nothing comes for 15 s.
 *                                       KIND tag, sql: half of what was sent as `real`; lost: one in 20 is not acknowledged at first
 *   tx ENDPOINT TOPIC COUNT             a half and its commit each, 32 threads
 *   half ENDPOINT TOPIC BODY            a half that nobody commits, by a producer that stays
 *   check ENDPOINT TOPIC                a producer that commits what it is asked about; a line for each: checked
 */
public class GrpcLoad {
    static final ClientServiceProvider P = ClientServiceProvider.loadService();
    static final byte[] BODY = new byte[128];
    static final int IN_FLIGHT = 64, TAKERS = 8, MAKERS = 32, SILENCE_S = 15;

    static ClientConfiguration conf(String endpoint) {
        return ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    static Message message(String topic) { return P.newMessageBuilder().setTopic(topic).setBody(BODY).build(); }

    static Message message(String topic, String kind, int number) {
        if (kind.equals("real"))
            return P.newMessageBuilder().setTopic(topic).setBody(BODY).setTag(number % 2 == 0 ? "a" : "b").setKeys("\u8ba2\u5355" + number)
                .addProperty("n", String.valueOf(number % 10)).addProperty("\u72b6\u6001", "\u8ba2\u5355\u5df2\u4ed8\u6b3e").build();
        if (kind.equals("ordered")) return P.newMessageBuilder().setTopic(topic).setBody(BODY).setMessageGroup("g" + number % 64).build();
        return message(topic);
    }

    static FilterExpression filter(String kind) {
        if (kind.equals("tag")) return new FilterExpression("a || c", FilterExpressionType.TAG);
        if (kind.equals("sql")) return new FilterExpression("n < 5", FilterExpressionType.SQL92);
        return FilterExpression.SUB_ALL;
    }

    static String said(long began, long done, long errors) {
        return String.format(Locale.ROOT, "{\"seconds\": %.6f, \"done\": %d, \"errors\": %d}", (System.nanoTime() - began) / 1e9, done, errors);
    }

    static String send(String endpoint, String topic, int count, String kind) throws Exception {
        try (Producer producer = P.newProducerBuilder().setClientConfiguration(conf(endpoint)).setTopics(topic).build()) {
            Semaphore room = new Semaphore(IN_FLIGHT);
            AtomicLong errors = new AtomicLong();
            producer.send(message(topic, kind, 0));
            long began = System.nanoTime();
            for (int i = 0; i < count; i++) {
                room.acquire();
                producer.sendAsync(message(topic, kind, i)).whenComplete((receipt, error) -> {
                    if (error != null) errors.incrementAndGet();
                    room.release();
                });
            }
            room.acquire(IN_FLIGHT);
            return said(began, count - errors.get(), errors.get());
        }
    }

    static String take(String endpoint, String topic, String group, int count, String kind) throws Exception {
        SimpleConsumer consumer = P.newSimpleConsumerBuilder().setClientConfiguration(conf(endpoint)).setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(topic, filter(kind))).build();
        AtomicLong done = new AtomicLong(), errors = new AtomicLong(), last = new AtomicLong(System.nanoTime());
        ExecutorService pool = Executors.newFixedThreadPool(TAKERS);
        long began = System.nanoTime();
        for (int i = 0; i < TAKERS; i++) pool.submit(() -> {
            while (done.get() < count && System.nanoTime() - last.get() < SILENCE_S * 1_000_000_000L) {
                try {
                    List<CompletableFuture<Void>> acks = new ArrayList<>();
                    boolean loses = kind.equals("lost");
                    for (MessageView each : consumer.receive(32, Duration.ofSeconds(loses ? 10 : 60))) {
                        if (loses && each.getDeliveryAttempt() == 1 && ThreadLocalRandom.current().nextInt(20) == 0) continue;
                        acks.add(consumer.ackAsync(each));
                    }
                    for (CompletableFuture<Void> each : acks) {
                        each.get();
                        last.set(System.nanoTime());
                        done.incrementAndGet();
                    }
                } catch (Throwable e) { errors.incrementAndGet(); }
            }
        });
        while (done.get() < count && System.nanoTime() - last.get() < SILENCE_S * 1_000_000_000L) Thread.sleep(1);
        String result = said(began + (done.get() < count ? System.nanoTime() - last.get() : 0), done.get(), errors.get());
        pool.shutdown();
        pool.awaitTermination(30, TimeUnit.SECONDS);
        consumer.close();
        return result;
    }

    static String tx(String endpoint, String topic, int count) throws Exception {
        try (Producer producer = P.newProducerBuilder().setClientConfiguration(conf(endpoint)).setTopics(topic).setTransactionChecker(view -> TransactionResolution.COMMIT).build()) {
            AtomicLong left = new AtomicLong(count), errors = new AtomicLong();
            ExecutorService pool = Executors.newFixedThreadPool(MAKERS);
            long began = System.nanoTime();
            for (int i = 0; i < MAKERS; i++) pool.submit(() -> {
                while (left.decrementAndGet() >= 0) {
                    try {
                        Transaction transaction = producer.beginTransaction();
                        producer.send(message(topic), transaction);
                        transaction.commit();
                    } catch (Throwable e) { errors.incrementAndGet(); }
                }
            });
            pool.shutdown();
            pool.awaitTermination(600, TimeUnit.SECONDS);
            return said(began, count - errors.get(), errors.get());
        }
    }

    static String half(String endpoint, String topic, String body) throws Exception {
        Producer producer = P.newProducerBuilder().setClientConfiguration(conf(endpoint)).setTopics(topic).setTransactionChecker(view -> TransactionResolution.UNKNOWN).build();
        producer.send(P.newMessageBuilder().setTopic(topic).setBody(body.getBytes()).build(), producer.beginTransaction());
        return "{\"half\": \"" + body + "\"}";
    }

    static String check(String endpoint, String topic) throws Exception {
        P.newProducerBuilder().setClientConfiguration(conf(endpoint)).setTopics(topic).setTransactionChecker(view -> {
            byte[] body = new byte[view.getBody().remaining()];
            view.getBody().duplicate().get(body);
            System.out.println("{\"checked\": \"" + new String(body) + "\"}");
            System.out.flush();
            return TransactionResolution.COMMIT;
        }).build();
        return "{\"asks\": true}";
    }

    public static void main(String[] args) throws Exception {
        Scanner in = new Scanner(System.in);
        while (in.hasNextLine()) {
            String[] w = in.nextLine().trim().split(" ");
            String result;
            switch (w[0]) {
                case "send": result = send(w[1], w[2], Integer.parseInt(w[3]), w.length > 4 ? w[4] : ""); break;
                case "take": result = take(w[1], w[2], w[3], Integer.parseInt(w[4]), w.length > 5 ? w[5] : ""); break;
                case "tx": result = tx(w[1], w[2], Integer.parseInt(w[3])); break;
                case "half": result = half(w[1], w[2], w[3]); break;
                case "check": result = check(w[1], w[2]); break;
                default: throw new IllegalArgumentException(w[0]);
            }
            if (result != null) { System.out.println(result); System.out.flush(); }
        }
        System.exit(0);
    }
}
