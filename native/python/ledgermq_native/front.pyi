"""HTTP/2 and gRPC server on threads of its own. Python takes batches of events and gives batches of answers.

The threads of the front never call Python. They put events into a queue and write to an eventfd when the queue was empty; the event loop
watches that descriptor (`Front.fileno`), takes the events and later gives the answers. All methods may be called from any thread, but the
intended caller is the one thread of the event loop.

A driver in asyncio:

    front = Front(max_message_bytes=24 << 20)
    front.register("/package.Service/Method", request_streaming=False, response_streaming=False)
    listener = front.listen("127.0.0.1", 0)
    loop.add_reader(front.fileno(), on_events)

    def on_events() -> None:
        for event in front.take(256):
            if event[0] == CALL:
                _, call, path, metadata, seconds_left, peer, auth, message = event
                ...
        front.give([(FINISH, call, 0, "", (), b"response")])

The descriptor stays readable while events are left in the queue, so a loop that takes only part of them is called again.

The life of a call: it begins with CALL and has exactly one end as far as the front is concerned, either the FINISH that Python gives or the
CANCELLED event that Python takes. The two may cross: an answer to a call that has ended is dropped without an error, and Python may
take a CANCELLED of a call that it has just finished. After END and END_TAKEN, the end is the SENT or the CANCELLED that Python takes.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

CALL: Final = 0
"""(CALL, call, path, metadata, seconds_left, peer, auth, message): a call began.

- path: the registered path.
- metadata: list of (name, value) in the order of arrival; names are lower case, values are str, or bytes if the name ends in "-bin".
  Fields of the transport (content-type, te, grpc-timeout, grpc-encoding, grpc-accept-encoding and pseudo-headers) are left out;
  user-agent is included.
- seconds_left: float, the time until the deadline, measured when the event is taken; None without a deadline.
- peer: as gRPC names it: "ipv4:192.0.2.1:50000", "ipv6:%5B::1%5D:50000", "unix:".
- auth: as `grpc.ServicerContext.auth_context()`: dict of str to list of bytes. Over plaintext {}. Over TLS at least
  transport_security_type, and with a verified client certificate x509_common_name, x509_subject, x509_subject_alternative_name and
  x509_pem_cert. One dict is shared by all calls of a connection: do not change it.
- message: the request as bytes if the method takes one request, which then has arrived whole and decompressed; None if it takes a stream.
"""
MESSAGE: Final = 1
"""(MESSAGE, call, message): one request of a stream, whole and decompressed. One arrives for each credit given by READ."""
HALF_CLOSED: Final = 2
"""(HALF_CLOSED, call): the client has sent all its requests, and all were delivered. Needs no credit. Only for request streams."""
CANCELLED: Final = 3
"""(CANCELLED, call, reason): the call has ended without Python's FINISH, and the client was told if it could be told. Reasons:

"reset" (the client cancelled), "deadline", "connection" (lost or closed), "drained" (`drain` reached its time limit), "too-large" (a
request of a stream over the limit), "protocol" (a malformed request), "buffers" (the front's limit of buffered bytes), and after END and
END_TAKEN also "unread" (the client did not read or acknowledge the answer in time)."""
WRITABLE: Final = 4
"""(WRITABLE, call): a stream that `give` reported as full has room again."""
REFUSED: Final = 5
"""(REFUSED, reason, address, words): a connection was refused or closed by a limit. Every one is counted in `stats`; at most one event
for each reason comes every ten seconds, for the log. `address` is "host:port"; `words` is a full explanation."""
DRAINED: Final = 6
"""(DRAINED,): `drain` has ended: every connection is closed."""
SENT: Final = 7
"""(SENT, call): the socket has taken the whole answer of a call that Python ended with END; the client has, after END_TAKEN."""

FINISH: Final = 0
"""(FINISH, call, status, details, trailing_metadata, message): end the call with a gRPC status code. `message` is the response of a method
with one response, and None for a response stream and for a failed call. What was sent before it in the stream is delivered first."""
INITIAL: Final = 1
"""(INITIAL, call, metadata): send the initial metadata now. Optional; at most once, before the first SEND."""
SEND: Final = 2
"""(SEND, call, message): one response of a response stream."""
READ: Final = 3
"""(READ, call, count): accept `count` more requests of a request stream. A stream begins with no credit. Without credit the front holds at
most the window of the stream (`stream_window_bytes`), and the client stops sending."""
END: Final = 4
"""(END, call, trailing_metadata): end a response stream with OK, as FINISH does, and tell what became of the answer: SENT, or CANCELLED if
the client left before the socket had taken all of it. What follows it for the call is ignored."""
END_TAKEN: Final = 5
"""(END_TAKEN, call, trailing_metadata): as END, for a method with one request, but SENT comes only if the client has provably taken the
whole answer before its deadline: it acknowledged an HTTP/2 PING that was written behind the answer, within `unread_answer_s`, and did not
reset the stream before. An acknowledgement in the last half second before the deadline (or in the second half of the time that is left
now) counts as too late. One ping stands behind all answers that the socket has by then. Until the end, the bytes of the answer count as
buffered."""

Value: TypeAlias = str | bytes
Metadata: TypeAlias = Sequence[tuple[str, Value]]
Event: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = (
    tuple[Literal[0], int, int, str, Metadata, bytes | None]
    | tuple[Literal[1], int, Metadata]
    | tuple[Literal[2], int, bytes]
    | tuple[Literal[3], int, int]
    | tuple[Literal[4, 5], int, Metadata]
)

class TlsConfig:
    """Certificate and key of a listener, in PEM; a chain begins with the listener's own certificate. With `client_ca`, client certificates
    are verified against it, and with `require_client` a connection without one is refused."""

    def __init__(
        self,
        certificate: bytes,
        key: bytes,
        *,
        client_ca: bytes | None = None,
        require_client: bool = False,
    ) -> None:
        """Raises ValueError if the PEM cannot be used or the key does not belong to the certificate."""

class Listener:
    """One open port, made by `Front.listen`."""

    @property
    def port(self) -> int:
        """The bound port; 0 for a Unix socket."""

    def reload_tls(self, tls: TlsConfig) -> None:
        """Use this certificate for new connections. Open connections are not affected. Raises ValueError on a listener without TLS."""

    def close(self) -> None:
        """Accept no more connections on this port. Open ones continue."""

class Front:
    """The server. For every limit on connections, 0 means no limit. Times are in seconds."""

    def __init__(
        self,
        *,
        threads: int = 1,
        max_message_bytes: int = 4 << 20,
        max_header_bytes: int = 16384,
        max_streams_per_connection: int = 1000,
        max_connections: int = 0,
        max_connections_per_address: int = 0,
        new_connections_per_s: float = 0,
        first_byte_s: float = 5,
        handshake_s: float = 10,
        keepalive_s: float = 30,
        keepalive_timeout_s: float = 20,
        min_ping_interval_s: float = 5,
        max_ping_strikes: int = 20,
        stream_window_bytes: int = 512 << 10,
        stream_send_bytes: int = 1 << 20,
        unread_answer_s: float = 60,
        max_buffered_bytes: int = 512 << 20,
        max_unsent_bytes: int = 64 << 20,
    ) -> None:
        """Start the threads.

        - max_message_bytes: a larger request (compressed or not) ends its call with RESOURCE_EXHAUSTED. Responses are not limited.
        - max_header_bytes: the limit of a request's header list; a larger one is answered with HTTP status 431.
        - new_connections_per_s: connections over this pace wait for their turn, at most 15 s; the burst is a tenth of a second's worth.
        - first_byte_s: from accepting a connection (or its turn) to its first byte: every client says at once what it speaks.
        - handshake_s: from there to the end of the TLS handshake and the HTTP/2 preface, the first byte included.
        - keepalive_s, keepalive_timeout_s: a connection that was silent for the first is pinged, and closed if no answer comes in the
          second; keepalive_s 0 means no pings.
        - min_ping_interval_s, max_ping_strikes: pings of a client at shorter intervals, with nothing sent to it in between, are strikes;
          more strikes close the connection with ENHANCE_YOUR_CALM and the text too_many_pings. 0 strikes: no limit.
        - stream_window_bytes: how much a client may send on one stream ahead of its consumption; a connection has sixteen times as much.
        - stream_send_bytes: a response stream with more unsent bytes is full.
        - unread_answer_s: a finished call whose answer the client does not read is reset after this time, and a connection that took
          nothing for so long while an answer waits for it is closed.
        - max_buffered_bytes: what requests and answers hold, over the whole front: the one request of a call until Python has ended the
          call, requests of streams until Python has taken them, answers until the socket has taken them, also while HTTP/2 has them,
          answers of END_TAKEN again until they have ended, and each call with its metadata and 1 KiB until the socket has taken its end.
          A call that would exceed it ends with RESOURCE_EXHAUSTED, or with its connection if that does not even take refusals.
        - max_unsent_bytes: while the answers that the socket of one connection has not taken exceed this, Python is not told of its further
          calls; it is told of them when half of this has been taken. Unix sockets have no such limit.

        Raises OSError if the threads or the descriptor cannot be made, and ValueError for a limit that makes no sense.
        """

    def register(self, path: str, *, request_streaming: bool, response_streaming: bool) -> None:
        """Declare a method. Calls to other paths are answered with UNIMPLEMENTED and produce no event."""

    def listen(
        self,
        host: str,
        port: int = 0,
        *,
        fd: int | None = None,
        reuse_port: bool = False,
        plain: bool = True,
        tls: TlsConfig | None = None,
        backlog: int = 4096,
    ) -> Listener:
        """Open a port and accept connections on it at once: register the methods first.

        - host: an address, a name, or "unix:/path", then without `port`, `tls` and quotas. gRPC's clients must set
          "grpc.default_authority" to "localhost" for a Unix socket: their default is not a valid authority of a URI, and is refused.
          The caller removes a socket file that is left over.
        - plain, tls: with both, one port accepts both kinds and tells them apart by the first byte; with one, the other kind is refused.
        - reuse_port: several processes listen on the port.
        - fd: listen on this bound socket; the front duplicates the descriptor, and `host` and `port` are ignored.

        Raises OSError if the port cannot be opened.
        """

    def fileno(self) -> int:
        """The eventfd: readable while events are waiting."""

    def take(self, max_events: int = 1024) -> list[Event]:
        """Take waiting events, oldest first. Does not wait: the list may be empty."""

    def give(self, answers: Sequence[Answer]) -> list[int]:
        """Give answers; those of one batch are sent together. Returns the calls whose streams are now full: send no more on them until
        WRITABLE. The messages given were accepted even so.

        Raises TypeError, ValueError or OverflowError for answers of a wrong shape, and then none of the batch has been given. An answer
        whose metadata cannot be sent (not ASCII, a forbidden name) ends its own call with INTERNAL and is counted in `stats` as
        bad_answers.
        """

    def drain(self, seconds: float) -> None:
        """Close the listeners, send GOAWAY on every connection, let open calls end for at most this time, then close what is left. Returns
        at once; DRAINED comes at the end."""

    def close(self) -> None:
        """Close everything and end the threads. Open calls produce no events any more. Idempotent."""

    def stats(self) -> dict[str, Any]:
        """Counters and gauges: connections, connections_total, tls_connections_total, calls, calls_total, calls_unknown, received_bytes,
        sent_bytes, buffered_bytes, unsent_bytes (the answers in buffered_bytes), waiting_events, wakeups, bad_answers, panics, and refused:
        a dict of reason to count.

        Reasons of refused connections: "connections", "address", "crowd" (the pace), "tls-on-plaintext", "plaintext-on-tls", "garbage",
        "slow" (the handshake), "tls" (a failed handshake), "pings", "resets", "settings", "frames" (floods), "keepalive", "stalled" (it did
        not take its answers), "protocol" (other HTTP/2 errors of the client).
        Reasons of refused calls: "buffers", "too-large", "unread".
        """
