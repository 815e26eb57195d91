import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Receives and acknowledges messages of a topic: arguments TOPIC GROUP COUNT. The endpoints come from LEDGERMQ_ENDPOINTS. */
public class Consume {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(System.getenv().getOrDefault("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"))
            .enableSsl(false)
            .build();
        FilterExpression tag = new FilterExpression("example", FilterExpressionType.TAG);
        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(arguments[1]).setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of(topic, tag)).build()) {
            int left = Integer.parseInt(arguments[2]);
            while (left > 0) {
                // Each message is leased for 30 seconds: what is not acknowledged by then comes again.
                for (MessageView message : consumer.receive(Math.min(left, 16), Duration.ofSeconds(30))) {
                    System.out.println("received " + message.getMessageId() + ": " + StandardCharsets.UTF_8.decode(message.getBody()));
                    consumer.ack(message);
                    left--;
                }
            }
        }
    }
}
