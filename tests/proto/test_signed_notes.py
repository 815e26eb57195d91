"""Signed notes, checkpoints and cosignatures: the examples that C2SP publishes, round trips, and
every single alteration."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledgermq.proto.proofs import signed_notes
from ledgermq.proto.proofs.signed_notes import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    LogName,
    Note,
    Signature,
    VerifierKey,
)

PUBLISHED_NOTE = (
    "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned è subito sera.\n\n"
    "— quasimodo.example/salvatore"
    " NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n"
)
PUBLISHED_CHECKPOINT = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa"
    " Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "— witness.example.com/w1"
    " jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)
"""The examples of signed-note.md and tlog-cosignature.md."""

NODE = Ed25519PrivateKey.from_private_bytes(bytes(32))
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1")
LOG = LogName("7d3f", "group-1", "19c2")
CHECKPOINT = Checkpoint(LOG, 12, hashlib.sha256(b"root").digest())


def key(name: str, kind: int, private: Ed25519PrivateKey) -> VerifierKey:
    return VerifierKey(name, kind, private.public_key().public_bytes_raw())


NODE_KEY = key("n1.7d3f", ED25519, NODE)
WITNESS_KEY = key("witness.example/w", COSIGNATURE, WITNESS)


def check(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def signed(checkpoint: Checkpoint = CHECKPOINT, seconds: int = 1_679_315_147) -> str:
    text = checkpoint.text()
    node = signed_notes.sign(text, NODE_KEY, NODE.sign)
    return signed_notes.format_note(
        Note(text, (node, signed_notes.cosign(text, WITNESS_KEY, seconds, WITNESS.sign)))
    )


@pytest.mark.parametrize("text", [PUBLISHED_NOTE, PUBLISHED_CHECKPOINT])
def test_published_examples_are_parsed_and_written_again(text: str) -> None:
    assert signed_notes.format_note(signed_notes.parse_note(text)) == text


def test_the_time_of_the_published_cosignature() -> None:
    """The specification prints the signed message of its example, with time 1679315147. The keys
    are not published."""
    note = signed_notes.parse_note(PUBLISHED_CHECKPOINT)
    seen: list[bytes] = []
    last = note.signatures[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerifierKey, "key_id", last.key_id)
        stranger = VerifierKey(last.name, COSIGNATURE, bytes(32))
        (found,) = signed_notes.verify(
            note, [stranger], lambda public, value, message: not seen.append(message)
        )
    assert found.seconds == 1_679_315_147
    assert seen == [b"cosignature/v1\ntime 1679315147\n" + note.text.encode()]


def test_a_published_verifier_key() -> None:
    """The key of the Go checksum database, as every Go toolchain carries it."""
    text = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    found = VerifierKey.parse(text)
    assert (found.name, found.kind, str(found)) == ("sum.golang.org", ED25519, text)


def test_node_and_witness_are_verified() -> None:
    note = signed_notes.parse_note(signed())
    found = signed_notes.verify(note, [NODE_KEY, WITNESS_KEY], check)
    assert [(each.key, each.seconds) for each in found] == [
        (NODE_KEY, None),
        (WITNESS_KEY, 1_679_315_147),
    ]
    assert Checkpoint.parse(note.text) == CHECKPOINT
    assert signed_notes.verify(note, [key("n2.7d3f", ED25519, NODE)], check) == []


@pytest.mark.parametrize("at", range(len(signed())))
def test_every_altered_character_is_refused(at: int) -> None:
    """With every character altered once, a note cannot be parsed, is of unknown keys, or is false;
    both keys never verify it."""
    text = signed()
    for other in ("A", "B", "\n", " ", "\u2028"):
        if text[at] == other:
            continue
        try:
            note = signed_notes.parse_note(text[:at] + other + text[at + 1 :])
            found = signed_notes.verify(note, [NODE_KEY, WITNESS_KEY], check)
        except ValueError:
            continue
        assert len(found) < 2, (at, other)


def test_a_signature_proves_no_cosignature() -> None:
    """The type is part of the key id, and a witness signs other bytes: neither signature can be
    passed off as the other."""
    text = CHECKPOINT.text()
    plain = signed_notes.sign(text, NODE_KEY, NODE.sign)
    as_witness = key("n1.7d3f", COSIGNATURE, NODE)
    for value in (plain.value, bytes(8) + plain.value):
        forged = Note(text, (Signature(as_witness.name, as_witness.key_id, value),))
        with pytest.raises(ValueError, match="is false"):
            signed_notes.verify(forged, [as_witness], check)
    with pytest.raises(ValueError, match="cosign"):
        signed_notes.sign(text, WITNESS_KEY, WITNESS.sign)
    with pytest.raises(ValueError, match="not a key of a witness"):
        signed_notes.cosign(text, NODE_KEY, 1, NODE.sign)


def test_a_second_signature_of_one_key_is_refused() -> None:
    note = signed_notes.parse_note(signed())
    with pytest.raises(ValueError, match="twice"):
        signed_notes.verify(
            Note(note.text, (*note.signatures, note.signatures[0])), [NODE_KEY], check
        )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text\n",
        "text\n\n",
        signed().rstrip("\n"),
        signed().replace("\n", "\r\n"),
        signed() + "more\n",
        "text\n\n" + "— name AAAAAAA=\n" * 65,
        "text\n\n— name AAAA\n",
        "text\n\n— na+me AAAAAAA=\n",
        "text\n\n— AAAAAAA=\n",
        "text\n\n- name AAAAAAA=\n",
        "text\n\n— name AAAAAAB=\n",
        "text\n\n— name AAAAAAA\n",
        "x" * (64 << 10) + "\n\n— name AAAAAAA=\n",
    ],
)
def test_texts_that_are_no_notes(text: str) -> None:
    with pytest.raises(ValueError):
        signed_notes.parse_note(text)


ROOT = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "text",
    [
        f"ledgermq/c/g/l\n1\n{ROOT}",
        f"ledgermq/c/g/l\n01\n{ROOT}\n",
        f"ledgermq/c/g/l\n-1\n{ROOT}\n",
        f"ledgermq/c/g/l\n٣\n{ROOT}\n",
        f"ledgermq/c/g/l\n{1 << 63}\n{ROOT}\n",
        "ledgermq/c/g/l\n1\nAAAA\n",
        f"ledgermq/c/g/l\n1\n{ROOT}\nextension\n",
        f"ledgermq/c/g\n1\n{ROOT}\n",
        f"ledgermq/c//l\n1\n{ROOT}\n",
        f"example.com/c/g/l\n1\n{ROOT}\n",
    ],
)
def test_texts_that_are_no_checkpoints(text: str) -> None:
    with pytest.raises(ValueError):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000+AQ==",
        str(NODE_KEY).replace("n1", "n2"),
        str(NODE_KEY) + "=",
        f" {NODE_KEY}",
        str(NODE_KEY)[:-4],
    ],
)
def test_texts_that_are_no_keys(text: str) -> None:
    with pytest.raises(ValueError):
        VerifierKey.parse(text)
