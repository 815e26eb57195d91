"""Replicas served to an audit in this process, call by call: tests let time pass before any of its
calls.

`Served` is what a node answers; its subclasses have the facts and the files: of a simulated node,
or as they once were (`Frozen`). The audit connects through `Here`, which takes the place of its
credentials. No socket and no thread is involved, so a run is a function of its inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.audit.reading import remote
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.client.errors import Unreachable, refusal
from ledgermq.proto import admin_pb2, audit_pb2

OK, NOT_FOUND, LAGS = 20000, 40400, 50400
NODE_FILE = "node.json"
Point = tuple[int, int, int, int]
"""Index, end position, term and chain CRC of an entry."""


class Served(ABC):
    """One node and its replica."""

    name: str
    group: str
    state = "running"

    # What the subclasses know

    @property
    def up(self) -> bool:
        return True

    @property
    @abstractmethod
    def life(self) -> str: ...

    @property
    @abstractmethod
    def applied(self) -> int: ...

    @abstractmethod
    def begin(self) -> Point:
        """Behind the last trimmed entry, with the position of the first file."""

    @abstractmethod
    def point(self, index: int) -> Point:
        """An applied entry; everything derived is written up to it."""

    def reaches(self, index: int) -> bool:
        """Whether an entry is applied, or is so within a limit of time."""
        return self.applied >= index

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The paths of all files, below the node directory."""

    @abstractmethod
    def content(self, path: str) -> bytes | None: ...

    def take_pin(self) -> str:
        return "pin"

    def renew_pin(self, pin: str) -> bool:
        return True

    def drop_pin(self, pin: str) -> bool:
        return True

    # Answers

    def do_TakePin(self, request: Any) -> Any:
        return admin_pb2.TakePinResponse(status=_status(), pin=self.take_pin())

    def do_RenewPin(self, request: Any) -> Any:
        return admin_pb2.RenewPinResponse(status=_status(), held=self.renew_pin(request.pin))

    def do_DropPin(self, request: Any) -> Any:
        return admin_pb2.DropPinResponse(status=_status(), held=self.drop_pin(request.pin))

    def do_Describe(self, request: Any) -> Any:
        answer = audit_pb2.DescribeReplicaResponse(
            status=_status(), node=self.name, life=self.life, state=self.state
        )
        index = request.index if request.HasField("index") else self.applied
        if not self.reaches(index):
            return audit_pb2.DescribeReplicaResponse(status=_status(LAGS, "it lags"))
        answer.life = self.life
        answer.begin.CopyFrom(_point(self.begin()))
        answer.end.CopyFrom(_point(self.point(index)))
        return answer

    def do_List(self, request: Any) -> Any:
        path = request.directory or request.broker_group
        if request.itself:
            found = [path] if self._is_there(path) else []
        else:
            inner = {
                name[len(path) + 1 :].partition("/")[0]
                for name in self.names()
                if name.startswith(f"{path}/")
            }
            found = [f"{path}/{name}" for name in sorted(inner)]
        return audit_pb2.ListFilesResponse(
            status=_status(), entries=[self._entry(one) for one in found]
        )

    def _is_there(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.names())

    def _entry(self, path: str) -> Any:
        data = self.content(path)
        return audit_pb2.FileEntry(path=path, directory=data is None, size=len(data or b""))

    def do_Read(self, request: Any) -> Iterator[Any]:
        data = self.content(request.path)
        if data is None:
            yield audit_pb2.ReadFileResponse(status=_status(NOT_FOUND))
            return
        yield audit_pb2.ReadFileResponse(status=_status(), size=len(data))
        start = max(request.offset, 0)
        end = min(start + request.length, len(data)) if request.HasField("length") else len(data)
        if end > start and request.places_only:
            yield audit_pb2.ReadFileResponse(offset=start, length=end - start)
        elif end > start:
            yield audit_pb2.ReadFileResponse(offset=start, data=data[start:end])


@dataclass(frozen=True, slots=True)
class Image:
    """A node at one moment: the files, and what it had applied."""

    files: Mapping[str, bytes]
    life: str
    begin: Point
    points: Mapping[int, Point]

    @classmethod
    def of(cls, node: Served) -> Image:
        first, last = node.begin()[0] + 1, node.applied
        # Asking for a point writes what is derived up to it.
        points = {index: node.point(index) for index in range(first, last + 1)}
        return cls(
            {name: data for name in node.names() if (data := node.content(name)) is not None},
            node.life,
            node.begin(),
            points,
        )


@dataclass
class Frozen(Served):
    """A node as it was at one of several moments: `now` says which."""

    name: str
    group: str
    images: list[Image]
    moment: Callable[[], int]

    @property
    def now(self) -> Image:
        return self.images[self.moment()]

    @property
    def life(self) -> str:
        return self.now.life

    @property
    def applied(self) -> int:
        return max(self.now.points)

    def begin(self) -> Point:
        return self.now.begin

    def point(self, index: int) -> Point:
        return self.now.points[index]

    def names(self) -> Iterable[str]:
        return self.now.files

    def content(self, path: str) -> bytes | None:
        return self.now.files.get(path)


@dataclass
class Here:
    """A cluster in this process, in the place of the credentials for one. `before` is called before
    every call, with its number and the method; a call of `Read` is one per request, however much it
    reads."""

    nodes: Mapping[str, Served]
    """By address."""
    group: str
    mark: Callable[[str], Point]
    before: Callable[[int, str], None] = lambda number, method: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Address and method of every call so far."""

    def connect(self, endpoints: str, timeout_s: float = 0.0) -> Connection:
        return Connection(self, endpoints)

    def ask(self, authority: str, method: str, request: Any) -> Any:
        """One answer. Raises NodeLost."""
        name = method.rpartition("/")[2]
        self.calls.append((authority, name))
        self.before(len(self.calls) - 1, name)
        node = self.nodes[authority]
        if not node.up:
            raise NodeLost(authority, f"the node at {authority} does not answer (UNAVAILABLE)")
        if name == "Mark":
            return audit_pb2.MarkResponse(status=_status(), point=_point(self.mark(request.id)))
        if name == "ClusterStatus":
            return self._status()
        return getattr(node, f"do_{name}")(request)

    def _status(self) -> Any:
        answer = admin_pb2.ClusterStatusResponse(status=_status(), cluster_id="c")
        for address, node in self.nodes.items():
            answer.nodes.add(node=node.name, endpoint=address, up=node.up)
        answer.groups.add(group=self.group, voters=[node.name for node in self.nodes.values()])
        return answer


@dataclass
class Connection:
    """To one node."""

    cluster: Here
    authority: str
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.authority,)

    def ask(self, method: str, request: Any, response: Any) -> Any:
        try:
            answer = self.cluster.ask(self.authority, method, request)
        except NodeLost as error:
            raise Unreachable(str(error), "start its node") from error
        if answer.status.code != OK:
            raise refusal(answer.status.code, answer.status.message)
        return answer

    def channel(self) -> Channel:
        return Channel(self.cluster, self.authority)

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Channel:
    """The part of a gRPC channel that the audit uses."""

    cluster: Here
    authority: str

    def unary_unary(self, method: str, encode: Any, decode: Any) -> Callable[..., Any]:
        return lambda request, **_: decode(
            self.cluster.ask(self.authority, method, request).SerializeToString()
        )

    def unary_stream(self, method: str, encode: Any, decode: Any) -> Callable[..., Any]:
        return lambda request, **_: Stream(self.cluster.ask(self.authority, method, request))


class Stream:
    """The messages of a call, made when they are asked for."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self._messages = messages

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self._messages)

    def cancel(self) -> None:
        self._messages = iter(())


def connected(here: Here) -> Connection:
    """Let the audit of this process reach the nodes, and open the connection with which it
    begins."""
    remote.forget()
    remote._process.access = here  # type: ignore[assignment]
    return here.connect(next(iter(here.nodes)))


def _status(code: int = OK, message: str = "") -> Any:
    return admin_pb2.Status(code=code, message=message)


def _point(value: Point) -> Any:
    index, end_pos, term, chain = value
    return audit_pb2.EntryPoint(index=index, end_pos=end_pos, term=term, chain=chain)
