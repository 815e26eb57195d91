"""The gRPC service `ledgermq.v1.Log`: native batch streams on the clients' port (proto/log.proto, docs/native.md).

Here live streams, windows, permissions, redirects and receipts. What a frame is says `proto/frames.py`, what becomes of it `node/broker`.
"""
