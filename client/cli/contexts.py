"""Contexts: clusters under a name, with endpoints, TLS and user, in one file of the user's
configuration directory.

Law: the file may hold secrets, so it is readable by its owner only, and a file that others can read
is refused. It is replaced as a whole, under a lock: an interrupted change leaves the former file,
and two changes at once are both kept. Options and printing are not known here.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ledgermq.client.api.connection import parse_endpoints
from ledgermq.client.aside import replace_file
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.proto.status import Code

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
VERSION = 1


@dataclass(frozen=True, slots=True)
class Context:
    """How one cluster is reached. Paths are absolute; an empty text means none."""

    endpoints: str
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    certificate_key: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the file. `current`: the context of commands that name none; empty: none."""

    current: str = ""
    known: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Raises Refused."""
        if name not in self.known:
            names = ", ".join(sorted(self.known)) or "none"
            raise Refused(
                Code.NOT_FOUND,
                f"there is no context {name!r}",
                f"known are: {names}; add one with ledgermq context add",
            )
        return self.known[name]

    def with_context(self, name: str, context: Context, *, use: bool) -> Contexts:
        return Contexts(name if use else self.current, {**self.known, name: context})

    def without(self, name: str) -> Contexts:
        self.get(name)
        known = {other: context for other, context in self.known.items() if other != name}
        return Contexts("" if self.current == name else self.current, known)

    def using(self, name: str) -> Contexts:
        if name:
            self.get(name)
        return replace(self, current=name)


def file_path() -> Path:
    """The file's path, by the XDG base directory rules: a relative XDG_CONFIG_HOME does not
    count."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".config"
    return base / "ledgermq" / "contexts.json"


def check_name(name: str) -> None:
    """Raises BadArgument."""
    if not _NAME.fullmatch(name):
        raise BadArgument(
            f"{name!r} is not a name for a context",
            "use at most 63 letters, digits, '_', '-' and '.'",
        )


def load() -> Contexts:
    """The contexts; none if the file does not exist. Raises BadArgument."""
    path = file_path()
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadArgument(
                    f"{path} holds secrets and is open to other users",
                    f"chmod 600 {path}, and give the users new secrets",
                )
            text = file.read()
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadArgument(
            f"the contexts in {path} cannot be read ({reason})", "correct the file, or remove it"
        ) from error
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadArgument) as error:
        raise BadArgument(
            f"{path} is not a file of contexts ({error})", "correct the file, or remove it"
        ) from error


def _parsed(tree: Any) -> Contexts:
    if tree["v"] != VERSION:
        raise ValueError(f"it has version {tree['v']}, not {VERSION}")
    known = {name: Context(**fields) for name, fields in tree["contexts"].items()}
    for context in known.values():
        parse_endpoints(context.endpoints)
        texts = (
            context.ca,
            context.certificate,
            context.certificate_key,
            context.access_key,
            context.secret_key,
        )
        if not isinstance(context.tls, bool) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a value has the wrong type")
    found = Contexts("", known)
    return found.using(str(tree["current"])) if tree["current"] in known else found


@contextmanager
def changing() -> Iterator[list[Contexts]]:
    """The contexts in a list of one, for a change: the list's content on leaving is written, unless
    by an exception. Raises BadArgument."""
    path = file_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path.with_name(".contexts.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = [load()]
            yield held
            (wanted,) = held
            tree = {
                "v": VERSION,
                "current": wanted.current,
                "contexts": {name: asdict(one) for name, one in sorted(wanted.known.items())},
            }
            replace_file(path, json.dumps(tree, indent=1).encode(), 0o600)
    except OSError as error:
        what = f"the contexts in {path} cannot be written ({error.strerror}); nothing was changed"
        raise BadArgument(what, "check the directory, or set XDG_CONFIG_HOME") from error
