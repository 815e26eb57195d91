"""Runs the fenced blocks of a document in order, as a reader in one terminal does, and compares
what they print with the document.

The rules for authors (docs/tutorials/README.md states them for readers):

* A `sh` block runs in the document's one shell, which stops at the first command that fails.
* A `python` block begins with `# NAME.py`. It is saved under that name; a later `sh` block must run
  it.
* A `text` block directly after a `sh` block is the output of that block: stdout, and stderr unless
  the block redirects it.
* `…` in an expected line stands for any text, also for none. A line that is only `…` stands for any
  number of lines.
* A block without a language is a picture. No other language is allowed.

The documents use the ports 8081 to 8083. Tests use free ports: the runner sets `LEDGERMQ_ENDPOINTS`
to the first, replaces the addresses in the blocks, passes `--base-port` to `ledgermq up`, and shows
the documents' addresses again in the output.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("sh", "python", "text", "")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of the block: "
NODES = 3


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its line in the document, its language and its text."""

    line: int
    language: str
    text: str
    expected: str | None = None


def blocks(document: str) -> list[Block]:
    """The blocks of a document; a `text` block becomes the expected output of the `sh` block before
    it."""
    found: list[Block] = []
    for match in FENCE.finditer(document):
        line = document.count("\n", 0, match.start()) + 1
        language, text = match.groups()
        assert language in LANGUAGES, f"line {line}: a block of the language {language}"
        if language == "text":
            before = found.pop()
            assert before.language == "sh" and before.expected is None, (
                f"line {line}: output without a sh block before it"
            )
            found.append(Block(before.line, "sh", before.text, text))
        else:
            found.append(Block(line, language, text))
    return [block for block in found if block.language]


def program_name(block: Block) -> str:
    """The file name in the first line of a `python` block."""
    named = re.match(r"# ([a-z_]+\.py)\n", block.text)
    assert named, f"line {block.line}: the first line does not name the program"
    return named.group(1)


def matches(expected: str, printed: str) -> bool:
    """Compare output by the rule for `…`; spaces at the end of a line do not count."""
    pattern = ""
    for line in (line.rstrip() for line in expected.splitlines()):
        pattern += (
            r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        )
    return (
        re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines()))
        is not None
    )


class Terminal:
    """One shell in a directory, for all blocks of a document."""

    def __init__(self, directory: Path, environment: Mapping[str, str], base_port: int) -> None:
        self._directory = directory
        self._base_port = base_port
        self._number = 0
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            ["bash", "-e"],
            cwd=directory,
            env={**environment, "LEDGERMQ_ENDPOINTS": f"127.0.0.1:{base_port}"},
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def here(self, text: str) -> str:
        """The document's text with the addresses of this run."""
        for node in range(NODES):
            text = text.replace(f"127.0.0.1:{8081 + node}", f"127.0.0.1:{self._base_port + node}")
        return re.sub(r"\bledgermq up\b", f"ledgermq up --base-port {self._base_port}", text)

    def documented(self, text: str) -> str:
        """The output of this run with the addresses of the document."""
        for node in range(NODES):
            text = text.replace(f"127.0.0.1:{self._base_port + node}", f"127.0.0.1:{8081 + node}")
        return text

    def save(self, block: Block) -> None:
        (self._directory / program_name(block)).write_text(self.here(block.text))

    def run(self, block: Block) -> str:
        """Run a `sh` block. Returns its output; raises AssertionError with that output if a command
        fails."""
        self._number += 1
        script = self._directory / f".block{self._number}.sh"
        script.write_text(self.here(block.text))
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(
            f". ./{script.name} < /dev/null\nprintf '%s\\n' '{MARK}{self._number}'\n"
        )
        self.process.stdin.flush()
        printed = []
        for line in self.process.stdout:
            if line.endswith(f"{MARK}{self._number}\n"):
                return self.documented(
                    "".join(printed) + line.removesuffix(f"{MARK}{self._number}\n")
                )
            printed.append(line)
        # The shell is not reaped yet, so that its id still names its process group, which
        # `terminal` kills.
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        raise AssertionError(
            f"line {block.line}: the shell ended with {ended.si_status} after\n{''.join(printed)}"
        )


@contextmanager
def terminal(directory: Path, environment: Mapping[str, str], base_port: int) -> Iterator[Terminal]:
    """A terminal; every process that its blocks leave behind is killed."""
    found = Terminal(directory, environment, base_port)
    try:
        yield found
    finally:
        os.killpg(found.process.pid, signal.SIGKILL)
        found.process.wait()
        assert found.process.stdin is not None and found.process.stdout is not None
        found.process.stdin.close()
        found.process.stdout.close()


def run(document: Sequence[Block], at: Terminal) -> None:
    """Run all blocks in their order and compare their output. After the last one, no process of the
    document may run."""
    saved: set[str] = set()
    for block in document:
        if block.language == "python":
            at.save(block)
            saved.add(program_name(block))
        else:
            printed = at.run(block)
            saved -= {name for name in saved if f"python {name}" in block.text}
            if block.expected is not None and not matches(block.expected, printed):
                raise AssertionError(
                    f"line {block.line}: the document shows\n{block.expected}\nand the output"
                    f" is\n{printed}"
                )
    assert not saved, f"no block runs {sorted(saved)}"
    jobs = at.run(Block(0, "sh", "jobs -r\n"))
    assert jobs == "", f"the document leaves processes running: {jobs}"
