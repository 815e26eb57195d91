"""The command `ledgermq import`: arguments, confirmation, the table and the exit status.
`importing.py` does the work.

Exit status: 0 imported and audited, 1 the written log differs from the source or failed its audit,
or the question was answered with no, 4 refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ledgermq.audit.run.jobs import FAIL, PASS
from ledgermq.importing import (
    Imported,
    Place,
    Target,
    begin_aside,
    carry_out,
    discard,
    make_visible,
    require_space,
)
from ledgermq.node.process.commands import Size
from ledgermq.node.process.local import (
    DEFAULT_GROUP,
    DEFAULT_LOG_FILE_BYTES,
    LocalCluster,
    config_of,
)
from ledgermq.node.runtime.config_loading import load
from ledgermq.proto.names import is_system_name
from ledgermq.proto.status import ExitCode
from ledgermq.proto.units import size_words
from ledgermq.storage.backups.backup_manifest import BadCopy, Refused
from ledgermq.storage.backups.trees import Meter
from ledgermq.storage.cli.backup_commands import ProgressLine, allow_open_files
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.importing.settings import Settings, settings_of
from ledgermq.storage.importing.survey import Survey, survey
from ledgermq.storage.importing.writing import Written
from ledgermq.storage.rocketmq.layout import recognise

DAMAGES_SHOWN = 20
SHOWN = 5
WORDS = 2
"""Columns of the table that are not numbers."""
REMEDY = "correct this, then run the command again"


@click.command("import")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="STOREROOT",
    help="The storePathRootDir of a stopped RocketMQ broker. Only read.",
)
@click.option(
    "--dledger-self",
    "self_id",
    metavar="ID",
    help="Choose one of several dledger-ID directories.  [default: the only one]",
)
@click.option(
    "--data", metavar="DIR", help="Directory of a new cluster for `ledgermq up`; new or empty."
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 99),
    default=3,
    show_default=True,
    help="Number of nodes of the new cluster in --data.",
)
@click.option(
    "--log-file-size",
    type=Size(),
    default=DEFAULT_LOG_FILE_BYTES,
    show_default="64MiB",
    help="Log file size of the new cluster in --data.",
)
@click.option(
    "--config", "configs", multiple=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Instead of --data: configuration of a node for `ledgermq serve`; repeat it for each node on this machine.",
)  # fmt: skip
@click.option(
    "--group",
    metavar="NAME",
    help="The broker group of --config that receives the messages.  [default: the only one]",
)
@click.option(
    "--topics",
    multiple=True,
    metavar="NAME[,NAME]...",
    help="Import only these topics.  [default: all]",
)
@click.option("--skip-damaged", is_flag=True, help="Skip damaged parts of the source.")
@click.option("--dry-run", is_flag=True, help="Read everything and show the result; write nothing.")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation, even if messages would be lost."
)
@click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
def import_store(
    source: str,
    self_id: str | None,
    data: str | None,
    nodes: int,
    log_file_size: int,
    configs: tuple[Path, ...],
    group: str | None,
    topics: tuple[str, ...],
    skip_damaged: bool,
    dry_run: bool,
    yes: bool,
    as_object: bool,
) -> None:
    """Create a cluster from the store root of a RocketMQ broker: plain commit log, or DLedger.

    Messages keep their topic, queue, queue offset, tag, keys, properties, body and times; topics
    and consumer groups keep their settings, and consumer groups their offsets. The new cluster is
    written under a temporary name, read back and audited before it gets its final name. With
    --config the same source gives the same log on every machine. Exit status: 0 imported and
    audited, 1 check failed, or the question was answered with no, 4 refused.

    \b
    Examples:
      ledgermq import --from /opt/rocketmq/store --data ledgermq-data --dry-run
      ledgermq import --from /opt/rocketmq/store --data ledgermq-data
      ledgermq import --from /opt/rocketmq/store --dledger-self n0 --config node.yaml \\
        --topics orders,payments
    """
    if not dry_run and bool(data) == bool(configs):
        raise click.UsageError(
            "choose the target: --data DIR for `ledgermq up`, or --config FILE for `ledgermq serve`"
        )
    if data and configs:
        raise click.UsageError("--data and --config exclude each other; give one of them")
    allow_open_files()
    wanted = sorted({name for text in topics for name in text.split(",") if name}) or None
    try:
        found, settings = _survey(os.path.normpath(source), self_id, wanted, skip_damaged)
        for line in _said(found, settings):
            print(f"import: {line}", file=sys.stderr, flush=True)
        if dry_run:
            _tell(found, settings, None, None, as_object)
            return
        _confirm(found, yes)
        _import(
            found,
            settings,
            data,
            nodes,
            log_file_size,
            configs=configs,
            group=group,
            skip_damaged=skip_damaged,
            as_object=as_object,
        )
    except (Refused, BadCopy):
        raise
    except StorageError as error:
        what, _, remedy = str(error).rpartition(": ")
        raise BadCopy(what or remedy, remedy if what else REMEDY) from error
    except OSError as error:
        raise BadCopy(f"{error.filename or source}: {error.strerror or error}", REMEDY) from error


def _survey(
    source: str, self_id: str | None, topics: Sequence[str] | None, skip_damaged: bool
) -> tuple[Survey, Settings]:
    root = recognise(source, self_id)
    progress = ProgressLine("reading")
    found = survey(
        root, topics=topics, skip_damaged=skip_damaged, progress=Meter(root.bytes, progress)
    )
    progress.close()
    return found, settings_of(found)


def _losses(found: Survey) -> Iterator[str]:
    """What the new cluster lacks of the source, one sentence each."""
    for damage in found.damages:
        if damage.resumes is not None:
            yield (
                f"skipped: {damage.text}; the log continues at byte {damage.resumes[1]} of"
                f" {damage.resumes[0]}"
            )
        elif damage.rest_bytes:
            yield f"torn tail cut: {damage.text}"
    lost = sum(queue.lost for queue in found.queues.values())
    if lost:
        yield f"{lost} messages could not be read; each is replaced by a message that says so"
    if found.undecided:
        some = ", ".join(map(str, found.undecided[:SHOWN])) + (
            ", …" if len(found.undecided) > SHOWN else ""
        )
        yield (
            f"{len(found.undecided)} transactions are undecided and end here (half messages at"
            f" offsets {some})"
        )


def _said(found: Survey, settings: Settings) -> Iterator[str]:
    yield (
        f"{found.root.layout} in {found.root.path}: {found.messages} messages,"
        f" {size_words(found.root.bytes)} of files"
    )
    for name in found.configuration.missing:
        yield f"{name} is missing: {_WITHOUT.get(name, 'unknown')}"
    yield from _losses(found)
    yield from settings.remarks


_WITHOUT = {
    "config/topics.json": "topics are derived from their messages",
    "config/subscriptionGroup.json": "consumer groups get the default settings",
    "config/consumerOffset.json": "consumer groups begin where their queues begin",
    "config/delayOffset.json": (
        "every message with a delay level that is still there counts as waiting"
    ),
}


def _confirm(found: Survey, yes: bool) -> None:
    if yes or not any(_losses(found)):
        return
    if not sys.stdin.isatty():
        raise Refused(
            "part of the source would be lost, and there is no terminal to ask on",
            "read the lines above, then add --yes",
        )
    if not click.confirm("Import without the lost parts?", default=False, err=True):
        click.echo(
            "nothing was written; import another replica of the broker, if there is one", err=True
        )
        raise SystemExit(ExitCode.FAILED)


def _import(
    found: Survey,
    settings: Settings,
    data: str | None,
    nodes: int,
    log_file_size: int,
    configs: Sequence[Path],
    group: str | None,
    skip_damaged: bool,
    as_object: bool,
) -> None:
    target = (
        _local(os.path.abspath(data), nodes, log_file_size) if data else _configured(configs, group)
    )
    try:
        require_space(target, found)
        progress = ProgressLine("importing")
        meter = Meter(found.root.bytes, progress)
        say = lambda text: print(f"import: {text}", file=sys.stderr, flush=True)  # noqa: E731 - one line, used once
        done = carry_out(
            target, found, settings, skip_damaged=skip_damaged, written_bytes=meter, say=say
        )
        progress.close()
    except BaseException:
        # Refused, failed or interrupted: what was written is useless, and the same command starts
        # again.
        discard(target.renames)
        raise
    _tell(found, settings, done, target, as_object)
    if not done.good:
        raise BadCopy(
            f"what was written to {target.renames[0][0]} differs from what was read, or failed its"
            " audit",
            "keep the directory for an investigation; the source is unchanged",
        )
    make_visible(target)


def _local(directory: str, nodes: int, log_file_bytes: int) -> Target:
    aside = begin_aside(directory)
    cluster = LocalCluster.prepare(Path(aside), nodes=nodes, log_file_bytes=log_file_bytes)
    names = list(cluster.nodes)
    places = tuple(Place(name, f"{aside}/{name}", f"{directory}/{name}") for name in names)
    return Target(config_of(cluster, names[0]), DEFAULT_GROUP, places, ((aside, directory),))


def _configured(files: Sequence[Path], group: str | None) -> Target:
    loaded = [load(file) for file in files]
    first = loaded[0]
    for file, config in zip(files, loaded, strict=True):
        if (config.cluster, config.nodes.keys()) != (first.cluster, first.nodes.keys()):
            raise Refused(
                f"{file} and {files[0]} configure different clusters",
                "give the nodes of one cluster",
            )
    if len({config.node for config in loaded}) != len(loaded) or len(
        {config.data for config in loaded}
    ) != len(loaded):
        raise Refused(
            "two configurations name the same node or the same data directory",
            "give every node its own",
        )
    names = [known.name for known in first.cluster.groups]
    chosen = group or (names[0] if len(names) == 1 else None)
    if chosen not in names:
        raise Refused(
            f"the cluster has the broker groups {', '.join(names)}",
            "choose one of them with --group",
        )
    if is_system_name(chosen):
        raise Refused(
            f"the broker group name {chosen!r} is reserved",
            "choose another name in the configuration",
        )
    wanted = next(known for known in first.cluster.groups if known.name == chosen)
    if wanted.replication != "raft":
        remedy = (
            "import with replication: raft, and change the group afterwards with `ledgermq"
            " replication`"
        )
        raise Refused(
            f"broker group {chosen} is an HA group, and an imported log begins without a master",
            remedy,
        )
    replicas = wanted.replicas
    for config in loaded:
        if config.node not in replicas:
            raise Refused(
                f"node {config.node} keeps no replica of broker group {chosen}",
                f"give the nodes {', '.join(replicas)}",
            )
    finals = [str(config.data.absolute()) for config in loaded]
    asides = [begin_aside(final) for final in finals]
    places = tuple(
        Place(config.node, aside, final)
        for config, aside, final in zip(loaded, asides, finals, strict=True)
    )
    return Target(first, chosen, places, tuple(zip(asides, finals, strict=True)))


# --------------------------------------------------------------------------------------------------------------------- saying


def _rows(found: Survey, settings: Settings, written: Written | None) -> list[dict[str, Any]]:
    """One row per topic; the counts are those of the second reading, if there was one."""
    queues: dict[str, list[int]] = defaultdict(list)
    for topic, queue in found.queues:
        queues[topic].append(queue)
    delayed: Mapping[tuple[str, int], int] = found.delayed if written is None else written.delayed
    waiting: Counter[str] = Counter()
    for (topic, _), count in delayed.items():
        waiting[topic] += count
    rows = []
    for config in settings.topics:
        known = [found.queues[config.name, queue] for queue in sorted(queues[config.name])]
        holding = [queue for queue in known if queue.messages]
        rows.append(
            {
                "topic": config.name,
                "kind": config.kind.value,
                "queues": config.queues,
                "messages": sum(queue.messages for queue in known),
                "first_offset": min((queue.first for queue in holding), default=None),
                "next_offset": max((queue.next for queue in known), default=0),
                "delayed": waiting[config.name],
                "lost": sum(queue.lost for queue in known),
                "repeated": sum(queue.repeated for queue in known),
            }
        )
    return rows


def _tell(
    found: Survey, settings: Settings, done: Imported | None, target: Target | None, as_object: bool
) -> None:
    """Print the result on stdout."""
    written = None if done is None else done.written
    rows = _rows(found, settings, written)
    left_out = found.left_out if written is None else written.left_out
    skipped = [
        {"topic": topic, "reason": reason, "messages": count}
        for (topic, reason), count in sorted(left_out.items())
    ]
    verdict = None if done is None else PASS if done.good else FAIL
    if as_object:
        value = {
            "v": 1,
            "dry_run": done is None,
            "source": found.root.path,
            "layout": found.root.layout,
            "messages": found.messages,
            "kept": sum(row["messages"] + row["delayed"] for row in rows),
            "topics": rows,
            "left_out": skipped,
            "consumer_groups": [group.name for group in settings.groups],
            "consumer_offsets": sum(map(len, settings.offsets.values())),
            "undecided_transactions": len(found.undecided),
            "damages": [
                {"file": one.path, "at": one.at, "reason": one.reason, "resumes": one.resumes}
                for one in _hurt(found)
            ],
            "remarks": settings.remarks,
            "entries": None if written is None else written.entries,
            "times_raised": None if written is None else written.times_raised,
            "differences": None if done is None else list(done.differences),
            "nodes": (
                None if target is None else {place.node: place.final for place in target.places}
            ),
            "audit": verdict,
        }
        print(json.dumps(value, ensure_ascii=False), flush=True)
        return
    for line in _table(rows):
        print(line)
    for row in skipped:
        print(f"left out: {row['messages']} messages of {row['topic']}: {row['reason']}")
    for damage in _hurt(found)[:DAMAGES_SHOWN]:
        print(f"damaged: {damage.text}")
    offsets = sum(map(len, settings.offsets.values()))
    print(f"consumer groups: {len(settings.groups)}, with {offsets} offsets")
    if done is None or target is None or written is None:
        print("import: dry run, nothing was written", flush=True)
        return
    if written.times_raised:
        print(
            f"store times: {written.times_raised} messages had an earlier time than the message"
            " before them, and now have its time"
        )
    for text in done.differences:
        print(f"differs: {text}")
    for finding in done.audit.findings[:DAMAGES_SHOWN]:
        print(finding.text)
    for reason in done.audit.reasons:
        print(f"audit: {reason}")
    if done.good:
        start = (
            f"ledgermq up --data {target.renames[0][1]}"
            if len(target.renames) == 1 and len(target.places) > 1
            else "ledgermq serve"
        )
        print(
            f"imported: {written.entries} entries on"
            f" {', '.join(place.node for place in target.places)}; start them: {start}"
        )
    print(f"import: {verdict}", flush=True)


def _hurt(found: Survey) -> list[Any]:
    """The damages that lost messages; the end of a log is none."""
    return [damage for damage in found.damages if damage.resumes is not None or damage.rest_bytes]


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("TOPIC", "KIND", "QUEUES", "MESSAGES", "FIRST", "NEXT", "DELAYED", "LOST", "REPEATED")
    lines = [heads] + [
        tuple("-" if value is None else str(value) for value in row.values()) for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        words = [text.ljust(width) for text, width in zip(line[:WORDS], widths, strict=False)]
        numbers = [
            text.rjust(width) for text, width in zip(line[WORDS:], widths[WORDS:], strict=True)
        ]
        yield "  ".join([*words, *numbers]).rstrip()
