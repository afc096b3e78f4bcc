package org.apache.rocketmq.test.base;

import static org.mockito.Mockito.RETURNS_DEEP_STUBS;
import static org.mockito.Mockito.RETURNS_DEFAULTS;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.doReturn;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.BindException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.offset.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.broker.topic.TopicQueueMappingCleanService;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.OffsetNotFoundException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicConfigAndQueueMapping;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.client.rmq.RMQPopClient;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.mockito.invocation.InvocationOnMock;
import org.mockito.stubbing.Answer;

/**
 * Name server and brokers of ours, as processes, behind the Java objects that upstream's tests look into: what they ask
 * of these is asked over the wire, with requests of the admin tool. What no request can tell raises an exception.
 *
 * Properties: pystore is the program, logs a folder.
 */
final class Remote {
    private static final int WAIT_MS = 60_000, TIMEOUT_MS = 5_000;
    private static final List<Process> RUNNING = new CopyOnWriteArrayList<>();
    private static DefaultMQAdminExt admin;
    private static String names;
    private static int nextPort = 20_000 + (int) (ProcessHandle.current().pid() % 8_000);

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroy)));
    }

    private static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt(TIMEOUT_MS);
            made.setInstanceName("remote");
            made.setNamesrvAddr(names);
            made.start();
            admin = made;
        }
        return admin;
    }

    private static MQClientAPIImpl api() throws Exception {
        return admin().getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    /** With those of VIP clients, two below, and of slaves, one above. */
    private static synchronized int freePort() throws IOException {
        while (true) {
            nextPort += 5;
            try (ServerSocket main = new ServerSocket(nextPort); ServerSocket vip = new ServerSocket(nextPort - 2);
                 ServerSocket slaves = new ServerSocket(nextPort + 1)) {
                return nextPort;
            } catch (BindException taken) {
                continue;
            }
        }
    }

    private static Process start(String log, int port, String... words) throws Exception {
        List<String> line = new ArrayList<>(List.of(System.getProperty("pystore")));
        line.addAll(List.of(words));
        File to = new File(System.getProperty("logs"), log);
        Process made = new ProcessBuilder(line).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(to)).start();
        RUNNING.add(made);
        for (long end = System.currentTimeMillis() + WAIT_MS; System.currentTimeMillis() < end; Thread.sleep(100)) {
            if (!made.isAlive()) throw new IllegalStateException(line + " has ended: " + to);
            try (Socket reached = new Socket("127.0.0.1", port)) {
                return made;
            } catch (IOException later) {
                continue;
            }
        }
        throw new IllegalStateException(line + " does not listen: " + to);
    }

    static NamesrvController namesrv() throws Exception {
        int port = freePort();
        names = "127.0.0.1:" + port;
        start("namesrv.log", port, "namesrv", "--port", "" + port);
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(port);
        NamesrvConfig config = mock(NamesrvConfig.class, (Answer<Object>) call -> {
            if (call.getMethod().getName().startsWith("set")) admin().updateNameServerConfig(change(call), List.of(names));
            return RETURNS_DEFAULTS.answer(call);
        });
        NamesrvController made = mock(NamesrvController.class, RETURNS_DEEP_STUBS);
        doReturn(netty).when(made).getNettyServerConfig();
        doReturn(config).when(made).getNamesrvConfig();
        return made;
    }

    /** The setting that a setter is called for. */
    private static Properties change(InvocationOnMock call) {
        String name = call.getMethod().getName();
        Properties made = new Properties();
        made.put(Character.toLowerCase(name.charAt(3)) + name.substring(4), "" + call.getArgument(0));
        return made;
    }

    static BrokerController broker(MessageStoreConfig store, BrokerConfig config) throws Exception {
        int port = freePort();
        String address = "127.0.0.1:" + port, name = config.getBrokerName();
        Path root = Paths.get(store.getStorePathRootDir()), conf = root.resolveSibling(name + ".conf");
        Files.writeString(conf, String.join("\n", "brokerName=" + name, "brokerIP1=127.0.0.1", "listenPort=" + port,
            "haListenPort=" + (port + 1), "namesrvAddr=" + config.getNamesrvAddr(), "storePathRootDir=" + root,
            "mappedFileSizeCommitLog=104857600", "maxIndexNum=1000", "maxHashSlotNum=4000", "enablePropertyFilter=true",
            "recallMessageEnable=true", "maxTransferCountOnMessageInMemory=1024", "maxTransferCountOnMessageInDisk=1024",
            "enableBuildConsumeQueueConcurrently=" + store.isEnableBuildConsumeQueueConcurrently(), ""));
        Process running = start(name + ".log", port, "broker", "-c", conf.toString());
        BrokerConfig watched = mock(BrokerConfig.class, withSettings().spiedInstance(config).defaultAnswer(call -> {
            Method method = call.getMethod();
            if (method.getName().startsWith("set") && method.getParameterCount() == 1) tell(address, change(call));
            return call.callRealMethod();
        }));
        BrokerController made = mock(BrokerController.class, RETURNS_DEEP_STUBS);
        doReturn(watched).when(made).getBrokerConfig();
        doReturn(store).when(made).getMessageStoreConfig();
        doReturn(address).when(made).getBrokerAddr();
        doReturn(mock(DefaultMessageStore.class, store(address, name))).when(made).getMessageStore();
        doReturn(mock(TopicConfigManager.class, topics(address))).when(made).getTopicConfigManager();
        doReturn(mock(SubscriptionGroupManager.class, groups(address))).when(made).getSubscriptionGroupManager();
        doReturn(mock(ConsumerOffsetManager.class, offsets(address, name))).when(made).getConsumerOffsetManager();
        doReturn(mock(ConsumerOrderInfoManager.class, order(address, name))).when(made).getConsumerOrderInfoManager();
        TopicQueueMappingCleanService cleaner = mock(TopicQueueMappingCleanService.class);
        doAnswer(call -> admin().cleanExpiredConsumerQueueByAddr(address)).when(cleaner).wakeup();
        doReturn(cleaner).when(made).getTopicQueueMappingCleanService();
        doAnswer(call -> {
            running.destroy();
            running.waitFor();
            RUNNING.remove(running);
            return null;
        }).when(made).shutdown();
        return made;
    }

    /** Ours refuses settings that it has no use for; the tests that set them do not depend on them. */
    private static void tell(String address, Properties change) throws Exception {
        try {
            admin().updateBrokerConfig(address, change);
        } catch (MQBrokerException refused) {
            System.out.println("REFUSED " + change + ": " + refused.getErrorMessage());
        }
    }

    private static UnsupportedOperationException unknown(InvocationOnMock call) {
        return new UnsupportedOperationException("no request tells " + call.getMethod());
    }

    private static Answer<Object> store(String address, String broker) {
        return call -> {
            switch (call.getMethod().getName()) {
                case "getMaxOffsetInQueue":
                    return api().getMaxOffset(address, queue(broker, call.getArgument(0), call.getArgument(1)), TIMEOUT_MS);
                case "getMinOffsetInQueue":
                    return api().getMinOffset(address, queue(broker, call.getArgument(0), call.getArgument(1)), TIMEOUT_MS);
                case "cleanUnusedTopic":
                    Set<String> kept = call.getArgument(0);
                    for (String topic : admin().getAllTopicConfig(address, TIMEOUT_MS).getTopicConfigTable().keySet())
                        if (!kept.contains(topic)) emptyQueues(address, topic);
                    return kept.size();
                case "dispatchBehindBytes":
                    return Long.parseLong(admin().fetchBrokerRuntimeStats(address).getTable().get("dispatchBehindBytes"));
                default:
                    throw unknown(call);
            }
        };
    }

    /** Deletes a static topic with its queues, and makes it again; another one has to stay. */
    private static void emptyQueues(String address, String topic) throws Exception {
        TopicConfigAndQueueMapping config = (TopicConfigAndQueueMapping) admin().examineTopicConfig(address, topic);
        if (config.getMappingDetail() == null) return;
        admin().deleteTopicInBroker(Set.of(address), topic);
        admin().createStaticTopic(address, admin().getCreateTopicKey(), config, config.getMappingDetail(), false);
    }

    private static MessageQueue queue(String broker, String topic, int number) {
        return new MessageQueue(topic, broker, number);
    }

    private static Answer<Object> topics(String address) {
        return call -> {
            switch (call.getMethod().getName()) {
                case "getTopicConfigTable":
                    return admin().getAllTopicConfig(address, TIMEOUT_MS).getTopicConfigTable();
                case "updateTopicConfig":
                    admin().createAndUpdateTopicConfig(address, call.getArgument(0));
                    return null;
                default:
                    throw unknown(call);
            }
        };
    }

    private static Answer<Object> groups(String address) {
        return call -> {
            switch (call.getMethod().getName()) {
                case "findSubscriptionGroupConfig":  // Apache's makes one that is not there
                    SubscriptionGroupConfig made = new SubscriptionGroupConfig();
                    made.setGroupName(call.getArgument(0));
                    return made;
                case "updateSubscriptionGroupConfig":
                    admin().createAndUpdateSubscriptionGroupConfig(address, call.getArgument(0));
                    return null;
                default:
                    throw unknown(call);
            }
        };
    }

    private static Answer<Object> offsets(String address, String broker) {
        return call -> {
            String group = call.getArgument(0), topic = call.getArgument(1);
            int number = call.getArgument(2);
            switch (call.getMethod().getName()) {
                case "queryOffset":
                    QueryConsumerOffsetRequestHeader asked = new QueryConsumerOffsetRequestHeader();
                    asked.setConsumerGroup(group);
                    asked.setTopic(topic);
                    asked.setQueueId(number);
                    asked.setSetZeroIfNotFound(false);
                    try {
                        return api().queryConsumerOffset(address, asked, TIMEOUT_MS);
                    } catch (OffsetNotFoundException none) {
                        return -1L;
                    }
                case "queryPullOffset":
                    OffsetWrapper found = api().getConsumeStats(address, group, topic, TIMEOUT_MS).getOffsetTable().get(queue(broker, topic, number));
                    return found == null ? -1L : found.getPullOffset();
                default:
                    throw unknown(call);
            }
        };
    }

    private static Answer<Object> order(String address, String broker) {
        return call -> {
            if (!call.getMethod().getName().equals("checkBlock")) throw unknown(call);
            return isBlocked(address, queue(broker, call.getArgument(1), call.getArgument(3)), call.getArgument(2));
        };
    }

    /** A queue is, when an ordered pop gets nothing although there is a message. */
    private static boolean isBlocked(String address, MessageQueue queue, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("remote");
        producer.setInstanceName("remote" + System.nanoTime());
        producer.setNamesrvAddr(names);
        producer.start();
        producer.send(new Message(queue.getTopic(), "is there more?".getBytes()), queue);
        producer.shutdown();
        RMQPopClient client = new RMQPopClient();
        client.create(false);
        client.start();
        PopResult got = client.popMessageAsync(address, queue, 3_000, 1, group, TIMEOUT_MS, false, 0, true, "TAG", "*").get();
        client.shutdown();
        return got.getMsgFoundList() == null || got.getMsgFoundList().isEmpty();
    }
}
