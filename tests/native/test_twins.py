"""Every function of ledgermq-native has a Python twin in the product, and a test that holds both
equal."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

import pytest

from ledgermq.proto import kernels

package = pytest.importorskip(
    "ledgermq_native", reason="the package ledgermq-native is not built (make native)"
)
if not kernels.NATIVE:
    pytest.skip(kernels.described(), allow_module_level=True)

TWINS = {
    "entries.seal": ("ledgermq.proto.entries.entry_sealing", "tests.proto.test_proto_kernels"),
    "entries.verify": ("ledgermq.proto.entries.entry_checking", "tests.proto.test_proto_kernels"),
    "entries.columns": ("ledgermq.proto.entries.layout", "tests.proto.test_proto_kernels"),
    "entries.key_columns": ("ledgermq.proto.entries.key_columns", "tests.proto.test_proto_kernels"),
    "entries.check_frame": (
        "ledgermq.proto.frames.frame_reading",
        "tests.proto.test_proto_kernels",
    ),
    "entries.build_frame": (
        "ledgermq.proto.frames.frame_building",
        "tests.proto.test_proto_kernels",
    ),
    "entries.read_entries": (
        "ledgermq.proto.entries.entry_columns",
        "tests.proto.test_proto_kernels",
    ),
    "entries.grow_tree": ("ledgermq.proto.proofs.entries_tree", "tests.proto.test_entries_tree"),
    "audit_scan.scan": ("ledgermq.audit.checks.scan", "tests.audit.both_scans"),
    "audit_scan.find": ("ledgermq.audit.reading.walk", "tests.audit.both_scans"),
    "audit_scan.grow_tree": ("ledgermq.audit.reading.trees", "tests.audit.both_scans"),
    "front.Front": ("ledgermq.node.process.client_port", "tests.node.test_node_call_servers"),
}
"""Function → the module that calls it or its twin, and the tests that run both. The twin of the
front is grpc.aio."""
CALLS = {"entries": "kernels.entries.{}(", "audit_scan": "kernel.{}(", "front": "GrpcServer("}
PARTS = (
    "front.Listener",
    "front.TlsConfig",
    *(f"audit_scan.{name}" for name in ("Clean", "Queue", "Producer", "GroupEvent", "Note")),
)
"""Types of arguments and results."""


def offered() -> set[str]:
    """The functions and classes of the package."""
    modules = [
        value
        for name, value in vars(package).items()
        if isinstance(value, ModuleType) and not name.startswith("_")
    ]
    names = [
        (module.__name__, name, value)
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_")
    ]
    return {
        f"{module.rpartition('.')[2]}.{name}" for module, name, value in names if callable(value)
    }


def test_every_function_has_a_twin() -> None:
    assert offered() - set(PARTS) == TWINS.keys()
    assert {f"entries.{name}" for name in kernels.FUNCTIONS} == {
        name for name in TWINS if name.startswith("entries.")
    }


@pytest.mark.parametrize("name", TWINS)
def test_the_twin_and_the_comparison_exist(name: str) -> None:
    """The module that calls the function asks first whether the package is used; the tests call the
    function as well."""
    module, _, function = name.partition(".")
    caller, tests = (inspect.getsource(importlib.import_module(where)) for where in TWINS[name])
    assert CALLS[module].format(function) in caller
    assert re.search(r"kernels\.NATIVE|kernel is (not )?None", caller)
    assert CALLS[module].format(function) in tests or module == "front"
