"""`ledgermq definitions export|import`: the definitions of a cluster in a file, without messages
and without secrets.

Only argument parsing, files, printing and exit statuses live here; `definitions.py` compares, and
`applying.py` makes the calls.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.aside import Aside
from ledgermq.client.cli.commands import (
    cluster_command,
    confirmed,
    file_bytes,
    json_option,
    told_if_interrupted,
)
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.plans import definitions
from ledgermq.client.plans.applying import apply
from ledgermq.client.plans.definitions import SECTIONS, Step, UserDefinition
from ledgermq.proto.status import ExitCode

_NAMES = [name.replace("_", "-") for name in SECTIONS]
_only_option = click.option(
    "--only",
    multiple=True,
    type=click.Choice(_NAMES),
    help="Only this kind of object; repeatable. [default: all]",
)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("definitions")
def definitions_group() -> None:
    """Export and import the definitions of a cluster: topics, consumer groups, users with
    permissions, and broker groups.

    \b
    Examples:
      ledgermq definitions export --to cluster.json
      ledgermq definitions import cluster.json --dry-run
      ledgermq definitions import cluster.json --only topics --only consumer-groups

    A file holds neither messages nor positions nor secrets. An import changes what differs, and
    deletes nothing.
    """


@definitions_group.command("export")
@click.option(
    "--to", "path", type=_FILE, help="Write to this file, which must not exist. [default: stdout]"
)
@_only_option
@cluster_command
def export(connection: Connection, path: Path | None, only: tuple[str, ...]) -> None:
    """Write the definitions as JSON, sorted by name: the same definitions give the same bytes.

    \b
    Examples:
      ledgermq definitions export --to cluster.json
      ledgermq definitions export --only topics | diff - topics.json

    Exit status: 0 done; 3 no answer; 4 refused; 64 the file exists or cannot be written. After an
    error there is no file.
    """
    text = definitions.dump(definitions.read(Admin(connection), _sections(only)))
    if path is None:
        print(text, end="")
        return
    try:
        aside = Aside(path)
        try:
            aside.file.write(text.encode())
        except OSError:
            aside.abandon()
            raise
        aside.close()
    except FileExistsError:
        raise BadArgument(f"{path} exists already", "choose another file") from None
    except BlockingIOError:
        raise BadArgument(f"another process is writing {path}", "choose another file") from None
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be written ({error.strerror})", "choose another file"
        ) from error
    print(f"written: {path}")


@definitions_group.command("import")
@click.argument("file", type=_FILE)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the difference between the cluster and the file, and change nothing.",
)
@click.option(
    "--secrets",
    "secrets_path",
    type=_FILE,
    help="New file for the secrets of users that are created.",
)
@click.option("--yes", is_flag=True, help="Do not ask before objects that exist are changed.")
@_only_option
@cluster_command
@json_option
def import_definitions(
    connection: Connection,
    file: Path,
    dry_run: bool,
    secrets_path: Path | None,
    yes: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create and change objects until the cluster has the definitions of FILE. Repeating it changes
    nothing more.

    \b
    Examples:
      ledgermq definitions import cluster.json --dry-run
      ledgermq definitions import cluster.json --yes --secrets new-secrets.txt

    Each line shows one difference: + is created, ~ is changed, ! is left, because it would move
    data or cannot be changed. Objects that only the cluster has stay as they are. An import that
    was interrupted is continued by the same command.

    Exit status: 0 the cluster has these definitions (--dry-run: had them already); 1 it has not
    (--dry-run: a difference); 3 no answer; 4 refused; 64 the file is wrong, and nothing was
    changed.
    """
    try:
        text = file_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise BadArgument(
            f"{file} is not UTF-8 text", "give a file that ledgermq definitions export wrote"
        ) from error
    wanted = {
        name: ones for name, ones in definitions.parse(text).items() if name in _sections(only)
    }
    admin = Admin(connection)
    steps = definitions.plan(definitions.read(admin, wanted), wanted)
    left = [step for step in steps if step.sign == "!"]
    doing = [step for step in steps if step.sign != "!"]
    if not as_json:
        for step in steps:
            print(step)
    if not dry_run:
        _apply(admin, doing, secrets_path, yes)
    if as_json:
        render.print_json(dry_run=dry_run, differences=[_as_json(step) for step in steps])
    elif not steps:
        print("no difference")
    elif not dry_run:
        print(f"done: {len(doing)} of {len(steps)} differences")
    if left and not dry_run:
        what = f"{len(left)} differences are left, first: {left[0]}"
        print(f"error: {what}; see the lines with !", file=sys.stderr)
    if left or (dry_run and steps):
        raise SystemExit(ExitCode.FAILED)


_ACTIONS = {"+": "create", "~": "change", "!": "leave"}


def _as_json(step: Step) -> dict[str, str]:
    return {
        "action": _ACTIONS[step.sign],
        "kind": definitions.SINGULAR[step.section],
        "name": step.wanted.name,
        "text": step.text,
    }


def _sections(only: tuple[str, ...]) -> list[str]:
    return [name.replace("-", "_") for name in only] or list(SECTIONS)


def _apply(admin: Admin, steps: list[Step], secrets_path: Path | None, yes: bool) -> None:
    new_users = [
        step
        for step in steps
        if step.sign == "+" and isinstance(step.wanted, UserDefinition) and not step.wanted.role
    ]
    if new_users and secrets_path is None:
        what = f"{len(new_users)} users are to be created, and their secrets are shown nowhere else"
        raise BadArgument(what, "give --secrets FILE, or leave the users out with --only")
    if new_users:
        admin.connection.guard_secret()
    changes = sum(step.sign == "~" for step in steps)
    if changes:
        confirmed(f"changing {changes} objects that exist", yes)
    kept = Secrets(secrets_path) if new_users and secrets_path is not None else None
    made = 0
    on = (
        "run the command again"
        if kept is None
        else (
            f"run the command again with another file for --secrets; those in {secrets_path} may be"
            " in use"
        )
    )
    try:
        with told_if_interrupted(lambda: f"{made} of {len(steps)} differences are applied", on):
            for step in steps:
                try:
                    apply(admin, step, kept.keep if kept is not None else _unexpected)
                except Refused as error:
                    error.what = (
                        f"{definitions.SINGULAR[step.section]} {step.wanted.name}: {error.what}"
                    )
                    raise
                made += 1
    finally:
        if kept is not None:
            kept.close()


def _unexpected(name: str, secret: str) -> None:
    raise AssertionError(f"user {name} was not planned")


class Secrets:
    """A new file, for its owner only, of one `access key, space, secret` per line. Each line is on
    disk before its user exists."""

    def __init__(self, path: Path) -> None:
        try:
            self._path, self._kept = path, 0
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
        except FileExistsError:
            raise BadArgument(
                f"{path} exists already",
                "choose another file for the secrets; those in it may be in use",
            ) from None
        except OSError as error:
            raise BadArgument(
                f"{path} cannot be written ({error.strerror})",
                "choose another file for the secrets",
            ) from error

    def keep(self, name: str, secret: str) -> None:
        self._kept += 1
        self._file.write(f"{name} {secret}\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Leave no file without a secret: the next attempt would find it in its way."""
        self._file.close()
        if not self._kept:
            self._path.unlink()
