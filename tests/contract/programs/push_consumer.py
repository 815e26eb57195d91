import os, queue, time
from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression,
                      MessageListener, PushConsumer)

EP, TOPIC = os.environ.get("EP", "127.0.0.1:8081"), os.environ.get("TOPIC", "T")
seen = queue.Queue()

class Listener(MessageListener):
    def consume(self, message):
        seen.put((message.message_id, message.delivery_attempt, message.body))
        if message.delivery_attempt < 2 and message.body.startswith(b"retry"):
            return ConsumeResult.FAILURE           # -> ChangeInvisibleDuration(next[attempt-1])
        return ConsumeResult.SUCCESS               # -> AckMessage

c = PushConsumer(ClientConfiguration(EP, Credentials(), ""), "g_push", Listener(),
                 {TOPIC: FilterExpression()}, consumption_thread_count=4)
c.startup()                                        # waits <= 10 s for Settings
try:
    end = time.time() + float(os.environ.get("SECONDS_", "10"))
    while time.time() < end:
        try: print(seen.get(timeout=1))
        except queue.Empty: pass
finally:
    c.shutdown()
