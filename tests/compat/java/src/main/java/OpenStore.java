// Opens a copy of a LedgerMQ broker group with the official store classes and tells what they see, one "key=value" a line.
//
// Usage: OpenStore dledger ROOT SELF DATA_BYTES INDEX_BYTES
//        OpenStore store ROOT SELF DATA_BYTES QUEUE_BYTES SLOTS UNITS TOPIC/QUEUE... [-- TOPIC KEY]...
// Decides nothing: the test compares. Works on copies only, because recovering may write.

import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.entry.DLedgerEntryCoder;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public class OpenStore {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("dledger")) {
            dledger(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]));
        } else {
            store(args);
        }
        System.out.flush();
        // The store leaves threads behind that would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private static void dledger(String root, String self, int dataBytes, int indexBytes) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.group("g").selfId(self).peers(self + "-127.0.0.1:20911").storeBaseDir(root);
        config.setMappedFileSizeForEntryData(dataBytes);
        config.setMappedFileSizeForEntryIndex(indexBytes);
        config.setEnableLeaderElector(false);
        config.setEnableDiskForceClean(false);
        MemberState member = new MemberState(config);
        member.changeToLeader(0);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, member);
        store.load();
        store.recover();
        say("begin", store.getLedgerBeginIndex());
        say("end", store.getLedgerEndIndex());
        say("end_term", store.getLedgerEndTerm());
        say("committed", store.getCommittedIndex());
        say("write_pos", store.getWritePos());
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (long index = Math.max(0, store.getLedgerBeginIndex()); index <= store.getLedgerEndIndex(); index++) {
            DLedgerEntry entry = store.get(index);
            ByteBuffer encoded = ByteBuffer.allocate(entry.getSize());
            DLedgerEntryCoder.encode(entry, encoded);
            digest.update(encoded.array(), 0, entry.getSize());
        }
        say("entries_sha256", hex(digest.digest()));
    }

    private static void store(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[1]);
        config.setStorePathCommitLog(args[1] + "/commitlog");
        config.setEnableDLegerCommitLog(true);
        config.setdLegerGroup("g");
        config.setdLegerSelfId(args[2]);
        config.setdLegerPeers(args[2] + "-127.0.0.1:20911");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[3]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[4]));
        config.setMaxHashSlotNum(Integer.parseInt(args[5]));
        config.setMaxIndexNum(Integer.parseInt(args[6]));
        config.setDiskMaxUsedSpaceRatio(99);
        config.setTimerWheelEnable(false);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("c", true),
            (topic, queue, offset, tags, time, bits, properties) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        say("loaded", store.load());
        // A store that was only loaded, not started, answers no reads: started it would elect leaders and write.
        Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
        shutdown.setAccessible(true);
        shutdown.set(store, false);
        StoreCheckpoint checkpoint = store.getStoreCheckpoint();
        say("physic_ms", checkpoint.getPhysicMsgTimestamp());
        say("logics_ms", checkpoint.getLogicsMsgTimestamp());
        say("index_ms", checkpoint.getIndexMsgTimestamp());
        List<String> rest = Arrays.asList(args).subList(7, args.length);
        int at = 0;
        for (; at < rest.size() && !rest.get(at).equals("--"); at++) {
            int slash = rest.get(at).lastIndexOf('/');
            queue(store, rest.get(at).substring(0, slash), Integer.parseInt(rest.get(at).substring(slash + 1)));
        }
        for (; at + 2 < rest.size(); at += 3) {
            QueryMessageResult found = store.queryMessage(rest.get(at + 1), rest.get(at + 2), 64, 0, Long.MAX_VALUE);
            StringBuilder offsets = new StringBuilder();
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                offsets.append(' ').append(MessageDecoder.decode(buffer).getCommitLogOffset());
            }
            say("query " + rest.get(at + 1) + " " + rest.get(at + 2), offsets.toString().trim());
        }
    }

    private static void queue(DefaultMessageStore store, String topic, int queue) throws Exception {
        String name = topic + "/" + queue;
        long min = store.getMinOffsetInQueue(topic, queue);
        long max = store.getMaxOffsetInQueue(topic, queue);
        say("min " + name, min);
        say("max " + name, max);
        long wrong = 0;
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (long offset = min; offset < max;) {
            GetMessageResult got = store.getMessage("c", topic, queue, offset, 32, null);
            if (got == null || got.getMessageCount() == 0) {
                say("stuck " + name, offset);
                return;
            }
            for (ByteBuffer buffer : got.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer, true, false);
                wrong += message == null || message.getQueueOffset() != offset || !message.getTopic().equals(topic) ? 1 : 0;
                digest.update(message == null || message.getBody() == null ? new byte[0] : message.getBody());
                offset++;
            }
            got.release();
        }
        say("wrong " + name, wrong);
        say("bodies_sha256 " + name, hex(digest.digest()));
    }

    private static void say(String key, Object value) {
        System.out.println(key + "=" + value);
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }
}
