"""Waiting messages of higher priority are delivered first."""

import os

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

TOPIC = "alerts"
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())

producer = Producer(cluster, (TOPIC,))
producer.startup()
for priority in (1, 7, 3):
    message = Message()
    message.topic, message.body, message.priority = TOPIC, f"alert {priority}".encode(), priority
    producer.send(message)
producer.shutdown()

consumer = SimpleConsumer(cluster, "on-call", {TOPIC: FilterExpression()}, await_duration=5)
consumer.startup()
for _ in range(3):
    for received in consumer.receive(1, 30):
        print("received", received.body.decode())
        consumer.ack(received)
consumer.shutdown()
