import os, time
from rocketmq import (ClientConfiguration, Credentials, Message, Producer,
                      TransactionChecker, TransactionResolution)

EP, TOPIC = os.environ.get("EP", "127.0.0.1:8081"), "X"

class Checker(TransactionChecker):
    def check(self, message):                      # called for RecoverOrphanedTransaction
        print("check", message.message_id)
        return TransactionResolution.COMMIT

p = Producer(ClientConfiguration(EP, Credentials(), ""), (TOPIC,), checker=Checker())
p.startup()
try:
    for decide in ("commit", "rollback", "nothing"):
        m = Message(); m.topic, m.body = TOPIC, decide.encode()
        tx = p.begin_transaction()
        r = p.send(m, tx)                          # one message per transaction
        assert r.transaction_id
        if decide == "commit": tx.commit()
        if decide == "rollback": tx.rollback()
    time.sleep(float(os.environ.get("SECONDS_", "5")))   # let the check come
finally:
    p.shutdown()
