// Writes a store root with the official store classes, for LedgerMQ to import: what a broker of this version leaves behind.
//
// Usage: WriteStore plain|dledger ROOT MESSAGES FILE_BYTES
// Messages: topic "orders" in 4 queues with keys, tags, a message group and a body that is compressed now and then; a topic with IPv6
// hosts; delayed ones; a client batch. Tells "key=value" a line: the next offset of every queue.

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public class WriteStore {
    private static final long BORN_MS = 1700000000000L;

    public static void main(String[] args) throws Exception {
        boolean dledger = args[0].equals("dledger");
        String root = args[1];
        int messages = Integer.parseInt(args[2]);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[3]));
        config.setMappedFileSizeConsumeQueue(20 * 300);
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(2000);
        config.setDiskMaxUsedSpaceRatio(99);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        config.setBrokerRole(BrokerRole.ASYNC_MASTER);
        if (dledger) {
            System.setProperty("dledger.disk.ratio.check", "0.99");
            System.setProperty("dledger.disk.ratio.clean", "0.99");
            config.setEnableDLegerCommitLog(true);
            config.setdLegerGroup("g");
            config.setdLegerSelfId("n0");
            config.setdLegerPeers("n0-127.0.0.1:" + args[4]);
        }
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("c", true),
            (topic, queue, offset, tags, time, bits, properties) -> { }, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        long until = System.currentTimeMillis() + 30000;
        for (int i = 0; i < messages; ) {
            PutMessageResult result = store.putMessage(message(i));
            if (result.isOk()) {
                i++;
            } else if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("message " + i + ": " + result.getPutMessageStatus());
            } else {
                // Until the only DLedger node has elected itself.
                Thread.sleep(20);
            }
        }
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < until) {
            Thread.sleep(20);
        }
        for (String topic : new String[] {"orders", "wide", "SCHEDULE_TOPIC_XXXX"}) {
            for (int queue = 0; queue < 4; queue++) {
                say(topic + "/" + queue, store.getMaxOffsetInQueue(topic, queue));
            }
        }
        store.shutdown();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static MessageExtBrokerInner message(int i) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        boolean wide = i % 7 == 3;
        boolean delayed = i % 11 == 5;
        byte[] body = ("body " + i).repeat(1 + i % 20).getBytes("UTF-8");
        message.setTopic(wide ? "wide" : "orders");
        message.setQueueId(i % 4);
        if (i % 13 == 6) {
            body = UtilAll.compress(body, 5);
            message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG);
        }
        message.setBody(body);
        message.setTags("tag" + i % 3);
        message.setKeys("k" + i + " shared");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%032X", i));
        message.putUserProperty("colour", i % 2 == 0 ? "blue" : "grün");
        message.setBornTimestamp(BORN_MS + i);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(wide ? "fe80::12" : "10.1.2.3"), 50000 + i));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName("10.9.8.7"), 10911));
        if (wide) {
            message.setBornHostV6Flag();
        }
        message.setReconsumeTimes(i % 3);
        if (delayed) {
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, "orders");
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_QUEUE_ID, "" + i % 4);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_DELAY_TIME_LEVEL, "3");
            message.setTopic("SCHEDULE_TOPIC_XXXX");
            message.setQueueId(2);
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        return message;
    }

    private static void say(String key, Object value) {
        System.out.println(key + "=" + value);
    }
}
