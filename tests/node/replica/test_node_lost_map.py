"""What a node does when the pages behind a map are gone: one exit code, one sentence, in every
thread (docs/architecture.md, The log)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOG = """
import os, sys
from ledgermq.node.process.process import exit_on_lost_map
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.types import Draft
from ledgermq.storage.state import identity
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import make_writer
from ledgermq.storage.files.real_disk import RealDisk
import numpy as np

exit_on_lost_map()
directory, mode = sys.argv[1:]
mine = identity.mint("2b1b9a6e-6f0e-4b8e-9a43-0d0f5f3f5a10", "g1", "n1", "7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d21", 1, data_file_bytes=1 << 20)
disk = RealDisk()
EntryLog.create(disk, directory, mine)
log = EntryLog.open(disk, directory, mine, clean=True, writer=make_writer(mode))

def append(size):
    batch = encode_entries([Draft("t", 0, bytes(size), b"", 1)])
    log.append_leader(1, batch, np.zeros(1, np.int64), 1, bytes(8))

append(100)
os.truncate(f"{directory}/data/{0:020d}", 0)
"""
STORE = "append(200_000)"
LOOK = (
    "import threading; t = threading.Thread(target=lambda: bytes(log.read(0, 1).data)); t.start();"
    " t.join()"
)


@pytest.mark.parametrize(
    ("mode", "touch", "faults_printed"), [("map", STORE, True), ("pwrite", LOOK, False)]
)
def test_touching_a_log_file_that_was_cut_short_is_78(
    tmp_path: Path, mode: str, touch: str, faults_printed: bool
) -> None:
    """A store into a log file that lost its backing ends the node as a look does, on any thread,
    and even where Python's own fault handler was asked for."""
    environment = {**os.environ, **({"PYTHONFAULTHANDLER": "1"} if faults_printed else {})}
    code = f"{LOG}\n{touch}\nprint('went on')"
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), mode],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (found.returncode, found.stdout) == (78, "")
    assert (
        found.stderr.startswith("error: a mapped file lost its backing")
        and "Traceback" not in found.stderr
    )
