"""Messages of one message group are delivered in the order in which they were sent, one at a
time."""

import os
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

TOPIC, GROUP, COUNT = "steps", "workers", 12
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())
seen, done = {}, threading.Semaphore(0)


class Worker(MessageListener):
    """Records the received messages."""

    def consume(self, message):
        seen.setdefault(message.message_group, []).append(int(message.body))
        done.release()
        return ConsumeResult.SUCCESS


producer = Producer(cluster, (TOPIC,))
producer.startup()
for number in range(COUNT):
    message = Message()
    message.topic, message.body = TOPIC, str(number).encode()
    message.message_group = f"customer-{number % 3}"
    producer.send(message)
producer.shutdown()

consumer = PushConsumer(cluster, GROUP, Worker(), {TOPIC: FilterExpression()})
consumer.startup()
for _ in range(COUNT):
    done.acquire()
consumer.shutdown()
for customer, numbers in sorted(seen.items()):
    print(customer, numbers)
    assert numbers == sorted(numbers), "out of order"
