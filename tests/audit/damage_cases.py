"""Clusters of three written replicas, and the ways the auditor's tests damage them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.audit.log_writer import CREATED, RAFT, Message, Writer, election, membership

NODES = ("n1", "n2", "n3")


def history(seed: int, count: int = 60) -> list[Message]:
    """A plausible history: a membership record, two leader terms, messages of all shapes on several
    topics."""
    rng = random.Random(seed)
    messages = [membership(NODES), election(1, "n1", CREATED + 1)]
    term, time = 1, CREATED + 1
    for number in range(count):
        time += rng.choice((0, 0, 1, 7))
        if number == count // 2:
            term += 2
            messages.append(election(term, "n2", time))
        topic = rng.choice(("flights", "flights", "ns@orders", "t" * 130))
        body = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 20, 100, 400))))
        tag = rng.choice(("", "UA", "été", "\U0001f600x"))
        messages.append(Message(topic, body, rng.randrange(3), tag, f"key-{number}", 0, time, term))
    return messages


def write_cluster(
    base: Path,
    messages: list[Message],
    change: Callable[[Writer], None] | None = None,
    **finish: object,
) -> list[Writer]:
    """The same history on three replicas; `change` may alter a writer before it writes."""
    writers = []
    for name in NODES:
        writer = Writer(base / name)
        if change is not None:
            change(writer)
            writer.chain = writer.seed
        for message in messages:
            writer.append(message)
        writers.append(writer.finish(**finish))  # type: ignore[arg-type]
    return writers


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """Change some bits of one byte."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


__all__ = ["CREATED", "NODES", "RAFT", "flip", "history", "write_cluster"]
