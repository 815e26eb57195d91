"""A listener that is called for each message. A message that it fails to process is redelivered
after the group's retry delay."""

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

TOPIC, COUNT = "orders", 5
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())
done = threading.Semaphore(0)


class Billing(MessageListener):
    """Fails on the first attempt at message 3."""

    def consume(self, message):
        print("attempt", message.delivery_attempt, "at", message.body.decode())
        if message.body.endswith(b" 3") and message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        done.release()
        return ConsumeResult.SUCCESS


consumer = PushConsumer(cluster, "pushed", Billing(), {TOPIC: FilterExpression("push")})
consumer.startup()
producer = Producer(cluster, (TOPIC,))
producer.startup()
for number in range(COUNT):
    message = Message()
    message.topic, message.tag, message.body = TOPIC, "push", f"order {number}".encode()
    producer.send(message)
for _ in range(COUNT):
    done.acquire()
producer.shutdown()
consumer.shutdown()
