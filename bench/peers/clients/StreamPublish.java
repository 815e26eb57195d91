import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.StreamException;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/** Publishes to a RabbitMQ stream of three replicas; arguments: port, body bytes, batch, messages in flight, seconds, warm-up seconds. */
public class StreamPublish {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]), bodyBytes = Integer.parseInt(arguments[1]);
        int batch = Integer.parseInt(arguments[2]), window = Integer.parseInt(arguments[3]);
        double seconds = Double.parseDouble(arguments[4]), warmUp = Double.parseDouble(arguments[5]);
        try (Environment environment = Environment.builder().host("127.0.0.1").port(port).build()) {
            create(environment);
            Producer producer = environment.producerBuilder().stream("bench").batchSize(batch).maxUnconfirmedMessages(window).build();
            byte[] body = new byte[bodyBytes];
            long begin = System.nanoTime() + (long) (warmUp * 1e9), end = begin + (long) (seconds * 1e9);
            double[] times = new double[40_000_000];
            AtomicInteger counted = new AtomicInteger(), total = new AtomicInteger(), sent = new AtomicInteger();
            while (System.nanoTime() < end) {
                long started = System.nanoTime();
                sent.incrementAndGet();
                producer.send(producer.messageBuilder().addData(body).build(), status -> {
                    long now = System.nanoTime();
                    if (!status.isConfirmed()) {
                        System.err.println("not confirmed: " + status.getCode());
                        System.exit(1);
                    }
                    total.incrementAndGet();
                    if (now >= begin && now < end) {
                        times[counted.getAndIncrement()] = (now - started) / 1e6;
                    }
                });
            }
            while (total.get() < sent.get()) {
                Thread.sleep(10);
            }
            double[] ordered = Arrays.copyOf(times, counted.get());
            Arrays.sort(ordered);
            System.out.printf("{\"messages_per_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f, \"total\": %d}%n", ordered.length / seconds,
                ordered[ordered.length / 2], ordered[(int) (ordered.length * 0.99)], total.get());
            System.out.flush();
            System.exit(0);
        }
    }

    private static void create(Environment environment) throws InterruptedException {
        for (int attempt = 0; ; attempt++) {
            try {
                environment.streamCreator().stream("bench").create();
                return;
            } catch (StreamException refused) {
                if (attempt == 30) {
                    throw refused;
                }
                Thread.sleep(1000);
            }
        }
    }
}
