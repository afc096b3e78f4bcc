import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;

/** Scenarios of producers, and of reading by hand what they sent. */
class SendScenarios {
    static void add(Map<String, Scenarios.Body> all) {
        all.put("send-sync", SendScenarios::sync);
        all.put("send-async", SendScenarios::async);
        all.put("send-oneway", SendScenarios::oneway);
        all.put("send-batch", SendScenarios::batch);
        all.put("send-ordered", SendScenarios::ordered);
        all.put("send-compressed", SendScenarios::compressed);
        all.put("send-big", SendScenarios::big);
        all.put("send-refused", SendScenarios::refused);
        all.put("auto-create", SendScenarios::autoCreate);
        all.put("request-reply", SendScenarios::requestReply);
        all.put("delayed", SendScenarios::delayed);
        all.put("query", SendScenarios::query);
        all.put("pull", SendScenarios::pull);
        all.put("vip", SendScenarios::vip);
        all.put("trace", SendScenarios::trace);
        all.put("namespace", SendScenarios::namespace);
    }

    static byte[] bytes(String s) { return s.getBytes(StandardCharsets.UTF_8); }

    static void sync(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        Map<Integer, Long> next = new HashMap<>(); Map<String, Message> sent = new HashMap<>(); Map<String, SendResult> results = new HashMap<>();
        for (int i = 0; i < 40; i++) {
            Message m = new Message(topic, i % 3 == 0 ? null : "标签" + i % 3, "key-" + i + " 键", bytes("body ü " + i));
            m.putUserProperty("amount", String.valueOf(i)); m.putUserProperty("注", "prop ü 🚀"); m.setFlag(i * 77777);
            SendResult r = p.send(m);
            c.equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            c.equal(next.getOrDefault(r.getMessageQueue().getQueueId(), 0L), r.getQueueOffset(), "queue offsets count from 0 in each queue");
            next.put(r.getMessageQueue().getQueueId(), r.getQueueOffset() + 1);
            c.equal("DefaultRegion", r.getRegionId(), "region"); c.equal(true, r.isTraceOn(), "trace on");
            sent.put(r.getMsgId(), m); results.put(r.getMsgId(), r);
        }
        c.equal(4, next.size(), "queues taken in turn");
        for (MessageExt m : c.readWhenThere(topic, 40)) {
            Message s = sent.remove(m.getMsgId()); SendResult r = results.get(m.getMsgId());
            c.expect(s != null, "a message read was sent, once", m);
            c.expect(Arrays.equals(s.getBody(), m.getBody()), "body", m);
            c.equal(s.getTags(), m.getTags(), "tags"); c.equal(s.getKeys(), m.getKeys(), "keys"); c.equal(s.getFlag(), m.getFlag(), "flag");
            c.equal(s.getUserProperty("amount"), m.getUserProperty("amount"), "a property"); c.equal("prop ü 🚀", m.getUserProperty("注"), "a property with other letters");
            c.equal(r.getQueueOffset(), m.getQueueOffset(), "queue offset"); c.equal(r.getMessageQueue().getQueueId(), m.getQueueId(), "queue");
            c.equal(r.getOffsetMsgId(), ((MessageClientExt) m).getOffsetMsgId(), "offset message id");
            c.equal("DefaultCluster", m.getProperty("CLUSTER"), "the cluster as a property"); c.equal("DefaultRegion", m.getProperty("MSG_REGION"), "the region as a property");
            c.equal("127.0.0.1", m.getBornHostString(), "born host"); c.equal(0, m.getReconsumeTimes(), "reconsume times");
            c.expect(m.getStoreTimestamp() >= m.getBornTimestamp() - 5 && m.getStoreTimestamp() <= System.currentTimeMillis(), "store time", m);
        }
        c.equal(0, sent.size(), "messages that were not read");
    }

    static void async(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        CountDownLatch done = new CountDownLatch(300); AtomicInteger ok = new AtomicInteger(); Set<String> places = ConcurrentHashMap.newKeySet(); AtomicReference<Throwable> bad = new AtomicReference<>();
        for (int i = 0; i < 300; i++)
            p.send(new Message(topic, bytes("async " + i)), new SendCallback() {
                public void onSuccess(SendResult r) { if (r.getSendStatus() == SendStatus.SEND_OK) ok.incrementAndGet(); places.add(r.getMessageQueue().getQueueId() + "/" + r.getQueueOffset()); done.countDown(); }
                public void onException(Throwable t) { bad.set(t); done.countDown(); }
            });
        c.expect(done.await(20, TimeUnit.SECONDS), "every callback is called", done.getCount());
        c.expect(bad.get() == null, "no send fails", bad.get());
        c.equal(300, ok.get(), "good sends"); c.equal(300, places.size(), "places of their own");
        c.equal(300, c.readWhenThere(topic, 300).size(), "messages in the topic");
    }

    static void oneway(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 60; i++) p.sendOneway(new Message(topic, bytes("oneway " + i)));
        Set<String> seen = new HashSet<>();
        for (MessageExt m : c.readWhenThere(topic, 60)) seen.add(Scenarios.text(m));
        c.equal(60, seen.size(), "different messages");
    }

    static void batch(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        Set<String> ids = new HashSet<>();
        for (int b = 0; b < 6; b++) {
            List<Message> l = new ArrayList<>();
            for (int i = 0; i < 16; i++) { Message m = new Message(topic, "T" + i % 3, "b" + b + "-" + i, bytes("batch " + b + "/" + i)); m.putUserProperty("n", String.valueOf(i)); l.add(m); }
            SendResult r = p.send(l);
            c.equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            c.equal(16, r.getMsgId().split(",").length, "ids of a batch"); c.equal(16, r.getOffsetMsgId().split(",").length, "offset ids of a batch");
            ids.addAll(Arrays.asList(r.getOffsetMsgId().split(",")));
        }
        c.equal(96, ids.size(), "ids of their own");
        List<MessageExt> all = c.readWhenThere(topic, 96);
        c.equal(96, all.size(), "messages");
        for (MessageExt m : all) {
            String[] at = Scenarios.text(m).substring(6).split("/"); int i = Integer.parseInt(at[1]);
            c.equal("T" + i % 3, m.getTags(), "tag of a message of a batch"); c.equal("b" + at[0] + "-" + i, m.getKeys(), "its key"); c.equal(String.valueOf(i), m.getUserProperty("n"), "its property");
            c.expect(ids.remove(((MessageClientExt) m).getOffsetMsgId()), "the broker had told its id", m);
        }
    }

    static void ordered(Scenarios.Case c) throws Exception {
        String topic = c.topic(4); DefaultMQProducer p = c.producer();
        for (int i = 0; i < 80; i++) p.send(new Message(topic, "o", "k" + i, bytes(i % 8 + ":" + i / 8)), (qs, m, arg) -> qs.get((Integer) arg % qs.size()), i % 8);
        Map<String, Integer> last = new ConcurrentHashMap<>(); AtomicInteger n = new AtomicInteger(), disorder = new AtomicInteger();
        DefaultMQPushConsumer consumer = c.push(c.group()); consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (ms, cx) -> {
            for (MessageExt m : ms) { String[] s = Scenarios.text(m).split(":"); int seq = Integer.parseInt(s[1]); Integer before = last.put(s[0], seq); if (seq != (before == null ? 0 : before + 1)) disorder.incrementAndGet(); n.incrementAndGet(); }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        c.eventually(60, "all ordered messages arrive", n::get, k -> k >= 80);
        c.equal(0, disorder.get(), "messages out of order within their key");
        c.equal(80, n.get(), "messages, none twice");
    }

    static void compressed(Scenarios.Case c) throws Exception {
        String topic = c.topic(1); String[] kinds = {"ZLIB", "LZ4", "ZSTD"}; int[] flags = {3, 1, 2};   // type in bits 8 to 10
        byte[] body = new byte[30000]; for (int i = 0; i < body.length; i++) body[i] = (byte) ("compress me ".charAt(i % 12) + i / 4000);
        for (String kind : kinds) {
            System.setProperty("rocketmq.message.compressType", kind);
            DefaultMQProducer p = c.producer();
            Message m = new Message(topic, kind, kind, body); c.equal(SendStatus.SEND_OK, p.send(m).getSendStatus(), "status of " + kind);
        }
        System.clearProperty("rocketmq.message.compressType");
        List<MessageExt> all = c.readWhenThere(topic, 3);
        for (int i = 0; i < 3; i++) {
            MessageExt m = all.get(i);
            c.expect(Arrays.equals(body, m.getBody()), "body compressed by " + kinds[i] + " comes back", m);
            c.equal(flags[i], m.getSysFlag() >> 8 & 7, "its type of " + kinds[i]);
            c.expect(m.getStoreSize() < 10000, "stored smaller", m.getStoreSize());
        }
    }

    static void big(Scenarios.Case c) throws Exception {
        String topic = c.topic(1); DefaultMQProducer p = c.producer(); p.setMaxMessageSize(16 << 20); p.setRetryTimesWhenSendFailed(0);
        byte[] body = new byte[4 * 1000 * 1000]; new Random(7).nextBytes(body);
        c.equal(SendStatus.SEND_OK, p.send(new Message(topic, body)).getSendStatus(), "status of 4 MB");
        c.expect(Arrays.equals(body, c.readWhenThere(topic, 1).get(0).getBody()), "4 MB come back", "another body");
        byte[] over = new byte[4 * 1024 * 1024 + 1]; new Random(8).nextBytes(over);
        try { p.send(new Message(topic, over)); c.expect(false, "a body over maxMessageSize is refused", "accepted"); }
        catch (MQBrokerException e) { c.equal(13, e.getResponseCode(), "response code of an oversized message"); c.facts.put("refusal", e.getErrorMessage()); }
        c.equal(SendStatus.SEND_OK, p.send(new Message(topic, bytes("after"))).getSendStatus(), "the connection still serves");
    }

    /** The code of the error that a call ends with, 0 when it ends well. */
    static int code(Callable<?> call) throws Exception {
        try { call.call(); return 0; } catch (MQBrokerException e) { return e.getResponseCode(); } catch (MQClientException e) { return e.getResponseCode(); }
    }

    static void refused(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer(); p.setRetryTimesWhenSendFailed(0);
        c.send(p, topic, "a", "k", "allowed");
        MessageQueue q = c.reader.fetchSubscribeMessageQueues(topic).iterator().next();
        for (String addr : c.masters()) c.admin.createAndUpdateTopicConfig(addr, new TopicConfig(topic, 2, 2, 2));
        c.equal(16, code(() -> c.reader.pull(q, "*", 0, 1)), "code of a pull from a topic without read permission");
        for (String addr : c.masters()) c.admin.createAndUpdateTopicConfig(addr, new TopicConfig(topic, 2, 2, 6));
        c.equal(0, code(() -> c.reader.pull(q, "*", 0, 1)), "code once it may be read again");
        c.equal(29, code(() -> p.send(new Message(topic, bytes("x")), new MessageQueue(topic, q.getBrokerName(), 99))), "code of a send to a queue that is not there");
        c.equal(29, code(() -> c.reader.pull(new MessageQueue(topic, q.getBrokerName(), 99), "*", 0, 1)), "code of a pull from a queue that is not there");
        c.equal(17, code(() -> c.reader.pull(new MessageQueue(c.id + "-none", q.getBrokerName(), 0), "*", 0, 1)), "code of a pull from a topic that is not there");
        String none = c.id + "-none";
        c.expect(code(() -> c.reader.fetchSubscribeMessageQueues(none)) != 0, "no route of a topic that is not there", none);
    }

    static void autoCreate(Scenarios.Case c) throws Exception {
        DefaultMQProducer p = c.producer(); p.setDefaultTopicQueueNums(3);
        String topic = c.id + "-auto";
        for (int i = 0; i < 9; i++) c.send(p, topic, "a", "k" + i, "auto " + i);
        c.eventually(60, "the name server learns of the new topic", () -> c.reader.fetchSubscribeMessageQueues(topic).size() / c.masters().size(), n -> n == 3);
        c.equal(9, c.readWhenThere(topic, 9).size(), "messages");
    }

    static void requestReply(Scenarios.Case c) throws Exception {
        String topic = c.topic(2), silent = c.topic(1); DefaultMQProducer replier = c.producer(), asker = c.producer();
        DefaultMQPushConsumer responder = c.push(c.group()); responder.subscribe(topic, "*"); responder.setPullInterval(0);
        responder.registerMessageListener((MessageListenerConcurrently) (ms, cx) -> {
            for (MessageExt m : ms) try { replier.send(MessageUtil.createReplyMessage(m, bytes("re: " + Scenarios.text(m))), 15000); } catch (Exception e) { c.facts.put("reply failed", e); }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        responder.start(); c.hasAll(responder, topic, 2);
        // a reply goes to a producer that the broker knows by a heartbeat; the client leaves one out while another is under way
        c.send(asker, silent, "a", "k", "hello"); var factory = asker.getDefaultMQProducerImpl().getMqClientFactory();
        c.eventually(60, "the asker is known", () -> { factory.sendHeartbeatToAllBrokerWithLock(); return c.admin.examineProducerConnectionInfo(asker.getProducerGroup(), topic); }, i -> i.getConnectionSet().size() == 1);
        // only with callbacks: the synchronous call of the 5.3.3 client returns as soon as its request is stored
        List<CompletableFuture<String>> answers = new ArrayList<>();
        for (int i = 0; i < 5; i++) answers.add(ask(asker, topic, "ask " + i, 30000));
        for (int i = 0; i < 5; i++) c.equal("re: ask " + i, answers.get(i).get(40, TimeUnit.SECONDS), "the answer");
        try { ask(asker, silent, "nobody", 4000).get(12, TimeUnit.SECONDS); c.expect(false, "a request nobody answers times out", "answered"); }
        catch (ExecutionException e) { c.expect(e.getCause() instanceof RequestTimeoutException, "a request nobody answers times out", e.getCause()); }
    }

    static CompletableFuture<String> ask(DefaultMQProducer asker, String topic, String what, long ms) throws Exception {
        CompletableFuture<String> answer = new CompletableFuture<>();
        asker.request(new Message(topic, bytes(what)), new RequestCallback() {
            public void onSuccess(Message m) { answer.complete(new String(m.getBody(), StandardCharsets.UTF_8)); }
            public void onException(Throwable t) { answer.completeExceptionally(t); }
        }, ms);
        return answer;
    }

    static void delayed(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer(); Scenarios.Got got = c.gather(c.group(), topic, "*");
        c.hasAll(got.consumer, topic, 2);
        Map<String, Long> due = new HashMap<>(); Map<String, Integer> queues = new HashMap<>();
        for (int i = 0; i < 24; i++) {
            int level = i % 3 == 2 ? 2 : 1; Message m = new Message(topic, "d" + level, "dk" + i, bytes("delayed " + i)); m.setDelayTimeLevel(level);
            long before = System.currentTimeMillis(); SendResult r = p.send(m);
            c.equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            due.put("delayed " + i, before + level * 1000L); queues.put("delayed " + i, r.getMessageQueue().getQueueId());
        }
        c.eventually(60, "all delayed messages arrive", got::size, n -> n >= 24);
        Thread.sleep(1200);   // a second delivery would come by then
        c.equal(24, got.size(), "deliveries, each once");
        long late = 0, seen = 0;
        for (int i = 0; i < 24; i++) {
            MessageExt m = got.messages.get(i); String body = Scenarios.text(m); long after = got.times.get(i) - due.get(body);
            c.expect(after >= 0, "a delayed message is not early", body + " by " + -after + " ms");
            c.equal(topic, m.getTopic(), "its topic"); c.equal(queues.get(body), m.getQueueId(), "its queue"); c.equal("dk" + body.substring(8), m.getKeys(), "its key");
            // by the broker's clock: a client that has lost its connection asks again only after its next heartbeat, up to 30 s later
            late = Math.max(late, m.getStoreTimestamp() - due.get(body)); seen = Math.max(seen, after);
        }
        c.facts.put("latest_ms", late); c.facts.put("latest_seen_ms", seen);
        c.expect(late < 5000, "delayed messages are not delivered much too late", late + " ms");
    }

    static void query(Scenarios.Case c) throws Exception {
        String topic = c.topic(3), shared = "shared-" + c.id; DefaultMQProducer p = c.producer(); SendResult r = null;
        for (int i = 0; i < 20; i++) r = c.send(p, topic, "q", "one-" + i + " " + shared, "query " + i);
        SendResult last = r;
        MessageExt byId = p.viewMessage(topic, last.getOffsetMsgId());
        c.equal("query 19", Scenarios.text(byId), "by offset id");
        c.equal(last.getQueueOffset(), byId.getQueueOffset(), "its queue offset");
        c.equal("query 19", Scenarios.text(c.eventually(10, "by unique key", () -> p.viewMessage(topic, last.getMsgId()), m -> m != null)), "by unique key");
        QueryResult one = c.eventually(10, "by a key of its own", () -> p.queryMessage(topic, "one-7", 32, 0, Long.MAX_VALUE), q -> q.getMessageList().size() > 0);
        c.equal(1, one.getMessageList().size(), "messages of a key of its own"); c.equal("query 7", Scenarios.text(one.getMessageList().get(0)), "found by key");
        c.equal(20, p.queryMessage(topic, shared, 64, 0, Long.MAX_VALUE).getMessageList().size(), "messages of a shared key");
        c.equal(5, p.queryMessage(topic, shared, 5, 0, Long.MAX_VALUE).getMessageList().size(), "at most so many");
        c.expect(code(() -> p.queryMessage(topic, "no-such-key", 32, 0, Long.MAX_VALUE)) != 0, "a key nobody has is an error to this client", 0);
        c.expect(code(() -> p.queryMessage(topic, shared, 32, 0, 1000)) != 0, "nothing lies in another time", 0);
    }

    static void pull(Scenarios.Case c) throws Exception {
        String topic = c.topic(1); DefaultMQProducer p = c.producer(); DefaultMQPullConsumer r = c.reader;
        MessageQueue q = r.fetchSubscribeMessageQueues(topic).iterator().next();
        c.equal(0L, r.minOffset(q), "least offset of a new queue"); c.equal(0L, r.maxOffset(q), "and its greatest");
        c.equal(PullStatus.NO_NEW_MSG, r.pull(q, "*", 0, 32).getPullStatus(), "a pull of an empty queue");
        for (int i = 0; i < 50; i++) { c.send(p, topic, i % 2 == 0 ? "even" : "odd", "k" + i, "pull " + i); if (i == 24) Thread.sleep(20); }
        c.eventually(10, "greatest offset", () -> r.maxOffset(q), n -> n == 50);
        PullResult some = r.pull(q, "*", 10, 8);
        c.equal(8, some.getMsgFoundList().size(), "as many as asked for"); c.equal(18L, some.getNextBeginOffset(), "next offset"); c.equal(50L, some.getMaxOffset(), "max offset"); c.equal(0L, some.getMinOffset(), "min offset");
        List<String> odd = new ArrayList<>(); long at = 0;
        while (at < 50) { PullResult f = r.pull(q, "odd", at, 16); if (f.getPullStatus() == PullStatus.FOUND) for (MessageExt m : f.getMsgFoundList()) odd.add(Scenarios.text(m)); c.expect(f.getNextBeginOffset() > at, "a filtered pull gets ahead", f); at = f.getNextBeginOffset(); }
        c.equal(25, odd.size(), "messages of a tag");
        c.equal(PullStatus.NO_MATCHED_MSG, r.pull(q, "none", 0, 32).getPullStatus(), "a pull for a tag nobody has");
        c.equal(PullStatus.NO_NEW_MSG, r.pull(q, "*", 50, 32).getPullStatus(), "a pull at the end");
        PullResult far = r.pull(q, "*", 5000, 32);
        c.equal(PullStatus.OFFSET_ILLEGAL, far.getPullStatus(), "a pull far beyond the end"); c.facts.put("next after far", far.getNextBeginOffset());
        c.equal(50L, far.getNextBeginOffset(), "it is sent to the end");
        MessageExt middle = r.pull(q, "*", 25, 1).getMsgFoundList().get(0);
        c.equal(25L, r.searchOffset(q, middle.getStoreTimestamp()), "offset by the time of the message at 25");
        c.equal(r.pull(q, "*", 0, 1).getMsgFoundList().get(0).getStoreTimestamp(), r.earliestMsgStoreTime(q), "time of the first message");
        // a pull that waits is answered when a message comes
        CompletableFuture<Long> woken = new CompletableFuture<>(); AtomicLong sent = new AtomicLong();
        Thread t = new Thread(() -> { try { PullResult w = r.pullBlockIfNotFound(q, "*", 50, 32); woken.complete(w.getPullStatus() == PullStatus.FOUND ? System.nanoTime() : -1L); } catch (Exception e) { woken.completeExceptionally(e); } });
        t.start(); Thread.sleep(700); c.expect(!woken.isDone(), "a waiting pull is held", "answered early");
        sent.set(System.nanoTime()); c.send(p, topic, "even", "late", "pull 50");
        long ms = (woken.get(10, TimeUnit.SECONDS) - sent.get()) / 1_000_000; c.facts.put("woken_ms", ms);
        c.expect(ms >= 0 && ms < 1000, "a waiting pull is woken by a send", ms + " ms");
        // offsets of a group
        c.equal(0L, r.fetchConsumeOffset(q, true), "offset of a group that has none, on a young topic");
        r.updateConsumeOffset(q, 33); r.getDefaultMQPullConsumerImpl().getOffsetStore().persist(q);
        c.eventually(10, "a committed offset is kept", () -> r.fetchConsumeOffset(q, true), n -> n == 33);
    }

    /** Old clients send to the port two below. */
    static void vip(Scenarios.Case c) throws Exception {
        String topic = c.topic(2); DefaultMQProducer p = c.producer(); p.setVipChannelEnabled(true);
        DefaultMQProducer q = new DefaultMQProducer(c.group()); q.setNamesrvAddr(c.ns); q.setVipChannelEnabled(true); q.setSendMsgTimeout(60000); q.setMqClientApiTimeout(60000); q.setInstanceName(c.id); q.start(); c.closers.add(q::shutdown);
        for (int i = 0; i < 10; i++) c.send(q, topic, "v", "k" + i, "vip " + i);
        c.equal(10, c.readWhenThere(topic, 10).size(), "messages sent by the other port");
    }

    static void trace(Scenarios.Case c) throws Exception {
        String topic = c.topic(1), group = c.group();
        DefaultMQProducer p = new DefaultMQProducer(c.group(), true, null); p.setNamesrvAddr(c.ns); p.setSendMsgTimeout(60000); p.setMqClientApiTimeout(60000); p.setInstanceName(c.id); p.start(); c.closers.add(p::shutdown);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null); consumer.setNamesrvAddr(c.ns); consumer.setInstanceName(c.id + "-c"); consumer.setMqClientApiTimeout(60000); c.closers.add(consumer::shutdown);
        consumer.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, "*"); Scenarios.Got got = c.gather(consumer);
        SendResult r = c.send(p, topic, "t", "traced", "traced"); c.eventually(60, "it arrives", got::size, n -> n == 1);
        List<MessageExt> traces = c.eventually(60, "traces of the send and of the consumption", () -> c.reader.queryMessage("RMQ_SYS_TRACE_TOPIC", r.getMsgId(), 32, 0, Long.MAX_VALUE).getMessageList(), l -> kinds(l).containsAll(Set.of("Pub", "SubBefore", "SubAfter")));
        c.facts.put("kinds", kinds(traces));
    }

    static Set<String> kinds(List<MessageExt> traces) { Set<String> k = new TreeSet<>(); for (MessageExt m : traces) for (String line : Scenarios.text(m).split("\u0002")) k.add(line.split("\u0001")[0]); return k; }

    /** A namespace goes before the names of topics and groups, with a percent sign. */
    static void namespace(Scenarios.Case c) throws Exception {
        String topic = c.id + "-topic", group = c.group();
        DefaultMQProducer p = new DefaultMQProducer("INST_1", c.group()); p.setNamesrvAddr(c.ns); p.setSendMsgTimeout(60000); p.setMqClientApiTimeout(60000); p.setInstanceName(c.id); p.start(); c.closers.add(p::shutdown);
        for (int i = 0; i < 5; i++) c.send(p, topic, "n", "k" + i, "ns " + i);
        c.eventually(60, "its route", () -> c.reader.fetchSubscribeMessageQueues("INST_1%" + topic).size(), n -> n > 0);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("INST_1", group); consumer.setNamesrvAddr(c.ns); consumer.setInstanceName(c.id + "-c"); consumer.setMqClientApiTimeout(60000); c.closers.add(consumer::shutdown);
        consumer.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, "n"); Scenarios.Got got = c.gather(consumer);
        c.eventually(60, "messages of the namespace", got::size, n -> n == 5);
        c.equal(topic, got.messages.get(0).getTopic(), "the topic without its namespace");
        c.eventually(10, "the group has the namespace", () -> c.admin.examineConsumerConnectionInfo("INST_1%" + group).getConnectionSet().size(), n -> n == 1);
    }
}
