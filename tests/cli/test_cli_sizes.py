"""Sizes and durations for people have units: no command that calls a cluster prints bare bytes or
milliseconds without --bytes or --json.

Every call is answered with all fields of its answer set; values of fields named as bytes or
milliseconds are recognised in the output.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ledgermq import cli
from tests.cli.test_cli_bad_input import FILES, ROWS
from tests.client.fake_cluster import MODULES, SERVICES, FakeNode, fake_nodes

SIZE, SPAN = 98_765_432, 98_765 * 3_600_000
BODY = b"x" * 98_765
RAW = re.compile(r"98.?765.?432|355.?554.?000|\b98.?765\b")
FLOWING = ("bench", "consume", "definitions", "jobs", "send", "sink")
"""Commands whose output is of messages and of rates, a file, or the work of Spark: a single made-up
answer does not lead them to an end."""
EXACT = {"check", "client list", "dlq list", "group lag", "query", "status", "waiting list"}
"""Commands that show exact numbers with --bytes."""


def filled(message: Message, depth: int = 0) -> Any:
    """The message with every field set, so that nothing is left out of a table; without the marks
    that more pages follow."""
    for field in message.DESCRIPTOR.fields:
        if field.name in ("next", "after", "problem", "delayed_until_ms") or depth > 6:
            continue
        values = message
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            if kind.message_type is None:
                getattr(values, field.name)["k"] = _value(field.name, kind)
        elif field.message_type is not None:
            target = getattr(values, field.name)
            filled(target.add() if field.is_repeated else target, depth + 1)
        elif field.is_repeated:
            getattr(values, field.name).append(_value(field.name, field))
        else:
            setattr(values, field.name, _value(field.name, field))
    return message


def _value(name: str, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BODY if name == "body" else b"x"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "{}" if name == "configuration" else "x"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32):
        return SIZE if _is_size(field) or name.endswith("_ms") else 1
    if field.cpp_type in (
        FieldDescriptor.CPPTYPE_DOUBLE,
        FieldDescriptor.CPPTYPE_FLOAT,
        FieldDescriptor.CPPTYPE_ENUM,
    ):
        return 1
    return SIZE if _is_size(field) else SPAN if name.endswith("_ms") else 1


def _is_size(field: FieldDescriptor) -> bool:
    """A log tree is as large as its number of files."""
    tree = field.containing_type.name == "SealNowResponse"
    return "bytes" in field.name or (field.name == "size" and not tree)


def answer_of(method: Any, prefix: str) -> Any:
    answer = filled(getattr(MODULES[prefix], method.output_type.name)())
    if "status" in answer.DESCRIPTOR.fields_by_name:
        answer.status.code = 20000
    return answer


@pytest.mark.verify
def test_every_size_and_duration_has_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In what it prints on both streams. With --bytes the numbers are exact."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    raw, exact = [], set()
    with fake_nodes() as (node,):
        for prefix, service in SERVICES.items():
            for method in service.methods:
                answer = answer_of(method, prefix)
                node.answers(method.name, [answer] if method.server_streaming else answer)
        for row, options in ROWS.items():
            if row.startswith(FLOWING):
                continue
            command = row.split(" --")[0]
            code, said = printed(node, capfd, command, *options)
            assert code not in (3, 70) and "Traceback" not in said, (row, code, said)
            raw += [(row, line) for line in said.splitlines() if RAW.search(line)]
            if command in EXACT and RAW.search(
                printed(node, capfd, command, *options, "--bytes")[1]
            ):
                exact.add(command)
    assert not raw
    assert exact == EXACT


def printed(
    node: FakeNode, capfd: pytest.CaptureFixture[str], command: str, *options: str
) -> tuple[int, str]:
    code = cli.run([*command.split(), *options, "--endpoints", node.endpoint, "--timeout", "2s"])
    out, err = capfd.readouterr()
    return code, out + err
