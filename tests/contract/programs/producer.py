import os, uuid
from rocketmq import ClientConfiguration, Credentials, Message, Producer

EP, TOPIC = os.environ.get("EP", "127.0.0.1:8081"), os.environ.get("TOPIC", "T")
conf = ClientConfiguration(EP, Credentials("ak", "sk"), "")   # Credentials() for none
producer = Producer(conf, (TOPIC,))                # tls_enable=True for TLS
producer.startup()
try:
    m = Message()
    m.topic, m.body = TOPIC, b"payload"
    m.tag, m.keys = "tagA", "order-1"              # keys: exactly one string
    m.add_property("run", uuid.uuid4().hex)
    r = producer.send(m)
    assert len(r.message_id) == 34 and r.message_id.startswith("01")
    assert isinstance(r.offset, int)
    a = Message(); a.topic, a.body = TOPIC, b"async"
    print(r.message_id, producer.send_async(a).result(5).message_id)
    for bad in ("no_such_topic",):
        try:
            b = Message(); b.topic, b.body = bad, b"x"
            producer.send(b); raise SystemExit("expected an error")
        except Exception as e:
            print(type(e).__name__, e)             # plain Exception: failed to fetch topic...
finally:
    producer.shutdown()
