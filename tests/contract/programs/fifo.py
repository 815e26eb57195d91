import os, time
from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression,
                      Message, MessageListener, Producer, PushConsumer)

EP, TOPIC, GROUP = os.environ.get("EP", "127.0.0.1:8081"), "F", "g_fifo"   # group: FIFO on the server
conf, order = ClientConfiguration(EP, Credentials(), ""), {}
p = Producer(conf, (TOPIC,)); p.startup()
for i in range(20):
    m = Message(); m.topic, m.body = TOPIC, b"%d" % i
    m.message_group = "grp-%d" % (i % 3)
    p.send(m)

class Listener(MessageListener):
    def consume(self, m):
        order.setdefault(m.message_group, []).append(int(m.body))
        return ConsumeResult.SUCCESS

c = PushConsumer(conf, GROUP, Listener(), {TOPIC: FilterExpression()}); c.startup()
time.sleep(float(os.environ.get("SECONDS_", "8"))); c.shutdown(); p.shutdown()
for g, xs in order.items():
    assert xs == sorted(xs), (g, xs)
print("in order", order)
