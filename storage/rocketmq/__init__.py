"""Store roots of RocketMQ, plain or with DLedger: recognised and read, never written.

Except for the shared value types, nothing here knows LedgerMQ's own log; `storage/importing`
decides what becomes of a message.
"""
