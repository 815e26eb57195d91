"""A driver of the native front for tests: a small gRPC service in asyncio."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from ledgermq_native import front as native

from tests.native.http2_by_hand import WITHIN_S, literal

SERVICE = "/test.Echo/"
METHODS = {
    "Unary": (False, False),
    "Hold": (False, False),
    "About": (False, False),
    "Big": (False, False),
}
METHODS |= {
    "Collect": (True, False),
    "Count": (False, True),
    "Bidi": (True, True),
    "Mute": (True, True),
    "Flood": (False, True),
}
PIECE = b"p" * 100_000


class Driver:
    """Answers the calls of `METHODS`, and keeps every event for the tests."""

    def __init__(self, **limits: Any) -> None:
        self.front = native.Front(**{"max_message_bytes": 24 << 20, **limits})
        for name, (requests, responses) in METHODS.items():
            self.front.register(
                SERVICE + name, request_streaming=requests, response_streaming=responses
            )
        self.events: list[Any] = []
        self.batches: list[int] = []
        self.turns = 0
        self.given = 0
        self._more = asyncio.Event()
        self._methods: dict[int, str] = {}
        self._collected: dict[int, int] = {}
        self._left: dict[int, int] = {}
        asyncio.get_running_loop().add_reader(self.front.fileno(), self._on_events)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.front.fileno())
        self.front.close()

    def kinds(self, kind: int) -> list[Any]:
        return [event for event in self.events if event[0] == kind]

    async def until(self, kind: int, count: int = 1) -> list[Any]:
        """Wait until there were this many events of a kind."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.kinds(kind)) < count:
                self._more.clear()
                await self._more.wait()
        return self.kinds(kind)

    async def until_stats(self, **wanted: Any) -> dict[str, Any]:
        """Wait until counters reach values. They change without events, so this looks again
        whenever the loop is idle."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                stats = self.front.stats()
                if all(stats[name] == value for name, value in wanted.items()):
                    return stats
                await asyncio.sleep(0.001)

    async def until_refused(self, reason: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            while reason not in self.front.stats()["refused"]:
                await asyncio.sleep(0.001)

    def _on_events(self) -> None:
        self.turns += 1
        taken = self.front.take()
        self.batches.append(len(taken))
        self.events += taken
        answers: list[Any] = []
        for event in taken:
            self._answer(event, answers)
        if answers:
            self.give(answers)
        self._more.set()

    def give(self, answers: list[Any]) -> None:
        for call in self.front.give(answers):
            self._left[call] = -abs(self._left.get(call, 0))

    def _answer(self, event: Any, answers: list[Any]) -> None:
        match event:
            case (native.CALL, call, path, metadata, left, peer, auth, message):
                name = self._methods[call] = path.removeprefix(SERVICE)
                if name == "Unary":
                    answers.append((native.FINISH, call, 0, "", (), message))
                elif name == "Big":
                    answers.append((native.FINISH, call, 0, "", (), b"b" * int(message)))
                elif name == "About":
                    answers.append((native.INITIAL, call, [("early", "1")]))
                    about = {"metadata": metadata, "left": left, "peer": peer, "auth": auth}
                    answers.append((native.FINISH, call, 0, "", (), repr(about).encode()))
                elif name == "Count":
                    answers += [
                        (native.SEND, call, b"%d" % number) for number in range(int(message))
                    ]
                    answers.append((native.FINISH, call, 0, "", [("end", "1")], None))
                elif name == "Flood":
                    self._left[call] = int(message)
                    self._flood(call)
                elif name in ("Collect", "Bidi"):
                    answers.append((native.READ, call, 1))
            case (native.MESSAGE, call, message):
                if self._methods[call] == "Bidi":
                    answers += [(native.SEND, call, message), (native.READ, call, 1)]
                elif self._methods[call] == "Collect":
                    self._collected[call] = self._collected.get(call, 0) + len(message)
                    answers.append((native.READ, call, 1))
            case (native.HALF_CLOSED, call):
                size = self._collected.pop(call, 0)
                answers.append(
                    (
                        native.FINISH,
                        call,
                        0,
                        "",
                        (),
                        b"%d" % size if self._methods[call] == "Collect" else None,
                    )
                )
            case (native.WRITABLE, call):
                self._left[call] = abs(self._left[call])
                self._flood(call)

    def _flood(self, call: int) -> None:
        """Send pieces until the stream is full; a negative number of pieces left marks a full
        stream."""
        while self._left[call] > 0:
            self._left[call] -= 1
            self.given += 1
            full = self.front.give([(native.SEND, call, PIECE)])
            if full:
                assert full == [call]
                if self._left[call]:
                    self._left[call] = -self._left[call]
                    return
        self.front.give([(native.FINISH, call, 0, "", (), None)])


@asynccontextmanager
async def running(**limits: Any) -> AsyncIterator[tuple[Driver, Any]]:
    """A driver with one plaintext listener."""
    driver = Driver(**limits)
    try:
        yield driver, driver.front.listen("127.0.0.1")
    finally:
        driver.close()


# -- requests by hand


def request_headers(
    method: str = "Unary", extra: Iterable[tuple[str, str]] = (), *, verb: str = "POST"
) -> bytes:
    fields = {":method": verb, ":scheme": "http", ":path": SERVICE + method, ":authority": "test"}
    extra = list(extra)
    if not any(name == "content-type" for name, _ in extra):
        extra.append(("content-type", "application/grpc"))
    return b"".join(
        literal(name, value) for name, value in [*fields.items(), ("te", "trailers"), *extra]
    )


# -- certificates


class Ca:
    """A certificate authority."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(
            self._name, self._key, [x509.BasicConstraints(ca=True, path_length=None)]
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM)

    def issue(
        self, name: str, alternatives: Iterable[x509.GeneralName] = ()
    ) -> tuple[bytes, bytes]:
        """Certificate and key of a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = list(alternatives) or [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(
            subject,
            key,
            [x509.SubjectAlternativeName(names), x509.BasicConstraints(ca=False, path_length=None)],
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), secret

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[x509.ExtensionType],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
        )
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
            now - datetime.timedelta(hours=1)
        )
        builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
        for extension in extensions:
            builder = builder.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints)
            )
        return builder.sign(self._key, hashes.SHA256())
