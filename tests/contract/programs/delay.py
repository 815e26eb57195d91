import os, time
from rocketmq import ClientConfiguration, Credentials, Message, Producer

EP, TOPIC = os.environ.get("EP", "127.0.0.1:8081"), "D"
p = Producer(ClientConfiguration(EP, Credentials(), ""), (TOPIC,)); p.startup()
try:
    m = Message(); m.topic, m.body = TOPIC, b"later"
    m.delivery_timestamp = int(time.time()) + 30   # SECONDS since the epoch (not ms)
    r = p.send(m)
    assert r.recall_handle
    rr = p.recall_message(TOPIC, r.recall_handle)
    print("recalled", rr.message_id if hasattr(rr, "message_id") else rr)
    try:
        m = Message(); m.topic, m.body = TOPIC, b"x"; m.message_group = "g"
        p.send(m)
    except Exception as e:
        print(type(e).__name__, e)                 # FIFO message on a DELAY topic: refused locally
finally:
    p.shutdown()
