import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Scenarios of consumers. */
class ConsumeScenarios {
    static void add(Map<String, Scenarios.Body> all) {
        all.put("orderly-rebalance", ConsumeScenarios::orderlyRebalance);
        all.put("push-concurrent", ConsumeScenarios::concurrent);
        all.put("push-orderly", ConsumeScenarios::orderly);
        all.put("push-wakes", ConsumeScenarios::wakes);
        all.put("broadcasting", ConsumeScenarios::broadcasting);
        all.put("lite-assign", ConsumeScenarios::liteAssign);
        all.put("lite-subscribe", ConsumeScenarios::liteSubscribe);
        all.put("retry-dlq", ConsumeScenarios::retryDlq);
        all.put("orderly-dlq", ConsumeScenarios::orderlyDlq);
        all.put("send-back", ConsumeScenarios::sendBack);
        all.put("rebalance", ConsumeScenarios::rebalance);
        all.put("sql92", ConsumeScenarios::sql92);
        all.put("consume-from", ConsumeScenarios::consumeFrom);
        all.put("post-subscription", ConsumeScenarios::postSubscription);
        all.put("two-groups", ConsumeScenarios::twoGroups);
    }

    /** What the broker keeps as the group's offsets of a topic, summed over its queues. */
    static long committed(Scenarios.Case c, String group, String topic) throws Exception {
        long sum = 0;
        for (var e : c.admin.examineConsumeStats(group).getOffsetTable().entrySet()) if (e.getKey().getTopic().equals(topic)) sum += e.getValue().getConsumerOffset();
        return sum;
    }

    static Set<MessageQueue> queuesOf(DefaultMQPushConsumer consumer, String topic) {
        Set<MessageQueue> mine = new TreeSet<>();
        for (MessageQueue q : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) if (q.getTopic().equals(topic)) mine.add(q);
        return mine;
    }

    static void concurrent(Scenarios.Case c) throws Exception {
        String topic = c.topic(4), group = c.group(); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 30; i++) c.send(p, topic, "ABC".substring(i % 3, i % 3 + 1), "k" + i, "m" + i);
        Scenarios.Got got = c.gather(group, topic, "A || B");
        c.eventually(60, "messages of two tags arrive", got::size, n -> n >= 20);
        for (int i = 30; i < 60; i++) c.send(p, topic, "ABC".substring(i % 3, i % 3 + 1), "k" + i, "m" + i);
        c.eventually(60, "later ones arrive too", got::size, n -> n >= 40);
        Thread.sleep(500);
        c.equal(40, got.size(), "messages, none twice and no other tag");
        c.equal(40, new HashSet<>(got.bodies()).size(), "different messages");
        for (MessageExt m : got.messages) c.expect(!m.getTags().equals("C"), "no other tag", m);
        got.consumer.shutdown();
        c.eventually(10, "its offsets are kept", () -> committed(c, group, topic), n -> n >= 56 && n <= 60);
        Scenarios.Got again = c.gather(group, topic, "A || B");
        c.send(p, topic, "A", "last", "last");
        c.eventually(60, "it goes on where it stopped", again::bodies, b -> b.contains("last"));
        c.equal(1, again.size(), "and nothing comes again");
    }

    static void orderly(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 40; i++) { int n = i; p.send(new Message(topic, "o", SendScenarios.bytes(i % 4 + ":" + i / 4)), (qs, m, a) -> qs.get(n % 4), null); }
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>(); AtomicInteger refused = new AtomicInteger(), good = new AtomicInteger();
        DefaultMQPushConsumer consumer = c.push(c.group()); consumer.subscribe(topic, "o"); consumer.setSuspendCurrentQueueTimeMillis(300);
        consumer.registerMessageListener((MessageListenerOrderly) (ms, cx) -> {
            for (MessageExt m : ms) {
                if (Scenarios.text(m).equals("2:3") && refused.incrementAndGet() <= 2) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                String[] s = Scenarios.text(m).split(":"); seen.computeIfAbsent(s[0], k -> Collections.synchronizedList(new ArrayList<>())).add(Integer.parseInt(s[1])); good.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        c.eventually(60, "all arrive", good::get, n -> n >= 40);
        for (var e : seen.entrySet()) c.equal(List.of(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), e.getValue(), "order in queue " + e.getKey());
        c.equal(3, refused.get(), "times the refused message came");
    }

    static void wakes(Scenarios.Case c) throws Exception {
        String topic = c.topic(1); DefaultMQProducer p = c.producer(); Scenarios.Got got = c.gather(c.group(), topic, "*");
        c.send(p, topic, "w", "first", "first"); c.eventually(60, "the first message", got::size, n -> n == 1);
        List<Long> took = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Thread.sleep(150); int n = i; long t0 = System.nanoTime(); c.send(p, topic, "w", "k", "wake " + i);
            c.eventually(5, "a waiting consumer gets it", got::size, k -> k == n + 2); took.add((System.nanoTime() - t0) / 1_000_000);
        }
        Collections.sort(took); c.facts.put("median_ms", took.get(5)); c.facts.put("worst_ms", took.get(9));
        c.expect(took.get(5) < 500, "a message reaches a waiting consumer at once", took + " ms");
    }

    static void broadcasting(Scenarios.Case c) throws Exception {
        String topic = c.topic(3), group = c.group(); DefaultMQProducer p = c.producer(); List<Scenarios.Got> both = new ArrayList<>();
        for (int i = 0; i < 2; i++) { DefaultMQPushConsumer b = c.push(group); b.setMessageModel(b.getMessageModel().BROADCASTING); b.subscribe(topic, "*"); both.add(c.gather(b)); }
        for (int i = 0; i < 30; i++) c.send(p, topic, "b", "k" + i, "b" + i);
        for (Scenarios.Got g : both) c.eventually(60, "each member gets all", () -> new HashSet<>(g.bodies()).size(), n -> n == 30);
        for (Scenarios.Got g : both) { c.equal(3 * c.masters().size(), queuesOf(g.consumer, topic).size(), "queues of each"); c.equal(30, g.size(), "messages of each, none twice"); }
    }

    static void liteAssign(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 40; i++) { int n = i; p.send(new Message(topic, "l", SendScenarios.bytes("l" + i)), (qs, m, a) -> qs.get(n % 2), null); }
        DefaultLitePullConsumer l = lite(c, c.group()); l.start();
        List<MessageQueue> qs = new ArrayList<>(new TreeSet<>(l.fetchMessageQueues(topic)));
        c.equal(2, qs.size(), "queues");
        // Assigned, the client pulls at once. Once all is here, no pull is on its way that could bring what lies before a position.
        l.assign(qs); c.equal(40, poll(c, l, 40).size(), "messages before a position is set");
        l.seek(qs.get(0), 15); l.seek(qs.get(1), 10);
        List<String> got = poll(c, l, 15);
        c.equal(15, got.size(), "messages after the positions");
        l.seek(qs.get(0), 18);
        c.equal(List.of("l36", "l38"), poll(c, l, 2), "messages after another seek");
        l.seekToBegin(qs.get(1)); c.equal(20, poll(c, l, 20).size(), "messages from the beginning");
        long time = c.reader.pull(qs.get(0), "*", 7, 1).getMsgFoundList().get(0).getStoreTimestamp();
        long at = l.offsetForTimestamp(qs.get(0), time); c.expect(at <= 7 && at >= 0, "offset by time", at);
    }

    static DefaultLitePullConsumer lite(Scenarios.Case c, String group) {
        DefaultLitePullConsumer l = new DefaultLitePullConsumer(group); l.setNamesrvAddr(c.ns); l.setMqClientApiTimeout(60000); l.setInstanceName(group + System.nanoTime());
        l.setAutoCommit(false); l.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.closers.add(l::shutdown);
        return l;
    }

    static List<String> poll(Scenarios.Case c, DefaultLitePullConsumer l, int count) throws Exception {
        List<String> got = new ArrayList<>();
        c.eventually(60, count + " messages are polled", () -> { for (MessageExt m : l.poll(100)) got.add(Scenarios.text(m)); return got.size(); }, n -> n >= count);
        return got;
    }

    static void liteSubscribe(Scenarios.Case c) throws Exception {
        String topic = c.topic(2), group = c.group(); DefaultMQProducer p = c.producer();
        int queues = 2 * c.masters().size(), half = 5 * queues;
        for (int i = 0; i < 2 * half; i++) c.send(p, topic, i / queues % 2 == 0 ? "x" : "y", "k" + i, "s" + i);   // by turns in each queue
        DefaultLitePullConsumer first = lite(c, group); first.subscribe(topic, "x"); first.start();
        c.equal(half, poll(c, first, half).size(), "messages of the tag"); first.commitSync();
        first.shutdown();
        c.eventually(10, "its offsets are kept", () -> committed(c, group, topic), n -> n >= 2 * half - queues);
        DefaultLitePullConsumer second = lite(c, group); second.subscribe(topic, "x"); second.start();
        c.send(p, topic, "x", "k", "after");
        c.equal(List.of("after"), poll(c, second, 1), "a successor gets what is new alone");
    }

    static void retryDlq(Scenarios.Case c) throws Exception {
        String topic = c.topic(1), group = c.group(); DefaultMQProducer p = c.producer();
        SendResult bad = c.send(p, topic, "r", "bad", "bad"); c.send(p, topic, "r", "good", "good");
        List<Integer> tries = Collections.synchronizedList(new ArrayList<>()); List<String> topics = Collections.synchronizedList(new ArrayList<>()); AtomicInteger good = new AtomicInteger();
        DefaultMQPushConsumer consumer = c.push(group); consumer.subscribe(topic, "r"); consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> {
            if (Scenarios.text(ms.get(0)).equals("good")) { good.incrementAndGet(); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; }
            tries.add(ms.get(0).getReconsumeTimes()); topics.add(ms.get(0).getTopic());
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        c.takeRetryTopic(consumer, group);
        String dlq = "%DLQ%" + group;
        MessageExt dead = c.eventually(60, "a dead letter", () -> c.read(dlq), l -> l.size() > 0).get(0);
        c.equal(List.of(0, 1, 2), tries, "reconsume times of the tries"); c.equal(List.of(topic, topic, topic), topics, "topic as the listener sees it");
        c.equal(1, good.get(), "times the good message came");
        c.equal("bad", Scenarios.text(dead), "body of the dead letter"); c.equal("bad", dead.getKeys(), "its keys"); c.equal(topic, dead.getProperty("RETRY_TOPIC"), "where it came from");
        c.equal(bad.getOffsetMsgId(), dead.getProperty("ORIGIN_MESSAGE_ID"), "id it had at first");
        c.facts.put("dead letter's properties", new TreeMap<>(dead.getProperties()));
    }

    static void orderlyDlq(Scenarios.Case c) throws Exception {
        String topic = c.topic(1), group = c.group(); DefaultMQProducer p = c.producer(); AtomicInteger tries = new AtomicInteger(); AtomicInteger next = new AtomicInteger();
        c.send(p, topic, "r", "bad", "bad"); c.send(p, topic, "r", "next", "next");
        DefaultMQPushConsumer consumer = c.push(group); consumer.subscribe(topic, "*"); consumer.setMaxReconsumeTimes(2); consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.registerMessageListener((MessageListenerOrderly) (ms, cx) -> {
            if (Scenarios.text(ms.get(0)).equals("bad")) { tries.incrementAndGet(); return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT; }
            next.incrementAndGet(); return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        c.eventually(60, "the queue goes on after a hopeless message", next::get, n -> n == 1);
        c.expect(tries.get() >= 3, "it was tried some times", tries.get());
        c.equal("bad", Scenarios.text(c.eventually(60, "a dead letter", () -> c.read("%DLQ%" + group), l -> l.size() > 0).get(0)), "dead letter");
    }

    static void sendBack(Scenarios.Case c) throws Exception {
        String topic = c.topic(1), group = c.group(); DefaultMQProducer p = c.producer(); AtomicLong backAt = new AtomicLong();
        DefaultMQPushConsumer consumer = c.push(group); consumer.subscribe(topic, "*"); Scenarios.Got got = new Scenarios.Got(consumer);
        consumer.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> {
            MessageExt m = ms.get(0);
            if (m.getReconsumeTimes() == 0) try { backAt.set(System.currentTimeMillis()); consumer.sendMessageBack(m, 2); } catch (Exception e) { c.facts.put("send back failed", e); }
            got.add(m);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start(); c.takeRetryTopic(consumer, group); c.send(p, topic, "s", "k", "back");
        c.eventually(60, "it comes again", got::size, n -> n == 2);
        MessageExt again = got.messages.get(1);
        c.equal(1, again.getReconsumeTimes(), "reconsume times"); c.equal("back", Scenarios.text(again), "body"); c.equal(topic, again.getTopic(), "topic as the listener sees it"); c.equal("k", again.getKeys(), "keys");
        long after = got.times.get(1) - backAt.get(); c.facts.put("after_ms", after);
        c.expect(after >= 2000, "not before its delay of 2 s", after + " ms");
    }

    static void rebalance(Scenarios.Case c) throws Exception {
        String topic = c.topic(4), group = c.group(); DefaultMQProducer p = c.producer(); AtomicBoolean stop = new AtomicBoolean(); Set<String> sent = ConcurrentHashMap.newKeySet();
        Scenarios.Got a = c.gather(group, topic, "*");
        int all = 4 * c.masters().size();
        c.eventually(60, "one member has every queue", () -> queuesOf(a.consumer, topic).size(), n -> n == all);
        Thread sender = new Thread(() -> { for (int i = 0; !stop.get(); i++) try { p.send(new Message(topic, SendScenarios.bytes("r" + i))); sent.add("r" + i); Thread.sleep(10); } catch (Exception e) { c.facts.put("send failed", e); return; } });
        sender.start(); c.closers.add(() -> stop.set(true));
        long t0 = System.nanoTime();
        Scenarios.Got b = c.gather(group, topic, "*");
        c.eventually(10, "two members share the queues", () -> queuesOf(a.consumer, topic).size() + "+" + queuesOf(b.consumer, topic).size(), s -> s.equals(all / 2 + "+" + all / 2));
        c.facts.put("joined_ms", (System.nanoTime() - t0) / 1_000_000);
        Set<MessageQueue> both = new HashSet<>(queuesOf(a.consumer, topic)); both.retainAll(queuesOf(b.consumer, topic)); c.equal(Set.of(), both, "queues that two members have");
        int before = b.size(); c.eventually(10, "the new member gets messages", b::size, n -> n > before + 10);
        t0 = System.nanoTime(); b.consumer.shutdown();
        c.eventually(10, "the other takes over when one leaves", () -> queuesOf(a.consumer, topic).size(), n -> n == all);
        c.facts.put("left_ms", (System.nanoTime() - t0) / 1_000_000);
        Thread.sleep(300); stop.set(true); sender.join();
        Callable<Integer> missing = () -> { Set<String> m = new HashSet<>(sent); m.removeAll(a.bodies()); m.removeAll(b.bodies()); return m.size(); };
        c.eventually(60, "every message is delivered to one of them", missing, n -> n == 0);
        c.facts.put("sent", sent.size()); c.facts.put("delivered", a.size() + b.size());
    }

    static void sql92(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 30; i++) { Message m = new Message(topic, "ABC".substring(i % 3, i % 3 + 1), SendScenarios.bytes("q" + i)); m.putUserProperty("a", String.valueOf(i)); if (i % 2 == 0) m.putUserProperty("name", "it's"); p.send(m); }
        DefaultMQPushConsumer one = c.push(c.group()); one.subscribe(topic, MessageSelector.bySql("TAGS IN ('A','B') AND a BETWEEN 4 AND 20 AND name = 'it''s'"));
        DefaultMQPushConsumer two = c.push(c.group()); two.subscribe(topic, MessageSelector.bySql("name IS NULL AND (a > 25.5 OR TAGS = 'C')"));
        Scenarios.Got g1 = c.gather(one), g2 = c.gather(two); Set<String> w1 = new TreeSet<>(), w2 = new TreeSet<>();
        for (int i = 0; i < 30; i++) { boolean even = i % 2 == 0; if (i % 3 != 2 && i >= 4 && i <= 20 && even) w1.add("q" + i); if (!even && (i > 25 || i % 3 == 2)) w2.add("q" + i); }
        c.eventually(60, "what the first expression selects", g1::size, n -> n >= w1.size()); c.eventually(60, "what the second selects", g2::size, n -> n >= w2.size());
        Message late = new Message(topic, "A", SendScenarios.bytes("late")); late.putUserProperty("a", "10"); late.putUserProperty("name", "it's"); p.send(late);
        c.eventually(60, "a waiting consumer with an expression is woken", g1::bodies, l -> l.contains("late"));
        w1.add("late"); c.equal(w1, new TreeSet<>(g1.bodies()), "what the first got"); c.equal(w2, new TreeSet<>(g2.bodies()), "what the second got");
        DefaultMQPushConsumer bad = c.push(c.group()); bad.subscribe(topic, MessageSelector.bySql("a > > 3")); bad.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        int code = SendScenarios.code(() -> { bad.start(); return null; });
        c.equal(23, code, "code of an expression that does not parse");
    }

    static void consumeFrom(Scenarios.Case c) throws Exception {
        // the reference lets every new group of a young topic begin at 0, whatever it asks for
        String topic = c.topic(2); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 10; i++) c.send(p, topic, "f", "k" + i, "old" + i);
        Map<String, Scenarios.Got> got = new LinkedHashMap<>();
        for (String where : List.of("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP")) {
            DefaultMQPushConsumer consumer = c.push(c.group()); consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(where)); consumer.subscribe(topic, "*"); got.put(where, c.gather(consumer));
        }
        for (var g : got.entrySet()) c.eventually(60, g.getKey() + " on a young topic", g.getValue()::size, n -> n == 10);
        // a group whose queues are empty when it comes begins with the first message that comes after
        String empty = c.topic(2); DefaultMQPushConsumer last = c.push(c.group()); last.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET); last.subscribe(empty, "*");
        Scenarios.Got g = c.gather(last);
        c.eventually(10, "it has its queues", () -> queuesOf(last, empty).size(), n -> n >= 2);
        for (int i = 0; i < 6; i++) c.send(p, empty, "f", "k" + i, "new" + i);
        c.eventually(60, "CONSUME_FROM_LAST_OFFSET on an empty topic", g::size, n -> n == 6);
    }

    static void twoGroups(Scenarios.Case c) throws Exception {
        String topic = c.topic(2), other = c.topic(2); DefaultMQProducer p = c.producer();
        DefaultMQPushConsumer both = c.push(c.group()); both.subscribe(topic, "*"); both.subscribe(other, "B"); Scenarios.Got g = c.gather(both); Scenarios.Got h = c.gather(c.group(), topic, "B");
        for (int i = 0; i < 20; i++) { c.send(p, topic, i % 2 == 0 ? "A" : "B", "k", "t" + i); c.send(p, other, i % 2 == 0 ? "A" : "B", "k", "o" + i); }
        c.eventually(60, "one group, two topics", g::size, n -> n == 30); c.eventually(60, "another group of its own", h::size, n -> n == 10);
    }

    /** The queue's lock goes from one member to the other: messages may come again, but never two members at once. */
    static void orderlyRebalance(Scenarios.Case c) throws Exception {
        String topic = c.topic(4), group = c.group(); DefaultMQProducer p = c.producer(); AtomicBoolean stop = new AtomicBoolean(); AtomicInteger sent = new AtomicInteger(), together = new AtomicInteger(), gaps = new AtomicInteger();
        Map<Integer, AtomicInteger> inside = new ConcurrentHashMap<>(); Map<Integer, Long> next = new ConcurrentHashMap<>(); Set<String> seen = ConcurrentHashMap.newKeySet(); Map<String, Integer> shares = new ConcurrentHashMap<>();
        int all = 4 * c.masters().size();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            DefaultMQPushConsumer m = c.push(group); m.subscribe(topic, "*"); members.add(m);
            m.registerMessageListener((MessageListenerOrderly) (ms, cx) -> {
                int q = ms.get(0).getQueueId() + 100 * Math.abs(ms.get(0).getBrokerName().hashCode() % 1000);
                if (inside.computeIfAbsent(q, k -> new AtomicInteger()).incrementAndGet() > 1) together.incrementAndGet();
                for (MessageExt e : ms) { long want = next.getOrDefault(q, 0L); if (e.getQueueOffset() > want) gaps.incrementAndGet(); next.put(q, Math.max(want, e.getQueueOffset() + 1)); seen.add(Scenarios.text(e)); shares.merge(name, 1, Integer::sum); }
                try { Thread.sleep(2); } catch (InterruptedException e) { }
                inside.get(q).decrementAndGet();
                return ConsumeOrderlyStatus.SUCCESS;
            });
        }
        members.get(0).start(); c.hasAll(members.get(0), topic, 4);
        Thread sender = new Thread(() -> { for (int i = 0; !stop.get(); i++) try { p.send(new Message(topic, SendScenarios.bytes("o" + i))); sent.incrementAndGet(); Thread.sleep(5); } catch (Exception e) { return; } });
        sender.start(); c.closers.add(() -> stop.set(true));
        c.eventually(60, "the first member gets messages", () -> shares.getOrDefault("a", 0), n -> n > 20);
        members.get(1).start();
        c.eventually(60, "the second one takes its share", () -> shares.getOrDefault("b", 0), n -> n > 50);
        members.get(1).shutdown();
        c.eventually(60, "the first one has every queue again", () -> queuesOf(members.get(0), topic).size(), n -> n == all);
        stop.set(true); sender.join();
        c.eventually(60, "every message is consumed", seen::size, n -> n == sent.get());
        c.equal(0, together.get(), "times two members were in one queue at once"); c.equal(0, gaps.get(), "messages that were skipped within a queue");
        c.facts.put("sent", sent.get()); c.facts.put("shares", shares);
    }

    /** The subscription goes with every pull, instead of with the heartbeat alone. */
    static void postSubscription(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer(); DefaultMQPushConsumer consumer = c.push(c.group());
        consumer.setPostSubscriptionWhenPull(true); consumer.subscribe(topic, "A || C"); consumer.setConsumeMessageBatchMaxSize(8); Scenarios.Got got = c.gather(consumer);
        for (int i = 0; i < 30; i++) c.send(p, topic, "ABC".substring(i % 3, i % 3 + 1), "k" + i, "p" + i);
        c.eventually(60, "messages of two tags", got::size, n -> n >= 20); Thread.sleep(300); c.equal(20, got.size(), "messages, none twice");
    }
}
