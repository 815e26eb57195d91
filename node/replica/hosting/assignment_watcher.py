"""Opens and closes replicas of broker groups while the node runs, as the controller quorum assigns
them.

Theory of operation. When the controller quorum changes which nodes hold which broker groups, the
change is stored durably first (`replica_assignments.py`). Each group that is newly assigned to this
node is opened on a thread, registered with the parts of the node, and announced to every peer over
the existing streams, as a greeting would do: a new replica takes part only after all peers have
recorded its directory (`formation_check.py`). A replica that moved away gets no more turns and is
closed cleanly; its files stay. A group that cannot be opened is logged and tried again; it never
ends the node, because the other groups are not affected.

This module has the order of these steps and the calls to the peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.replica.hosting.hosted_groups import Hosted
from ledgermq.node.replica.hosting.replica_assignments import (
    AgreedGroups,
    Assignment,
    AssignmentFile,
    assignments_of,
    effective,
)
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.peer_identities import Refused as GreetingRefused
from ledgermq.node.replica.ports import PeerCaller
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import peer_pb2
from ledgermq.storage.files.errors import StorageError

GREET_METHOD = "ledgermq.v1.Peer/Greet"
AGAIN_S = 2.0
ANSWER_WITHIN_S = 3.0

log = get_logger()


class NodeParts(Protocol):
    """The parts of the node that must know its groups (`server.Node`)."""

    async def take_in(self, group: str, hosted: Hosted) -> None: ...
    async def let_go(self, group: str) -> None: ...
    def met(self) -> None:
        """Handle that a peer has just accepted directories of this node."""
        ...


class AssignmentWatcher:
    """One per node. All methods but `open_` belong to the loop's thread."""

    def __init__(
        self,
        config: NodeConfig,
        greeter: Greeter,
        file: AssignmentFile,
        peer_caller: PeerCaller,
        parts: NodeParts,
        open_: Callable[[NodeConfig, Assignment], Hosted],
        assigned: Mapping[str, Assignment],
        agreed: AgreedGroups,
    ) -> None:
        """`assigned`: the groups opened at the node's start; `agreed`: the stored assignments they
        came from. `open_` runs on a thread."""
        self._config = config
        self._greeter = greeter
        self._file = file
        self._peer_caller = peer_caller
        self._parts = parts
        self._open = open_
        self._assigned = dict(assigned)
        self._agreed = agreed
        self._wanted = agreed
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._greetings: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[str, frozenset[tuple[str, str]]] = {}
        """Peer → (group, directory) of each replica that the peer had announced when this node last
        greeted it back."""
        self._said: dict[str, str] = {}
        """Peer → the last logged reason why it could not be greeted."""
        self.failures: dict[str, str] = {}
        """Broker group → why its assigned replica is not open here."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="assignment-watcher")

    async def stop(self) -> None:
        self._stopping = True
        tasks = [*self._greetings.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_agreed(self, agreed: AgreedGroups) -> None:
        """Take in a new state of the quorum."""
        if agreed != self._wanted:
            self._wanted = agreed
            self._wake.set()

    def link_up(self, peer: str) -> None:
        """Greet a peer on a new stream: the stream's own greeting may have been made before a group
        was opened here."""
        if self._greeter.peer_identities.since:
            self._greet_later(peer)

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.look():
                asyncio.get_running_loop().call_later(AGAIN_S, self._wake.set)

    async def look(self) -> bool:
        """Open and close replicas until they match the assignments. Returns False if something must
        be tried again."""
        agreed = self._wanted
        if agreed != self._agreed:
            try:
                await asyncio.to_thread(self._file.save, agreed)
            except OSError as error:
                # Nothing depends on the file while the node runs; the next start asks the quorum.
                log.warning(
                    "the assignments of broker groups could not be written", reason=str(error)
                )
            self._agreed = agreed
        former = self.failures
        wanted, self.failures = assignments_of(self._config, agreed)
        for group in sorted(self._assigned.keys() - wanted.keys()):
            await self._let_go(group)
        for group in sorted(wanted.keys() - self._assigned.keys()):
            await self._take_in(group, wanted[group])
        for group, reason in self.failures.items():
            if former.get(group) != reason:
                log.error("broker group not opened", group=group, reason=reason)
        return not self.failures

    async def _let_go(self, group: str) -> None:
        del self._assigned[group]
        await self._parts.let_go(group)
        log.info(
            "broker group left", group=group, directory=str(self._config.data.absolute() / group)
        )

    async def _take_in(self, group: str, assignment: Assignment) -> None:
        config = effective(self._config, {**self._assigned, group: assignment})
        try:
            hosted = await asyncio.to_thread(self._open, config, assignment)
        except (FatalError, StorageError, OSError) as error:
            # The failure concerns this directory only, so the node continues.
            self.failures[group] = f"broker group {group} cannot be opened: {error}"
            return
        self._assigned[group] = assignment
        await self._parts.take_in(group, hosted)
        log.info("broker group arrived", group=group, joins=assignment.joins)
        for peer in self._greeter.others():
            self._greet_later(peer)

    # -- greeting the peers

    def _greet_later(self, peer: str) -> None:
        if self._stopping or peer not in self._greeter.others():
            return
        former = self._greetings.get(peer)

        async def greet() -> None:
            if former is not None:
                await asyncio.gather(former, return_exceptions=True)
            await self._greet(peer)

        self._greetings[peer] = asyncio.create_task(greet(), name=f"greet-{peer}")

    async def _greet(self, peer: str) -> None:
        """Announce this node's groups to a peer over the existing stream. On failure, try again
        later."""
        deadline = asyncio.get_running_loop().time() + ANSWER_WITHIN_S
        hello = self._greeter.hello(b"", b"")
        try:
            answers = await self._peer_caller.ask(
                peer, GREET_METHOD, hello.SerializeToString(), deadline
            )
            reply = peer_pb2.HelloReply.FromString(answers[0])
            if reply.refusal:
                raise GreetingRefused(reply.refusal_reason, reply.refusal)
            await asyncio.to_thread(self._greeter.heard_reply, reply, peer)
        except (CallRefused, DecodeError, GreetingRefused) as failure:
            if self._said.get(peer) != str(failure):
                log.warning(
                    "peer not told of this node's broker groups yet", peer=peer, reason=str(failure)
                )
            self._said[peer] = str(failure)
            asyncio.get_running_loop().call_later(AGAIN_S, self._greet_later, peer)
            return
        self._said.pop(peer, None)
        self._parts.met()

    async def answer(self, sender: str, request: bytes) -> bytes:
        """Handle a peer's announcement of its groups over the existing stream. Raises
        CallRefused."""
        try:
            hello = peer_pb2.Hello.FromString(request)
            await asyncio.to_thread(self._greeter.heard_hello, hello, sender)
        except DecodeError as error:
            raise CallRefused(Refused("internal", detail="the greeting is not readable")) from error
        except GreetingRefused as refusal:
            return peer_pb2.HelloReply(
                refusal=str(refusal), refusal_reason=refusal.reason
            ).SerializeToString()
        self._greet_back(hello)
        return self._greeter.reply(hello).SerializeToString()

    def _greet_back(self, hello: peer_pb2.Hello) -> None:
        """Greet a peer back, once for each directory that it announces: if it opened a group after
        the last greeting from here, it has not recorded this node's directory of that group."""
        shared = {
            (found.group, found.incarnation)
            for found in hello.groups
            if found.group in self._greeter.identities
        }
        if shared - self._answered.get(hello.node, frozenset()):
            self._answered[hello.node] = frozenset(shared)
            self._greet_later(hello.node)
