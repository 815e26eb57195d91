"""A message that is delivered at a given time, and one that is recalled before its time."""

import os
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

TOPIC = "reminders"
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())

producer = Producer(cluster, (TOPIC,))
producer.startup()
due = int(time.time()) + 3
for body in (b"tea is ready", b"never mind"):
    message = Message()
    message.topic, message.body = TOPIC, body
    # Seconds since 1970, not milliseconds.
    message.delivery_timestamp = due
    receipt = producer.send(message)
print("recalled", producer.recall_message(TOPIC, receipt.recall_handle))
producer.shutdown()

consumer = SimpleConsumer(cluster, "kitchen", {TOPIC: FilterExpression()}, await_duration=5)
consumer.startup()
received = []
while not received:
    received = consumer.receive(10, 30)
for message in received:
    print(f"received {message.body.decode()!r}, {time.time() - due:+.1f} s from its time")
    consumer.ack(message)
consumer.shutdown()
