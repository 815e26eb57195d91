"""Verification of an imported log against its source: the files are read back, and parsed as
RocketMQ records again.

The writer's layout code is not used here; chains, checksums and derived files are verified by the
audit.
"""

from __future__ import annotations

from collections import Counter

from ledgermq.proto.types import Identity
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.importing.survey import QueueKey
from ledgermq.storage.importing.writing import LOST, TERM, Written, digest_of
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.rocketmq.reading import ENTRY_HEADER_BYTES
from ledgermq.storage.rocketmq.records import BadRecord, take_apart

READ_BYTES = 4 << 20
_LOST = f"\x02{LOST}\x01".encode()


def differences(disk: Disk, root: str, identity: Identity, written: Written) -> list[str]:
    """The differences between the log and what was read from the source, one sentence each. Opens
    the log as a node would, and closes it. Raises LogFenced, OSError."""
    log = EntryLog.open(disk, f"{root}/dledger-{identity.replica}", identity, clean=True)
    if log.fenced is not None:
        raise log.fenced
    digests: dict[QueueKey, int] = {}
    counts: Counter[QueueKey] = Counter()
    texts: list[str] = []
    try:
        index = log.begin_index
        while index <= log.end_index:
            entries = log.read(index, READ_BYTES)
            if entries.term != TERM:
                return [f"entry {index} is of term {entries.term}: another process wrote it"]
            data = bytes(entries.data)
            for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True):
                try:
                    message = take_apart(data[start + ENTRY_HEADER_BYTES : start + size])
                except BadRecord as bad:
                    return [f"entry {index} is not what was written: {bad}"]
                key = message.topic, message.queue
                if key in written.digests and _LOST not in message.properties:
                    digests[key] = digest_of(digests.get(key, 0), message, message.store_ms)
                    counts[key] += 1
                index += 1
    finally:
        log.close()
    for key, wanted in sorted(written.digests.items()):
        if (counts[key], digests.get(key, 0)) != (written.messages[key], wanted):
            held = (
                f"queue {key[1]} of topic {key[0]} holds {counts[key]} messages,"
                f" {written.messages[key]} were read"
            )
            texts.append(f"{held}, or their content differs")
    return texts
