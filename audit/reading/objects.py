"""Objects of tiered storage by path: `store://KEY`, where KEY is below the place that this process
was told to use (docs/format.md §21).

The object half of `files.py`, with the auditor's own client of the S3 API. Access is set once per
process (`use`); processes that Spark starts take it from the environment, or from the task. A store
that does not answer, or refuses the keys, raises `StoreLost`: that is no statement about the bytes,
and must never become a finding. An object that does not exist is a FileNotFoundError. This module
does not know what the bytes mean.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ledgermq.audit.reading.node_paths import STORE

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

PART_BYTES = 8 << 20
"""An object is read in ranges of this size."""
KEPT_PARTS = 2
"""A window of the scan may begin in the part before the one that it ends in."""
TIMEOUT = timedelta(seconds=30)
RETRIES = 3
TEXT_MAX = 300
ENVIRONMENT = {
    name: f"LEDGERMQ_STORE_{name.upper()}"
    for name in ("url", "endpoint", "region", "credentials", "ca")
}
KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
NAMES_BEGIN = "0"
"""No name that LedgerMQ gives sorts before it; an empty name (which ends with a slash), `.` and
`..` do."""
STATUS = re.compile(r"status code: (\d{3})")
SAID = [re.compile(f"<{name}>([^<]*)</{name}>") for name in ("Code", "Message")]
T = TypeVar("T")


class StoreLost(Exception):
    """The store could not be reached, or refused: one sentence says what was asked and why it
    failed."""


class BadStore(ValueError):
    """The address or the credentials of a store cannot be used."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The place in a store, and how to reach it. Can cross process boundaries; its text form hides
    the secret."""

    url: str
    """`s3://bucket/prefix`, as `tiered.url` of the nodes."""
    endpoint: str = ""
    region: str = "us-east-1"
    credentials: str = ""
    """File in the format of AWS's shared credentials; empty: from where AWS's tools take them."""
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What that file says, for machines that do not have it."""
    ca: str = ""
    """Certificates in PEM of the authorities that signed the server's, besides those that the
    machine trusts."""

    @property
    def place(self) -> str:
        """The place as nodes note it (`state/tiered`)."""
        url = self.url.rstrip("/")
        return f"{url} at {self.endpoint}" if self.endpoint else url

    def with_keys(self) -> StoreAccess:
        """The same with the content of the credentials file. Raises BadStore."""
        return (
            replace(self, keys=tuple(sorted(read_keys(self.credentials).items())))
            if self.credentials and not self.keys
            else self
        )

    def announce(self) -> None:
        """Tell processes that this one starts. The secret stays in its file."""
        for name, variable in ENVIRONMENT.items():
            os.environ[variable] = str(asdict(self)[name])

    def open(self) -> Any:
        """The library's store. Sends no request. Raises BadStore."""
        from obstore.store import S3Store

        parts = urlsplit(self.url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise BadStore(
                f"{self.url!r} is not a place in an object store; give s3://bucket/prefix"
            )
        prefix = parts.path.strip("/")
        if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
            raise BadStore(
                f"the prefix of {self.url!r} has an empty name, . or .. between its slashes; give"
                " s3://bucket/prefix"
            )
        config: S3Config = {"region": self.region}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        keys = (
            read_keys(self.credentials)
            if self.credentials and os.path.exists(self.credentials)
            else dict(self.keys)
        )
        if self.credentials and not keys:
            raise BadStore(f"the credentials file {self.credentials} does not exist")
        for name, value in keys.items():
            config[name] = value  # type: ignore[literal-required]
        client: ClientConfig = {
            "timeout": TIMEOUT,
            "connect_timeout": TIMEOUT,
            "allow_http": self.endpoint.startswith("http://"),
        }
        retry: RetryConfig = {"max_retries": RETRIES, "retry_timeout": TIMEOUT}
        if self.ca:
            if "-----BEGIN CERTIFICATE-----" not in self.ca:
                raise BadStore(
                    "what was given as the store's authority holds no certificate in PEM; give a"
                    " file of such certificates"
                )
            client["root_certificate"] = self.ca
        return S3Store(
            parts.netloc,
            prefix=prefix or None,
            config=config,
            client_options=client,
            retry_config=retry,
        )


def read_keys(path: str) -> dict[str, str]:
    """The keys in the section `default` of a file in the format of AWS's shared credentials. Raises
    BadStore."""
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        fields = {
            name: parser["default"][key] for key, name in KEYS.items() if key in parser["default"]
        }
    except OSError as error:
        raise BadStore(f"the credentials file {path} cannot be read ({error.strerror})") from error
    except (configparser.Error, KeyError, UnicodeDecodeError) as error:
        raise BadStore(
            f"the credentials file {path} has no section [default] in the format of AWS's shared"
            " credentials"
        ) from error
    if not {"access_key_id", "secret_access_key"} <= fields.keys():
        raise BadStore(
            f"the credentials file {path} lacks aws_access_key_id or aws_secret_access_key"
        )
    return fields


def access_of(environment: Mapping[str, str]) -> StoreAccess | None:
    """The access that a parent process announced."""
    fields = {
        name: environment[variable]
        for name, variable in ENVIRONMENT.items()
        if environment.get(variable)
    }
    if "url" not in fields:
        return None
    return StoreAccess(
        fields["url"],
        fields.get("endpoint", ""),
        fields.get("region", "us-east-1"),
        fields.get("credentials", ""),
        ca=fields.get("ca", ""),
    )


class _Process:
    """The state of this process: its access, and the open store."""

    def __init__(self) -> None:
        self.access: StoreAccess | None = None
        self.store: Any = None
        self.owner = 0
        """The process that opened it: a child process must not use its parent's connections."""


_process = _Process()


def use(access: StoreAccess) -> None:
    """Use this store in this process from now on."""
    if access != _process.access:
        _process.access, _process.store = access, None


def access() -> StoreAccess:
    """The access of this process. Raises BadStore if it was told none."""
    if _process.access is None:
        _process.access = access_of(os.environ)
    if _process.access is None:
        raise BadStore("no object store was named")
    return _process.access


def _store() -> Any:
    if _process.store is None or _process.owner != os.getpid():
        _process.store, _process.owner = access().open(), os.getpid()
    return _process.store


def _asked(key: str, request: Callable[[Any], T]) -> T:
    """Carry out one request. Raises FileNotFoundError, StoreLost."""
    from obstore.exceptions import BaseError

    where = f"{access().place}/{key}"
    try:
        return request(_store())
    except FileNotFoundError as error:
        raise FileNotFoundError(2, os.strerror(2), where) from error
    except BadStore as error:
        raise StoreLost(str(error)) from error
    except BaseError as error:
        raise StoreLost(
            f"{where} could not be read ({_said(error)}); check address, credentials and server,"
            " and audit again"
        ) from error


def _said(error: Exception) -> str:
    """What the server answered: status, code and sentence; otherwise the first line of the
    library's error, without its inner state."""
    text = str(error).split("Debug source:")[0]
    parts = [match[1].strip() for pattern in SAID if (match := pattern.search(text))]
    status = [match[1]] if (match := STATUS.search(text)) else []
    return (" ".join([*status, ": ".join(parts)]) if parts else " ".join(text.split()))[:TEXT_MAX]


def listing(folder: str = "") -> dict[str, int]:
    """Key and size of every object of the place, or of a folder in it. Raises StoreLost."""
    return _asked(
        folder, lambda store: {meta["path"]: int(meta["size"]) for meta in _below(store, folder)}
    )


def _below(store: Any, folder: str) -> list[Any]:
    """The objects below a folder. One foreign key that is no path (with an empty name, `.` or `..`)
    makes the library fail a whole listing: then its folders are listed one by one, and a folder
    that has such a key itself from where names of LedgerMQ begin."""
    import obstore
    from obstore.exceptions import InvalidPathError

    def listed(after: str | None = None) -> list[Any]:
        return [meta for page in obstore.list(store, folder or None, offset=after) for meta in page]

    try:
        return listed()
    except InvalidPathError:
        try:
            level = obstore.list_with_delimiter(store, folder or None)
        except InvalidPathError:
            return listed(f"{folder}/{NAMES_BEGIN}" if folder else NAMES_BEGIN)
        return [
            *level["objects"],
            *(meta for sub in level["common_prefixes"] for meta in _below(store, sub)),
        ]


def read_object(key: str) -> bytes:
    """A small object, whole. Raises FileNotFoundError, StoreLost."""
    import obstore

    return _asked(key, lambda store: obstore.get(store, key).bytes().to_bytes())


class StoredObject:
    """An open object, with the interface of `files.File`. Every byte is fetched once if it is read
    from front to back. Raises FileNotFoundError, StoreLost."""

    def __init__(self, path: str) -> None:
        import obstore

        self._key = path.removeprefix(STORE)
        self.size = _asked(self._key, lambda store: int(obstore.head(store, self._key)["size"]))
        self._parts: dict[int, bytes] = {}
        self._told: Callable[[bytes], None] = lambda data: None
        self._watched = 0
        """The number of parts that were told."""

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer only at the end of the object."""
        end = min(offset + size, self.size)
        pieces = []
        while offset < end:
            number, inside = divmod(offset, PART_BYTES)
            piece = self._part(number)[inside : inside + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def watch(self, part: Callable[[bytes], None]) -> None:
        """Have every part told from front to back as it is fetched. Call it before the first
        read."""
        self._told = part

    def _part(self, number: int) -> bytes:
        import obstore

        known = self._parts.get(number)
        if known is not None:
            return known
        start = number * PART_BYTES
        length = min(PART_BYTES, self.size - start)
        data = _asked(
            self._key,
            lambda store: obstore.get_range(
                store, self._key, start=start, length=length
            ).to_bytes(),
        )
        if len(data) != length:
            raise StoreLost(f"{access().place}/{self._key} changed while it was read; audit again")
        if number == self._watched:
            self._watched += 1
            self._told(data)
        self._parts[number] = data
        if len(self._parts) > KEPT_PARTS:
            del self._parts[min(self._parts)]
        return data

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Objects have no holes."""
        if start < end:
            yield start, end

    def close(self) -> None:
        self._parts.clear()

    def __enter__(self) -> StoredObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
