import os
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

EP, TOPIC = os.environ.get("EP", "127.0.0.1:8081"), os.environ.get("TOPIC", "T")
conf = ClientConfiguration(EP, Credentials(), "")
c = SimpleConsumer(conf, "g_simple", {TOPIC: FilterExpression("tagA || tagB")}, await_duration=5)
# SQL: FilterExpression("a > 1 AND b = 'x'", FilterType.SQL), FilterType from rocketmq.grpc_protocol
c.startup()
try:
    got = c.receive(10, 20)                        # max messages, invisible seconds
    for m in got:
        print(m.topic, m.body, m.tag, m.keys, dict(m.properties), m.delivery_attempt,
              m.message_id, m.born_host, m.born_timestamp, m.corrupted)
    if got:
        old = got[0].receipt_handle
        c.change_invisible_duration(got[0], 15)    # seconds; new handle kept inside the message
        assert got[0].receipt_handle != old
    for m in got:
        c.ack(m)                                   # raises BadRequestException on 40013
    assert c.receive(10, 20) == []                 # 40401 -> empty list after the long poll
finally:
    c.shutdown()
