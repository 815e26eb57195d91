"""What the auditor's functions gave for files that are as they were: kept, and given again instead
of reading the files once more.

A function that depends on its arguments and on files alone gives the same again while every file
that it opened has the same bytes, and every path that it asked for, or listed, has the same length
and the same names. `Memory` watches what is opened, asked for and listed, and compares. What it
gives is right however the auditor is written, as long as its functions keep no state of their own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

DAMAGED = 12
"""So many answers about damaged files are kept of one question: cases of the same byte follow each
other."""
LISTED = ("os.listdir", "os.scandir")


@dataclass(slots=True)
class Seen:
    """Paths: of files that were opened, and of files and directories whose length, existence or
    names were asked for."""

    opened: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


_watching: list[Seen] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str):
        for seen in _watching:
            seen.opened.add(arguments[0])
    elif _watching and event in LISTED:
        _asked(arguments[0])


def _asked(path: Any) -> None:
    if isinstance(path, (str, os.PathLike)):
        for seen in _watching:
            seen.asked.add(os.fspath(path))


@cache
def _install() -> None:
    """An audit hook stays until the process ends and slows it down: only a process that watches has
    one."""
    sys.addaudithook(_watch)


@contextmanager
def watched() -> Iterator[Seen]:
    """The paths that are opened, asked for and listed meanwhile."""
    _install()
    seen = Seen()
    if _watching:
        _watching.append(seen)
        try:
            yield seen
        finally:
            assert _watching.pop() is seen
        return
    ask = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        _asked(path)
        return ask(path, *arguments, **options)

    # The interpreter has no audit event for os.stat, through which os.path asks, too.
    with patch.object(os, "stat", stat):
        _watching.append(seen)
        try:
            yield seen
        finally:
            assert _watching.pop() is seen


@dataclass(slots=True)
class _Answer:
    """What `seen` covers was changed like this when it was found."""

    value: Any
    seen: Seen
    changes: tuple[Mapping[str, bytes], Mapping[str, Hashable]]


@dataclass
class Memory:
    """Of one cluster below `base`, whose files are `image` but for what `changed` is told."""

    base: Path
    image: Mapping[str, bytes]
    _damaged: dict[str, bytes] = field(default_factory=dict)
    """By path of a file that is another one: a digest."""
    _lengths: dict[str, Hashable] = field(default_factory=dict)
    """By path of a file with another length: its length. By path of a directory: which files below
    it came and went."""
    _whole: dict[Hashable, _Answer] = field(default_factory=dict)
    _recent: dict[Hashable, list[_Answer]] = field(default_factory=dict)

    def changed(self, changes: Mapping[str, bytes | None]) -> None:
        """From now on these files are other ones, and all others as in the image."""
        self._damaged = {
            str(self.base / path): b""
            if data is None
            else hashlib.blake2b(data, digest_size=16).digest()
            for path, data in changes.items()
        }
        self._lengths = {}
        moved: dict[str, tuple[str, ...]] = {}
        for path, data in sorted(changes.items()):
            length, was = (
                None if each is None else len(each) for each in (data, self.image.get(path))
            )
            if length != was:
                self._lengths[str(self.base / path)] = length
            if length is None or was is None:
                for folder in Path(path).parents:
                    above = str(self.base / folder)
                    moved[above] = (*moved.get(above, ()), path)
        self._lengths |= moved

    def recall(
        self, question: Hashable, find: Callable[[], Any], *, unchanged: bool = False
    ) -> Any:
        """The answer to a question about files: a kept one, or what `find` gives. Who asks must not
        alter it. `unchanged`: the answer of the image will do, if it is known."""
        kept = self._whole.get(question)
        if unchanged and kept is not None:
            return kept.value
        for answer in ([] if kept is None else [kept]) + self._recent.get(question, []):
            if self._changes_in(answer.seen) == answer.changes:
                for each in _watching:
                    # The answer that is being found rests on the same files.
                    each.opened |= answer.seen.opened
                    each.asked |= answer.seen.asked
                return answer.value
        with watched() as seen:
            value = find()
        found = _Answer(value, seen, self._changes_in(seen))
        if not any(found.changes):
            self._whole[question] = found
        else:
            recent = self._recent.setdefault(question, [])
            recent.insert(0, found)
            del recent[DAMAGED:]
        return value

    def _changes_in(self, seen: Seen) -> tuple[Mapping[str, bytes], Mapping[str, Hashable]]:
        """How these paths differ from the image."""
        damaged = {path: data for path, data in self._damaged.items() if path in seen.opened}
        return damaged, {
            path: length for path, length in self._lengths.items() if path in seen.asked
        }
