"""Lite topics: streams under one parent topic that need not be created. A consumer names the ones
that it reads."""

import os
import time

from rocketmq import ClientConfiguration, Credentials, LiteSimpleConsumer, Message, Producer
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

TOPIC = "chats"
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())

consumer = LiteSimpleConsumer(TOPIC, cluster, "readers", await_duration=5)
consumer.startup()
while True:
    try:
        consumer.subscribe_lite("room-42")
        break
    except LiteSubscriptionQuotaExceededException:
        # The quota arrives with the server's settings, and this release of the client does not wait
        # for them.
        time.sleep(0.1)
# This release of the client sends the letters of the name. Sending the whole set, here and then
# every 30 s by the client, corrects that.
consumer.subscribe_lite_all()

producer = Producer(cluster, (TOPIC,))
producer.startup()
for room in ("room-42", "room-7"):
    message = Message()
    message.topic, message.body, message.lite_topic = TOPIC, f"hello {room}".encode(), room
    producer.send(message)
producer.shutdown()

received = []
while not received:
    received = consumer.receive(16, 30)
for message in received:
    print("received", message.lite_topic, message.body.decode())
    consumer.ack(message)
consumer.shutdown()
