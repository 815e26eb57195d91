"""The documents that name code stay true: every `path.py:Name` in docs/ exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = re.compile(r"`([a-z_/]+\.py):([A-Za-z_.]+)`")


def references() -> list[tuple[str, str, str]]:
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        found += [(page.name, path, name) for path, name in REFERENCE.findall(page.read_text())]
    return found


def names_of(path: Path) -> set[str]:
    """Top-level names and `Class.method`s defined in a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


@pytest.mark.parametrize(("page", "path", "name"), references())
def test_named_code_exists(page: str, path: str, name: str) -> None:
    """A walk that names a function which is gone would mislead its reader."""
    assert (ROOT / path).is_file(), f"{page}: {path} is gone"
    assert name in names_of(ROOT / path), f"{page}: {path} has no {name}"


def test_there_are_references() -> None:
    """The pattern still matches what the pages write."""
    assert len(references()) > 50
