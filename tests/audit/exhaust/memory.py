"""What the auditor's functions gave for files that are as they were: kept, and given again instead of reading the files once more.

A function that depends on its arguments and on files alone gives the same again while every file that it opened has the same bytes, and
while no file of its replica's node came, went or changed its length. `Memory` watches what is opened, and compares contents. What it gives
is right however the auditor is written, as long as its functions keep no state of their own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DAMAGED = 12
"""So many answers about damaged files are kept of one question: cases of the same byte follow each other."""
_watching: list[set[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str):
        for opened in _watching:
            opened.add(arguments[0])


sys.addaudithook(_watch)


@contextmanager
def opened() -> Iterator[set[str]]:
    """The paths of the files that are opened meanwhile."""
    found: set[str] = set()
    _watching.append(found)
    try:
        yield found
    finally:
        assert _watching.pop() is found


@dataclass(slots=True)
class _Answer:
    """`files` were opened for it, of which `damaged` had these contents; `lengths` is which files of the node were not as they are."""

    value: Any
    files: frozenset[str]
    damaged: Mapping[str, bytes]
    lengths: Hashable


@dataclass
class Memory:
    """Of one cluster below `base`, whose files are `image` but for what `changed` is told."""

    base: Path
    image: Mapping[str, bytes]
    _damaged: dict[str, bytes] = field(default_factory=dict)
    _lengths: dict[str, Hashable] = field(default_factory=dict)
    _whole: dict[Hashable, _Answer] = field(default_factory=dict)
    _recent: dict[Hashable, list[_Answer]] = field(default_factory=dict)

    def changed(self, changes: Mapping[str, bytes | None]) -> None:
        """From now on these files are other ones, and all others as in the image."""
        self._damaged = {
            str(self.base / path): b"" if data is None else hashlib.blake2b(data, digest_size=16).digest() for path, data in changes.items()
        }
        other = [(path, None if data is None else len(data)) for path, data in sorted(changes.items())]
        other = [(path, length) for path, length in other if length != len(self.image.get(path, b"")) or path not in self.image]
        nodes = {path.partition("/")[0] for path, _ in other}
        self._lengths = {node: tuple(row for row in other if row[0].startswith(f"{node}/")) for node in nodes}

    def recall(self, node: str, question: Hashable, find: Callable[[], Any], *, unchanged: bool = False) -> Any:
        """The answer to a question about files of this node: a kept one, or what `find` gives. Who asks must not alter it. `unchanged`: the
        answer of the image will do, if it is known."""
        lengths = self._lengths.get(node)
        kept = self._whole.get(question)
        if unchanged and kept is not None and lengths is None:
            return kept.value
        for answer in ([] if kept is None else [kept]) + self._recent.get(question, []):
            damaged = {path: data for path, data in self._damaged.items() if path in answer.files}
            if answer.lengths == lengths and damaged == answer.damaged:
                for each in _watching:
                    # Whoever asked for this rests on the same files.
                    each |= answer.files
                return answer.value
        with opened() as files:
            value = find()
        found = _Answer(value, frozenset(files), {path: data for path, data in self._damaged.items() if path in files}, lengths)
        if not found.damaged and lengths is None:
            self._whole[question] = found
        else:
            recent = self._recent.setdefault(question, [])
            recent.insert(0, found)
            del recent[DAMAGED:]
        return value


def node_of(base: Path, path: str) -> str:
    """The node below `base` to which a path belongs."""
    return os.path.relpath(path, base).partition("/")[0]
