"""The end of a node must not depend on anybody reading, or a disk storing, what it has to say."""

from __future__ import annotations

import subprocess
import sys

import pytest

END = """
from ledgermq.node.runtime import logs
from ledgermq.proto.status import ExitCode
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.process.process import end_process

logs.configure("info", "n1")
end_process(FatalError(ExitCode.SYNC_FAILED, "the log could not be synced", "check the disk"))
"""
GO_ON = """
import logging
from ledgermq.node.runtime import logs

logs.configure("info", "n1")
for _ in range(2000):
    logs.get_logger().warning("not written, the disk is full", what="checkpoint")
logging.getLogger("grpc").warning("the same for a library")
raise SystemExit(5)
"""


@pytest.mark.parametrize(("program", "exit_code"), [(END, 73), (GO_ON, 5)])
def test_full_stderr_leaves_the_exit_status_unchanged(program: str, exit_code: int) -> None:
    """With stderr on a full disk (node.log beside a full data directory), the node still exits with
    its status, or continues."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stderr=full,
            stdout=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
    assert done.returncode == exit_code
