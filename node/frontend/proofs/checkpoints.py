"""Checkpoints of the log trees of this node's replicas, proofs of entries and of continuity that
lead to them (docs/proof.md), and the request that a log be sealed before its file is full.

A checkpoint says what this node has applied, and carries its signature. A proof needs no trust in
the node: it is checked against a checkpoint by `ledgermq verify-proof`. Nothing is proven of
entries that are in no sealed file yet, of trimmed entries, and of entries from before the log tree
began; each refusal says which it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ledgermq.node.broker.calls.operator_calls import EndFile
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.parts.retention.file_tree import leaf_of
from ledgermq.node.controller.signing_keys import signs_with
from ledgermq.node.frontend.ports import AdminCalls, Engine, PeerCall
from ledgermq.node.frontend.proofs.signing_key import SigningKey, key_of
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.known_groups import (
    broker_groups,
    of_broker_group,
    require_hosted,
)
from ledgermq.node.frontend.routing.leader_calls import (
    accepted,
    answering,
    ask_leader,
    with_status,
)
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.replica.ports import PeerLink, RunningReplica
from ledgermq.node.runtime.deadlines import within
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import peer_pb2
from ledgermq.proto.levels import TREE_LEVEL
from ledgermq.proto.proofs.log_tree import FileLeaf, consistency_path, inclusion_path, tree_root
from ledgermq.proto.proofs.signed_notes import (
    Checkpoint,
    LogName,
    Note,
    format_note,
    parse_note,
    sign,
)
from ledgermq.proto.status import Code, LedgerError, fail, refused
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.entry_proof import EntryProof, prove_entry
from ledgermq.storage.log.log_reader import LogReader

METHOD = "ledgermq.v1.Admin/GetCheckpoint"
PROVE_METHOD = "ledgermq.v1.Admin/ProveEntry"
CONTINUE_METHOD = "ledgermq.v1.Admin/ProveConsistency"
SEAL_METHOD = "ledgermq.v1.Admin/SealNow"
LEADER_WITHIN_S = 5.0
PEER_WITHIN_S = 3.0
PROOF_WITHIN_S = 10.0
"""A proof reads a whole log file."""
REGISTER_RETRY_S = 1.0

log = get_logger()
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The log tree of a replica between two turns."""

    log_id: str
    hashes: list[bytes]
    """A copy."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A sealed file and its place in the log tree."""

    tree: _Tree
    number: int
    leaf: FileLeaf
    reader: LogReader


class Checkpoints:
    """The checkpoints and proofs of one node. `controller` is
    `ledgermq.node.controller.controller.Controller`; `links` are those to the other nodes, by
    name."""

    def __init__(
        self,
        node: str,
        cluster_id: str,
        engine: Engine,
        forwarder: Forwarder,
        controller: Any,
        links: Mapping[str, PeerLink],
        key: SigningKey,
    ) -> None:
        self._node = node
        self._cluster_id = cluster_id
        self._engine = engine
        self._forwarder = forwarder
        self._controller = controller
        self._links = links
        self._key = key
        self._proving = asyncio.Lock()
        """A proof reads a whole file, so there is one at a time."""

    def calls(self) -> AdminCalls:
        """The methods of the administration that it serves."""
        seal = of_broker_group(
            self._engine, self._controller, lambda request: self.seal(request, caller())
        )
        return AdminCalls(
            {
                "GetCheckpoint": self.checkpoint,
                "ProveEntry": self.prove,
                "ProveConsistency": self.prove_consistency,
                "SealNow": seal,
                "ListCheckpointKeys": lambda _: self.keys(),
            },
            {
                METHOD: self._answering(
                    pb.GetCheckpointRequest, self.checkpoint_here, pb.GetCheckpointResponse
                ),
                PROVE_METHOD: self._answering(
                    pb.ProveEntryRequest, self._prove_here, pb.ProveEntryResponse
                ),
                CONTINUE_METHOD: self._answering(
                    pb.ProveConsistencyRequest, self._consistency_here, pb.ProveConsistencyResponse
                ),
                SEAL_METHOD: answering(peer_pb2.GroupSeal, self.seal_here),
            },
        )

    @staticmethod
    def _answering(
        request: type[Message], here: Callable[[Any], Awaitable[Any]], response: type[Message]
    ) -> PeerCall:
        """A refusal is in the status of the answer."""
        return answering(request, lambda _, asked: with_status(response, here(asked)))

    async def register(self) -> None:
        """Tell the controller quorum this node's public key, unless it knows it. Waits until the
        cluster has the feature level."""
        public = self._key.verifier_key.public.hex()
        while signs_with(self._controller.state.checkpoint_keys, self._node) != public:
            if self._controller.state.level >= TREE_LEVEL:
                try:
                    await self._controller.add_checkpoint_key(
                        self._node, public, self._key.created_ms
                    )
                    log.info("checkpoint key registered", key=str(self._key.verifier_key))
                except LedgerError as error:
                    log.warning("checkpoint key not registered yet", reason=str(error))
            await asyncio.sleep(REGISTER_RETRY_S)

    async def keys(self) -> pb.ListCheckpointKeysResponse:
        """All keys that nodes of this cluster ever signed with, the oldest first. Raises
        LedgerError."""
        await self._controller.barrier()
        state, response = self._controller.state, pb.ListCheckpointKeysResponse()
        for key in state.checkpoint_keys:
            retired = (
                signs_with(state.checkpoint_keys, key.node) != key.public
                or key.node in state.removed_nodes
            )
            verifier = str(key_of(key.node, self._cluster_id, bytes.fromhex(key.public)))
            response.keys.add(
                node=key.node, verifier_key=verifier, created_ms=key.created_ms, retired=retired
            )
        return response

    async def checkpoint(self, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
        """The newest checkpoint of the node that is asked for. Raises LedgerError if there is none,
        or no answer."""
        if request.node in ("", self._node):
            return await self.checkpoint_here(request)
        if request.node not in self._links:
            known = ", ".join(sorted((self._node, *self._links)))
            raise fail(Code.NOT_FOUND, f"there is no node {request.node!r}; known: {known}")
        deadline = asyncio.get_running_loop().time() + within(PEER_WITHIN_S)
        try:
            responses = await self._forwarder.ask(
                request.node, METHOD, request.SerializeToString(), deadline
            )
            answer = pb.GetCheckpointResponse.FromString(responses[0])
        except (CallRefused, DecodeError, IndexError) as error:
            what = (
                f"node {request.node} does not answer {self._node}, or is an older version without"
                " this call"
            )
            raise fail(Code.PRECONDITION_FAILED, what) from error
        return accepted(answer)

    async def _forwarded(self, method: str, request: Any, response: type[R]) -> R:
        """The answer of the leader of a broker group that has no replica here: workers share the
        port of their node, so a caller cannot choose whom it asks. Raises LedgerError."""
        group = request.broker_group
        if group not in await broker_groups(self._controller, group):
            raise fail(Code.BAD_REQUEST, f"broker group {group!r} does not exist")
        deadline = asyncio.get_running_loop().time() + within(PROOF_WITHIN_S)
        try:
            responses = await self._forwarder.submit(
                group, method, {}, request.SerializeToString(), deadline, repeatable=True
            )
            answer = response.FromString(responses[0])
        except CallRefused as refusal:
            raise refused(refusal.refused.reason, refusal.refused.detail) from refusal
        except (DecodeError, IndexError) as error:
            what = (
                f"the leader of broker group {group} is an older version, which proves nothing to"
                " other nodes; ask a node of the group"
            )
            raise fail(Code.PRECONDITION_FAILED, what) from error
        return accepted(answer)

    async def checkpoint_here(self, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
        """The newest checkpoint of this node's replica. Raises LedgerError."""
        group = self._hosted(request.broker_group)
        tree = await self._engine.run(group, _tree_of)
        return pb.GetCheckpointResponse(note=self._signed(group, self._cut(group, tree, 0)))

    async def prove_consistency(
        self, request: pb.ProveConsistencyRequest
    ) -> pb.ProveConsistencyResponse:
        """The path from an older size of the tree to a newer one. Raises LedgerError."""
        if request.broker_group in self._engine.groups:
            return await self._consistency_here(request)
        return await self._forwarded(CONTINUE_METHOD, request, pb.ProveConsistencyResponse)

    async def _consistency_here(
        self, request: pb.ProveConsistencyRequest
    ) -> pb.ProveConsistencyResponse:
        group = self._hosted(request.broker_group)
        tree = self._cut(group, await self._engine.run(group, _tree_of), request.new_size)
        if not 0 < request.old_size <= len(tree.hashes):
            raise fail(
                Code.BAD_REQUEST,
                f"a tree of {len(tree.hashes)} files does not continue one of {request.old_size}",
            )
        return pb.ProveConsistencyResponse(path=consistency_path(tree.hashes, request.old_size))

    async def prove(self, request: pb.ProveEntryRequest) -> pb.ProveEntryResponse:
        """The proof that an entry is in the log. Raises LedgerError."""
        if request.broker_group in self._engine.groups:
            return await self._prove_here(request)
        return await self._forwarded(PROVE_METHOD, request, pb.ProveEntryResponse)

    async def _prove_here(self, request: pb.ProveEntryRequest) -> pb.ProveEntryResponse:
        group = self._hosted(request.broker_group)
        place = await self._engine.run(group, lambda running: _place_of(running, request.index))
        tree = self._cut(group, place.tree, request.size)
        if place.number >= len(tree.hashes):
            what = f"entry {request.index} is in file {place.number} of the log tree"
            raise fail(
                Code.BAD_REQUEST, f"{what}, which a tree of {request.size} files does not contain"
            )
        proof = await self._read(place, request.index)
        leaf = place.leaf
        told = pb.SealedFileLeaf(
            base=leaf.base,
            first_index=leaf.first,
            entries=leaf.entries,
            end_pos=leaf.end,
            entries_root=leaf.root,
        )
        return pb.ProveEntryResponse(
            leaf=told,
            entry=proof.entry,
            entry_path=proof.path,
            file_number=place.number,
            log_path=inclusion_path(tree.hashes, place.number),
            note=self._signed(group, tree),
        )

    async def _read(self, place: _Place, index: int) -> EntryProof:
        async with self._proving:
            try:
                proof = await asyncio.to_thread(prove_entry, place.reader, place.leaf, index)
            except LogDamaged as damage:
                raise fail(
                    Code.INTERNAL_SERVER_ERROR, f"{damage}; ask another node for the proof"
                ) from damage
        if proof is None:
            raise _trimmed(index)
        return proof

    # -- sealing now

    async def seal(self, request: pb.SealNowRequest, user: str) -> pb.SealNowResponse:
        """Have a broker group's log sealed, from any node. Raises LedgerError."""
        wanted = peer_pb2.GroupSeal(
            user=user, through=request.through if request.HasField("through") else None
        )
        return await ask_leader(
            self._forwarder,
            group=request.broker_group,
            method=SEAL_METHOD,
            request=wanted,
            response=pb.SealNowResponse,
            within_s=within(LEADER_WITHIN_S),
            repeatable=True,
        )

    async def seal_here(self, group: str, wanted: peer_pb2.GroupSeal) -> pb.SealNowResponse:
        """Have the log of a broker group sealed that this node leads. The status carries a refusal
        that no other node would change; raises CallRefused otherwise."""
        through = (
            wanted.through
            if wanted.HasField("through")
            else await self._engine.run(group, lambda running: running.files.sealable())
        )
        outcome = await self._engine.call(
            group, EndFile(self._engine.new_token(), through, wanted.user)
        )
        if isinstance(outcome, Refused) and outcome.reason == "seal-refused":
            error = refused(outcome.reason, outcome.detail)
            return pb.SealNowResponse(status=pb.Status(code=int(error.code), message=error.message))
        answer = pb.SealNowResponse(status=pb.Status(code=int(Code.OK)), through=through)
        if isinstance(outcome, Refused):
            if outcome.reason != "seal-not-yet":
                raise CallRefused(outcome)
            answer.waits_for = outcome.detail
            return answer
        voters, answer.size, answer.next_index = await self._engine.run(group, _tree_end)
        if answer.next_index <= through:
            answer.waits_for = (
                f"a majority of the replicas to report the digest of the file with entry {through}"
            )
            return answer
        sizes = await asyncio.gather(*(self._size_of(group, node) for node in voters))
        signed, needed = sum(size >= answer.size for size in sizes), len(voters) // 2 + 1
        if signed < needed:
            answer.waits_for = (
                f"{needed} of {len(voters)} replicas to sign a tree of {answer.size} files;"
                f" {signed} do"
            )
        answer.done = signed >= needed
        return answer

    async def _size_of(self, group: str, node: str) -> int:
        """How many files the log tree has that a node signs; 0 if it has none or does not
        answer."""
        try:
            answer = await self.checkpoint(pb.GetCheckpointRequest(broker_group=group, node=node))
            return Checkpoint.parse(parse_note(answer.note).text).size
        except (LedgerError, ValueError):
            return 0

    def _hosted(self, group: str) -> str:
        require_hosted(self._engine, group)
        return group

    @staticmethod
    def _cut(group: str, tree: _Tree | None, size: int) -> _Tree:
        """The tree when it had `size` files; 0: as it is."""
        if tree is None:
            what = (
                f"broker group {group} has no log tree, because its feature level is below"
                f" {TREE_LEVEL}"
            )
            raise fail(
                Code.NOT_FOUND, f"{what}; when all nodes run this release: ledgermq upgrade finish"
            )
        if not tree.hashes:
            what = (
                f"the log tree of broker group {group} has no file yet; it gets one when the first"
                " log file is full"
            )
            raise fail(Code.NOT_FOUND, f"{what}, or by: ledgermq seal {group}")
        if not 0 <= size <= len(tree.hashes):
            what = f"this node knows a log tree of {len(tree.hashes)} files, not of {size}"
            raise fail(Code.NOT_FOUND, f"{what}; try again, or ask another node")
        return _Tree(tree.log_id, tree.hashes[:size] if size else tree.hashes)

    def _signed(self, group: str, tree: _Tree) -> str:
        checkpoint = Checkpoint(
            LogName(self._cluster_id, group, tree.log_id), len(tree.hashes), tree_root(tree.hashes)
        )
        text = checkpoint.text()
        return format_note(Note(text, (sign(text, self._key.verifier_key, self._key.sign),)))


def _tree_of(running: RunningReplica) -> _Tree | None:
    tree = running.machine.retained.tree
    return None if tree is None else _Tree(running.store.identity.log_id, list(tree.hashes))


def _tree_end(running: RunningReplica) -> tuple[tuple[str, ...], int, int]:
    """The voters, the number of files of the log tree, and the first entry behind it."""
    machine, tree = running.machine, running.machine.retained.tree
    voters = () if machine.members is None else machine.members.voters
    return (voters, 0, 0) if tree is None else (voters, len(tree.hashes), tree.next_index)


def _place_of(running: RunningReplica, index: int) -> _Place:
    """The sealed file of an entry. Raises LedgerError."""
    retained, tree = running.machine.retained, _tree_of(running)
    if index < 0 or index > running.machine.applied_index:
        raise fail(
            Code.NOT_FOUND,
            f"entry {index} is not in the log of this node, which ends with entry"
            f" {running.machine.applied_index}",
        )
    if index < retained.begin_index:
        raise _trimmed(index)
    seal = next(
        (seal for seal in retained.seals.values() if seal.first_index <= index <= seal.last_index),
        None,
    )
    if tree is not None and retained.tree is not None and index < retained.tree.first_index:
        what = (
            f"entry {index} lies before entry {retained.tree.first_index}, with which the log tree"
            " begins"
        )
        raise fail(Code.NOT_FOUND, f"{what}: its file was full before the feature level was raised")
    number = (
        None
        if seal is None or retained.tree is None
        else retained.tree.number_of(seal, retained.seals.values())
    )
    if tree is None or seal is None or number is None:
        what = (
            f"entry {index} is in no sealed log file yet; try again when its file is full, and"
            " seconds older"
        )
        raise fail(
            Code.NOT_FOUND, f"{what}, or seal it now: ledgermq seal {running.store.identity.group}"
        )
    return _Place(tree, number, leaf_of(seal), running.reader)


def _trimmed(index: int) -> LedgerError:
    return fail(
        Code.NOT_FOUND, f"entry {index} was trimmed; a proof that was made before is still valid"
    )
