import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;

/** Scenarios of the admin interface while clients run. */
class AdminScenarios {
    static void add(Map<String, Scenarios.Body> all) {
        all.put("reset-offset", AdminScenarios::resetOffset);
        all.put("connections", AdminScenarios::connections);
        all.put("running-info", AdminScenarios::runningInfo);
        all.put("consume-directly", AdminScenarios::consumeDirectly);
        all.put("topics", AdminScenarios::topics);
    }

    static void resetOffset(Scenarios.Case c) throws Exception {
        String topic = c.topic(2), group = c.group(); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 10; i++) c.send(p, topic, "x", "k" + i, "early" + i);
        Thread.sleep(30); long middle = System.currentTimeMillis(); Thread.sleep(30);
        for (int i = 0; i < 10; i++) c.send(p, topic, "x", "k" + i, "late" + i);
        Scenarios.Got got = c.gather(group, topic, "*");
        c.eventually(60, "all arrive", got::size, n -> n == 20);
        var offsets = c.admin.resetOffsetByTimestamp(topic, group, middle, true);
        long sum = 0; for (long o : offsets.values()) sum += o;
        c.equal(2 * c.masters().size(), offsets.size(), "queues that are reset"); c.equal(10L, sum, "offsets they are reset to, summed");
        var factory = got.consumer.getDefaultMQPushConsumerImpl().getmQClientFactory(); AtomicInteger asked = new AtomicInteger();
        c.eventually(60, "a running consumer begins again at that time", () -> {
            if (asked.incrementAndGet() % 25 == 0) factory.doRebalance();   // it gives its queues up for 10 s, and would take them again up to 20 s later
            return got.size();
        }, n -> n >= 30);
        Thread.sleep(300);
        c.equal(30, got.size(), "messages after the reset");
        for (String b : got.bodies().subList(20, 30)) c.expect(b.startsWith("late"), "only messages after that time come again", b);
    }

    static void connections(Scenarios.Case c) throws Exception {
        String topic = c.topic(2), group = c.group(), makers = c.group(); DefaultMQProducer p = c.producer(makers); c.send(p, topic, "a", "k", "x");
        c.equal(17, SendScenarios.code(() -> c.admin.examineConsumerConnectionInfo(group)), "code of a group that was never there");
        Scenarios.Got a = c.gather(group, topic, "TagA || TagB"), b = c.gather(group, topic, "TagA || TagB");
        var found = c.eventually(60, "two consumers are connected", () -> c.admin.examineConsumerConnectionInfo(group), i -> i.getConnectionSet().size() == 2);
        c.equal("CONSUME_PASSIVELY", found.getConsumeType().name(), "consume type"); c.equal("CLUSTERING", found.getMessageModel().name(), "message model"); c.equal("CONSUME_FROM_FIRST_OFFSET", found.getConsumeFromWhere().name(), "where from");
        c.equal("TagA || TagB", found.getSubscriptionTable().get(topic).getSubString(), "its subscription"); c.equal(Set.of("TagA", "TagB"), found.getSubscriptionTable().get(topic).getTagsSet(), "its tags");
        c.expect(found.getSubscriptionTable().containsKey("%RETRY%" + group), "a subscription to its retry topic", found.getSubscriptionTable().keySet());
        Set<String> ids = new HashSet<>(); for (var k : found.getConnectionSet()) { ids.add(k.getClientId()); c.equal("JAVA", k.getLanguage().name(), "language"); c.expect(k.getVersion() > 300, "version", k.getVersion()); c.expect(k.getClientAddr().startsWith("127.0.0.1:"), "address", k.getClientAddr()); }
        c.equal(Set.of(id(a.consumer), id(b.consumer)), ids, "client ids");
        var makersFound = c.eventually(60, "the producer is connected", () -> c.admin.examineProducerConnectionInfo(makers, topic), i -> i.getConnectionSet().size() == 1);
        c.equal("JAVA", makersFound.getConnectionSet().iterator().next().getLanguage().name(), "its language");
        b.consumer.shutdown();
        c.eventually(10, "one has left", () -> c.admin.examineConsumerConnectionInfo(group).getConnectionSet().size(), n -> n == 1);
        a.consumer.shutdown();
        c.eventually(10, "code of a group with nobody online", () -> SendScenarios.code(() -> c.admin.examineConsumerConnectionInfo(group)), n -> n == 206);
    }

    static String id(DefaultMQPushConsumer consumer) { return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId(); }

    static void runningInfo(Scenarios.Case c) throws Exception {
        String topic = c.topic(3), group = c.group(); DefaultMQProducer p = c.producer(); Scenarios.Got g = c.gather(group, topic, "*");
        for (int i = 0; i < 5; i++) c.send(p, topic, "a", "k", "x" + i);
        c.eventually(60, "it consumes", g::size, n -> n == 5);
        var info = c.eventually(10, "a consumer tells how it is", () -> c.admin.getConsumerRunningInfo(group, id(g.consumer), false), i -> i != null);
        int queues = 0; for (MessageQueue q : info.getMqTable().keySet()) if (q.getTopic().equals(topic)) queues++;
        c.equal(3 * c.masters().size(), queues, "its queues");
        c.equal("CONSUME_PASSIVELY", String.valueOf(info.getProperties().get("PROP_CONSUME_TYPE")), "consume type");
        c.equal("*", info.getSubscriptionSet().stream().filter(s -> s.getTopic().equals(topic)).findFirst().get().getSubString(), "subscription");
        var dump = c.admin.getConsumerRunningInfo(group, id(g.consumer), true);
        c.expect(dump.getJstack() != null && dump.getJstack().contains("TID"), "a dump of its threads", dump.getJstack());
        c.expect(SendScenarios.code(() -> c.admin.getConsumerRunningInfo(group, "no-such-client", false)) != 0, "an unknown client is an error", 0);
        var status = c.admin.getConsumeStatus(topic, group, "");
        c.expect(status.containsKey(id(g.consumer)), "status by 223", status.keySet());
    }

    static void consumeDirectly(Scenarios.Case c) throws Exception {
        String topic = c.topic(1), group = c.group(); DefaultMQProducer p = c.producer(); Scenarios.Got g = c.gather(group, topic, "wanted");
        SendResult r = c.send(p, topic, "unwanted", "k", "directly");
        c.eventually(10, "the message can be asked for", () -> p.viewMessage(topic, r.getMsgId()), m -> m != null);
        c.equal(0, g.size(), "messages that came by themselves");
        var result = c.eventually(10, "it is consumed on demand", () -> c.admin.consumeMessageDirectly(group, id(g.consumer), topic, r.getMsgId()), x -> x != null);
        c.equal("CR_SUCCESS", result.getConsumeResult().name(), "result"); c.equal(false, result.isOrder(), "orderly");
        c.equal(List.of("directly"), g.bodies(), "what the listener got");
    }

    /** The clients do not agree about the order of cluster and topic. */
    static void deleteRoute(Scenarios.Case c, String topic) throws Exception {
        Set<String> servers = new HashSet<>(Arrays.asList(c.ns.split(";")));
        try { c.admin.getClass().getMethod("deleteTopicInNameServer", Set.class, String.class).invoke(c.admin, servers, topic); }
        catch (NoSuchMethodException e) { c.admin.deleteTopicInNameServer(servers, topic, "DefaultCluster"); }
    }

    static void topics(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 8; i++) c.send(p, topic, "a", "k", "x" + i);
        var stats = c.eventually(10, "its statistics", () -> c.admin.examineTopicStats(topic).getOffsetTable(), t -> { long n = 0; for (var o : t.values()) n += o.getMaxOffset(); return n == 8; });
        c.equal(4 * c.masters().size(), stats.size(), "queues");
        for (String addr : c.masters()) c.admin.createAndUpdateTopicConfig(addr, new TopicConfig(topic, 6, 6, 6));
        c.eventually(10, "more queues are seen", () -> c.reader.fetchSubscribeMessageQueues(topic).size() / c.masters().size(), n -> n == 6);
        var names = c.admin.fetchAllTopicList().getTopicList(); c.expect(names.contains(topic) && names.contains("TBW102"), "it is listed", names);
        c.admin.deleteTopicInBroker(new HashSet<>(c.masters()), topic); deleteRoute(c, topic);
        c.eventually(10, "a deleted topic has no route", () -> SendScenarios.code(() -> c.admin.examineTopicRouteInfo(topic)), n -> n == 17);
        c.expect(!c.admin.fetchAllTopicList().getTopicList().contains(topic), "nor is it listed", topic);
    }
}
