"""The finished pieces of an exhaustive run, and the conditions under which they count for another
commit."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ledgermq
from tests.audit.exhaust import judging
from tests.audit.exhaust.cases import Atlas
from tests.audit.fuzz import anatomy

RULES = "rules.json"


class Kept:
    """Finished pieces in a directory. They count for every commit with the same damaged files,
    auditor and run (`fingerprint`).

    The rules by which a case is judged are compared one by one: a new row of `ALLOWED` can only
    excuse more, so pieces without a complaint stay valid. If a rule is changed or removed, all
    pieces are done again.
    """

    def __init__(self, folder: Path, atlases: Sequence[Atlas]) -> None:
        self._folder = folder / fingerprint(atlases)
        own = rules(Path(judging.__file__).read_text())
        known = self._folder / RULES
        if known.exists() and not set(json.loads(known.read_text())) <= own:
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        _write(known, sorted(own))

    def read(self, name: str) -> dict[str, Any] | None:
        """The piece of this name; None if it was not done, or had a complaint."""
        path = self._path(name)
        value: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return None if value is None or value["complaints"] else value

    def write(self, name: str, piece: dict[str, Any]) -> None:
        _write(self._path(name), piece)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-').replace('/', '_')}.json"


def _write(path: Path, value: Any) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(value))
    os.replace(beside, path)


def fingerprint(atlases: Iterable[Atlas]) -> str:
    """A digest of what decides the cases and their verdicts: the files that are damaged, the
    auditor, and this run without its rules. Comments and docstrings decide nothing."""
    whole = hashlib.sha256()
    for atlas in atlases:
        for image in (atlas.image, *atlas.versions):
            for path, data in sorted(image.items()):
                whole.update(f"{path} {len(data)} ".encode() + data)
    code = Path(ledgermq.__file__).parent
    own = {
        path for folder in (code / "audit", Path(__file__).parent) for path in folder.rglob("*.py")
    } - {Path(judging.__file__)}
    for source in (
        *sorted(own),
        Path(anatomy.__file__),
        code / "proto/names.py",
        code / "proto/status.py",
    ):
        whole.update(f"{source.name} {ast.dump(_without_docstrings(source.read_text()))}".encode())
    return whole.hexdigest()[:12]


def rules(source: str) -> set[str]:
    """A digest of each statement of `judging.py`; of an import for each name, and of `ALLOWED` for
    each row."""
    return {
        hashlib.sha256(text.encode()).hexdigest()[:16]
        for text in _statements(_without_docstrings(source))
    }


def _statements(tree: ast.Module) -> Iterator[str]:
    for each in tree.body:
        if isinstance(each, ast.ImportFrom):
            yield from (f"{each.module} {ast.dump(alias)}" for alias in each.names)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Tuple):
            yield from (f"{ast.dump(each.target)} {ast.dump(row)}" for row in each.value.elts)
        else:
            yield ast.dump(each)


def _without_docstrings(source: str) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
