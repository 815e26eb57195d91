import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** Sends messages to a topic: arguments TOPIC COUNT. The endpoints come from LEDGERMQ_ENDPOINTS. */
public class Produce {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(System.getenv().getOrDefault("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"))
            .enableSsl(false)
            .build();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build()) {
            for (int number = 1; number <= Integer.parseInt(arguments[1]); number++) {
                Message message = provider.newMessageBuilder().setTopic(topic).setTag("example").setKeys("order-" + number)
                    .setBody(("order " + number).getBytes(StandardCharsets.UTF_8)).build();
                // Returns when the message is on stable storage on a majority of the replicas.
                SendReceipt receipt = producer.send(message);
                System.out.println("sent " + receipt.getMessageId());
            }
        }
    }
}
