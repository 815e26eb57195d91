"""Getting checkpoints and proofs from a running cluster.

Nothing that a node says is believed here either: a proof is checked up to its checkpoint before it
is returned. The signatures are left to the verifier, who knows whom to trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.proofs.proof import Proof, Refuted, Since
from ledgermq.client.proofs.verifying import check_paths
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.proofs.log_tree import FileLeaf
from ledgermq.proto.proofs.signed_notes import Checkpoint, Note, parse_note
from ledgermq.proto.status import Code

T = TypeVar("T")
KEEP = "keep all node directories and ask who operates the cluster"


@dataclass(frozen=True, slots=True)
class Shown:
    """The checkpoint that one node showed."""

    node: str
    note: Note
    checkpoint: Checkpoint


@contextmanager
def each_alone(connection: Connection) -> Iterator[list[Connection]]:
    """The connection to the cluster, and one to each of its given endpoints alone."""
    with ExitStack() as stack:
        own = (
            {**connection.options, "endpoints": str(address)} for address in connection.addresses
        )
        alone = [
            stack.enter_context(Connection(**options, timeout_s=connection.timeout_s))
            for options in own
        ]
        yield [connection, *alone]


def replicas_of(connection: Connection, broker_group: str) -> list[str]:
    """The nodes that hold a broker group. Raises Refused if there is no such group."""
    status = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    for group in status.groups:
        if group.group == broker_group:
            return replicas_in(group)
    raise Refused(
        Code.NOT_FOUND,
        f"there is no broker group {broker_group}",
        "see: ledgermq broker-group list",
    )


def replicas_in(group: pb.BrokerGroupInfo) -> list[str]:
    """The nodes that hold the group, also those that do not answer."""
    return sorted({*group.voters, *group.learners, *(replica.node for replica in group.replicas)})


def checkpoint_of(connection: Connection, broker_group: str, node: str) -> str:
    """The newest checkpoint of a group that a node signs."""
    request = pb.GetCheckpointRequest(broker_group=broker_group, node=node)
    return ask(connection, request, pb.GetCheckpointResponse).note


def consistency(
    connection: Connection, broker_group: str, old_size: int, new_size: int
) -> tuple[bytes, ...]:
    """The path from the log tree of `old_size` files to that of `new_size`."""
    request = pb.ProveConsistencyRequest(
        broker_group=broker_group, old_size=old_size, new_size=new_size
    )
    return tuple(ask(connection, request, pb.ProveConsistencyResponse).path)


def read_shown(node: str, broker_group: str, text: str) -> Shown:
    """The answer of a node. Raises Refuted if it is not a checkpoint of this group."""
    try:
        note = parse_note(text)
        checkpoint = Checkpoint.parse(note.text)
        if checkpoint.log.broker_group != broker_group:
            raise ValueError(f"it is of the log {checkpoint.log}")
    except ValueError as error:
        raise Refuted(
            f"REFUTED: node {node} shows no checkpoint of the group {broker_group}: {error}", KEEP
        ) from None
    return Shown(node, note, checkpoint)


def shown_by(connection: Connection, broker_group: str, nodes: Sequence[str]) -> list[Shown]:
    """The checkpoints of the nodes that answer. Raises the error of the first node if none of them
    has a checkpoint."""
    found, first = [], None
    for node in nodes:
        try:
            found.append(
                read_shown(node, broker_group, checkpoint_of(connection, broker_group, node))
            )
        except (Refused, Unreachable) as error:
            first = first or error
    if not found and first is not None:
        raise first
    return found


def agreed(shown: Sequence[Shown]) -> Note:
    """The checkpoint that most nodes show, the largest of these, with all their signatures. Raises
    Refuted if two nodes show different trees of the same size."""
    trees: dict[tuple[str, int], Shown] = {}
    texts: dict[str, list[Shown]] = {}
    for each in shown:
        other = trees.setdefault((str(each.checkpoint.log), each.checkpoint.size), each)
        if other.note.text != each.note.text:
            what = (
                f"FORK: {other.node} and {each.node} show different trees of {each.checkpoint.size}"
                f" files of {each.checkpoint.log}"
            )
            raise Refuted(what, KEEP)
        texts.setdefault(each.note.text, []).append(each)
    best = max(texts.values(), key=lambda same: (len(same), same[0].checkpoint.size))
    return merged([each.note for each in best])


def merged(notes: Sequence[Note]) -> Note:
    """One note with the signatures of all, each once. All have the same text."""
    return Note(
        notes[0].text,
        tuple(dict.fromkeys(signature for note in notes for signature in note.signatures)),
    )


def first_of(connections: Sequence[Connection], asked: Callable[[Connection], T]) -> T:
    """The first answer: not every node holds every broker group. Raises the error of the first node
    if none answers."""
    first: Refused | Unreachable | None = None
    for connection in connections:
        try:
            return asked(connection)
        except (Refused, Unreachable) as error:
            first = first or error
    assert first is not None, "nobody was asked"
    raise first


def fetch(
    connections: Sequence[Connection],
    broker_group: str,
    index: int,
    since: Checkpoint | None = None,
) -> Proof:
    """The proof of an entry, up to the checkpoint that most nodes sign, and with the path from an
    older checkpoint. Raises Refuted if the nodes contradict each other or their proof is false, and
    Refused if the entry is not in a sealed file. `connections`: to the cluster, and to
    further endpoints of which some hold the group."""
    cluster = connections[0]
    note = agreed(shown_by(cluster, broker_group, replicas_of(cluster, broker_group)))
    checkpoint = Checkpoint.parse(note.text)
    request = pb.ProveEntryRequest(broker_group=broker_group, index=index, size=checkpoint.size)
    answer = first_of(connections, lambda one: ask(one, request, pb.ProveEntryResponse))
    proof = Proof(
        file_number=answer.file_number,
        leaf=leaf_of(answer.leaf),
        entry=answer.entry,
        entry_path=tuple(answer.entry_path),
        log_path=tuple(answer.log_path),
        checkpoint=note,
        since=None if since is None else path_from(connections, since, checkpoint),
    )
    try:
        found, _, _ = check_paths(proof, checkpoint)
    except ValueError as error:
        raise Refuted(
            f"REFUTED: the node's proof of entry {index} is false: {error}", KEEP
        ) from None
    if found != index:
        raise Refuted(f"REFUTED: the node proves entry {found} instead of entry {index}", KEEP)
    return proof


def path_from(connections: Sequence[Connection], old: Checkpoint, new: Checkpoint) -> Since:
    """The path from an older checkpoint, which is not checked here. Raises Refuted if there can be
    none, and Refused if no node gives it."""
    if old.log != new.log or old.size > new.size:
        what = (
            f"REFUTED: the log of the older checkpoint is {old.log} with {old.size} sealed files,"
            f" now it is {new.log} with {new.size}"
        )
        raise Refuted(what, KEEP)
    group = old.log.broker_group
    return Since(
        old.size, first_of(connections, lambda one: consistency(one, group, old.size, new.size))
    )


def leaf_of(leaf: pb.SealedFileLeaf) -> FileLeaf:
    return FileLeaf(leaf.base, leaf.first_index, leaf.entries, leaf.end_pos, leaf.entries_root)
