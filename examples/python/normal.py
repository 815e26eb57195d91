"""Send three messages, receive those with one tag, acknowledge them."""

import os

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

TOPIC = "orders"
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())

producer = Producer(cluster, (TOPIC,))
producer.startup()
for number, tag in enumerate(("new", "paid", "new")):
    message = Message()
    message.topic, message.body = TOPIC, f"order {number}".encode()
    message.tag, message.keys = tag, f"order-{number}"
    message.add_property("customer", "c-17")
    # Returns when the message is on stable storage on a majority of the replicas.
    print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(cluster, "billing", {TOPIC: FilterExpression("new")}, await_duration=5)
consumer.startup()
left = 2
while left:
    for received in consumer.receive(10, 30):
        print(
            "received",
            received.body.decode(),
            received.tag,
            received.keys,
            dict(received.properties),
        )
        consumer.ack(received)
        left -= 1
consumer.shutdown()
