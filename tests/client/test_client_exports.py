"""What `ledgermq.client` exports: every name is what type checkers take it for, and its module is
imported only when it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ledgermq import client

ASKING = [
    f"client.cli.{noun}_commands" for noun in ("admin", "group", "consume", "message", "member")
]


def checked() -> dict[str, str]:
    """Name → module, as type checkers see it."""
    blocks = [
        node
        for node in ast.parse(Path(client.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    block = next(block for block in blocks if isinstance(block.body[0], ast.ImportFrom))
    return {
        name.name: str(line.module)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }


def test_exported_names_equal_those_of_type_checkers() -> None:
    seen = checked()
    assert sorted(seen) == sorted(client.__all__)
    for name, module in seen.items():
        assert getattr(client, name) is getattr(import_module(module), name)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'ledgermq\.client' has no attribute 'Sender'"):
        _ = client.Sender  # type: ignore[attr-defined]


def test_a_command_that_asks_loads_no_arrays() -> None:
    """Neither numpy nor the native streams: they are the larger half of such a command's start."""
    imports = "; ".join(f"import ledgermq.{name}" for name in ASKING)
    code = (
        f"import sys; {imports}; print([m for m in sys.modules if m == 'numpy' or '.native' in m])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
