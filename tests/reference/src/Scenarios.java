import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What official clients expect of a broker and its name server, a scenario each.
 * args: NAMES NAMESRV [PARALLEL]     NAMES: of scenarios, with commas, or `all`; PARALLEL: how many run at once (1)
 * -Dskip=NAME,NAME (JAVA_OPTS) leaves some out. -Dclients=ADDRESS: producers and consumers of the scenarios ask there, not at NAMESRV.
 * Prints a JSON line each: {"scenario", "ok", "seconds", "facts"} and, when an expectation failed, "failed"; exit 1 if any did.
 * The broker needs messageDelayLevel=1s 2s 1s 1s 1s 1s ..., enablePropertyFilter=true and autoCreateTopicEnable=true.
 * Compiles with the clients of 5.x and of 4.9: types that moved between packages are only ever `var`.
 */
public class Scenarios {
    interface Body { void run(Case c) throws Exception; }

    /** No verdict depends on how fast the machine is: only a hang takes as long. */
    static final double PATIENCE_S = 240;

    static final Map<String, Body> ALL = new LinkedHashMap<>();

    static class Failed extends RuntimeException { Failed(String why) { super(why); } }

    public static void main(String[] a) throws Exception {
        AdminScenarios.add(ALL); ConsumeScenarios.add(ALL); SendScenarios.add(ALL);   // the longest first
        if (a[0].equals("list")) { ALL.keySet().forEach(System.out::println); System.exit(0); }
        Set<String> names = new LinkedHashSet<>(a[0].equals("all") ? ALL.keySet() : Arrays.asList(a[0].split(",")));
        names.removeAll(Arrays.asList(System.getProperty("skip", "").split(",")));
        for (String n : names) if (!ALL.containsKey(n)) { System.err.println("no scenario " + n + "; there are " + ALL.keySet()); System.exit(2); }
        Shared shared = new Shared(a[1]);
        ExecutorService pool = Executors.newFixedThreadPool(a.length > 2 ? Integer.parseInt(a[2]) : 1);
        List<Future<Boolean>> runs = new ArrayList<>();
        for (String n : names) runs.add(pool.submit(() -> one(n, shared)));
        boolean ok = true;
        for (Future<Boolean> r : runs) ok &= r.get();
        System.out.flush();
        Runtime.getRuntime().halt(ok ? 0 : 1);   // the client's threads would keep it alive for seconds
    }

    static boolean one(String name, Shared shared) {
        long t0 = System.nanoTime(); String why = null;
        Case c = new Case(name, shared);
        try { ALL.get(name).run(c); }
        catch (Failed f) { why = f.getMessage(); }
        catch (Throwable t) { why = t + " at " + where(t); for (Throwable x = t.getCause(); x != null; x = x.getCause()) why += "because of " + x + " at " + x.getStackTrace()[0] + " "; }
        for (int i = c.closers.size() - 1; i >= 0; i--) try { c.closers.get(i).run(); } catch (Throwable t) { if (why == null) why = "close: " + t; }
        StringBuilder b = new StringBuilder("{\"scenario\":" + Json.j(name) + ",\"ok\":" + (why == null) + ",\"seconds\":" + (System.nanoTime() - t0) / 100_000_000 / 10.0);
        if (why != null) b.append(",\"failed\":" + Json.j(why));
        b.append(",\"facts\":{"); String comma = "";
        for (var f : c.facts.entrySet()) { b.append(comma + Json.j(f.getKey()) + ":" + (f.getValue() instanceof Number ? f.getValue() : Json.j(String.valueOf(f.getValue())))); comma = ","; }
        synchronized (System.out) { System.out.println(b.append("}}")); System.out.flush(); }
        return why == null;
    }

    /** The lines of our own sources a throwable came through. */
    static String where(Throwable t) {
        StringBuilder b = new StringBuilder();
        for (StackTraceElement e : t.getStackTrace()) if (e.getFileName() != null && e.getFileName().matches("(Scenarios|\\w+Scenarios).java")) b.append(e.getFileName() + ":" + e.getLineNumber() + " ");
        return b + (t.getCause() == null ? "" : "; cause " + t.getCause());
    }

    /** What all scenarios of a process use: one admin client and one pull consumer. */
    static class Shared {
        final String ns;
        final String run = Long.toString(System.nanoTime(), 36);
        final DefaultMQAdminExt admin = new DefaultMQAdminExt(60000);   // patient: machines are busy
        final DefaultMQPullConsumer reader;

        Shared(String ns) throws Exception {
            this.ns = ns;
            reader = new DefaultMQPullConsumer("reader-" + run); reader.setNamesrvAddr(ns); reader.setInstanceName("reader-" + run); reader.setMqClientApiTimeout(60000); reader.start();
            admin.setNamesrvAddr(ns); admin.setInstanceName("admin-" + run); admin.setMqClientApiTimeout(60000); admin.start();
        }
    }

    static class Case {
        final String name, ns, id; final Shared shared;
        final DefaultMQAdminExt admin; final DefaultMQPullConsumer reader;
        final Map<String, Object> facts = Collections.synchronizedMap(new LinkedHashMap<>());
        final List<Runnable> closers = Collections.synchronizedList(new ArrayList<>());
        private int made;

        Case(String name, Shared s) { this.name = name; shared = s; ns = System.getProperty("clients", s.ns); id = name + "-" + s.run; admin = s.admin; reader = s.reader; }

        // ---- expectations ----

        void expect(boolean holds, String what, Object seen) { if (!holds) throw new Failed(what + "; seen: " + seen); }

        void equal(Object expected, Object seen, String what) { if (!Objects.equals(expected, seen)) throw new Failed(what + ": expected " + expected + ", seen " + seen); }

        /** Asks every 20 ms until it holds; fails after so many seconds, at least PATIENCE_S, saying what was seen last. */
        <T> T eventually(double seconds, String what, Callable<T> ask, Predicate<T> holds) throws Exception {
            seconds = Math.max(seconds, PATIENCE_S);
            long end = System.nanoTime() + (long) (seconds * 1e9); T seen = null; Exception last = null;
            while (true) {
                try { seen = ask.call(); last = null; if (holds.test(seen)) return seen; } catch (Failed f) { throw f; } catch (Exception e) { last = e; }
                if (System.nanoTime() > end) throw new Failed(what + " within " + seconds + " s; seen: " + (last == null ? seen : last));
                Thread.sleep(20);
            }
        }

        // ---- things ----

        /** A topic made by the admin tool on every master, with its route known. */
        String topic(int queues) throws Exception {
            String t = id + "-t" + made++;
            TopicConfig cfg = new TopicConfig(t, queues, queues, 6);
            int brokers = 0;
            for (String addr : masters()) { admin.createAndUpdateTopicConfig(addr, cfg); brokers++; }
            int all = brokers * queues;
            eventually(60, "the name server knows the route of a new topic", () -> reader.fetchSubscribeMessageQueues(t).size(), n -> n == all);
            return t;
        }

        List<String> masters() throws Exception {
            List<String> found = new ArrayList<>();
            for (var b : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) found.add(b.getBrokerAddrs().get(0L));
            return found;
        }

        String group() { return id + "-g" + made++; }

        DefaultMQProducer producer() throws Exception { return producer(group()); }

        DefaultMQProducer producer(String group) throws Exception {
            DefaultMQProducer p = new DefaultMQProducer(group);
            p.setNamesrvAddr(ns); p.setSendMsgTimeout(60000); p.setMqClientApiTimeout(60000); p.setInstanceName(group + "-" + made++); p.start(); closers.add(p::shutdown);
            return p;
        }

        /** Not started; it starts from the first offset. */
        DefaultMQPushConsumer push(String group) {
            DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
            c.setNamesrvAddr(ns); c.setMqClientApiTimeout(60000); c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.setConsumeThreadMin(2); c.setConsumeThreadMax(4);
            c.setInstanceName(group + "-" + made++); closers.add(c::shutdown);
            return c;
        }

        /** Started: a concurrent consumer that gathers what it is given. */
        Got gather(String group, String topic, String tags) throws Exception {
            DefaultMQPushConsumer c = push(group); c.subscribe(topic, tags); return gather(c);
        }

        Got gather(DefaultMQPushConsumer c) throws Exception {
            Got got = new Got(c);
            c.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> { ms.forEach(got::add); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
            c.start();
            return got;
        }

        /** Waits until the one consumer of a group has every queue of the topic. */
        void hasAll(DefaultMQPushConsumer c, String topic, int queues) throws Exception {
            int all = queues * masters().size();
            eventually(60, "a consumer alone has every queue", () -> ConsumeScenarios.queuesOf(c, topic).size(), n -> n == all);
        }

        /** Its first heartbeat makes its retry topic, which it would take part in only some 30 s later. */
        void takeRetryTopic(DefaultMQPushConsumer c, String group) throws Exception {
            var factory = c.getDefaultMQPushConsumerImpl().getmQClientFactory(); String retry = "%RETRY%" + group;
            eventually(10, "a new group has its retry topic", () -> {
                factory.updateTopicRouteInfoFromNameServer(retry); factory.doRebalance();
                return c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream().anyMatch(q -> q.getTopic().equals(retry));
            }, there -> there);
        }

        SendResult send(DefaultMQProducer p, String topic, String tags, String keys, String body) throws Exception {
            SendResult r = p.send(new Message(topic, tags, keys, body.getBytes(StandardCharsets.UTF_8)));
            equal(SendStatus.SEND_OK, r.getSendStatus(), "status of a send");
            return r;
        }

        /** Everything a topic holds, read by pulls, queue after queue. */
        List<MessageExt> read(String topic) throws Exception {
            List<MessageExt> found = new ArrayList<>();
            for (MessageQueue q : new TreeSet<>(reader.fetchSubscribeMessageQueues(topic))) {
                long at = reader.minOffset(q), max = reader.maxOffset(q);
                while (at < max) {
                    PullResult r = reader.pull(q, "*", at, 32, 10000);
                    equal(PullStatus.FOUND, r.getPullStatus(), "status of a pull at " + at + " of " + max);
                    found.addAll(r.getMsgFoundList()); at = r.getNextBeginOffset();
                }
            }
            return found;
        }

        List<MessageExt> readWhenThere(String topic, int count) throws Exception {
            return eventually(60, count + " messages are in " + topic, () -> read(topic), l -> l.size() >= count);
        }
    }

    /** What a consumer was given, in order. */
    static class Got {
        final DefaultMQPushConsumer consumer;
        final List<MessageExt> messages = Collections.synchronizedList(new ArrayList<>());
        final List<Long> times = Collections.synchronizedList(new ArrayList<>());

        Got(DefaultMQPushConsumer c) { consumer = c; }

        synchronized void add(MessageExt m) { messages.add(m); times.add(System.currentTimeMillis()); }

        int size() { return messages.size(); }

        synchronized List<String> bodies() { List<String> l = new ArrayList<>(); for (MessageExt m : messages) l.add(text(m)); return l; }
    }

    static String text(MessageExt m) { return new String(m.getBody(), StandardCharsets.UTF_8); }
}
