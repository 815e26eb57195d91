import java.time.Duration;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;

/**
 * Consumes a topic by a push consumer of the official gRPC client, which acknowledges every message by itself; arguments: endpoint, topic,
 * consumer group, seconds, warm-up seconds. The client receives no further messages while 1,024 are not acknowledged, its default.
 */
public class ClientConsume {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        double seconds = Double.parseDouble(arguments[3]), warmUp = Double.parseDouble(arguments[4]);
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        AtomicLong consumed = new AtomicLong();
        PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(arguments[2]).setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                consumed.incrementAndGet();
                return ConsumeResult.SUCCESS;
            }).build();
        Thread.sleep((long) (warmUp * 1e3));
        long before = consumed.get(), begin = System.nanoTime();
        Thread.sleep((long) (seconds * 1e3));
        long counted = consumed.get() - before;
        double took = (System.nanoTime() - begin) / 1e9;
        consumer.close();
        System.out.printf("%n{\"messages_per_s\": %f, \"total\": %d}%n", counted / took, consumed.get());
        System.out.flush();
        System.exit(0);
    }
}
