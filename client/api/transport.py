"""What the failure of a call in transport means, in words and with a remedy.

The status code alone says almost nothing: a port where nothing listens, a node's HTTP port and a
wrong protocol are all UNAVAILABLE. The library's description of its last attempt tells them apart.
It is no stable interface, so an unknown one is answered with the status code.
"""

from __future__ import annotations

import re

import grpc

from ledgermq.client.errors import UNKNOWN_REMEDY, Refused
from ledgermq.proto.status import Code

CHECK = "check the endpoints and that the nodes run"

# Searched in this order in the library's description; the first group of a pattern, if it has one,
# is put into the text.
_CAUSES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile("Connection refused"),
        "nothing listens at {at}",
        "start the node, or check the endpoints",
    ),
    (
        re.compile("http1.x server"),
        "{at} is an HTTP port, not a client port",
        "give the port for clients (client_port; ledgermq up: the HTTP port minus 3000)",
    ),
    (
        re.compile("WRONG_VERSION_NUMBER"),
        "{at} does not speak TLS",
        "connect without TLS, or give a port that speaks it",
    ),
    (
        re.compile("CERTIFICATE_VERIFY_FAILED: ([^:]+)"),
        "the certificate of {at} is not accepted ({0})",
        "give the CA that signed it (--ca), and an address that it names",
    ),
    (
        re.compile("Hostname Verification Check failed|Peer name .* is not in peer certificate"),
        "the certificate of {at} is for another name",
        (
            "give an address that the certificate names, or make one for this address (ledgermq"
            " certificates)"
        ),
    ),
    (
        re.compile(
            "ALERT_CERTIFICATE_REQUIRED|ALERT_HANDSHAKE_FAILURE|ALERT_UNKNOWN_CA|ALERT_BAD_CERTIFICATE"
        ),
        "{at} does not accept the client's certificate, or requires one",
        "give a certificate that the nodes' client CA signed (--certificate, --certificate-key)",
    ),
    (
        # Only TLS has a handshake: this client began one.
        re.compile("[Hh]andshake"),
        "{at} ends the TLS handshake",
        (
            "connect without TLS (omit --tls), or give the port for clients (client_port) of a node"
            " that speaks it"
        ),
    ),
    (
        re.compile("DNS resolution failed|Name or service not known|Domain name not found"),
        "the name in {at} is not known",
        "correct it",
    ),
    (
        re.compile("[Nn]o route to host|Network is unreachable"),
        "{at} is not reachable from this machine",
        "check the network",
    ),
    (
        re.compile("HTTP/2|SETTINGS frame|Stream removed"),
        "{at} speaks another protocol than a client port",
        "give the port for clients (client_port), and TLS if the nodes require it (--tls)",
    ),
    (
        re.compile("Socket closed|Connection reset"),
        "{at} closes the connection",
        (
            "check that this is the port for clients (client_port), and whether the nodes speak TLS"
            " there: with --tls or without"
        ),
    ),
)


def transport_code(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a call that failed in transport."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def cause_of(at: object, error: grpc.RpcError) -> tuple[str, str]:
    """What happened at this address, and the remedy."""
    code = transport_code(error)
    details = (error.details() or "") if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else ""
    if code == grpc.StatusCode.UNAVAILABLE:
        for pattern, what, remedy in _CAUSES:
            if match := pattern.search(details):
                return what.format(*match.groups(), at=at), remedy
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"{at} does not answer in time",
            f"{CHECK}; a port that is not for clients may not answer at all",
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        remedy = (
            "check that this is the port for clients (client_port), and the version of the node"
        )
        return f"{at} does not offer this call (UNIMPLEMENTED)", remedy
    return f"{at} answers {code.name}", CHECK


def failure_of(at: object, error: grpc.RpcError) -> Refused:
    """The error for a call that failed in transport in a way that no retry changes."""
    what, remedy = cause_of(at, error)
    return Refused(Code.INTERNAL_SERVER_ERROR, what, UNKNOWN_REMEDY if remedy == CHECK else remedy)
