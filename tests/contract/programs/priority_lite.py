import os, time
from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, LitePushConsumer,
                      LiteSimpleConsumer, Message, MessageListener, Producer)

EP = os.environ.get("EP", "127.0.0.1:8081")
conf = ClientConfiguration(EP, Credentials(), "")
p = Producer(conf, ("P", "L")); p.startup()
m = Message(); m.topic, m.body, m.priority = "P", b"urgent", 7
p.send(m)

class Listener(MessageListener):
    def consume(self, m):
        print("lite push", m.lite_topic, m.body)
        return ConsumeResult.SUCCESS

push = LitePushConsumer(conf, "g_lite", "L", Listener()); push.startup()
simple = LiteSimpleConsumer("L", conf, "g_lite2", await_duration=5); simple.startup()
for c in (push, simple):
    c.subscribe_lite("room42")                     # sends the letters r,o,m,4,2 (bug) ...
    c.subscribe_lite_all()                         # ... COMPLETE_ADD with the right set repairs it
m = Message(); m.topic, m.body, m.lite_topic = "L", b"hi", "room42"
p.send(m)
for x in simple.receive(16, 20):
    print("lite simple", x.lite_topic, x.body); simple.ack(x)
time.sleep(2)
push.unsubscribe_lite("room42"); push.shutdown(); simple.shutdown(); p.shutdown()
