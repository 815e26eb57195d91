"""Errors cross process borders: a pool sends a worker's error to the parent, and a pool that cannot
restore it is broken as a whole."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledgermq
from ledgermq import audit, client, proto
from ledgermq.client.errors import ClusterError
from ledgermq.client.native.consumers.positions import Place
from ledgermq.client.native.producers.outcomes import (
    BatchAcknowledged,
    BatchFailed,
    Failure,
    FrameAcknowledged,
)
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code, Fault, LedgerError, fail

PROTOCOLS = range(2, 6)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def found(package: ModuleType) -> Iterator[type[Exception]]:
    """The exceptions that the modules of a package define."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(kind, type)
                and issubclass(kind, Exception)
                and kind.__module__ == module.name
            ):
                yield kind


KINDS = sorted(
    {kind for package in (client, proto, audit) for kind in found(package)},
    key=lambda kind: (kind.__module__, kind.__name__),
)
FRAME = FrameAcknowledged(
    "g1", pb.Receipt(term=3, count=2), False, 1, 2, 3, 4, 2, 0, {("g1", 0): 0}
)
FAILURES = st.lists(
    st.builds(
        lambda row, text: Failure([row], fail(Code.BAD_REQUEST, text)), st.integers(0, 9), TEXTS
    ),
    min_size=1,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXTS,
    "int": st.integers(0, 99999),
    "bool": st.booleans(),
    "Code": st.sampled_from(Code),
    "Fault": st.sampled_from(Fault),
    "Path": TEXTS.map(Path),
    "Place": st.builds(Place, TEXTS, st.integers(0, 9)),
    "OSError": st.builds(OSError, st.sampled_from([13, 28]), TEXTS),
    "Exception": st.builds(ValueError, TEXTS),
    "tuple[Failure, ...]": FAILURES.map(tuple),
    "BatchAcknowledged": st.just(BatchAcknowledged(2, (FRAME,), (range(2),))),
}
"""What the constructors take, by annotation. A new error with an argument of another type needs a
row."""


def made(kind: type[Exception], draw: Callable[[st.SearchStrategy[Any]], Any]) -> Exception:
    """Any instance of this class."""
    if not any(
        "__init__" in vars(base) for base in kind.__mro__ if base.__module__.startswith("ledgermq")
    ):
        return kind(draw(TEXTS))
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is inspect.Parameter.empty or draw(st.booleans()):
            given[name] = draw(VALUES[parameter.annotation])
    return kind(**given)


def state(error: BaseException) -> dict[str, Any]:
    """Everything that a handler can read, errors inside of errors included."""

    def plain(value: Any) -> Any:
        if isinstance(value, BaseException):
            return state(value)
        if isinstance(value, FrameAcknowledged):
            return {name: plain(getattr(value, name)) for name in value.__slots__}
        if isinstance(value, BatchAcknowledged):
            return value.count, plain(value.frames), value.rows
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return {
        "kind": type(error),
        "text": str(error),
        "args": plain(error.args),
        **{key: plain(value) for key, value in vars(error).items()},
    }


@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: f"{kind.__module__.removeprefix('ledgermq.')}.{kind.__name__}"
)
@given(data=st.data())
def test_every_error_survives_copies_and_the_way_into_another_process(
    kind: type[Exception], data: st.DataObject
) -> None:
    """With its class, its text, and all that was set on it; a copy of a copy is the same again."""
    error = made(kind, data.draw)
    error.add_note("seen by the worker")
    if isinstance(error, ClusterError):
        error.retryable = data.draw(st.booleans())
    ways: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
    ways += [
        lambda it, protocol=protocol: ForkingPickler.loads(ForkingPickler.dumps(it, protocol))
        for protocol in PROTOCOLS
    ]
    for way in ways:
        again = way(way(error))
        assert again is not error and state(again) == state(error)


def test_the_introspection_finds_the_errors_that_applications_meet() -> None:
    """The exported ones among them; an error without a property above would go unnoticed."""
    exported = {
        value
        for value in (getattr(client, name) for name in client.__all__)
        if isinstance(value, type)
    }
    assert {kind for kind in exported if issubclass(kind, Exception)} <= set(KINDS)
    assert {ClusterError, LedgerError, BatchFailed} <= set(KINDS) and ledgermq.__path__
