"""`ledgermq dlq`: the dead letters of consumer groups: list, show, resend, export and purge.

Only argument parsing, progress and exit statuses live here; `letters.py` does the work.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.letters import Letters, Selection
from ledgermq.client.cli.commands import (
    Meter,
    cluster_command,
    confirmed,
    exact_option,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument, Incomplete, Refused
from ledgermq.client.messages.data_files import DATA, exported_to
from ledgermq.client.messages.receiving import MESSAGE_NOT_FOUND
from ledgermq.client.moments import time_range_ms
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import ExitCode


class Chosen(NamedTuple):
    """What the options of a command select. `group` None: every consumer group that has dead
    letters."""

    admin: Admin
    group: str | None
    selection: Selection
    whole: bool
    """Whether no condition narrows the letters of a group."""

    def groups(self) -> Iterator[tuple[str, Letters]]:
        """(stored name, letters) of each consumer group."""
        names = (
            [self.group]
            if self.group is not None
            else [count.group for count in self.admin.dead_letter_counts()]
        )
        for name in names:
            yield name, Letters(self.admin, name)

    @property
    def words(self) -> str:
        what = "all dead letters" if self.whole else "the selected dead letters"
        return f"{what} of {'every consumer group' if self.group is None else self.group}"


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters, and pass them as one `Chosen`."""

    @click.option("--group", "group_name", help="The consumer group that gave the messages up.")
    @click.option(
        "--id", "message_ids", multiple=True, help="Only the message with this id; repeatable."
    )
    @click.option(
        "--time-range",
        "time_range",
        metavar="A..B",
        help="Only messages given up at or after A and before B, as for `query`.",
    )
    @click.option(
        "--all", "everything", is_flag=True, help="The dead letters of every consumer group."
    )
    @namespace_option
    @cluster_command
    @wraps(command)
    def with_selection(
        connection: Connection,
        group_name: str | None,
        message_ids: tuple[str, ...],
        time_range: str | None,
        everything: bool,
        namespace: str,
        **options: Any,
    ) -> Any:
        if everything and (group_name is not None or message_ids):
            raise BadArgument("--all selects every consumer group", "omit --all, --group or --id")
        narrowed = bool(message_ids) or time_range is not None
        if not (everything or group_name is not None or narrowed):
            raise BadArgument(
                "no dead letters are selected", "give --group, --id, --time-range or --all"
            )
        begin_ms, end_ms = time_range_ms(time_range, time.time_ns() // 1_000_000)
        group = None if group_name is None else stored_name(namespace, group_name)
        selection = Selection(message_ids, begin_ms, end_ms)
        return command(Chosen(Admin(connection), group, selection, not narrowed), **options)

    return with_selection


@click.group()
def dlq() -> None:
    """List, show, resend, export and purge dead letters: messages that a consumer group has given
    up after its last attempt.

    \b
    Examples:
      ledgermq dlq list
      ledgermq dlq list --group billing
      ledgermq dlq resend --group billing --time-range -1h.. --rate 50 --yes
    """


@dlq.command("list")
@click.option(
    "--group",
    "group_name",
    help="List the letters of this consumer group. [default: count those of all groups]",
)
@click.option(
    "--time-range",
    "time_range",
    metavar="A..B",
    help="Only messages given up at or after A and before B, as for `query`.",
)
@click.option("--settled", is_flag=True, help="Also letters that were resent or purged.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Show at most N letters.",
)
@namespace_option
@cluster_command
@exact_option
@json_option
def dlq_list(
    connection: Connection,
    group_name: str | None,
    time_range: str | None,
    settled: bool,
    limit: int,
    namespace: str,
    exact: bool,
    as_json: bool,
) -> None:
    """Count the dead letters of every consumer group, or list those of one group: oldest first
    within each broker group.

    States: waiting, it can be resent; orphaned, it cannot, because the original message or the
    position of the consumer group is gone; resent and purged, only with --settled. Tries: how often
    the group itself received the letter from its dead-letter topic and did not acknowledge it, as
    far as the cluster remembers. Retention removes dead letters like other messages.

    \b
    Examples:
      ledgermq dlq list
      ledgermq dlq list --group billing --time-range -1h.. --json
    """
    if group_name is None:
        if time_range is not None or settled:
            raise BadArgument("letters are listed for one consumer group", "give --group")
        counts = ask(connection, pb.CountDeadLettersRequest(), pb.CountDeadLettersResponse)
        _show_counts(counts, as_json)
        return
    begin_ms, end_ms = time_range_ms(time_range, time.time_ns() // 1_000_000)
    name = stored_name(namespace, group_name)
    found = Letters(Admin(connection), name).listed(
        Selection((), begin_ms, end_ms), settled=settled
    )
    rows = []
    for _, letter in zip(range(limit), found, strict=False):
        if as_json:
            render.print_json(**_as_json(letter))
        else:
            rows.append(_row(letter, exact))
    if not as_json:
        columns = [
            "message id",
            "state",
            "given up",
            "topic",
            "queue",
            "offset",
            "broker group",
            "letter",
            "tries",
        ]
        title = f"dead letters of {name}"
        render.print_table(title, [*columns, "bytes" if exact else "size"], rows)


@dlq.command("show")
@click.argument("message_id")
@click.option(
    "--group", "group_name", required=True, help="The consumer group that gave the message up."
)
@namespace_option
@cluster_command
@json_option
def dlq_show(
    connection: Connection, message_id: str, group_name: str, namespace: str, as_json: bool
) -> None:
    """Show the dead letters with a message id, settled ones included, with body, keys and
    properties.

    Who resent a letter, and when: ledgermq query --topic TOPIC --id ID --trace, with the topic of
    the original message.

    \b
    Example: ledgermq dlq show 01D6F5A2C8E0420000000001 --group billing

    Exit status: 0 done; 4 the group has no dead letter with this id; 2 INCOMPLETE: the newest
    letters are not indexed yet.
    """
    group = stored_name(namespace, group_name)
    letters = Letters(Admin(connection), group)
    count = 0
    for letter in letters.listed(Selection((message_id,)), settled=True, bodies=True):
        count += 1
        fields = _as_json(letter) | {"message": render.peeked_json(letter.message)}
        if as_json:
            render.print_json(**fields)
            continue
        render.message_text(letter.message)
        for name in (
            "message_id",
            "state",
            "topic",
            "queue",
            "offset",
            "client",
            "broker_group",
            "letter",
            "tries",
        ):
            print(f"  {name}: {'-' if fields[name] is None else fields[name]}")
        for name in ("keys", "message_group", "properties"):
            print(f"  {name}: {fields['message'][name] or '-'}")
        render.times_text(letter.message, stored="given up")
    _require_indexed(letters)
    if not count:
        what = f"consumer group {group} has no dead letter with the id {message_id}"
        raise Refused(
            MESSAGE_NOT_FOUND,
            what,
            f"check the id and the group, or see: ledgermq dlq list --group {group}",
        )


@dlq.command("resend")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="At most N messages in a second.",
)
@click.option("--dry-run", is_flag=True, help="Only count the letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@selecting
@json_option
def dlq_resend(chosen: Chosen, rate: float | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Deliver dead letters to their consumer group again, with all its attempts. Other groups of
    the topic do not get them.

    Each letter is resent at most once, whatever is repeated or killed: run an interrupted command
    again. Letters of messages that fail again while the command runs are left for the next one. The
    original message is delivered, from its place in its topic.

    \b
    Examples:
      ledgermq dlq resend --group billing --dry-run
      ledgermq dlq resend --group billing --rate 50 --yes
      ledgermq dlq resend --id 01D6F5A2C8E0420000000001 --group billing --yes
      ledgermq dlq resend --all --time-range 2026-11-21T10:00Z..2026-11-21T11:00Z --yes

    Exit status: 0 all selected letters are resent; 1 some are not (orphaned, or purged meanwhile);
    3 no answer: run it again; 4 no letter has the id.
    """
    _settle(chosen, "resent", rate, dry_run, yes, as_json=as_json)


@dlq.command("purge")
@click.option("--dry-run", is_flag=True, help="Only count the letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@selecting
@json_option
def dlq_purge(chosen: Chosen, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Take dead letters off the list for good: they cannot be resent afterwards. Retention frees
    their space.

    \b
    Examples:
      ledgermq dlq purge --group billing --time-range ..-168h --dry-run
      ledgermq dlq purge --group billing --time-range ..-168h --yes

    Exit status: 0 all selected letters are purged; 1 some are not, because they were resent
    meanwhile; 3 no answer: run it again; 4 no letter has the id.
    """
    _settle(chosen, "purged", rate=None, dry_run=dry_run, yes=yes, as_json=as_json)


@dlq.command("export")
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False),
    required=True,
    help="A new file: .jsonl, .csv or .parquet.",
)
@click.option("--settled", is_flag=True, help="Also letters that were resent or purged.")
@selecting
@json_option
def dlq_export(chosen: Chosen, path: str, settled: bool, as_json: bool) -> None:
    """Write dead letters to a new file, which appears when it is complete. The letters stay as they
    are.

    A row has the fields of `consume --json`, so `send --file` takes the file; topic, queue and
    offset are those of the original message, and store_ms is when it was given up.

    \b
    Examples:
      ledgermq dlq export --group billing --to billing.jsonl
      ledgermq dlq export --all --time-range -24h.. --to yesterday.parquet

    Exit status: 0 done, also when there are no letters, and then there is no file; 2 INCOMPLETE:
    the newest letters are not indexed yet; 4 no letter has the id.
    """
    if Path(path).suffix not in DATA:
        raise BadArgument(f"{path} is no data file", f"give a name that ends in {', '.join(DATA)}")
    count = 0
    groups = list(chosen.groups())
    with Meter("exported", None) as meter, exported_to(Path(path)) as file:
        for _, letters in groups:
            for letter in letters.listed(chosen.selection, settled=settled, bodies=True):
                file.write(_exported(letter))
                count += 1
                meter.show(count)
        for _, letters in groups:
            _require_indexed(letters)
    _require_found(chosen, count)
    if as_json:
        render.print_json(exported=count, file=path if count else None)
    else:
        print(f"exported {count} dead letters" + (f" to {path}" if count else ""))


def _settle(
    chosen: Chosen, how: str, rate: float | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    verb = {"resent": "resending", "purged": "purging"}[how]
    if not dry_run:
        confirmed(f"{verb} {chosen.words}", yes)
    totals: dict[str, Counter[str]] = {}
    groups = list(chosen.groups())
    try:
        with Meter(how, None) as meter:
            for name, letters in groups:
                total = totals[name] = Counter()
                found = letters.listed(chosen.selection)
                for states in (
                    [Counter(letter.state for letter in found)]
                    if dry_run
                    else letters.settled(found, how, rate)
                ):
                    total.update(states)
                    meter.show(sum(each[how] for each in totals.values()))
    except BaseException:  # Ctrl-C too: whatever ends the job, the operator learns how far it came
        print(f"{how} so far: {sum(each[how] for each in totals.values())}", file=sys.stderr)
        raise
    _show_totals(totals, how, dry_run, as_json)
    for _, letters in groups:
        _require_indexed(letters)
    _require_found(chosen, sum(sum(each.values()) for each in totals.values()))
    done = {"resent": ("waiting", "resent"), "purged": ("waiting", "orphaned", "purged")}[how]
    if any(total.keys() - set(done) for total in totals.values()):
        raise SystemExit(ExitCode.FAILED)


def _show_totals(totals: dict[str, Counter[str]], how: str, dry_run: bool, as_json: bool) -> None:
    if as_json:
        render.print_json(
            dry_run=dry_run,
            groups=[
                {"group": name, "letters": sum(each.values()), **each}
                for name, each in totals.items()
            ],
        )
        return
    for name, total in totals.items():
        able = total[how]
        if dry_run:
            able = total["waiting"] + (total["orphaned"] if how == "purged" else 0)
        others = "".join(
            f", {count} {state}"
            for state, count in sorted(total.items())
            if count and state not in (how, "waiting")
        )
        others = "" if dry_run and how == "purged" else others
        print(
            f"{name}: {'would be ' if dry_run else ''}{how} {able} of {sum(total.values())}{others}"
        )
    if not totals:
        print("no consumer group has dead letters")


def _require_indexed(letters: Letters) -> None:
    if letters.lagging:
        what = (
            f"INCOMPLETE: the newest messages of {', '.join(sorted(letters.lagging))} are not in"
            " the key index yet"
        )
        raise Incomplete(what, "retry in a moment")


def _require_found(chosen: Chosen, count: int) -> None:
    if chosen.selection.message_ids and not count:
        raise Refused(
            MESSAGE_NOT_FOUND,
            "no such dead letter waits",
            "see: ledgermq dlq list --group NAME --settled",
        )


def _show_counts(answer: pb.CountDeadLettersResponse, as_json: bool) -> None:
    if as_json:
        fields = ("unsettled", "resent", "purged")
        groups = [
            {
                "group": stored_name(count.group.namespace, count.group.name),
                **{name: getattr(count, name) for name in fields},
                "oldest_ms": render.known(count, "oldest_ms"),
            }
            for count in answer.groups
        ]
        render.print_json(groups=groups)
        return
    rows = [
        [
            stored_name(count.group.namespace, count.group.name),
            count.unsettled,
            count.resent,
            count.purged,
            render.moment(count.oldest_ms) if count.HasField("oldest_ms") else "-",
        ]
        for count in answer.groups
    ]
    render.print_table(
        "dead letters", ["group", "not settled", "resent", "purged", "oldest given up"], rows
    )


def _as_json(letter: pb.DeadLetter) -> dict[str, Any]:
    known = letter.HasField("topic")
    return {
        "message_id": render.known(letter.message, "message_id"),
        "state": letter.state,
        "given_up_ms": letter.message.store_ms,
        "topic": stored_name(letter.topic.namespace, letter.topic.name) if known else None,
        "queue": render.known(letter, "queue"),
        "offset": letter.offset if known else None,
        "client": letter.client or None,
        "broker_group": letter.message.broker_group,
        "letter": letter.message.offset,
        "tries": letter.tries,
        "bytes": letter.body_bytes,
    }


def _row(letter: pb.DeadLetter, exact: bool) -> list[Any]:
    fields = _as_json(letter)
    given_up = render.moment(letter.message.store_ms)
    names = ("topic", "queue", "offset", "broker_group", "letter", "tries")
    places = ("-" if fields[name] is None else fields[name] for name in names)
    return [
        fields["message_id"] or "-",
        letter.state,
        given_up,
        *places,
        render.size(letter.body_bytes, exact),
    ]


def _exported(letter: pb.DeadLetter) -> dict[str, Any]:
    """A letter as a row of a data file."""
    row = render.peeked_json(letter.message)
    if letter.HasField("topic"):
        row |= {
            "topic": letter.topic.name,
            "queue": render.known(letter, "queue"),
            "offset": letter.offset,
        }
    return row
