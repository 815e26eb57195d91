"""The object store port over the S3 API, by the library obstore. Requests, time-outs, credentials
and error texts live here.

Large objects are written in parts and read in ranges, so that no single request takes long and
memory is bounded by a few parts. The library retries a request once; a caller that can wait tries
again later. Credentials come from a file in the format of AWS's shared credentials, which is read
again when it is older than `CREDENTIALS_S`, so that another program can renew them; without a file,
from where AWS's own tools take them (environment, web identity, instance role).
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from ledgermq.storage.files.errors import Unusable
from ledgermq.storage.tiered.ports import (
    PART_BYTES,
    AccessDenied,
    Answered,
    ObjectMissing,
    StoreFailure,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

T = TypeVar("T")
CREDENTIALS_S = 30
PARTS_AT_ONCE = 2
RETRIES = 1
TEXT_MAX = 300
REFUSED = ("401", "403")
ANSWERS = ("400", "403", "404", "405")
"""Statuses that speak of one request: the store itself is there, and not overloaded."""
ARCHIVED = "InvalidObjectState"
"""The code for an object that lies in an archive: a status of 403 that says nothing about keys."""
_NAMES_BEGIN = "0"
"""No name that LedgerMQ gives sorts before it. What cannot be in a path does: an empty name, which
ends with a slash, `.` and `..`."""
_STATUS = re.compile(r"status code: (\d{3})")
_ELEMENTS = {name: re.compile(f"<{name}>([^<]*)</{name}>") for name in ("Code", "Message")}
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
}


@dataclass(frozen=True, slots=True)
class S3Place:
    """Where the objects lie: a bucket and a prefix in it, and how to reach the server."""

    url: str
    """`s3://bucket/prefix`"""
    endpoint: str = ""
    """`http://host:port` or `https://host:port` of a server other than AWS's."""
    region: str = "us-east-1"
    credentials_file: str = ""
    timeout_s: float = 10.0
    """Limit of one request."""
    ca_file: str = ""
    """PEM file of the authorities that signed the server's certificate, besides those that this
    machine trusts."""


class S3ObjectStore:
    """Objects below one prefix of one bucket."""

    def __init__(self, place: S3Place) -> None:
        """Sends no request. Raises Unusable for an address that is not `s3://bucket/prefix`, or
        authorities that cannot be read."""
        bucket, prefix = split_url(place.url)
        self.place = (
            f"{place.url.rstrip('/')} at {place.endpoint}"
            if place.endpoint
            else place.url.rstrip("/")
        )
        config: S3Config = {"region": place.region}
        if place.endpoint:
            config["endpoint"] = place.endpoint
        timeout = timedelta(seconds=place.timeout_s)
        client: ClientConfig = {
            "timeout": timeout,
            "connect_timeout": timeout,
            "allow_http": place.endpoint.startswith("http://"),
        }
        if place.ca_file:
            client["root_certificate"] = read_authorities(place.ca_file)
        retry: RetryConfig = {"max_retries": RETRIES, "retry_timeout": timeout}
        file = place.credentials_file
        provider = (lambda: _credentials(file)) if file else None
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options=client,
            retry_config=retry,
            credential_provider=provider,
        )

    def put(self, key: str, data: bytes) -> None:
        self._asked(key, lambda: obstore.put(self._store, key, data, use_multipart=False))

    def put_parts(self, key: str, chunks: Iterator[bytes]) -> None:
        self._asked(
            key,
            lambda: obstore.put(
                self._store, key, chunks, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            ),
        )

    def read(self, key: str, offset: int, length: int) -> bytes:
        data = self._asked(
            key, lambda: obstore.get_range(self._store, key, start=offset, length=length).to_bytes()
        )
        if len(data) != length:
            raise ObjectMissing(f"{self.place}/{key} ends at byte {offset + len(data)}")
        return data

    def get(self, key: str) -> bytes:
        return self._asked(key, lambda: obstore.get(self._store, key).bytes().to_bytes())

    def list(self, prefix: str) -> list[str]:
        # What a web console makes for a folder has the key of the folder and a slash, which the
        # library drops.
        return self._asked(
            prefix,
            lambda: sorted(
                key for key in self._below(prefix) if not prefix or key.startswith(f"{prefix}/")
            ),
        )

    def _below(self, folder: str) -> Sequence[str]:
        """The keys below a folder. One foreign key that is no path (with an empty name, `.` or
        `..`) makes the library fail a whole listing: then its folders are listed one by one, and a
        folder that has such a key itself from where names of ours begin."""
        try:
            return self._listed(folder)
        except InvalidPathError:
            try:
                level = obstore.list_with_delimiter(self._store, folder or None)
            except InvalidPathError:
                return self._listed(folder, f"{folder}/{_NAMES_BEGIN}" if folder else _NAMES_BEGIN)
            return [
                *(meta["path"] for meta in level["objects"]),
                *(key for sub in level["common_prefixes"] for key in self._below(sub)),
            ]

    def _listed(self, folder: str, after: str | None = None) -> Sequence[str]:
        return [
            meta["path"]
            for page in obstore.list(self._store, folder or None, offset=after)
            for meta in page
        ]

    def delete(self, key: str) -> None:
        try:
            self._asked(key, lambda: obstore.delete(self._store, key))
        except ObjectMissing:
            # Some servers say so.
            return

    def _asked(self, key: str, request: Callable[[], T]) -> T:
        """Carry out one operation, and turn the library's errors into those of the port."""
        where = f"{self.place}/{key}"
        try:
            return request()
        except FileNotFoundError as error:
            raise ObjectMissing(f"{where} does not exist") from error
        except InvalidPathError as error:
            raise StoreFailure(
                f"{where}: a foreign object has a key that is no path; remove it"
                f" ({error_text(error)})"
            ) from error
        except BaseError as error:
            status, code, text = answer_of(error)
            if status == "416" or code == "InvalidRange":
                raise ObjectMissing(f"{where} is shorter than expected") from error
            if code != ARCHIVED and (
                status in REFUSED or isinstance(error, PermissionDeniedError | UnauthenticatedError)
            ):
                raise AccessDenied(f"{where}: the server refused the request ({text})") from error
            raise (Answered if status in ANSWERS else StoreFailure)(f"{where}: {text}") from error


def split_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of `s3://bucket/prefix`. Raises Unusable."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise Unusable(
            f"{url!r} is not the address of a place in an object store: use s3://bucket/prefix"
        )
    prefix = parts.path.strip("/")
    if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
        raise Unusable(
            f"the prefix of {url!r} has an empty name, . or .. between its slashes: use"
            " s3://bucket/prefix"
        )
    return parts.netloc, prefix


def read_authorities(path: str) -> bytes:
    """The content of a PEM file. Raises Unusable."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise Unusable(
            f"the file {path} of authorities cannot be read ({error.strerror})"
        ) from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise Unusable(f"the file {path} holds no certificate in PEM")
    return content


def read_credentials(path: str) -> dict[str, str]:
    """The keys of the section `default` of a file in the format of AWS's shared credentials. Raises
    AccessDenied."""
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        section = parser["default"]
    except OSError as error:
        raise AccessDenied(
            f"the credentials file {path} cannot be read ({error.strerror})"
        ) from error
    except (configparser.Error, KeyError, UnicodeDecodeError) as error:
        raise AccessDenied(
            f"the credentials file {path} has no section [default] in the format of AWS's shared"
            " credentials"
        ) from error
    fields = {name: section[key] for key, name in _KEYS.items() if key in section}
    if not {"access_key_id", "secret_access_key"} <= fields.keys():
        raise AccessDenied(
            f"the credentials file {path} lacks aws_access_key_id or aws_secret_access_key"
        )
    return fields


def _credentials(path: str) -> S3Credential:
    fields = read_credentials(path)
    return {
        "access_key_id": fields["access_key_id"],
        "secret_access_key": fields["secret_access_key"],
        "token": fields.get("token"),
        "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),
    }


def answer_of(error: Exception) -> tuple[str, str, str]:
    """What the server answered: its status and its code, both empty if none is known, and a text
    with what it says, or what failed."""
    text = str(error).split("Debug source:")[0]
    status = match[1] if (match := _STATUS.search(text)) else ""
    parts = [
        match[1].strip()
        for pattern in _ELEMENTS.values()
        if (match := pattern.search(text)) and match[1].strip()
    ]
    if not parts:
        return status, "", error_text(error)
    return (
        status,
        parts[0] if _ELEMENTS["Code"].search(text) else "",
        f"{status} {': '.join(parts)}".strip()[:TEXT_MAX],
    )


def error_text(error: Exception) -> str:
    """The first line of an error of the library, which appends pages of its inner state."""
    return " ".join(str(error).split("Debug source:")[0].split())[:TEXT_MAX]
