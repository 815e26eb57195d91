"""How calls are signed, and how the header is read: contract §3.2, every client's spelling of
it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.signature import (
    Claim,
    Credentials,
    claim_of,
    operator_of,
    proves,
    sign,
    signature_of,
)

DATE = "20260102T030405Z"
HEX = "651888104e62e38ad7484d9e5580cfaf3226a8db"


def header(credential: str = "ak1", signature: str = HEX, algorithm: str = "MQv2-HMAC-SHA1") -> str:
    return (
        f"{algorithm} Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"
    )


def test_vector_of_the_contract() -> None:
    """The signature of the one vector there is."""
    assert signature_of("sk1", DATE).hex() == HEX
    assert sign(Credentials("ak1", "sk1"), DATE) == header()


SPELLINGS = [
    header(),
    header(signature=HEX.upper()),
    header("ak1//Rocketmq"),
    header("ak1/region/RocketMQ"),
    f" {header()} ",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_every_clients_spelling(text: str) -> None:
    """Upper and lower case, longer credentials, spaces around."""
    claim = claim_of(text)
    assert claim == Claim("ak1", bytes.fromhex(HEX))
    assert proves(claim, "sk1", DATE)
    assert not proves(claim, "sk2", DATE) and not proves(claim, "sk1", DATE + " ")


@pytest.mark.parametrize("text", [header(""), header("/region/RocketMQ"), "MQv2-HMAC-SHA1"])
def test_empty_credential_makes_no_claim(text: str) -> None:
    """Python clients send the header without keys, too."""
    assert claim_of(text) is None


MALFORMED = [
    "",
    "Bearer abc",
    header(algorithm="MQv2-HMAC-SHA256"),
    header(signature=""),
    header(signature=HEX[:-1]),
]
MALFORMED += [
    header(signature="0x" + HEX[2:]),
    header(signature=HEX[:-2] + " a"),
    "MQv2-HMAC-SHA1 Credential=ak1",
]


@pytest.mark.parametrize(
    "text",
    [*MALFORMED, "MQv2-HMAC-SHA1 Credential=ak1, Signature", "MQv2-HMAC-SHA1 ,,=,Credential=a"],
)
def test_malformed_headers(text: str) -> None:
    """What is not understood is refused with words, and nothing else happens."""
    with pytest.raises(ValueError, match="the"):
        claim_of(text)


@given(st.text() | st.builds("MQv2-HMAC-SHA1 {}".format, st.text("Credntial=,Sgnu/ 0aF")))
def test_any_header_is_a_claim_or_a_refusal(text: str) -> None:
    """Nothing but ValueError comes out of a header, and a claim has a name and twenty bytes."""
    try:
        claim = claim_of(text)
    except ValueError:
        return
    assert claim is None or (
        claim.access_key and "/" not in claim.access_key and len(claim.signature) == 20
    )


def test_operator_follows_from_the_cluster_secret() -> None:
    """Another secret is another operator, and the secret is in no text of the credentials."""
    one = operator_of(b"s" * 32)
    assert one.secret_key != operator_of(b"t" * 32).secret_key
    assert one.secret_key not in repr(one)
