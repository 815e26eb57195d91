"""The commands `seal`, `prove`, `verify-proof` and `checkpoint`: arguments, output and exit
statuses. The proofs themselves are in the modules beside this one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin import ASK_AGAIN_S
from ledgermq.client.api.admin_calls import AdminCalls, name_of
from ledgermq.client.api.connection import Connection
from ledgermq.client.aside import Aside
from ledgermq.client.cli.commands import (
    Meter,
    cluster_command,
    file_bytes,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.proofs.files import read_checkpoint, read_keys, read_proof, read_receipt
from ledgermq.client.proofs.keys import TrustedKeys, replicas_line
from ledgermq.client.proofs.proof import Proven, Refuted
from ledgermq.client.proofs.proof_fetching import (
    agreed,
    each_alone,
    fetch,
    path_from,
    replicas_of,
    shown_by,
)
from ledgermq.client.proofs.verifying import (
    NOT_TRUE,
    check_receipt,
    check_since,
    enough_signed,
    verify,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.proofs.signed_notes import COSIGNATURE, Checkpoint, Note, format_note
from ledgermq.proto.status import Code

_FILE = click.Path(path_type=Path, dir_okay=False)
_ROW = click.option(
    "--row",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --receipt: the receipt in this row of the file.",
)
_KEYS = "File of the verifier keys to trust, one a line."
_QUORUM = (
    "Number of replicas that must have signed. [default: a majority of the group's replicas in the"
    " key file]"
)
_SINCE = "An older checkpoint: the log must continue it."


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry is in a log."""

    broker_group: str
    index: int


@click.command()
@click.argument("group")
@cluster_command
@json_option
def seal(connection: Connection, group: str, as_json: bool) -> None:
    """Seal the log of the broker group GROUP now, so that everything committed in it can be proven.

    Only a whole log file is sealed. The newest one ends early, and the rest of it stays empty: each
    seal costs up to one log file of disk on every replica, until retention removes it. Where
    nothing was stored since the last seal, no file ends.

    \b
    Examples:
      ledgermq seal g1
      ledgermq seal g1 --timeout 1m --json

    Exit status: 0 sealed; 3 the group has no leader; 4 refused, with the reason, or not sealed
    within --timeout: repeating it goes on.
    """
    admin, request = AdminCalls(connection), pb.SealNowRequest(broker_group=group)
    end = time.monotonic() + connection.timeout_s
    with Meter(f"sealed files of {group}", None) as meter:
        while not (answer := admin.seal_now(request)).done:
            if time.monotonic() >= end:
                problem = f"the log of {group} is not sealed yet: it waits for {answer.waits_for}"
                raise Refused(
                    Code.PRECONDITION_FAILED,
                    problem,
                    "repeat it, or use a longer --timeout; see: ledgermq status",
                )
            request.through = answer.through
            meter.show(answer.size)
            time.sleep(ASK_AGAIN_S)
    if as_json:
        render.print_json(
            group=group, through=answer.through, size=answer.size, next_index=answer.next_index
        )
    else:
        print(
            f"the log of {group} is sealed up to entry {answer.next_index - 1}, in {answer.size}"
            " files"
        )
        print(
            f"prove an entry: ledgermq prove --broker-group {group} --index {answer.through} --to"
            " FILE; or a message by its --id"
        )


@click.command()
@click.option(
    "--topic", "topic_name", help="Name of the topic; with --id, or with --queue and --offset."
)
@click.option("--id", "message_id", help="The message with this id.")
@click.option("--queue", type=click.IntRange(0), help="The message at --offset of this queue.")
@click.option("--offset", type=click.IntRange(0), help="Offset in --queue.")
@click.option(
    "--receipt", type=_FILE, help="A message of a receipt in this file, .parquet or JSON lines."
)
@_ROW
@click.option(
    "--message",
    "number",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --receipt: which of its messages.",
)
@click.option("--broker-group", help="The entry with --index of this broker group.")
@click.option(
    "--index", type=click.IntRange(0), help="Index of the entry in the log of --broker-group."
)
@click.option("--since", type=_FILE, help=_SINCE)
@click.option("--to", "path", type=_FILE, required=True, help="Write the proof to this new file.")
@namespace_option
@cluster_command
def prove(connection: Connection, since: Path | None, path: Path, **chosen: Any) -> None:
    """Write a proof that a message is in the log at its place. It can be checked without the
    cluster (ledgermq verify-proof).

    A message can be proven once its log file is sealed: full, or ended early (ledgermq seal), and
    confirmed by a majority of the replicas.

    \b
    Examples:
      ledgermq prove --topic orders --id 01D6F5A2C8E0420000000001 --to order.proof
      ledgermq prove --topic orders --queue 3 --offset 1200 --to order.proof
      ledgermq prove --receipt receipts.jsonl --row 7 --to order.proof
      ledgermq prove --broker-group g1 --index 99 --since last-month.checkpoint --to entry.proof

    Exit status: 0 written; 1 the nodes contradict each other, or their proof is false; 3 no node
    answers; 4 there is no such message, or its file is not sealed yet, was trimmed, or is older
    than the tree.
    """
    receipt = None if chosen["receipt"] is None else read_receipt(chosen["receipt"], chosen["row"])
    kept = None if since is None else read_checkpoint(since)[1]
    with each_alone(connection) as admins:
        place = _place(admins[0], receipt, chosen)
        proof = fetch(admins, place.broker_group, place.index, kept)
    log = Checkpoint.parse(proof.checkpoint.text).log
    if receipt is not None and receipt.log_id != log.log_id:
        raise Refuted(
            f"REFUTED: the receipt is of the log {receipt.log_id}, and the group has the log"
            f" {log.log_id} now",
            NOT_TRUE,
        )
    _write_new(path, proof.to_json().encode())
    signed = ", ".join(
        signature.name.rpartition(".")[0] for signature in proof.checkpoint.signatures
    )
    print(f"wrote {path}: entry {place.index} of {log}, signed by {signed}")


def _place(admin: AdminCalls, receipt: Any, chosen: dict[str, Any]) -> Place:
    """The entry that the options name. Raises BadArgument unless they name one in one way."""
    topic, group = chosen["topic_name"], chosen["broker_group"]
    ways = {
        "--topic and --id": (topic, chosen["message_id"]),
        "--topic, --queue and --offset": (topic, chosen["queue"], chosen["offset"]),
        "--receipt": (chosen["receipt"],),
        "--broker-group and --index": (group, chosen["index"]),
    }
    given = [name for name, values in ways.items() if None not in values]
    named = sum(
        chosen[name] is not None
        for name in (
            "topic_name",
            "message_id",
            "queue",
            "offset",
            "receipt",
            "broker_group",
            "index",
        )
    )
    if len(given) != 1 or named != len(ways[given[0]]):
        raise BadArgument("the options do not name one message", f"give {', or '.join(ways)}")
    if receipt is not None:
        if chosen["number"] > receipt.count:
            raise BadArgument(
                f"the receipt has {receipt.count} messages", f"give --message 1 to {receipt.count}"
            )
        return Place(receipt.broker_group, receipt.first_index + chosen["number"] - 1)
    if group is not None:
        return Place(group, chosen["index"])
    return _found(admin, name_of(topic, chosen["namespace"]), chosen)


def _found(admin: AdminCalls, topic: pb.Name, chosen: dict[str, Any]) -> Place:
    """The entry of a message that is named by its id or its place in a queue."""
    if chosen["message_id"] is not None:
        request = pb.QueryRequest(topic=topic, message_id=chosen["message_id"], max=1)
        messages = [message for page in admin.query_pages(request, 1) for message in page.messages]
        which = f"with the id {chosen['message_id']}"
    else:
        messages = list(
            admin.peek(
                pb.PeekRequest(topic=topic, queue=chosen["queue"], offset=chosen["offset"], max=1)
            ).messages
        )
        messages = [message for message in messages if message.offset == chosen["offset"]]
        which = f"at offset {chosen['offset']} of queue {chosen['queue']}"
    if not messages or messages[0].HasField("delayed_until_ms"):
        raise Refused(
            Code.MESSAGE_NOT_FOUND,
            f"topic {topic.name} has no message {which}",
            "check the topic; see: ledgermq query --help",
        )
    for copy in admin.message_detail(messages[0]).copies:
        if copy.HasField("index"):
            return Place(messages[0].broker_group, copy.index)
    raise Refused(
        Code.MESSAGE_NOT_FOUND,
        f"no replica shows where the message {which} is stored",
        "repeat when more nodes answer",
    )


@click.command("verify-proof")
@click.argument("file", type=_FILE)
@click.option("--keys", type=_FILE, required=True, help=_KEYS)
@click.option("--quorum", type=click.IntRange(1), help=_QUORUM)
@click.option("--since", type=_FILE, help=f"{_SINCE} The proof must have been made with it.")
@click.option("--id", "message_id", help="The proven message must have this id.")
@click.option(
    "--body", type=_FILE, help="The proven message must have the content of this file as its body."
)
@click.option(
    "--receipt", type=_FILE, help="The proven message must be one of a receipt in this file."
)
@_ROW
@json_option
def verify_proof(
    file: Path,
    keys: Path,
    quorum: int | None,
    since: Path | None,
    message_id: str | None,
    body: Path | None,
    receipt: Path | None,
    row: int,
    as_json: bool,
) -> None:
    """Check the proof in FILE, without a cluster and without trusting a node (docs/proof.md).

    \b
    Examples:
      ledgermq verify-proof order.proof --keys keys
      ledgermq verify-proof order.proof --keys keys --body order.json --id 01D6F5A2C8E0420000000001
      ledgermq verify-proof order.proof --keys keys --since last-month.checkpoint

    Exit status: 0 proven; 1 refuted; 2 not proven: too few known nodes have signed, or the proof
    does not reach the older checkpoint; 64 a file cannot be opened; 65 a file is not what it must
    be.
    """
    proof, trusted = read_proof(file), read_keys(keys, quorum)
    proven = verify(proof, trusted, None if since is None else read_checkpoint(since)[0])
    message = proven.message
    if message_id is not None and message.message_id != message_id:
        raise Refuted(
            f"REFUTED: the proven message has the id {message.message_id}, not {message_id}",
            NOT_TRUE,
        )
    if body is not None and file_bytes(body) != message.body:
        raise Refuted(
            f"REFUTED: the body of the proven message is not the content of {body}", NOT_TRUE
        )
    if receipt is not None:
        check_receipt(proven, read_receipt(receipt, row), proof.entry)
    if as_json:
        render.print_json(**_as_json(proven))
    else:
        _show(proven, proof.file_number)


def _show(proven: Proven, file_number: int) -> None:
    message, checkpoint = proven.message, proven.checkpoint
    print(
        f"PROVEN: message {message.message_id or '(no id)'} is entry {proven.index} of"
        f" {checkpoint.log}"
    )
    print(
        f"topic {message.topic}, queue {message.queue} of {checkpoint.log.broker_group}, offset"
        f" {message.offset}"
    )
    digest = hashlib.sha256(message.body).hexdigest()
    print(
        f"body of {len(message.body)} bytes, SHA-256 {digest}, stored"
        f" {_time(message.store_ms / 1000)}"
    )
    print(
        f"file {file_number + 1} of {checkpoint.size} in the tree, signed by"
        f" {', '.join(_signer(each) for each in proven.signers)}"
    )
    if proven.since is not None:
        print(f"the log continues the older checkpoint of {proven.since.size} files")


def _signer(signer: Any) -> str:
    return str(signer.key.name) + ("" if signer.seconds is None else f" ({_time(signer.seconds)})")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_json(proven: Proven) -> dict[str, Any]:
    message, checkpoint = proven.message, proven.checkpoint
    return {
        "result": "proven",
        "message_id": message.message_id,
        "topic": message.topic,
        "broker_group": checkpoint.log.broker_group,
        "group_queue": message.queue,
        "offset": message.offset,
        "store_ms": message.store_ms,
        "body_bytes": len(message.body),
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
        "log": str(checkpoint.log),
        "index": proven.index,
        "size": checkpoint.size,
        "signers": [
            {
                "name": each.key.name,
                "witness": each.key.kind == COSIGNATURE,
                "seconds": each.seconds,
            }
            for each in proven.signers
        ],
        "since_size": None if proven.since is None else proven.since.size,
    }


@click.group()
def checkpoint() -> None:
    """Show the checkpoints of a log and the keys that sign them.

    \b
    Examples:
      ledgermq checkpoint show --broker-group g1 --to today.checkpoint
      ledgermq checkpoint keys > keys
    """


@checkpoint.command()
@click.option("--broker-group", required=True, help="Name of the broker group.")
@click.option("--since", type=_FILE, help=f"{_SINCE} Needs --keys.")
@click.option("--keys", type=_FILE, help=f"{_KEYS} Verify the signatures.")
@click.option("--quorum", type=click.IntRange(1), help=_QUORUM)
@click.option(
    "--to", "path", type=_FILE, help="Write the checkpoint to this new file. [default: stdout]"
)
@cluster_command
def show(
    connection: Connection,
    broker_group: str,
    since: Path | None,
    keys: Path | None,
    quorum: int | None,
    path: Path | None,
) -> None:
    """Show the newest checkpoint of a log, with the signatures of all nodes that agree. Keep it:
    later it shows whether the log continues it.

    \b
    Examples:
      ledgermq checkpoint show --broker-group g1 --to today.checkpoint
      ledgermq checkpoint show --broker-group g1 --keys keys --since last-month.checkpoint

    Exit status: 0 shown; 1 the nodes contradict each other, or the log does not continue the older
    checkpoint; 2 too few known nodes have signed; 3 no node answers; 4 no file of the log is sealed
    yet.
    """
    if since is not None and keys is None:
        raise BadArgument("--since verifies, and needs the keys to trust", "add --keys FILE")
    with each_alone(connection) as admins:
        note = agreed(shown_by(admins[0], broker_group, replicas_of(admins[0], broker_group)))
        if keys is not None:
            _verify_checkpoint(admins, note, read_keys(keys, quorum), since)
    text = format_note(note)
    if path is None:
        print(text, end="")
    else:
        _write_new(path, text.encode())
        print(f"wrote {path}: {note.text.splitlines()[1]} files")


def _verify_checkpoint(
    admins: Sequence[AdminCalls], note: Note, keys: TrustedKeys, since: Path | None
) -> None:
    """Check the signatures of a checkpoint and that it continues an older one. Raises as `verify`
    does."""
    try:
        parsed = Checkpoint.parse(note.text)
        signers = keys.signers(note, parsed)
        if since is not None:
            old_note, old = read_checkpoint(since)
            continues = old.log == parsed.log and old.size <= parsed.size
            check_since(
                path_from(admins, old, parsed) if continues else None, parsed, old_note, keys
            )
    except ValueError as error:
        raise Refuted(f"REFUTED: {error}", NOT_TRUE) from None
    enough_signed(signers, parsed, keys)


@checkpoint.command("keys")
@cluster_command
@json_option
def show_keys(connection: Connection, as_json: bool) -> None:
    """List the keys with which the nodes sign checkpoints, and the replicas of each broker group,
    as a key file. Retired keys are comments.

    A checkpoint counts if a majority of the replicas of its group has signed it. Write the file
    anew when nodes or replicas change.

    The list is the cluster's own word. Get it when you begin to trust the cluster, compare it with
    its operators, and keep it.

    \b
    Examples:
      ledgermq checkpoint keys > keys

    Exit status: 0 listed; 3 no node answers; 4 refused.
    """
    admin = AdminCalls(connection)
    status = admin.cluster_status()
    for key in admin.list_checkpoint_keys().keys:
        if as_json:
            groups = sorted(group.group for group in status.groups if key.node in group.voters)
            values = {
                "node": key.node,
                "verifier_key": key.verifier_key,
                "created_ms": key.created_ms,
                "retired": key.retired,
            }
            render.print_json(**values, broker_groups=groups)
        else:
            print(f"# retired: {key.verifier_key}" if key.retired else key.verifier_key)
    if not as_json:
        for group in status.groups:
            if group.voters:
                print(replicas_line(status.cluster_id, group.group, sorted(group.voters)))


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, at once. Raises BadArgument if it exists or cannot be
    written."""
    try:
        aside = Aside(path)
        aside.file.write(content)
        aside.close()
    except FileExistsError:
        raise BadArgument(
            f"the file {path} exists", "give a new file, or remove that one"
        ) from None
    except BlockingIOError:
        raise BadArgument(f"another process is writing {path}", "give another file") from None
    except OSError as error:
        raise BadArgument(
            f"the file {path} cannot be written ({error.strerror})",
            "give a file in a directory that you may write",
        ) from None
