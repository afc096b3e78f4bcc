import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Two services that agree by transactional messages: orders are taken, products leave the stock.
 * args: ROLES NAMESRV TOPIC FOLDER COUNT     ROLES with commas; they run side by side until stdin ends
 *   hello    ten messages of a plain transaction producer, tags A to E, keys KEY0 to KEY9: all are unknown at first, and a check
 *            says nothing, commit or rollback by the number
 *   orders   COUNT orders; the local transaction writes a row into FOLDER/orders, half of them are good by their hash
 *   unsure   the same, but each answer is UNKNOW: the check reads the row
 *   dies     the same as orders, but the process ends in the middle of the last local transaction, with its row written
 *   answers  another instance of the order service, which only answers checks
 *   products a consumer with a ledger, FOLDER/message_apply: an order that comes again changes nothing
 *   retries  COUNT plain messages, sent again up to eight times when no answer comes
 *   later    the same, delayed by level 1, level 2 and a timer of four seconds in turn
 * Prints a JSON line for each thing that happened: {"did", ...}. Compiles with the clients of 5.x and of 4.9.
 */
public class Orders {
    static final String GROUP = "order-service";
    static String ns, topic; static int count;
    static Table orders, applied;

    static synchronized void say(String did, Object... facts) {
        StringBuilder b = new StringBuilder("{\"did\":" + Json.j(did));
        for (int i = 0; i < facts.length; i += 2) b.append("," + Json.j((String) facts[i]) + ":" + (facts[i + 1] instanceof Number || facts[i + 1] instanceof Boolean ? facts[i + 1] : Json.j(String.valueOf(facts[i + 1]))));
        System.out.println(b.append("}")); System.out.flush();
    }

    /** A table with a unique key, on the disk when put returns: what a database would be. */
    static class Table {
        final Path file; final Map<String, String> rows = new ConcurrentHashMap<>();

        Table(Path file) throws IOException {
            this.file = file;
            if (Files.exists(file)) for (String line : Files.readAllLines(file)) { String[] kv = line.split(" "); if (kv.length == 2) rows.put(kv[0], kv[1]); }
        }

        /** False when the key is there already. */
        synchronized boolean insert(String key, String value) {
            if (rows.containsKey(key)) return false;
            try { Files.write(file, (key + " " + value + "\n").getBytes(StandardCharsets.UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND, StandardOpenOption.SYNC); }
            catch (IOException e) { throw new RuntimeException(e); }
            rows.put(key, value);
            return true;
        }
    }

    public static void main(String[] a) throws Exception {
        ns = a[1]; topic = a[2]; count = Integer.parseInt(a[4]);
        Path folder = Paths.get(a[3]);
        orders = new Table(folder.resolve("orders")); applied = new Table(folder.resolve("message_apply"));
        for (String role : a[0].split(",")) {
            if (role.equals("products")) products();   // there before the first order
            else new Thread(() -> { try { play(role); } catch (Throwable t) { t.printStackTrace(); say("failed", "role", role, "why", t); } }, role).start();
        }
        while (System.in.read() >= 0) { }
        Runtime.getRuntime().halt(0);   // the client's threads would keep it alive for seconds
    }

    static void play(String role) throws Exception {
        switch (role) {
            case "hello": hello(); break;
            case "retries": retries("body "); break;
            case "later": retries("later "); break;
            case "answers":   // its heartbeats go where it has sent something
                orderService(role).send(new Message(topic + "-news", "here again".getBytes(StandardCharsets.UTF_8)));
                say("ready");
                break;
            default: takeOrders(role);
        }
        if (!role.equals("answers")) say("end", "role", role);
    }

    // ---- a plain transaction producer ----

    static void hello() throws Exception {
        TransactionMQProducer p = new TransactionMQProducer("transaction-producers");
        p.setNamesrvAddr(ns); p.setInstanceName("hello");
        p.setExecutorService(new ThreadPoolExecutor(2, 5, 100, TimeUnit.SECONDS, new ArrayBlockingQueue<>(2000), r -> new Thread(r, "client-transaction-msg-check-thread")));
        AtomicInteger number = new AtomicInteger(); Map<String, Integer> states = new ConcurrentHashMap<>();
        p.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) { states.put(m.getTransactionId(), number.getAndIncrement() % 3); return LocalTransactionState.UNKNOW; }
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                say("checked", "key", m.getKeys());
                Integer state = states.get(m.getTransactionId());
                return state == null || state == 1 ? LocalTransactionState.COMMIT_MESSAGE : state == 2 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        p.start();
        String[] tags = {"TagA", "TagB", "TagC", "TagD", "TagE"};
        for (int i = 0; i < 10; i++) {
            TransactionSendResult r = p.sendMessageInTransaction(new Message(topic + "-hello", tags[i % 5], "KEY" + i, ("Hello RocketMQ " + i).getBytes(StandardCharsets.UTF_8)), null);
            say("sent", "key", "KEY" + i, "status", r.getSendStatus(), "state", r.getLocalTransactionState(), "transaction", r.getTransactionId());
        }
    }

    // ---- the order service ----

    static TransactionMQProducer orderService(String role) throws Exception {
        TransactionMQProducer p = new TransactionMQProducer();
        p.setNamesrvAddr(ns); p.setProducerGroup(GROUP); p.setInstanceName(role + System.nanoTime()); p.setHeartbeatBrokerInterval(1000);
        p.setExecutorService(new ThreadPoolExecutor(10, 50, 10, TimeUnit.SECONDS, new ArrayBlockingQueue<>(20), r -> new Thread(r, "order-transactions"), new ThreadPoolExecutor.CallerRunsPolicy()));
        AtomicInteger taken = new AtomicInteger();
        p.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                String id = (String) arg;
                orders.insert(id, Math.abs(Objects.hash(id)) % 2 == 0 ? "good" : "bad");
                if (role.equals("dies") && taken.incrementAndGet() == count) Runtime.getRuntime().halt(9);
                return role.equals("unsure") ? LocalTransactionState.UNKNOW : stateOf(id, m);
            }
            /** The row decides. No row: the local transaction failed, or is still at work. */
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                try { orders.rows.putAll(new Table(orders.file).rows); } catch (IOException e) { return LocalTransactionState.UNKNOW; }
                LocalTransactionState said = stateOf(m.getKeys(), m);
                say("checked", "order", m.getKeys(), "said", said, "user", String.valueOf(m.getUserProperty("OrderId")));
                return said;
            }
        });
        p.start();
        return p;
    }

    static LocalTransactionState stateOf(String id, Message m) {
        String row = orders.rows.get(id);
        if (row != null) return row.equals("good") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        boolean old = m instanceof MessageExt && System.currentTimeMillis() - ((MessageExt) m).getBornTimestamp() > 5000;
        return old ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    static void takeOrders(String role) throws Exception {
        TransactionMQProducer p = orderService(role);
        for (int i = 0; i < count; i++) {
            String id = UUID.randomUUID().toString();
            Message m = new Message(topic, "Tag", id, ("order " + id).getBytes(StandardCharsets.UTF_8));
            m.putUserProperty("OrderId", id);
            try {
                TransactionSendResult r = p.sendMessageInTransaction(m, id);
                say("ordered", "order", id, "state", r.getLocalTransactionState(), "transaction", r.getTransactionId());
            } catch (Exception e) { say("refused", "order", id); Thread.sleep(100); }
        }
    }

    // ---- the product service ----

    static void products() throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer("product-service");
        c.setNamesrvAddr(ns); c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.setInstanceName("products"); c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) say("consumed", "order", m.getKeys(), "again", !applied.insert(m.getKeys(), "1"), "body", new String(m.getBody(), StandardCharsets.UTF_8));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
    }

    // ---- a client without answers ----

    static void retries(String what) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("retrying");
        p.setNamesrvAddr(ns); p.setRetryTimesWhenSendFailed(8); p.setSendMsgTimeout(20000); p.start();
        for (int i = 0; i < count; i++) {
            Message m = new Message(topic, "t", "key-" + i, (what + i).getBytes(StandardCharsets.UTF_8));
            if (what.equals("later ")) { if (i % 3 == 2) MessageAccessor.putProperty(m, "TIMER_DELAY_MS", "4000"); else m.setDelayTimeLevel(i % 3 + 1); }
            SendResult r = p.send(m);
            say("sent", "key", "key-" + i, "id", r.getMsgId(), "place", r.getOffsetMsgId(), "queue", r.getMessageQueue().getQueueId(), "offset", r.getQueueOffset());
        }
    }
}
