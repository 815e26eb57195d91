"""The path of a file on a running node: `node://HOST:PORT/GROUP/…`, followed by the path under the
node directory; and the only error that is not about a file. If several workers of a node share an
endpoint, it is `NODE@HOST:PORT`. Nothing here connects to a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.proto.carried import Carried

NODE = "node://"
STORE = "store://"
"""What the path of an object of tiered storage begins with (`objects.py`)."""
NODE_FILE = "node.json"


class NodeLost(Carried):
    """A node could not be reached, or refused: one sentence says which node and why. `authority`:
    its HOST:PORT."""

    def __init__(self, authority: str, why: str) -> None:
        super().__init__(why)
        self.authority = authority


def is_remote(path: str) -> bool:
    """Whether a path is on a running node."""
    return path.startswith(NODE)


def authorities_of(nodes: Iterable[Any]) -> Mapping[str, str]:
    """The authority of each member of the cluster, by its `NodeInfo`."""
    infos = list(nodes)
    endpoints = [info.endpoint for info in infos]
    return {
        info.node: f"{info.node}@{info.endpoint}"
        if endpoints.count(info.endpoint) > 1
        else info.endpoint
        for info in infos
    }


def node_path(authority: str) -> str:
    """The directory of the node at HOST:PORT."""
    return f"{NODE}{authority}"


def split(path: str) -> tuple[str, str, str]:
    """HOST:PORT, the broker group (empty: the node's own), and the path under the node
    directory."""
    authority, _, inner = path.removeprefix(NODE).partition("/")
    inner = inner.strip("/")
    group = inner.partition("/")[0]
    return authority, "" if group == NODE_FILE else group, inner
