"""Other versions of the program, as trees that nodes can be started from."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ledgermq import __version__
from ledgermq.proto.levels import LEVEL_MAX

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "proto", "raft", "storage", "node", "client", "audit", "sim")


@dataclass(frozen=True, slots=True)
class Build:
    """A version of the program: what it says of itself, and its source tree (None: this one)."""

    version: str
    source: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.source is None else {"PYTHONPATH": str(self.source)}


def next_release(place: Path) -> Build:
    """A copy of this program at `place` that reads one feature level more."""
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder,
            place / folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    table = place / "proto" / "levels.py"
    text, count = re.subn(
        r"^LEVEL_MAX: Final = \d+$",
        f"LEVEL_MAX: Final = {LEVEL_MAX + 1}",
        table.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    table.write_text(text)
    return Build(__version__, place / "src")
