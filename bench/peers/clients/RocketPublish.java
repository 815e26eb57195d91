import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends to a topic asynchronously; arguments: name server's port, body bytes, messages in a batch, batches in flight, seconds, warm-up
 * seconds. Only SEND_OK counts; what is refused because the broker is busy is counted apart.
 */
public class RocketPublish {
    public static void main(String[] arguments) throws Exception {
        int bodyBytes = Integer.parseInt(arguments[1]), batch = Integer.parseInt(arguments[2]), window = Integer.parseInt(arguments[3]);
        double seconds = Double.parseDouble(arguments[4]), warmUp = Double.parseDouble(arguments[5]);
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr("127.0.0.1:" + arguments[0]);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.setCompressMsgBodyOverHowmuch(1 << 22);
        producer.start();
        byte[] body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        awaitFirst(producer, body);

        long begin = System.nanoTime() + (long) (warmUp * 1e9), end = begin + (long) (seconds * 1e9);
        double[] times = new double[20_000_000];
        AtomicInteger counted = new AtomicInteger(), refused = new AtomicInteger();
        AtomicLong total = new AtomicLong();
        Semaphore room = new Semaphore(window);
        while (System.nanoTime() < end) {
            room.acquire();
            long started = System.nanoTime();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    long now = System.nanoTime();
                    room.release();
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        refused.incrementAndGet();
                        return;
                    }
                    total.addAndGet(batch);
                    if (now >= begin && now < end) {
                        times[counted.getAndIncrement()] = (now - started) / 1e6;
                    }
                }

                @Override
                public void onException(Throwable error) {
                    room.release();
                    if (refused.getAndIncrement() == 0) {
                        System.err.println(error);
                    }
                }
            };
            if (batch == 1) {
                producer.send(new Message("bench", body), callback);
            } else {
                List<Message> messages = new ArrayList<>(batch);
                for (int number = 0; number < batch; number++) {
                    messages.add(new Message("bench", body));
                }
                producer.send(messages, callback);
            }
        }
        if (!room.tryAcquire(window, 60, TimeUnit.SECONDS)) {
            throw new IllegalStateException((window - room.availablePermits()) + " sends have no outcome a minute after the last one");
        }
        if (counted.get() == 0) {
            throw new IllegalStateException("no message was acknowledged in " + seconds + " s, " + refused + " sends were refused");
        }
        double[] ordered = Arrays.copyOf(times, counted.get());
        Arrays.sort(ordered);
        System.out.printf("%n{\"messages_per_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f, \"total\": %d, \"refused\": %d}%n",
            (double) ordered.length * batch / seconds, ordered[ordered.length / 2], ordered[(int) (ordered.length * 0.99)], total.get(),
            refused.get());
        System.out.flush();
        System.exit(0);
    }

    /** Brokers elect a leader first, and a slave hears of its master when it tells the name server of itself again, after half a minute. */
    private static void awaitFirst(DefaultMQProducer producer, byte[] body) throws Exception {
        String last = "nothing was sent";
        for (long end = System.nanoTime() + 150_000_000_000L; System.nanoTime() < end; Thread.sleep(1000)) {
            try {
                SendStatus status = producer.send(new Message("bench", body)).getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    return;
                }
                last = status.toString();
            } catch (Exception early) {
                last = early.toString();
            }
        }
        throw new IllegalStateException("no message was acknowledged as asked for in 150 s, the last one: " + last);
    }
}
