import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends to a topic through the official gRPC client, asynchronously; arguments: endpoint, topic, body bytes, messages in flight, seconds,
 * warm-up seconds. Every message is sent once; refused ones are counted apart.
 */
public class ClientPublish {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int bodyBytes = Integer.parseInt(arguments[2]), window = Integer.parseInt(arguments[3]);
        double seconds = Double.parseDouble(arguments[4]), warmUp = Double.parseDouble(arguments[5]);
        byte[] body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        Message message = provider.newMessageBuilder().setTopic(topic).setBody(body).build();
        Producer producer = started(provider, arguments[0], topic, message);

        long begin = System.nanoTime() + (long) (warmUp * 1e9), end = begin + (long) (seconds * 1e9);
        double[] times = new double[20_000_000];
        AtomicInteger counted = new AtomicInteger(), refused = new AtomicInteger();
        AtomicLong total = new AtomicLong();
        Semaphore room = new Semaphore(window);
        while (System.nanoTime() < end) {
            room.acquire();
            long invoked = System.nanoTime();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                long now = System.nanoTime();
                room.release();
                if (error != null) {
                    if (refused.getAndIncrement() == 0) {
                        System.err.println(error);
                    }
                    return;
                }
                total.incrementAndGet();
                if (now >= begin && now < end) {
                    times[counted.getAndIncrement()] = (now - invoked) / 1e6;
                }
            });
        }
        if (!room.tryAcquire(window, 60, TimeUnit.SECONDS)) {
            throw new IllegalStateException((window - room.availablePermits()) + " sends have no outcome a minute after the last one");
        }
        if (counted.get() == 0) {
            throw new IllegalStateException("no message was acknowledged in " + seconds + " s, " + refused + " were refused");
        }
        double[] ordered = Arrays.copyOf(times, counted.get());
        Arrays.sort(ordered);
        System.out.printf("%n{\"messages_per_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f, \"total\": %d, \"refused\": %d}%n",
            ordered.length / seconds, ordered[ordered.length / 2], ordered[(int) (ordered.length * 0.99)], total.get(), refused.get());
        System.out.flush();
        System.exit(0);
    }

    /** A producer whose first message was acknowledged: servers elect a leader first, and a proxy asks for routes again after seconds. */
    private static Producer started(ClientServiceProvider provider, String endpoint, String topic, Message message) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Exception last = null;
        Producer producer = null;
        for (long end = System.nanoTime() + 150_000_000_000L; System.nanoTime() < end; Thread.sleep(1000)) {
            try {
                if (producer == null) {
                    producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).setMaxAttempts(1).build();
                }
                producer.send(message);
                return producer;
            } catch (ClientException | IllegalStateException early) {
                last = early;
            }
        }
        throw new IllegalStateException("no message was acknowledged in 150 s, the last error: " + last);
    }
}
