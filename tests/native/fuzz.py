"""`python -m tests.native.fuzz --for 60`: fuzzes the compiled kernels and their Python twins on the
same inputs.

The targets are the property tests that hold both equal. libFuzzer (Atheris) mutates the bytes from
which Hypothesis builds a test's arguments, and keeps those that reach new branches of the Python
twins. Each target runs for the given number of seconds in a process of its own, and an input on
which a test fails is printed. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ledgermq.proto import kernels

INSTRUMENTED = ["ledgermq.proto", "ledgermq.storage.log.index_files", "ledgermq.client.native"]
TARGETS = (
    "tests.proto.test_proto_ways:test_batches_and_their_ranges",
    "tests.proto.test_proto_ways:test_columns",
    "tests.proto.test_proto_ways:test_damaged_and_hostile_ranges",
    "tests.proto.test_proto_kernels:test_sealing_outside_the_data",
    "tests.proto.test_proto_kernels:test_usual_frames",
    "tests.proto.test_proto_kernels:test_received_entries",
    "tests.proto.test_proto_kernels:test_garbage",
    "tests.proto.test_entries_tree:test_the_kernel_is_equal_to_its_twin",
)


def property_test(target: str) -> Callable[[bytes], Any]:
    """The function that runs the property test on the arguments that some bytes stand for."""
    module, name = target.split(":")
    test = getattr(importlib.import_module(module), name)
    run: Callable[[bytes], Any] = test.hypothesis.fuzz_one_input
    return run


def fuzz(target: str, seconds: int) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    # The twins must be imported under the instrumentation, and `kernels` is needed before it.
    for name in [name for name in sys.modules if name.startswith("ledgermq.")]:
        del sys.modules[name]
    with atheris.instrument_imports(include=INSTRUMENTED):
        run = property_test(target)

    def one(data: bytes) -> None:
        run(data)

    # An example of Hypothesis takes 8 KiB at most, and a short one is rarely a whole batch.
    limits = [f"-max_total_time={seconds}", "-max_len=8192", "-len_control=0"]
    atheris.Setup(
        [
            sys.argv[0],
            *limits,
            "-print_final_stats=1",
            f"-artifact_prefix={tempfile.gettempdir()}/",
        ],
        one,
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.native.fuzz")
    parser.add_argument(
        "--for", dest="seconds", type=int, default=60, help="seconds for each target"
    )
    parser.add_argument("--target", choices=TARGETS, help="one target in this process")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("not fuzzed: atheris is not installed, or has no wheel for this Python")
        return 0
    if not kernels.NATIVE:
        print(f"not fuzzed: {kernels.described()}")
        return 1
    if arguments.target:
        fuzz(arguments.target, arguments.seconds)
    failed = 0

    def fuzzed(target: str) -> subprocess.CompletedProcess[str]:
        options = ["--for", str(arguments.seconds), "--target", target]
        command = [sys.executable, "-m", "tests.native.fuzz", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = list(threads.map(fuzzed, TARGETS))
    for target, ended in zip(TARGETS, results, strict=True):
        said = (ended.stdout + ended.stderr).splitlines()
        runs = next(
            (
                line.split()[-1]
                for line in said
                if line.startswith("stat::number_of_executed_units")
            ),
            "unknown",
        )
        print(f"{target}: {runs} inputs, exit status {ended.returncode}", flush=True)
        if ended.returncode:
            failed += 1
            print("\n".join(said[-60:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
