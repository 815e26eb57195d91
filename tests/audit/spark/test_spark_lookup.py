"""How Spark finds the data source `ledgermq`: it imports the modules `pyspark_*` of the driver's
Python, and pickles each source."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOKUP = """
import io, pickle, sys
from pyspark.sql.worker import lookup_data_sources
from pyspark.serializers import read_int
sys.modules.update(dict.fromkeys({missing!r}))
found = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), found)
found.seek(0)
for _ in range(read_int(found)):
    name = found.read(read_int(found)).decode()
    source = pickle.loads(found.read(read_int(found)))
    if name == "ledgermq":
        print(source.__module__, source.__name__)
        source({{}})
"""
"""What Spark runs in a process of its own, up to the class that a task of the driver or of an
executor makes."""


def looked_up(missing: list[str]) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("pyspark")
    return subprocess.run(
        [sys.executable, "-c", LOOKUP.format(missing=missing)], capture_output=True, text=True
    )


def test_spark_finds_the_one_source() -> None:
    """Nobody registers it, and what arrives at a task is the class of `audit/spark/source.py`
    itself."""
    done = looked_up([])
    assert (done.returncode, done.stdout) == (0, "ledgermq.audit.spark.source LedgermqSource\n"), (
        done.stderr
    )


@pytest.mark.parametrize("missing", ["pyarrow", "crc32c"])
def test_a_missing_package_is_named_on_use(missing: str) -> None:
    """The lookup of the other sources of the environment goes on. Only who uses this one learns
    what is missing, and the remedy."""
    done = looked_up([missing])
    assert done.stdout == "pyspark_ledgermq DefaultSource\n", done.stderr
    last = done.stderr.splitlines()[-1]
    assert (
        last.startswith("ImportError: the data source ledgermq cannot be used here: ")
        and missing in last
    )
    assert last.endswith("; pip install 'ledgermq[spark]'")
