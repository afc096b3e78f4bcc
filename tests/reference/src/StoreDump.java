import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.queue.*;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store folder with Apache RocketMQ's own message store (recovery included) and prints what it sees, a JSON line per fact:
 *   {"at":"store",...} limits · {"at":"msg",...} every commit log record · {"at":"cq",...} every consume queue unit
 *   · {"at":"key",...} how many messages the index has for each topic#key asked for.
 * args: STORE_ROOT [COMMITLOG_FILE_SIZE CQ_FILE_SIZE MAX_HASH_SLOT MAX_INDEX]  -- run it on a copy: recovery may write.
 *   -Dkeys=topic#key,... asks the index.
 * or: -list FILE, many stores in one process. A line of FILE is one store, its parts separated by tabs:
 *   STORE_ROOT OUTPUT_FILE [setting=value ...]; keysFile=PATH names a file of topic#key lines.
 * or: -list FILE LIMIT_S, damaged stores: each may fail, or last no longer than that. OUTPUT_FILE.end says how it went:
 *   "read", "did not end" or the exception; it is missing when the process ended.
 */
public class StoreDump {
    static String hex(byte[] b) { CRC32 c = new CRC32(); if (b != null) c.update(b); return String.format("%08x", c.getValue()); }

    public static void main(String[] a) throws Exception {
        if (a[0].equals("-list")) {
            ExecutorService pool = Executors.newFixedThreadPool(12);   // a shutdown of Apache's store sleeps for 3 s
            List<Future<?>> jobs = new ArrayList<>();
            long limit = a.length > 2 ? Long.parseLong(a[2]) : 0;
            for (String line : Files.readAllLines(Paths.get(a[1])))
                jobs.add(pool.submit(() -> { if (limit > 0) bounded(line, limit); else one(line); return null; }));
            try {
                for (Future<?> job : jobs) job.get();
            } catch (ExecutionException e) {
                e.printStackTrace();
                System.exit(1);
            }
        } else {
            Properties p = new Properties();
            if (a.length > 1) { p.setProperty("mappedFileSizeCommitLog", a[1]); p.setProperty("mappedFileSizeConsumeQueue", a[2]); }
            if (a.length > 3) { p.setProperty("maxHashSlotNum", a[3]); p.setProperty("maxIndexNum", a[4]); }
            String keys = System.getProperty("keys");
            dump(System.out, a[0], p, keys == null ? List.of() : Arrays.asList(keys.split(",")));
        }
        System.exit(0);
    }

    static void bounded(String line, long limit) throws Exception {
        String[] end = {"did not end"};
        Thread t = new Thread(() -> {
            try { one(line); end[0] = "read"; } catch (Throwable e) { end[0] = e.toString(); }
        });
        t.setDaemon(true);
        t.start();
        t.join(limit * 1000);
        Files.writeString(Paths.get(line.split("\t")[1] + ".end"), end[0]);
    }

    static void one(String line) throws Exception {
        String[] parts = line.split("\t");
        Properties p = new Properties();
        for (int i = 2; i < parts.length; i++) { String[] kv = parts[i].split("=", 2); p.setProperty(kv[0], kv[1]); }
        String keysFile = (String) p.remove("keysFile");
        try (PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(parts[1]), 1 << 16), false, "UTF-8")) {
            dump(out, parts[0], p, keysFile == null ? List.of() : Files.readAllLines(Paths.get(keysFile)));
        }
    }

    static void dump(PrintStream out, String root, Properties settings, List<String> keys) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(root); c.setStorePathCommitLog(root + File.separator + "commitlog");
        c.setHaListenPort(0); c.setTimerWheelEnable(false); c.setCleanResourceInterval(Integer.MAX_VALUE);
        c.setFileReservedTime(24 * 365 * 100);
        c.setDiskMaxUsedSpaceRatio(95);
        MixAll.properties2Object(settings, c);
        BrokerConfig bc = new BrokerConfig(); bc.setBrokerIP1("127.0.0.1");
        DefaultMessageStore s;
        // The first constructor fills a static, unguarded TreeMap of StoreStatsService while the others walk it.
        synchronized (StoreDump.class) {
            s = new DefaultMessageStore(c, new BrokerStatsManager("dump", true), (t, q, lo, tc, st, bm, props) -> { }, bc, new ConcurrentHashMap<>());
        }
        boolean ok = s.load();
        if (!ok) {   // a broker ends here
            out.println("{\"at\":\"store\",\"loaded\":false}");
            return;
        }
        s.start();
        long t0 = System.currentTimeMillis();
        while (s.dispatchBehindBytes() > 0 && System.currentTimeMillis() - t0 < 20000) Thread.sleep(50);
        out.println("{\"at\":\"store\",\"loaded\":true,\"min_phy\":" + s.getMinPhyOffset() + ",\"max_phy\":" + s.getMaxPhyOffset() + "}");
        long off = s.getMinPhyOffset(), max = s.getMaxPhyOffset();
        int fs = c.getMappedFileSizeCommitLog();
        while (off < max) {
            SelectMappedBufferResult r = s.getCommitLog().getData(off, true);
            if (r == null) break;
            try {
                ByteBuffer b = r.getByteBuffer(); int size = b.getInt(0); int magic = b.getInt(4);
                if (magic == MessageDecoder.BLANK_MAGIC_CODE || size <= 0) { off = (off / fs + 1) * fs; continue; }
                ByteBuffer m = b.slice(); m.limit(size);
                MessageExt x = MessageDecoder.decode(m, true, false);
                if (x == null) { out.println("{\"at\":\"bad\",\"phy\":" + off + "}"); break; }
                TreeMap<String, String> props = x.getProperties() == null ? new TreeMap<>() : new TreeMap<>(x.getProperties());
                StringBuilder ps = new StringBuilder("{"); boolean first = true;
                for (Map.Entry<String, String> e : props.entrySet()) { if (!first) ps.append(","); first = false; ps.append(Json.j(e.getKey())).append(":").append(Json.j(String.valueOf(e.getValue()))); }
                ps.append("}");
                out.println("{\"at\":\"msg\",\"phy\":" + off + ",\"size\":" + size + ",\"magic\":" + Integer.toUnsignedString(magic) + ",\"topic\":" + Json.j(x.getTopic())
                    + ",\"queue\":" + x.getQueueId() + ",\"queue_offset\":" + x.getQueueOffset() + ",\"flag\":" + x.getFlag() + ",\"sys_flag\":" + x.getSysFlag()
                    + ",\"born_ts\":" + x.getBornTimestamp() + ",\"born_host\":" + Json.j(x.getBornHostString() + ":" + ((java.net.InetSocketAddress) x.getBornHost()).getPort()) + ",\"store_ts\":" + x.getStoreTimestamp()
                    + ",\"store_host\":" + Json.j(((java.net.InetSocketAddress) x.getStoreHost()).getAddress().getHostAddress() + ":" + ((java.net.InetSocketAddress) x.getStoreHost()).getPort())
                    + ",\"reconsume\":" + x.getReconsumeTimes() + ",\"prepared_offset\":" + x.getPreparedTransactionOffset() + ",\"body_crc\":" + x.getBodyCRC()
                    + ",\"body_len\":" + (x.getBody() == null ? 0 : x.getBody().length) + ",\"body_crc32\":\"" + hex(x.getBody()) + "\",\"props\":" + ps + "}");
                off += size;
            } catch (RuntimeException e) {
                out.println("{\"at\":\"bad\",\"phy\":" + off + "}");
                break;
            } finally { r.release(); }
        }
        TreeMap<String, ConcurrentMap<Integer, ConsumeQueueInterface>> t = new TreeMap<>(s.getQueueStore().getConsumeQueueTable());
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> e : t.entrySet())
            for (Map.Entry<Integer, ConsumeQueueInterface> q : new TreeMap<>(e.getValue()).entrySet()) {
                ConsumeQueueInterface cq = q.getValue();
                for (long i = cq.getMinOffsetInQueue(); i < cq.getMaxOffsetInQueue(); i++) {
                    CqUnit u = cq.get(i); if (u == null) continue;
                    out.println("{\"at\":\"cq\",\"topic\":" + Json.j(e.getKey()) + ",\"queue\":" + q.getKey() + ",\"offset\":" + i + ",\"phy\":" + u.getPos() + ",\"size\":" + u.getSize() + ",\"tags_code\":" + u.getTagsCode() + "}");
                }
            }
        for (String tk : keys) {
            String[] k = tk.split("#", 2);
            QueryMessageResult r = s.queryMessage(k[0], k[1], 64, 0, Long.MAX_VALUE);
            out.println("{\"at\":\"key\",\"topic\":" + Json.j(k[0]) + ",\"key\":" + Json.j(k[1]) + ",\"found\":" + r.getMessageMapedList().size() + "}");
            r.release();
        }
        out.flush();
        s.shutdown();
    }
}
