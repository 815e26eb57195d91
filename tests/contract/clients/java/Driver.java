import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The unmodified official Java client, one scenario a run: SCENARIO ENDPOINTS TOPIC GROUP COUNT TLS. Results are lines NAME=VALUE on stdout. */
public class Driver {
    static final long DELAY_MS = 3000;
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static String topic;
    static String group;
    static int count;
    static int acknowledgements = 1;
    static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[2];
        group = arguments[3];
        count = Integer.parseInt(arguments[4]);
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(arguments[1]);
        // Its default is TLS with any certificate.
        configuration = arguments[5].equals("tls") ? builder.build() : builder.enableSsl(false).build();
        switch (arguments[0]) {
            case "unknown": unknown(); break;
            case "roundtrip": roundtrip(); break;
            case "push": push(); break;
            case "fifo": fifo(); break;
            case "delay": delay(); break;
            case "transaction": transaction(); break;
            case "priority": priority(); break;
            case "lite": lite(); break;
            case "twice": twice(); break;
            case "filter": filter(); break;
            default: throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    static MessageBuilder message(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static Producer producer() throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    static List<MessageView> receive(int wanted, int tries) throws Exception {
        List<MessageView> got = new ArrayList<>();
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build()) {
            for (; got.size() < wanted && tries > 0; tries--) {
                for (MessageView message : consumer.receive(1, Duration.ofSeconds(10))) {
                    got.add(message);
                    for (int i = 0; i < acknowledgements; i++) {
                        consumer.ack(message);
                    }
                }
            }
        }
        return got;
    }

    static String bodies(List<MessageView> messages) {
        return messages.stream().map(Driver::text).collect(Collectors.joining(","));
    }

    static void unknown() throws Exception {
        try (Producer producer = producer()) {
            producer.send(PROVIDER.newMessageBuilder().setTopic(topic + "-unknown").setBody(new byte[] {1}).build());
            say("error", "none");
        } catch (ClientException error) {
            say("error", error.getClass().getSimpleName());
            say("code", error.getMessage().replaceAll("(?s).*response-code=(\\d+).*", "$1"));
        }
    }

    static void twice() throws Exception {
        try (Producer producer = producer()) {
            producer.send(message("once").build());
        }
        acknowledgements = 2;
        say("got", bodies(receive(1, 15)));
    }

    static void filter() throws Exception {
        FilterExpression wrong = new FilterExpression("a > 1 AND b LIKE 'x%'", FilterExpressionType.SQL92);
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(Map.of(topic, wrong)).build()) {
            say("built", true);
            consumer.receive(1, Duration.ofSeconds(10));
        } catch (ClientException error) {
            say("error", error.getMessage().replace('\n', '|'));
        }
    }

    static void roundtrip() throws Exception {
        byte[] body = new byte[256];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) i;
        }
        try (Producer producer = producer()) {
            SendReceipt receipt = producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setTag("tagA").setKeys("k1", "k2")
                .addProperty("x", "1").addProperty("y", "ü").setBody(body).build());
            say("sent", receipt.getMessageId());
        }
        MessageView got = receive(1, 15).get(0);
        ByteBuffer bytes = got.getBody();
        say("id", got.getMessageId());
        say("same", bytes.equals(ByteBuffer.wrap(body)));
        say("tag", got.getTag().orElse("-"));
        say("keys", String.join(",", got.getKeys()));
        say("properties", got.getProperties().entrySet().stream().map(pair -> pair.getKey() + ":" + pair.getValue()).sorted()
            .collect(Collectors.joining(",")));
        say("attempt", got.getDeliveryAttempt());
    }

    static void push() throws Exception {
        try (Producer producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(message(String.valueOf(i)).build());
            }
        }
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        Semaphore done = new Semaphore(0);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    seen.add(text(message) + ":" + message.getDeliveryAttempt());
                    done.release();
                    return text(message).equals("0") && message.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build()) {
            done.acquire(count + 1);
            say("seen", seen.stream().sorted().collect(Collectors.joining(",")));
            // Closing waits for the long polls under way.
            System.exit(0);
        }
    }

    static void fifo() throws Exception {
        try (Producer producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(message(String.valueOf(i)).setMessageGroup("g" + i % 3).build());
            }
        }
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        Semaphore done = new Semaphore(0);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    seen.add(message.getMessageGroup().orElse("-") + ":" + text(message));
                    done.release();
                    return ConsumeResult.SUCCESS;
                }).build()) {
            done.acquire(count);
            say("seen", String.join(",", seen));
            System.exit(0);
        }
    }

    static void delay() throws Exception {
        long due;
        try (Producer producer = producer()) {
            due = System.currentTimeMillis() + DELAY_MS;
            SendReceipt kept = producer.send(message("kept").setDeliveryTimestamp(due).build());
            SendReceipt recalled = producer.send(message("recalled").setDeliveryTimestamp(due).build());
            say("kept", kept.getMessageId());
            say("wanted", recalled.getMessageId());
            say("recalled", producer.recallMessage(topic, recalled.getRecallHandle()).getMessageId());
        }
        List<MessageView> got = receive(1, 15);
        say("late", System.currentTimeMillis() - due);
        say("got", bodies(got));
        say("after", bodies(receive(1, 1)));
    }

    static void transaction() throws Exception {
        List<String> asked = Collections.synchronizedList(new ArrayList<>());
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                .setTransactionChecker(message -> {
                    asked.add(text(message));
                    return TransactionResolution.COMMIT;
                }).build()) {
            for (String decision : List.of("commit", "rollback", "nothing")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(decision).build(), transaction);
                if (decision.equals("commit")) {
                    transaction.commit();
                } else if (decision.equals("rollback")) {
                    transaction.rollback();
                }
            }
            say("got", receive(2, 15).stream().map(Driver::text).sorted().collect(Collectors.joining(",")));
        }
        say("asked", String.join(",", asked));
    }

    static void priority() throws Exception {
        try (Producer producer = producer()) {
            for (int priority : new int[] {1, 7, 3}) {
                producer.send(message(String.valueOf(priority)).setPriority(priority).build());
            }
        }
        say("got", bodies(receive(3, 15)));
    }

    static void lite() throws Exception {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        Semaphore done = new Semaphore(0);
        try (LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .bindTopic(topic).setMessageListener(message -> {
                    seen.add(message.getLiteTopic().orElse("-") + ":" + text(message));
                    done.release();
                    return ConsumeResult.SUCCESS;
                }).build(); Producer producer = producer()) {
            consumer.subscribeLite("room42");
            for (int i = 0; i < count; i++) {
                producer.send(message(String.valueOf(i)).setLiteTopic(i % 2 == 0 ? "room42" : "room7").build());
            }
            done.acquire((count + 1) / 2);
            say("seen", String.join(",", seen));
            System.exit(0);
        }
    }
}
