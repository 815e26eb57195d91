"""The golden packets of tests/golden/packets.json: the header of one packet of each kind, written
with struct only.

`python -m tests.replica.golden_packets` from the root rewrites the file; a difference needs another
`WIRE_VERSION`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.replica.raw_packets import Header

PATH = Path(__file__).resolve().parent.parent / "golden" / "packets.json"
TWO = (b"n1", b"n2")
APPEND = {
    "term": 7,
    "round": 41,
    "prev_index": 299,
    "prev_term": 6,
    "prev_chain": 0xFEDCBA98,
    "commit_index": 298,
    "end_index": 310,
}
REPLY = {
    "term": 7,
    "round": 41,
    "boot_id": (1 << 64) - 3,
    "received": 300,
    "durable": 299,
    "hint_term": -1,
}
LAST = {"term": 7, "last_index": 300, "last_term": 6}
HEADERS: dict[str, Header] = {
    "vote request": Header(
        "vote_request", LAST, 0, (*TWO, b"00000000-0000-4000-8000-00000000000a")
    ),
    "vote request for a transfer": Header("vote_request", LAST, 2, (*TWO, b"")),
    "pre-vote reply, granted": Header("vote_reply", {"term": 7}, 3, TWO),
    "heartbeat": Header(
        "append", {**APPEND, "last_index": -1, "range_term": -1, "pos": -1}, 4, TWO
    ),
    "append of a range": Header(
        "append", {**APPEND, "last_index": 302, "range_term": 6, "pos": 70_000}, 3, TWO
    ),
    "append reply": Header("append_reply", REPLY, 0, TWO),
    "append reply, all flags": Header(
        "append_reply", {**REPLY, "durable": -1, "hint_term": 6}, 31, TWO
    ),
    "timeout now": Header("timeout_now", {**LAST, "cause": 4}, 0, ("n\u00fc".encode(), b"n1.2")),
    "left behind": Header("left_behind", {"term": 7, "begin_index": 5000}, 0, TWO),
}


def content() -> str:
    """The file: each header in hexadecimal."""
    return (
        json.dumps(
            {name: header.packet().header.hex() for name, header in HEADERS.items()}, indent=1
        )
        + "\n"
    )


if __name__ == "__main__":
    PATH.write_text(content())
