"""The examples in the help of every command are commands: one a line, or continued with a
backslash."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise

import click
import pytest

from ledgermq import cli

HEADS = ("\b\nExamples:\n", "\b\nExample:\n")


def commands(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, str]]:
    """Every command below, and its help."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(
                below, (*path, name), click.Context(below, info_name=name, parent=context)
            )
    if path:
        yield " ".join(path), cleandoc(command.help or "")


HELPS = dict(commands(cli.cli, (), click.Context(cli.cli)))


@pytest.mark.parametrize("name", HELPS)
def test_examples_of_a_command_are_one_command_a_line(name: str) -> None:
    """A line that the formatter of docstrings joined with the next one is no command. `\\b` keeps
    the lines of a paragraph only if it stands alone."""
    for paragraph in HELPS[name].split("\n\n"):
        assert "\b" not in paragraph.removeprefix("\b\n")
        head = next((head for head in HEADS if paragraph.startswith(head)), None)
        if head is None:
            continue
        for line in paragraph.removeprefix(head).replace("\\\n", "").splitlines():
            words = shlex.split(line)
            assert words[0] == "ledgermq" or "|" in words, line
            begun = [both for both in pairwise(words) if both[0] == "ledgermq"]
            assert [second in cli.COMMANDS for _, second in begun] == [True], line
