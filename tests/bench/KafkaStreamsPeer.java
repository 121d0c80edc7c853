import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The same table in Kafka Streams: per key the event with the highest head, in RocksDB, with a changelog.
 *
 * Arguments: brokers, topic, application id, state folder, guarantee, bytes of cache, events. Prints "running" once it is ready;
 * with events, then "folded SECONDS CPU_SECONDS" at the last of them; ends when its input does.
 */
public final class KafkaStreamsPeer {
    /** Where the Confluent header ends and the event begins. */
    private static final int HEADER_BYTES = 5;

    public static void main(String[] args) throws Exception {
        long events = Long.parseLong(args[6]);
        AtomicLong seen = new AtomicLong();
        CountDownLatch running = new CountDownLatch(1);
        CountDownLatch folded = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .groupByKey()
            .aggregate(
                () -> null,
                (key, value, row) -> {
                    byte[] next = merged(value, row);
                    if (seen.incrementAndGet() == events) {
                        folded.countDown();
                    }
                    return next;
                },
                Materialized.<byte[], byte[], KeyValueStore<Bytes, byte[]>>as("rows")
                    .withKeySerde(Serdes.ByteArray())
                    .withValueSerde(Serdes.ByteArray()));
        KafkaStreams streams = new KafkaStreams(builder.build(), options(args));
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.start();
        running.await();
        System.out.println("running");
        if (events > 0) {
            long began = System.nanoTime();
            double cpuBegan = cpuSeconds();
            folded.await();
            System.out.printf("folded %.3f %.3f%n", (System.nanoTime() - began) / 1e9, cpuSeconds() - cpuBegan);
        }
        while (System.in.read() >= 0) {
            // until whoever started this closes it
        }
        streams.close();
    }

    private static Properties options(String[] args) {
        Properties options = new Properties();
        options.put("bootstrap.servers", args[0]);
        options.put("application.id", args[2]);
        options.put("state.dir", args[3]);
        options.put("processing.guarantee", args[4]);
        options.put("statestore.cache.max.bytes", Long.parseLong(args[5]));
        options.put("num.stream.threads", 2);
        options.put("commit.interval.ms", 1000);
        options.put("auto.offset.reset", "earliest");
        // By default a member stays in its group when it ends, and the next one waits out its session of 45 s.
        options.put("internal.leave.group.on.close", true);
        return options;
    }

    /** The row [head, arrivedAt] of the higher head; an event is the strings' lengths and bytes, then zigzag numbers. */
    private static byte[] merged(byte[] event, byte[] row) {
        ByteBuffer reader = ByteBuffer.wrap(event);
        reader.position(HEADER_BYTES);
        int length = (int) number(reader);
        reader.position(reader.position() + length);
        long head = number(reader);
        long arrivedAt = number(reader);
        if (row != null && ByteBuffer.wrap(row).getLong() >= head) {
            return row;
        }
        return ByteBuffer.allocate(16).putLong(head).putLong(arrivedAt).array();
    }

    private static long number(ByteBuffer reader) {
        long found = 0;
        for (int shift = 0; ; shift += 7) {
            int next = reader.get();
            found |= (long) (next & 0x7f) << shift;
            if (next >= 0) {
                return found >>> 1 ^ -(found & 1);
            }
        }
    }

    private static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private KafkaStreamsPeer() {}
}
