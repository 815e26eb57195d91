"""Proofs of messages: what is true is proven, everything else is refused, and no alteration of a
proof proves something else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import BadArgument, ClusterError, Incomplete, Refused
from ledgermq.client.proofs import Proof, Proven, Refuted, TrustedKeys, fetch, verify
from ledgermq.client.proofs.keys import node_of
from ledgermq.client.proofs.proof import Since
from ledgermq.client.proofs.proof_fetching import each_alone
from ledgermq.client.proofs.verifying import check_receipt
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import log_pb2
from ledgermq.proto.proofs.log_tree import consistency_path
from ledgermq.proto.proofs.signed_notes import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    Note,
    VerifierKey,
    sign,
)
from tests.client.fake_cluster import admin_status, fake_nodes
from tests.client.fake_log_tree import (
    LOG,
    FakeLog,
    FakeTreeCluster,
    cluster_of,
    key_file,
    log_of,
    private_key,
    proof_fields,
    signed,
)

FILES = 7
HONEST = log_of(FILES)
KEYS = TrustedKeys.parse(key_file())


def proof_of(
    log: FakeLog,
    index: int,
    size: int = FILES,
    old_size: int | None = None,
    nodes: tuple[str, ...] = ("n1", "n2"),
) -> Proof:
    since = (
        None
        if old_size is None
        else Since(old_size, tuple(consistency_path(log.hashes(size), old_size)))
    )
    return Proof(
        **proof_fields(log, index, size),
        checkpoint=signed(log.checkpoint(size), *nodes),
        since=since,
    )


PROOF = proof_of(HONEST, 13, old_size=5)
OLD = signed(HONEST.checkpoint(5), "n3")


def test_every_message_is_proven() -> None:
    """Each entry of each file, up to trees of every size, and through the file that is written and
    read again."""
    for size in range(1, FILES + 1):
        for index in range(HONEST.leaves[size - 1].first + HONEST.leaves[size - 1].entries):
            proof = proof_of(HONEST, index, size)
            proven = verify(Proof.parse(proof.to_json()), KEYS)
            assert (proven.index, proven.message.message_id, proven.checkpoint.size) == (
                index,
                f"id-{index}",
                size,
            )
            assert (proven.message.topic, proven.message.queue, proven.message.offset) == (
                "orders",
                index % 2,
                index // 2,
            )
    assert proven.message.body == b"body 6.8"


def test_the_log_continues_every_older_checkpoint() -> None:
    for old in range(1, FILES + 1):
        proven = verify(
            proof_of(HONEST, 13, old_size=old), KEYS, signed(HONEST.checkpoint(old), "n3")
        )
        assert proven.since == HONEST.checkpoint(old)


@pytest.mark.parametrize("changed", range(5))
def test_a_rewritten_history_does_not_continue_the_old_one(changed: int) -> None:
    """One message of an old file was rewritten with all CRCs and digests, and a majority signed the
    new tree: the kept checkpoint tells."""
    forged = log_of(FILES, changed=(changed,))
    proof = proof_of(forged, 13, old_size=5)
    assert verify(proof, KEYS).index == 13
    with pytest.raises(Refuted, match="leads to another root"):
        verify(proof, KEYS, OLD)


def test_a_message_that_was_rewritten_is_not_in_the_signed_tree() -> None:
    """The paths of the honest tree do not lead from another entry to its root."""
    forged = log_of(FILES, changed=(3,))
    with pytest.raises(Refuted, match="is not in the tree of its file"):
        verify(replace(PROOF, entry=proof_fields(forged, 13, FILES)["entry"]), KEYS)


def test_a_rolled_back_log_is_refuted() -> None:
    with pytest.raises(Refuted, match="withheld, or it was rolled back"):
        verify(proof_of(HONEST, 3, size=4, old_size=4), KEYS, OLD)


def test_proof_signed_by_one_stolen_key_is_refused() -> None:
    """Its owner can sign any tree; a majority of the known nodes does not follow."""
    forged = log_of(FILES, changed=(3,))
    with pytest.raises(Incomplete, match="is signed by n1; 2 known nodes must have signed"):
        verify(proof_of(forged, 13, nodes=("n1",)), KEYS)
    assert (
        verify(proof_of(forged, 13, nodes=("n1",)), TrustedKeys.parse(key_file(), quorum=1)).index
        == 13
    )


def test_proof_with_too_few_known_signatures_is_incomplete() -> None:
    with pytest.raises(Incomplete, match="signed by no known node"):
        verify(proof_of(HONEST, 1, nodes=("n4", "n5")), KEYS)
    with pytest.raises(Incomplete, match="no path from the tree of 5 files"):
        verify(proof_of(HONEST, 1), KEYS, OLD)
    with pytest.raises(Incomplete, match="no known key has signed the older checkpoint"):
        verify(PROOF, KEYS, signed(HONEST.checkpoint(5), "n9"))


def test_keys_of_another_cluster_do_not_count() -> None:
    """A node's key is bound to its cluster by its name, also if the same file trusts both
    clusters."""
    text = PROOF.checkpoint.text
    keys, signatures = [], []
    for node in ("n1", "n2", "n3"):
        foreign = VerifierKey(
            f"{node}.another", ED25519, private_key(node).public_key().public_bytes_raw()
        )
        keys.append(foreign)
        signatures.append(sign(text, foreign, private_key(node).sign))
    with pytest.raises(Incomplete):
        verify(replace(PROOF, checkpoint=Note(text, tuple(signatures))), TrustedKeys.of(keys))


def test_an_older_checkpoint_that_only_another_cluster_signed_is_not_trusted() -> None:
    """Its keys are in the file, too, and say nothing about this cluster's log."""
    old = HONEST.checkpoint(5)
    text = signed(old, "n1").text
    foreign = VerifierKey("n1.another", ED25519, private_key("n1").public_key().public_bytes_raw())
    note = Note(text, (sign(text, foreign, private_key("n1").sign),))
    with pytest.raises(Incomplete, match="no known key has signed the older checkpoint"):
        verify(PROOF, TrustedKeys.of([*KEYS.keys, foreign]), note)


def test_witness_key_does_not_count_as_a_replica() -> None:
    """Nor is a key that names a cluster and no node. Neither raises the number that must sign, or
    counts towards it."""
    public = private_key("n3").public_key().public_bytes_raw()
    others = [
        VerifierKey(f"n3.{LOG.cluster_id}", COSIGNATURE, public),
        VerifierKey(f".{LOG.cluster_id}", ED25519, public),
    ]
    keys = TrustedKeys.of([*TrustedKeys.parse(key_file("n1", "n2")).keys, *others])
    assert keys.needed(LOG) == 2 and TrustedKeys.of([*KEYS.keys, others[1]]).needed(LOG) == 2
    assert [node_of(key, HONEST.checkpoint(5)) for key in others] == [None, None]


def test_a_false_signature_of_a_known_key_refutes() -> None:
    """Even if enough others are true."""
    n1, n2, n3 = signed(HONEST.checkpoint(FILES)).signatures
    false = replace(n3, value=n2.value)
    with pytest.raises(Refuted, match=r"the signature of n3.* is false"):
        verify(replace(PROOF, checkpoint=Note(PROOF.checkpoint.text, (n1, n2, false))), KEYS)


def outcome(text: str) -> Proven | None:
    """What a proof file proves, with continuity; None if it is refused."""
    try:
        return verify(Proof.parse(text), KEYS, OLD)
    except (ValueError, ClusterError):
        return None


def same(found: Proven | None) -> bool:
    """Whether a verdict says nothing but what the unchanged proof says."""
    honest = verify(PROOF, KEYS, OLD)
    return found is None or replace(found, signers=honest.signers) == honest


TEXT = PROOF.to_json()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("part", range(8))
def test_altered_byte_of_a_proof_never_proves_another_fact(part: int) -> None:
    """Every character of the file replaced once by several others, or removed: refused, or without
    any effect on what is proven."""
    refused = 0
    for at in range(part, len(TEXT), 8):
        for other in ("", "A", "0", "7", '"', " ", "é"):
            found = outcome(TEXT[:at] + other + TEXT[at + 1 :])
            assert same(found), (at, other)
            refused += found is None
    assert refused > len(TEXT) / 8 * 5


def leaves_of(value: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in nested JSON, with the way to it."""
    yield trail, value
    for key, below in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from leaves_of(below, (*trail, key))


def changed(trail: tuple[Any, ...], put: Any) -> str:
    value = json.loads(TEXT)
    at = value
    for key in trail[:-1]:
        at = at[key]
    at[trail[-1]] = put
    return json.dumps(value)


def test_exchanged_field_of_a_proof_never_proves_another_fact() -> None:
    """Every field replaced by the same field of proofs of other entries, files, sizes and
    histories, and by every other field."""
    others = [
        proof_of(HONEST, 12, old_size=5),
        proof_of(HONEST, 13, 6, old_size=5),
        proof_of(log_of(FILES, changed=(3,)), 13, old_size=5),
    ]
    own = json.loads(TEXT)
    for other in others:
        for trail, value in leaves_of(json.loads(other.to_json())):
            if trail:
                try:
                    text = changed(trail, value)
                except (IndexError, KeyError, TypeError):
                    continue
                assert same(outcome(text)), trail
    values = [value for _, value in leaves_of(own)]
    for trail, before in leaves_of(own):
        for value in values:
            if trail and value != before:
                assert same(outcome(changed(trail, value))), (trail, value)


def test_changed_number_of_a_proof_never_proves_another_fact() -> None:
    """Sizes and places one more, one less, negative, huge, of another type; paths longer and
    shorter."""
    for trail, value in leaves_of(json.loads(TEXT)):
        if isinstance(value, int):
            for other in (
                value - 1,
                value + 1,
                -value,
                1 << 63,
                1 << 70,
                float(value),
                str(value),
                True,
                None,
                [value],
            ):
                assert outcome(changed(trail, other)) is None or other == value, (trail, other)
        if isinstance(value, list):
            for path in (value[1:], value[:-1], [*value, value[0]], value * 30, value[::-1]):
                assert path == value or outcome(changed(trail, path)) is None, (trail, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        TEXT[:-3],
        TEXT.replace('"version": 1', '"version": 2'),
        TEXT.replace("ledgermq-proof", "other-proof"),
        TEXT.replace('"format"', '"unknown": 1, "format"'),
        TEXT.replace('"version": 1', '"version": 1, "version": 1'),
        TEXT.replace("}", "", 1),
    ],
)
def test_texts_that_are_no_proofs(text: str) -> None:
    with pytest.raises(ValueError):
        Proof.parse(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"base": 1 << 20}, "does not lie in its file"), ({"first": 14}, "is not one of the")],
)
def test_an_entry_lies_in_its_file(change: dict[str, int], why: str) -> None:
    with pytest.raises(Refuted, match=why):
        verify(replace(PROOF, leaf=replace(PROOF.leaf, **change)), KEYS)


def test_key_files() -> None:
    """Comments and empty lines do not count; a file without nodes, and a quorum that cannot be, are
    refused."""
    assert TrustedKeys.parse(key_file("n1", "n2", "n3", "n4") + "\n# more\n").needed(LOG) == 3
    with pytest.raises(ValueError, match="line 2: "):
        TrustedKeys.parse("# keys\nnonsense\n")
    with pytest.raises(BadArgument, match="no key of a node"):
        TrustedKeys.parse("# none\n")
    for quorum in (0, 4):
        with pytest.raises(BadArgument, match="nodes cannot sign"):
            TrustedKeys.parse(key_file(), quorum)


SIX = ("n1", "n2", "n3", "n4", "n5", "n6")


def test_a_majority_of_the_replicas_that_can_sign_is_enough() -> None:
    """A cluster has more keys than a broker group has replicas: six nodes, or three with workers.
    The others do not count."""
    keys = TrustedKeys.parse(
        f"{key_file(*SIX)}replicas 7d444840/g1 n1 n2 n3\nreplicas 7d444840/g2 n4 n5 n6\nreplicas"
        " other/g1 n4 n5\n"
    )
    assert verify(proof_of(HONEST, 13, nodes=("n1", "n3")), keys).index == 13
    for nodes in (("n1",), ("n1", "n4", "n5", "n6")):
        with pytest.raises(Incomplete, match="is signed by n1; 2 known nodes must have signed"):
            verify(proof_of(HONEST, 13, nodes=nodes), keys)
    assert keys.needed(replace(LOG, broker_group="g3")) == 4
    assert TrustedKeys.of(keys.keys, 3, keys.replicas).needed(LOG) == 3
    twice = TrustedKeys.parse(
        f"{key_file(*SIX)}replicas 7d444840/g1 n1 n2 n3\nreplicas 7d444840/g1 n3 n2 n1\n"
    )
    assert twice.needed(LOG) == 2, "the same said twice, as where two files were joined"


def test_key_file_without_replicas_names_what_is_missing() -> None:
    """Keys of another cluster in the same file do not raise the number."""
    foreign = [
        VerifierKey(
            f"n{number}.another", ED25519, private_key(f"x{number}").public_key().public_bytes_raw()
        )
        for number in range(9)
    ]
    assert TrustedKeys.of([*KEYS.keys, *foreign]).needed(LOG) == 2
    for others in ("", "replicas 7d444840/g2 n4 n5 n6\nreplicas another/g1 n4 n5 n6\n"):
        with pytest.raises(Incomplete, match="4 known nodes must have signed") as caught:
            verify(
                proof_of(HONEST, 13, nodes=("n1", "n2", "n3")),
                TrustedKeys.parse(key_file(*SIX) + others),
            )
        assert "does not name the replicas of the group" in caught.value.remedy


@pytest.mark.parametrize(
    "line",
    [
        "replicas 7d444840/g1",
        "replicas g1 n1",
        "replicas 7d444840/ n1",
        "replicas /g1 n1",
        "replicas a/b/c n1",
        "replicas 7d444840/g1 n1 n1",
        "replicas 7d444840/g1 n1\nreplicas 7d444840/g1 n2",
        "replica 7d444840/g1 n1",
    ],
)
def test_lines_that_name_no_replicas(line: str) -> None:
    with pytest.raises(ValueError, match=r"line [56]: "):
        TrustedKeys.parse(f"{key_file()}{line}\n")


# A receipt


def receipt() -> log_pb2.Receipt:
    """The acknowledgement of entries 12 to 14."""
    proven = verify(PROOF, KEYS)
    last = proof_fields(HONEST, 14, FILES)["entry"]
    found = log_pb2.Receipt(
        cluster_id=LOG.cluster_id,
        broker_group=LOG.broker_group,
        log_id=LOG.log_id,
        topic="orders",
        count=3,
        term=1,
    )
    found.first_index, found.chain_crc, found.store_ms = (
        12,
        int.from_bytes(last[36:40], "big"),
        proven.message.store_ms,
    )
    found.ranges.add(queue=0, first_offset=6, count=2)
    found.ranges.add(queue=1, first_offset=6, count=1)
    return found


def test_a_receipt_names_the_proven_message() -> None:
    check_receipt(verify(PROOF, KEYS), receipt(), PROOF.entry)


@pytest.mark.parametrize(
    "change",
    [
        {"cluster_id": "x"},
        {"broker_group": "g2"},
        {"log_id": "x"},
        {"topic": "x"},
        {"term": 2},
        {"store_ms": 1},
        {"first_index": 14},
        {"count": 1},
        {"first_index": 11, "chain_crc": 1},
    ],
)
def test_a_receipt_of_another_message(change: dict[str, Any]) -> None:
    other = receipt()
    for name, value in change.items():
        setattr(other, name, value)
    with pytest.raises(Refuted):
        check_receipt(verify(PROOF, KEYS), other, PROOF.entry)


# From a cluster


@pytest.fixture
def cluster() -> Iterator[FakeTreeCluster]:
    with fake_nodes() as (node,):
        yield cluster_of(node, HONEST)


@pytest.fixture
def connection(cluster: FakeTreeCluster) -> Iterator[Connection]:
    with Connection(cluster.node.endpoint, timeout_s=5) as opened:
        yield opened


def test_a_fetched_proof_has_the_signatures_of_all_nodes(connection: Connection) -> None:
    proof = fetch([connection], "g1", 13, HONEST.checkpoint(5))
    proven = verify(proof, KEYS, OLD)
    assert (proven.index, len(proven.signers), proven.checkpoint.size) == (13, 3, FILES)


def test_nodes_that_lag_or_do_not_answer_do_not_sign(
    cluster: FakeTreeCluster, connection: Connection
) -> None:
    """The tree is the largest that most nodes show."""
    cluster.replicas["n3"].size = 6
    assert verify(fetch([connection], "g1", 13), KEYS).checkpoint.size == FILES
    cluster.replicas["n2"].size = 6
    assert verify(fetch([connection], "g1", 13), KEYS).checkpoint.size == 6
    del cluster.replicas["n1"]
    cluster.answering = "n2"
    assert len(fetch([connection], "g1", 13).checkpoint.signatures) == 2


def test_an_endpoint_without_the_group_is_passed_over(cluster: FakeTreeCluster) -> None:
    """Of the given endpoints one that holds the group is enough; the error is that of the first
    one."""
    with fake_nodes() as (other,):
        elsewhere = cluster_of(other, HONEST)
        for method in ("ProveEntry", "ProveConsistency"):
            response = getattr(pb, f"{method}Response")(
                status=admin_status(40000, "no replica here; ask another node")
            )
            other.answers(method, response)
        with (
            Connection(
                f"{elsewhere.node.endpoint};{cluster.node.endpoint}", timeout_s=5
            ) as connection,
            each_alone(connection) as connections,
        ):
            assert verify(fetch(connections, "g1", 13, HONEST.checkpoint(5)), KEYS, OLD).index == 13
            with pytest.raises(Refused, match="no replica here"):
                fetch(connections[:2], "g1", 13)


def test_nodes_with_different_trees_are_a_fork(
    cluster: FakeTreeCluster, connection: Connection
) -> None:
    cluster.replicas["n2"].log = log_of(FILES, changed=(6,))
    with pytest.raises(Refuted, match="FORK: n1 and n2 show different trees of 7 files"):
        fetch([connection], "g1", 13)


def test_node_that_proves_another_history_or_entry_is_refuted(
    cluster: FakeTreeCluster, connection: Connection
) -> None:
    """Another history than the one that all signed, or another entry than the one that was asked
    for."""
    with fake_nodes() as (other,):
        forged = cluster_of(other, log_of(FILES, changed=(6,)))
        cluster.node.answers("ProveEntry", forged.prove_entry)
        with pytest.raises(Refuted, match="the node's proof of entry 13 is false"):
            fetch([connection], "g1", 13)
    cluster.node.answers(
        "ProveEntry",
        lambda request: cluster.prove_entry(type(request)(index=12, size=request.size)),
    )
    with pytest.raises(Refuted, match="proves entry 12 instead of entry 13"):
        fetch([connection], "g1", 13)


def test_unprovable_entry_is_refused_with_its_reason(
    cluster: FakeTreeCluster, connection: Connection
) -> None:
    with pytest.raises(Refused, match="is in no sealed log file yet"):
        fetch([connection], "g1", 10_000)
    with pytest.raises(Refused, match="there is no broker group g9"):
        fetch([connection], "g9", 1)
    for replica in cluster.replicas.values():
        replica.size = 0
    with pytest.raises(Refused, match="no file of the log is sealed yet"):
        fetch([connection], "g1", 1)


def test_an_older_checkpoint_of_another_log_or_a_longer_one(connection: Connection) -> None:
    for other in (HONEST.checkpoint(5), log_of(9).checkpoint(9)):
        old = (
            Checkpoint(replace(LOG, log_id="another"), other.size, other.root)
            if other.size == 5
            else other
        )
        with pytest.raises(Refuted, match="the log of the older checkpoint is"):
            fetch([connection], "g1", 13, old)


def test_the_file_is_small() -> None:
    """A proof has the entry and some hundred bytes a level."""
    assert len(TEXT) < 3000 + 2 * len(base64.b64encode(PROOF.entry))
