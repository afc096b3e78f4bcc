import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * What an application does with a broker, in the words of all official Java clients since 4.3: args are the name server
 * and a name that nobody else uses. Prints a line a check, and exits with the number of those that failed.
 */
public class Versions {
    private static final int SEND_MS = 20_000, WAIT_S = 120;
    private static String names, version;
    private static int passed, failed;

    public static void main(String[] args) {
        names = args[0];
        version = args[1].replace('.', '_');
        try {
            DefaultMQProducer producer = started(new DefaultMQProducer("P" + version));
            List<SendResult> sent = sends(producer);
            consumes(producer);
            orders(producer);
            finds(producer, sent);
            transactions();
        } catch (Throwable ended) {
            ended.printStackTrace();
            check("goes on to its end", false);
        }
        System.out.println(args[1] + ": " + passed + " passed, " + failed + " failed");
        System.exit(failed);  // clients have threads of their own
    }

    private static void check(String what, boolean is) {
        if (is) passed++;
        else failed++;
        System.out.println((is ? "ok " : "FAILED ") + what);
    }

    private static void soon(String what, Callable<Boolean> is) throws Exception {
        long end = System.currentTimeMillis() + WAIT_S * 1000;
        while (!is.call() && System.currentTimeMillis() < end) Thread.sleep(100);
        check(what, is.call());
    }

    private static <P extends DefaultMQProducer> P started(P producer) throws Exception {
        producer.setNamesrvAddr(names);
        producer.setInstanceName(producer.getProducerGroup());
        producer.setSendMsgTimeout(SEND_MS);
        producer.setCreateTopicKey("TBW102");  // 4.3.0 has another name for it, which no broker knows
        producer.start();
        return producer;
    }

    /** `takes` returns whether a message is done with. */
    private static void consume(String group, String topic, MessageSelector selector, MessageModel model, boolean orderly, Predicate<MessageExt> takes) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group + version);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName(group + version);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(model);
        consumer.subscribe(topic, selector);
        if (orderly) consumer.registerMessageListener((MessageListenerOrderly) (all, context) -> all.stream().allMatch(takes) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        else consumer.registerMessageListener((MessageListenerConcurrently) (all, context) -> all.stream().allMatch(takes) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.start();
    }

    private static String body(Message message) {
        return new String(message.getBody());
    }

    private static Message message(String topic, String tag, String key, String body) {
        return new Message(topic, tag, key, body.getBytes());
    }

    private static final Set<String> ALL = ConcurrentHashMap.newKeySet();

    private static List<SendResult> sends(DefaultMQProducer producer) throws Exception {
        String topic = "T" + version;
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message made = message(topic, i % 2 == 0 ? "A" : "B", "key" + i, "sync" + i);
            made.putUserProperty("n", "" + i);
            results.add(producer.send(made));
            ALL.add("sync" + i);
        }
        check("sends", results.stream().allMatch(each -> each.getSendStatus() == SendStatus.SEND_OK));
        CountDownLatch left = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            ALL.add("async" + i);
            producer.send(message(topic, "A", "", "async" + i), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    left.countDown();
                }

                @Override public void onException(Throwable refused) {
                    refused.printStackTrace();
                }
            });
        }
        check("sends and goes on", left.await(WAIT_S, TimeUnit.SECONDS));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            producer.sendOneway(message(topic, "A", "", "oneway" + i));
            batch.add(message(topic, "A", "", "batch" + i));
            Collections.addAll(ALL, "oneway" + i, "batch" + i);
        }
        check("sends a batch", producer.send(batch).getSendStatus() == SendStatus.SEND_OK);
        char[] much = new char[200_000];
        Arrays.fill(much, 'x');
        ALL.add(new String(much));
        producer.send(message(topic, "A", "", new String(much)));
        return results;
    }

    private static void consumes(DefaultMQProducer producer) throws Exception {
        String topic = "T" + version;
        Set<String> got = ConcurrentHashMap.newKeySet(), tagged = ConcurrentHashMap.newKeySet(), filtered = ConcurrentHashMap.newKeySet(), cast = ConcurrentHashMap.newKeySet();
        AtomicInteger again = new AtomicInteger();
        consume("G", topic, MessageSelector.byTag("*"), MessageModel.CLUSTERING, false, each -> {
            if (body(each).equals("sync3") && each.getReconsumeTimes() == 0) return false;
            if (each.getReconsumeTimes() > 0) again.incrementAndGet();
            return got.add(body(each)) || true;
        });
        consume("GT", topic, MessageSelector.byTag("B"), MessageModel.CLUSTERING, false, each -> tagged.add(body(each)) || true);
        consume("GS", topic, MessageSelector.bySql("n >= 7"), MessageModel.CLUSTERING, false, each -> filtered.add(body(each)) || true);
        consume("GB", topic, MessageSelector.byTag("*"), MessageModel.BROADCASTING, false, each -> cast.add(body(each)) || true);
        soon("gets all", () -> got.containsAll(ALL));
        soon("gets a failure again", () -> again.get() > 0);
        soon("filters by tag", () -> tagged.size() == 5);
        soon("filters by SQL", () -> filtered.equals(Set.of("sync7", "sync8", "sync9")));
        producer.send(message(topic, "A", "", "cast"));
        soon("gets broadcasts", () -> cast.contains("cast"));
        long asked = System.currentTimeMillis();
        Message delayed = message(topic, "A", "", "delayed");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        soon("gets delayed ones", () -> got.contains("delayed"));
        check("not before they are due", System.currentTimeMillis() - asked >= 900);
    }

    private static void orders(DefaultMQProducer producer) throws Exception {
        String topic = "O" + version;
        for (int i = 0; i < 40; i++) producer.send(message(topic, "", "", "" + i), (queues, each, key) -> queues.get((Integer) key % queues.size()), i % 2);
        Map<Integer, List<Integer>> came = new ConcurrentHashMap<>();
        consume("GO", topic, MessageSelector.byTag("*"), MessageModel.CLUSTERING, true, each -> came.computeIfAbsent(each.getQueueId(), queue -> Collections.synchronizedList(new ArrayList<>())).add(Integer.parseInt(body(each))));
        soon("gets ordered ones", () -> came.values().stream().mapToInt(List::size).sum() == 40);
        check("in their order", came.values().stream().allMatch(each -> {
            List<Integer> sorted = new ArrayList<>(each);
            Collections.sort(sorted);
            return sorted.equals(each);
        }));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("GP" + version);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName("GP" + version);
        consumer.start();
        int found = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long end = consumer.maxOffset(queue);
            for (long at = consumer.minOffset(queue); at < end; ) {
                PullResult pulled = consumer.pull(queue, "*", at, 32);
                if (pulled.getPullStatus() == PullStatus.FOUND) found += pulled.getMsgFoundList().size();
                at = pulled.getNextBeginOffset();
            }
        }
        check("pulls", found == 40);
    }

    private static void finds(DefaultMQProducer producer, List<SendResult> sent) throws Exception {
        String topic = "T" + version;
        long now = System.currentTimeMillis();
        QueryResult found = producer.queryMessage(topic, "key4", 10, now - 3_600_000, now + 60_000);
        check("finds by key", found.getMessageList().size() == 1);
        check("finds by id", body(producer.viewMessage(topic, sent.get(4).getMsgId())).equals("sync4"));
        check("finds by place", body(producer.viewMessage(topic, sent.get(5).getOffsetMsgId())).equals("sync5"));
    }

    private static void transactions() throws Exception {
        String topic = "X" + version;
        Set<String> came = ConcurrentHashMap.newKeySet(), asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer("TP" + version);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message half, Object with) {
                switch (body(half)) {
                    case "commit":
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case "roll back":
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt half) {
                asked.add(body(half));
                return body(half).equals("roll back") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        started(producer);
        for (String each : new String[] {"commit", "roll back", "ask me"}) producer.sendMessageInTransaction(message(topic, "", "", each), null);
        consume("GX", topic, MessageSelector.byTag("*"), MessageModel.CLUSTERING, false, each -> came.add(body(each)) || true);
        soon("is asked for a transaction, and gets it", () -> asked.contains("ask me") && came.contains("ask me"));
        soon("gets what is committed", () -> came.contains("commit"));
        check("and not what is rolled back", !came.contains("roll back"));
    }
}
