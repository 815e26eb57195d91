"""Store roots of RocketMQ as it writes them, plain or with DLedger: recognised, read, never written.

Nothing here knows our own log but for the shared value types; what becomes of a message is decided in `storage/importing`.
"""
