"""Half messages: invisible until they are committed. The broker checks transactions that the
producer leaves undecided."""

import os

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

TOPIC = "payments"
cluster = ClientConfiguration(os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081"), Credentials())


class Books(TransactionChecker):
    """Answers the broker's check of an undecided half message."""

    def check(self, message):
        print("asked about", message.body.decode())
        return TransactionResolution.COMMIT


producer = Producer(cluster, (TOPIC,), checker=Books())
producer.startup()
for body in (b"commit", b"roll back", b"forget"):
    message = Message()
    message.topic, message.body = TOPIC, body
    transaction = producer.begin_transaction()
    producer.send(message, transaction)
    # Here the local transaction would run.
    if body == b"commit":
        transaction.commit()
    elif body == b"roll back":
        transaction.rollback()

consumer = SimpleConsumer(cluster, "ledger", {TOPIC: FilterExpression()}, await_duration=5)
consumer.startup()
left = {b"commit", b"forget"}
while left:
    for received in consumer.receive(10, 30):
        print("received", received.body.decode())
        left.discard(received.body)
        consumer.ack(received)
consumer.shutdown()
producer.shutdown()
