"""How a file of a running node is named: `node://HOST:PORT/GROUP/…`, the path being that under the node directory. Text only."""

from __future__ import annotations

NODE = "node://"
NODE_FILE = "node.json"


def is_remote(path: str) -> bool:
    """Whether a path lies on a running node."""
    return path.startswith(NODE)


def node_path(authority: str) -> str:
    """The directory of the node at HOST:PORT."""
    return f"{NODE}{authority}"


def split(path: str) -> tuple[str, str, str]:
    """HOST:PORT, the broker group (empty: the node's own), and the path under the node directory."""
    authority, _, inner = path.removeprefix(NODE).partition("/")
    inner = inner.strip("/")
    group = inner.partition("/")[0]
    return authority, "" if group == NODE_FILE else group, inner
