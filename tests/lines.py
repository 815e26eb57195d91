"""`python -m tests.lines`: hand-written lines of Python by package, formatted at 140 columns.

The width is fixed, so that figures of different commits can be compared whatever the format of the
code is. Generated modules (`*_pb2*`) and the programs of other projects' clients do not count.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 140
PRODUCT = ("node", "raft", "storage", "client", "proto", "audit", "sim", "src")


def counted(root: Path) -> Counter[str]:
    """Top-level folder → lines of the tracked modules below it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "*.py"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [
        name
        for name in listed.split("\0")
        if name and "_pb2" not in name and not name.startswith("tests/contract/programs/")
    ]
    with tempfile.TemporaryDirectory() as copy:
        for name in names:
            path = root / name
            if not path.is_symlink():
                (Path(copy) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, Path(copy) / name)
        ruff = Path(sys.executable).with_name("ruff")
        options = ["--isolated", "--quiet", "--no-cache", f"--line-length={WIDTH}"]
        # A comma that the formatter put behind the last item would keep its items on lines of their own.
        options += ["--config", "format.skip-magic-trailing-comma = true"]
        subprocess.run([ruff, "format", *options, copy], check=True)
        lines: Counter[str] = Counter()
        for path in Path(copy).rglob("*.py"):
            lines[path.relative_to(copy).parts[0]] += len(path.read_bytes().splitlines())
    return lines


def main() -> None:
    lines = counted(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for name in (*PRODUCT, "bench", "tests"):
        print(f"{name:8} {lines[name]:8,}")
    product = sum(lines[name] for name in PRODUCT)
    print(f"product and bench {product + lines['bench']:,}, tests {lines['tests']:,}")


if __name__ == "__main__":
    main()
