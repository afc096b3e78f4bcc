package org.apache.rocketmq.test.base;

import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/** In the place of upstream's class of this name, which starts Apache's brokers: what its tests call, for ours. */
public class IntegrationTestBase {
    private static final AtomicInteger STARTED = new AtomicInteger();
    private static final int TOPIC_S = 30;

    public static NamesrvController createAndStartNamesrv() {
        try {
            return Remote.namesrv();
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    public static BrokerController createAndStartBroker(String names) {
        BrokerConfig broker = new BrokerConfig();
        MessageStoreConfig store = new MessageStoreConfig();
        broker.setBrokerName("TestBrokerName_" + STARTED.incrementAndGet());
        broker.setNamesrvAddr(names);
        try {
            store.setStorePathRootDir(Files.createTempDirectory("store").toString());
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
        return createAndStartBroker(store, broker);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        try {
            return Remote.broker(store, broker);
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    public static boolean initTopic(String topic, String names, String cluster, int queues, CQType queue, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (queue != CQType.SimpleCQ) attributes.put("+queue.type", queue.toString());
        if (type != TopicMessageType.NORMAL) attributes.put("+message.type", type.toString());
        return MQAdminTestUtils.createTopic(names, cluster, topic, queues, attributes, TOPIC_S);
    }

    public static boolean initTopic(String topic, String names, String cluster, int queues, CQType queue) {
        return initTopic(topic, names, cluster, queues, queue, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String names, String cluster, CQType queue) {
        return initTopic(topic, names, cluster, BaseConf.QUEUE_NUMBERS, queue, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String names, String cluster, TopicMessageType type) {
        return initTopic(topic, names, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static void initMQAdmin(String names) {
        try {
            MQAdminTestUtils.startAdmin(names);
        } catch (MQClientException failed) {
            throw new IllegalStateException(failed);
        }
    }
}
