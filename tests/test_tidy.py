"""Architecture rules as a test: import arrows, no cycles, banned calls, module laws
(docs/architecture.md, Rooms).

The tables below are the rules; a new package or exception is a line here, with its reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("proto", "raft", "storage", "node", "client", "audit", "sim")

# Which of our packages a package may import; the longest matching prefix of a module decides.
# Inside `node/` the table is the drawing in docs/decisions/2026-11-22-rooms-of-node.md: a line may
# name only rooms of lines above it, so that no two packages import each other.
BASE = {"raft", "storage", "proto"}
LEAVES = {"node.broker.ports", "node.broker.flush"}
RUNTIME = {"node.runtime", *BASE}
DECIDES = {"node.broker", *BASE}
# What a node and the simulator have in common: it reads no clock and starts no thread
# (node/replica/hosting/ports.py).
HOSTING_CORE = {
    "scheduler",
    "hosting",
    "running",
    "range_repairs",
    "batch_gate",
    "assembling",
    "directory_opener",
    "shipping_jobs",
}
# The same of maintenance, on the event loop: its times are the loop's.
MAINTENANCE_CORE = {"digest_exchange", "retention_loop"}
MAY_IMPORT: dict[str, set[str]] = {
    "proto": {"proto"},
    "raft": {"raft", "proto"},
    "storage": {"storage", "proto"},
    "node": set(),
    "node.runtime": RUNTIME,
    "node.broker": DECIDES,
    "node.broker.filters": {"node.broker.filters", "node.broker.ports", "proto"},
    "node.broker.calls": {"node.broker.calls", "node.broker.filters", *LEAVES, *BASE},
    "node.replica.consensus": {"node.replica.consensus", *DECIDES},
    "node.replica.shipping": {"node.replica.shipping", "node.replica.consensus", *DECIDES},
    "node.replica.retention": {"node.replica.retention", *DECIDES},
    "node.controller": {"node.controller", "node.broker.calls", *RUNTIME},
    "node.replica.ports": DECIDES,
    "node.replica.background": {
        "node.replica.background",
        "node.replica.retention",
        *DECIDES,
        *RUNTIME,
    },
    "node.replica.peers": {
        "node.replica.peers",
        "node.replica.consensus",
        "node.replica.ports",
        *DECIDES,
        *RUNTIME,
    },
    "node.replica": {"node.replica", "node.controller", *DECIDES, *RUNTIME},
    "node.frontend.ports": {
        "node.replica.ports",
        "node.controller",
        "node.broker.calls",
        *RUNTIME,
    },
    "node.frontend.security": {
        "node.frontend.security",
        "node.frontend.ports",
        "node.controller",
        *RUNTIME,
    },
    "node.frontend.routing": {
        "node.frontend.routing",
        "node.frontend.ports",
        "node.replica.ports",
        "node.controller",
        "node.broker.calls",
        *RUNTIME,
    },
    "node.frontend.rocketmq.wire": {
        *(
            "node.frontend.rocketmq.wire",
            "node.frontend.security",
            "node.controller",
            "node.broker.calls",
            "node.broker.filters",
            *LEAVES,
        ),
        *RUNTIME,
    },
    "node.frontend.rocketmq": {
        *(
            "node.frontend.rocketmq",
            "node.frontend.ports",
            "node.frontend.security",
            "node.frontend.routing",
            "node.controller",
        ),
        *("node.broker.calls", "node.broker.filters", *LEAVES),
        *RUNTIME,
    },
    "node.frontend.native": {
        *("node.frontend.native", "node.frontend.rocketmq", "node.frontend.ports"),
        *("node.frontend.security", "node.frontend.routing", "node.controller"),
        *("node.broker.calls", "node.broker.recent", "node.replica.ports", *LEAVES),
        *RUNTIME,
    },
    "node.frontend.proofs": {
        *("node.frontend.proofs", "node.frontend.ports", "node.frontend.security"),
        *("node.frontend.routing", "node.replica.ports", "node.controller", *DECIDES),
        *RUNTIME,
    },
    "node.frontend.audits": {
        *("node.frontend.audits", "node.frontend.native", "node.frontend.ports"),
        *("node.frontend.routing", "node.replica.ports", "node.broker.calls"),
        *RUNTIME,
    },
    "node.frontend.admin": {
        *("node.frontend", "node.replica.ports", "node.controller", *DECIDES),
        *RUNTIME,
    },
    "node.process": {"node", *BASE},
    "client": {"client", "proto"},
    "audit": {"audit", "client", "proto"},
    "sim": {
        *(
            "sim",
            *DECIDES,
            "node.replica.consensus",
            "node.replica.shipping",
            "node.replica.retention",
            "audit.history",
        ),
        *(
            "node.replica.hosting.ports",
            "node.replica.background.trim_reports",
            "node.replica.background.digests",
            "node.replica.background.indexing",
            "node.replica.background.ports",
            "node.replica.background.scrubbing",
            "node.replica.background.disk_watch",
            "node.runtime.config_sections",
        ),
        *[f"node.replica.maintenance.{core}" for core in MAINTENANCE_CORE],
        *[f"node.replica.hosting.{core}" for core in HOSTING_CORE],
    },
}

# The auditor witnesses: it must never decode with the writer's layout code.
FORBIDDEN_OURS: dict[str, set[str]] = {
    "audit": {
        *(
            "proto.entries.layout",
            "proto.entries.entry_encoding",
            "proto.entries.entry_sealing",
            "proto.entries.entry_checking",
        ),
        *(
            "proto.entries.message_record",
            "proto.entries.entry_columns",
            "proto.entries.properties",
            "proto.records.control",
        ),
    },
}

PURE = {"asyncio", "time", "random", "os", "mmap", "socket", "threading", "logging", "grpc"}
BANNED_STDLIB: dict[str, set[str]] = {
    "proto": PURE - {"grpc"},
    # Reads the switch of the compiled kernels, once.
    "proto.kernels": PURE - {"grpc", "os"},
    "raft": PURE,
    **{
        pure: {"asyncio", "grpc", "threading", "time", "random", "mmap", "socket", "concurrent"}
        for pure in (
            "node.broker",
            "node.replica.consensus",
            "node.replica.shipping",
            "node.replica.retention",
        )
    },
    "storage": {"asyncio", "grpc", "random", "socket"},
    "node": {"mmap"},
    **{
        f"node.replica.hosting.{core}": PURE | {"concurrent.futures.ThreadPoolExecutor"}
        for core in HOSTING_CORE
    },
    **{
        f"node.replica.maintenance.{core}": PURE - {"asyncio"}
        | {"concurrent.futures.ThreadPoolExecutor"}
        for core in MAINTENANCE_CORE
    },
    "client": {"mmap"},
    "sim": {"asyncio", "grpc", "threading", "mmap", "socket"},
    # The event loop of a simulated process, and what runs on it.
    "sim.nodes.virtual_loop": {"grpc", "threading", "mmap", "socket"},
    "sim.nodes.upkeep": {"grpc", "threading", "mmap", "socket"},
    "audit": {"asyncio", "threading"},
}
CLI_LIBRARY = "click"
# Services see `ServerCall`. Below `node` only the server on grpc.aio and the clients of other
# workers and of collectors know the library.
GRPC = {"grpc", "grpc_health.v1.health", "grpc_health.v1.health_pb2_grpc"}
KNOW_GRPC = {
    "node.process.grpc_server",
    "node.process.telemetry.otlp_metrics",
    "node.frontend.routing.worker_proxy",
    "client",
    "audit",
}
BANNED_CALLS = {
    "eval": "parse the value",
    "exec": "write the code down",
    "input": "use the CLI library in a commands.py",
}
BANNED_IMPORTS = {"pickle": "invariant I12: JSON or protobuf"}
# The controller's library speaks pickle behind an authenticated channel; this package guards it
# (docs/architecture.md, I12).
PICKLE_GUARDS: set[str] = {"node.controller"}


def tracked(pattern: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(p for p in (ROOT / line for line in listing.stdout.splitlines()) if p.is_file())


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in tracked("*.py"):
        relative = path.relative_to(ROOT)
        if relative.parts[0] in PACKAGES and "_pb2" not in path.name:
            parts = relative.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, path, ast.parse(path.read_text())


ALL = list(modules())
NAMES = [name for name, _, _ in ALL]


def rule_for(name: str, table: dict[str, set[str]]) -> set[str] | None:
    best = max((p for p in table if name == p or name.startswith(p + ".")), key=len, default=None)
    return None if best is None else table[best]


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node.module or "", node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def is_commands(path: Path) -> bool:
    return path.name == "commands.py" or path.name.endswith("_commands.py")


def within(name: str, prefixes: set[str]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def wrong_imports(name: str, path: Path, tree: ast.Module) -> Iterator[str]:
    """What a module imports against the tables above."""
    allowed = rule_for(name, MAY_IMPORT)
    if allowed is None:
        yield f"{name}: no rule; add its package to MAY_IMPORT"
        return
    forbidden = rule_for(name, FORBIDDEN_OURS) or set()
    banned = rule_for(name, BANNED_STDLIB) or set()
    for target, line in imports(tree):
        where = f"{path.relative_to(ROOT)}:{line}"
        head = target.split(".")[0]
        ours = target.removeprefix("ledgermq.")
        if head in PACKAGES:
            yield f"{where}: import ledgermq.{target}, not {target}"
        if head in banned or target in banned:
            yield f"{where}: {name} may not import {target}"
        if within(target, GRPC) and not within(name, KNOW_GRPC):
            yield (
                f"{where}: {target} belongs to the gRPC server; a service sees only ServerCall"
                " (node/frontend/ports.py)"
            )
        if head == CLI_LIBRARY and not is_commands(path):
            yield f"{where}: {CLI_LIBRARY} belongs to commands.py or *_commands.py"
        if head in BANNED_IMPORTS and not within(name, PICKLE_GUARDS):
            yield f"{where}: {head} is banned: {BANNED_IMPORTS[head]}"
        if head == "ledgermq" and ours not in ("ledgermq", "__version__"):
            if not within(ours, allowed):
                yield f"{where}: {name} may not import {ours} (docs/architecture.md, Rooms)"
            if within(ours, forbidden):
                yield f"{where}: {name} must not use {ours}"


def test_import_arrows() -> None:
    """Packages import only what the design allows, the auditor never the writer's decoder, no
    module a bare folder name."""
    complaints = [complaint for module in ALL for complaint in wrong_imports(*module)]
    assert not complaints, "\n".join(complaints)


def test_a_wrong_import_is_named() -> None:
    """The rules above can fail: one module that breaks each of them."""
    layout = "from ledgermq.proto.entries import layout"
    source = (
        "import time, pickle, click, storage\nfrom ledgermq.node.replica.hosting import"
        f" engine\n{layout}\n"
    )
    found = [
        said.partition(": ")[2]
        for said in wrong_imports("raft.wrong", ROOT / "raft/wrong.py", ast.parse(source))
    ]
    assert len(found) == 6, found
    found = list(wrong_imports("audit.wrong", ROOT / "audit/wrong.py", ast.parse(layout)))
    assert len(found) == 1, found
    pool = ast.parse("from concurrent.futures import Future, ThreadPoolExecutor")
    assert (
        len(list(wrong_imports("node.replica.hosting.running", ROOT / "node/wrong.py", pool))) == 1
    )
    inside = ast.parse("from ledgermq.node.replica.hosting.engine import Engine")
    for room in FRONTEND:
        assert list(wrong_imports(f"{room}.wrong", ROOT / "node/wrong.py", inside)), room
    found = list(
        wrong_imports("node.frontend.wrong", ROOT / "node/wrong.py", ast.parse("import grpc.aio"))
    )
    assert len(found) == 1 and "ServerCall" in found[0], found
    assert list(wrong_imports("elsewhere", ROOT / "elsewhere.py", ast.parse(""))) != []


FRONTEND = {name for name in MAY_IMPORT if within(name, {"node.frontend"})}


def test_the_frontend_sees_a_replica_through_ports() -> None:
    """No line of the table lets a room of the frontend import more of `node/replica/` than
    `ports.py`; a line that did would open the inside of a replica to it."""
    assert "node.frontend.admin" in FRONTEND
    for room in FRONTEND:
        opened = {
            target
            for target in MAY_IMPORT[room]
            if target == "node" or within(target, {"node.replica"})
        }
        assert opened <= {"node.replica.ports"}, room


def test_tables_of_the_rules_name_existing_modules() -> None:
    """A rule about a module that has moved would allow, or forbid, nothing."""
    named = [
        set(MAY_IMPORT),
        *MAY_IMPORT.values(),
        *FORBIDDEN_OURS.values(),
        set(BANNED_STDLIB),
        KNOW_GRPC,
        PICKLE_GUARDS,
    ]
    assert not set().union(*named) - set(NAMES)


def test_no_import_cycles() -> None:
    """No cycle among our modules, function-level imports included."""
    known = set(NAMES)
    graph: dict[str, set[str]] = {}
    for name, _, tree in ALL:
        targets = {
            t.removeprefix("ledgermq.") for t, _ in imports(tree) if t.startswith("ledgermq.")
        }
        graph[name] = {
            t for t in targets if t in known and t != name and not name.startswith(t + ".")
        }
    state: dict[str, int] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        state[module] = 1
        for target in sorted(graph[module]):
            assert state.get(target) != 1, "import cycle: " + " -> ".join((*trail, module, target))
            if target not in state:
                visit(target, (*trail, module))
        state[module] = 2

    for module in NAMES:
        if module not in state:
            visit(module, ())


def package_of(module: str) -> str:
    """The package whose folder holds a module; of a package that package itself."""
    return module if module in PACKAGE_NAMES else module.rpartition(".")[0]


PACKAGE_NAMES = {".".join(path.relative_to(ROOT).parts[:-1]) for _, path, _ in ALL}


AROUND = {"node.broker": "what its parts need is below them, and the group that has them above"}
"""Packages whose modules stand below and above the packages in them; the modules alone have no
cycle."""


def package_arrows() -> dict[str, dict[str, str]]:
    """Package → package that it imports → one module that does. A package's `__init__` may show
    what is below it."""
    found: dict[str, dict[str, str]] = {}
    for name, _, tree in ALL:
        for target, _ in imports(tree):
            ours = target.removeprefix("ledgermq.")
            if target.startswith("ledgermq.") and (ours in NAMES or ours in PACKAGE_NAMES):
                own, other = package_of(name), package_of(ours)
                face = name == own and other.startswith(own + ".")
                if (
                    own != other
                    and not face
                    and not (other in AROUND and own.startswith(other + "."))
                ):
                    found.setdefault(own, {}).setdefault(other, f"{name} imports {ours}")
    return found


def package_cycles(arrows: dict[str, dict[str, str]]) -> list[str]:
    """Pairs of packages each of which reaches the other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in arrows.get(waiting.pop(), {}):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    reach = {package: reached(package) for package in arrows}
    return [
        f"{package} -> {other}: {why}"
        for package, targets in arrows.items()
        for other, why in targets.items()
        if package in reach.get(other, set())
    ]


def test_no_package_cycles() -> None:
    """Packages are folders: no two import each other, directly or through others; the modules
    beside a room's folder count as one, too."""
    arrows = package_arrows()
    assert not package_cycles(arrows), "\n".join(package_cycles(arrows))
    for own, other in (
        ("node.runtime", "node.process"),
        ("storage.files", "storage.log"),
        ("proto", "proto.entries"),
    ):
        wrong = {**arrows, own: {**arrows.get(own, {}), other: "an arrow against the drawing"}}
        assert package_cycles(wrong), f"{own} -> {other} was not seen"


def shared_fields(trees: list[tuple[str, ast.Module]]) -> list[str]:
    """Writes to a field by anything but the class that owns it: to another object's field, or to a
    field that a base class writes."""
    classes = [
        (name, node)
        for name, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    writes = {(name, node.name): own_writes(node) for name, node in classes}
    by_name: dict[str, set[str]] = {}
    for (_, own), fields in writes.items():
        by_name.setdefault(own, set()).update(fields)
    found = []
    for name, tree in trees:
        own = {id(write) for _, node in classes for write in self_writes(node)}
        foreign = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        ]
        found += [
            f"{name}:{node.lineno} writes {ast.unparse(node)}"
            for node in foreign
            if id(node) not in own
        ]
        called = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr")
        ]
        found += [f"{name}:{node.lineno} calls {ast.unparse(node.func)}" for node in called]
    for name, node in classes:
        bases = {ast.unparse(base) for base in node.bases}
        both = {field for base in bases for field in by_name.get(base, set())} & writes[
            name, node.name
        ]
        found += [
            f"{name}:{node.lineno} {node.name} and its base both write {field}"
            for field in sorted(both)
        ]
    return found


def self_writes(owner: ast.ClassDef) -> list[ast.Attribute]:
    attributes = [
        node
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    ]
    return [
        node for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"
    ]


def own_writes(owner: ast.ClassDef) -> set[str]:
    return {node.attr for node in self_writes(owner)}


def test_every_field_of_the_raft_core_has_one_owner() -> None:
    """A field is written only through `self`, and by one class of a line of classes."""
    assert not (
        found := shared_fields([(name, tree) for name, _, tree in ALL if name.startswith("raft")])
    ), "\n".join(found)
    wrong = (
        "class A:\n def f(self): self.x = 1\nclass B(A):\n def g(self, a): self.x = a.y = 2;"
        " setattr(a, 'z', 3)"
    )
    assert [
        said.partition(" ")[2] for said in shared_fields([("raft.wrong", ast.parse(wrong))])
    ] == [
        "writes a.y",
        "calls setattr",
        "B and its base both write x",
    ]


CAPABILITIES = "node.broker.parts."
IMPORTERS_MAX = 4
"""Its state is driven by `machine.py`, its decisions by `leader.py` or `group.py`; that leaves a
question or one other capability."""


def importers_of_capabilities(trees: list[tuple[str, ast.Module]]) -> dict[str, set[str]]:
    """Capability of a broker group → the modules of `node/broker/` outside of its folder that
    import from it."""
    found: dict[str, set[str]] = {}
    for name, tree in trees:
        own = name.removeprefix(CAPABILITIES).split(".")[0] if name.startswith(CAPABILITIES) else ""
        for target, _ in imports(tree) if name.startswith("node.broker") else ():
            folder, _, rest = (
                target.removeprefix("ledgermq.").removeprefix(CAPABILITIES).partition(".")
            )
            if CAPABILITIES + folder in PACKAGE_NAMES and rest and folder != own:
                found.setdefault(folder, set()).add(name)
    return found


def test_a_capability_of_the_broker_is_known_to_few() -> None:
    """A folder of `node/broker/parts/` is imported from at most four modules of `node/broker/`
    outside of it."""
    found = importers_of_capabilities([(name, tree) for name, _, tree in ALL])
    assert {"delivery", "timers", "sends"} <= found.keys()
    assert not {
        folder: sorted(names) for folder, names in found.items() if len(names) > IMPORTERS_MAX
    }
    wrong = [
        (
            f"node.broker.m{n}",
            ast.parse("from ledgermq.node.broker.parts.timers.timers import Timers"),
        )
        for n in range(5)
    ]
    assert importers_of_capabilities(wrong) == {"timers": {f"node.broker.m{n}" for n in range(5)}}


FOLDER_MAX = 25
TESTS_MAX = 40
"""In a folder of `tests/` and `bench/`, helpers included."""
TWICE = {"__init__", "commands", "state", "decide", "ports", "service", "wire"}
"""Names that say the same of each concept they stand in."""
TWINS = {("audit", "entries"): "the view of that name, and what reads the entries for it"}


def crowded(paths: list[Path], most: int) -> dict[str, int]:
    """Folders with more modules than that."""
    sizes = Counter(path.parent for path in paths if path.stem != "__init__")
    return {str(room): count for room, count in sizes.items() if count > most}


def ambiguous(paths: list[Path]) -> set[tuple[str, str]]:
    """Package and name of modules that the name alone does not find."""
    names = Counter((path.parts[0], path.stem) for path in paths if path.stem not in TWICE)
    return {name for name, count in names.items() if count > 1 and name not in TWINS}


def test_rooms_are_small_and_names_are_unique() -> None:
    """A room has at most 25 modules, of tests and benchmarks 40, and a package's module is found by
    its name alone."""
    inside = [path.relative_to(ROOT) for _, path, _ in ALL]
    assert not crowded(inside, FOLDER_MAX)
    assert not crowded(
        [path.relative_to(ROOT) for top in ("tests", "bench") for path in tracked(f"{top}/*.py")],
        TESTS_MAX,
    )
    assert not ambiguous(inside)
    assert crowded([Path(f"raft/{number}.py") for number in range(26)], FOLDER_MAX) == {"raft": 26}
    assert ambiguous(
        [Path("raft/log/end.py"), Path("raft/votes/end.py"), Path("proto/end.py")]
    ) == {("raft", "end")}


VARIADIC = {
    *("print", "zip", "map", "range", "product", "chain", "merge", "union", "join", "format"),
    *("gather", "to_thread", "call_soon_threadsafe", "create_subprocess_exec", "partial"),
    *("suppress", "pack", "pack_into", "randrange", "uniform", "add_row"),
    *("select", "agg", "groupBy", "orderBy", "struct", "TypeVar"),
}
"""Callables of libraries that take any number of values, or the two bounds of a range: no field has
a name there."""
POSITIONAL = ("kernels.",)
"""Functions of the compiled package: they take columns by position."""
FIELDS_MAX = 5
UNNAMED: dict[str, tuple[int, int]] = {
    "audit": (48, 5),
    "bench": (7, 0),
    "client": (53, 1),
    "examples": (4, 0),
    "node/controller": (10, 0),
    "node/frontend": (12, 0),
    "node/process": (3, 0),
    "node/runtime": (1, 0),
    "sim": (12, 1),
    "storage": (8, 1),
}
"""Package → how many calls splat a tuple into fields, and how many pass more than five values
without their names. The others have none. These figures may only fall."""


def variadic(trees: Iterable[ast.Module]) -> set[str]:
    """Names of our own functions with `*`, and of classes with such an `__init__`."""
    names = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.vararg:
                names.add(node.name)
            if isinstance(node, ast.ClassDef) and any(
                isinstance(child, ast.FunctionDef)
                and child.name == "__init__"
                and child.args.vararg
                for child in node.body
            ):
                names.add(node.name)
    return names - {"__init__"}


def passed_on(tree: ast.Module) -> set[int]:
    """Splats of what a function itself took by `*`: it passes on what its caller gave."""
    return {
        id(star)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and node.args.vararg
        for star in ast.walk(node)
        if isinstance(star, ast.Starred) and ast.unparse(star.value) == node.args.vararg.arg
    }


def unnamed(tree: ast.Module, free: set[str]) -> tuple[list[int], list[int]]:
    """Lines of calls that splat a tuple into fields, and of calls with more than five values
    without their names."""
    own = passed_on(tree)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] not in free
        and not ast.unparse(node.func).startswith(POSITIONAL)
    ]
    splats = [
        call.lineno
        for call in calls
        if any(isinstance(value, ast.Starred) and id(value) not in own for value in call.args)
    ]
    return splats, [call.lineno for call in calls if len(call.args) > FIELDS_MAX]


def test_fields_have_names() -> None:
    """A call outside of tests names what it passes: two values of one type that are swapped look
    right to a reader and to the types."""
    own = [(path, ast.parse(path.read_text())) for path in tracked("*.py")]
    own = [
        (path, tree)
        for path, tree in own
        if "_pb2" not in path.name and not path.relative_to(ROOT).parts[0].startswith("test")
    ]
    free = VARIADIC | variadic(tree for _, tree in own)
    found: dict[str, tuple[list[str], list[str]]] = {}
    for path, tree in own:
        where = path.relative_to(ROOT)
        places = found.setdefault(package_of_file(where), ([], []))
        for listed, lines in zip(places, unnamed(tree, free), strict=True):
            listed += [f"{where}:{line}" for line in lines]
    counts = {
        package: (len(splats), len(many))
        for package, (splats, many) in found.items()
        if splats or many
    }
    assert counts == UNNAMED, {
        package: found[package]
        for package in counts | UNNAMED
        if counts.get(package) != UNNAMED.get(package)
    }
    wrong = "def f(*given):\n g(*given)\n G(*pair, 3)\n G(1, 2, 3, 4, 5, 6)\n kernels.k(*rows)"
    assert unnamed(ast.parse(wrong), set()) == ([3], [4])


def package_of_file(path: Path) -> str:
    """The package of a file for the table above: a room of `node/`, otherwise the top folder."""
    return "/".join(path.parts[: 2 if path.parts[0] == "node" else 1])


PORTS_ELSEWHERE = {
    "NodeParts": (
        "it names Hosted, whose ReplicaHost imports hosting/ports.py: there it would be a cycle"
    ),
    "Chance": "the only port of `raft/` stands beside the configuration that carries it",
    "Part": "parts of the audit's state inherit from it what they do not override",
    "Kernel": "the typed face of the compiled package stands where that is loaded",
    "SinkTable": "it names Mark, whose module takes it: there it would be a cycle",
}


def protocols() -> list[tuple[str, Path]]:
    """Name and module of every `typing.Protocol` of the product."""
    return [
        (node.name, path.relative_to(ROOT))
        for name, path, tree in ALL
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    ]


def test_ports_stand_in_ports_modules_once() -> None:
    """A collaborator has one port: a `Protocol` is in the `ports.py` of its room or concept, under
    a name of its own."""
    assert protocols()
    assert not [
        f"{path}: {name}"
        for name, path in protocols()
        if path.name != "ports.py" and name not in PORTS_ELSEWHERE
    ]
    names = Counter((path.parts[0], name) for name, path in protocols())
    assert not {name for name, count in names.items() if count > 1}


def test_named_modules_exist() -> None:
    """A module that a docstring or comment of the product cites as `name.py` is there."""
    known = {str(path.relative_to(ROOT)) for path in tracked("*.py")}
    ends = {
        "/".join(Path(name).parts[-length:])
        for name in known
        for length in range(1, len(Path(name).parts) + 1)
    }
    gone = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for _, path, _ in ALL
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in re.findall(r"`([a-z0-9_/]+\.py)(?=[`:])", line)
        if name not in ends
    ]
    assert not gone, "\n".join(gone)


def test_modules_open_with_their_law() -> None:
    """Every module says what lives in it."""
    bare = [
        str(path.relative_to(ROOT))
        for _, path, tree in ALL
        if len(ast.get_docstring(tree) or "") < 40
    ]
    assert not bare, f"open with the module's law (what lives here, what must never): {bare}"


def test_banned_calls_and_swallowed_errors() -> None:
    """No banned builtin, and no bare `except:`, anywhere in the product."""
    complaints = []
    for _, path, tree in ALL:
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in BANNED_CALLS
            ):
                complaints.append(
                    f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}() is banned:"
                    f" {BANNED_CALLS[node.func.id]}"
                )
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                complaints.append(
                    f"{path.relative_to(ROOT)}:{node.lineno}: name the exceptions you handle"
                )
    assert not complaints, "\n".join(complaints)


def test_sources_have_no_reminders_and_no_machine_paths() -> None:
    """No reminder of unfinished work lands, and no trace of the machine a line was written on."""
    words = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error", "XX" + "X ")
    for path in [*tracked("*.py"), *tracked("*.sh"), *tracked("*.md"), *tracked("Makefile")]:
        if "_pb2" in path.name:
            continue
        text = path.read_text()
        for word in words:
            assert word not in text, f"{path.relative_to(ROOT)}: {word}"


def test_slow_tests_are_marked_where_they_are() -> None:
    """`make test-slow` collects the files that say so: a mark that comes from elsewhere would be
    overlooked."""
    marked = [path for path in tracked("tests/*.py") if "mark.slow" in path.read_text()]
    assert marked and [path.name for path in marked if not path.name.startswith("test_")] == []


def test_links_match_the_folders() -> None:
    """src/ledgermq/ holds one link per package and nothing that shadows one."""
    for package in PACKAGES:
        link = ROOT / "src" / "ledgermq" / package
        assert link.is_symlink() and link.resolve() == ROOT / package


def test_lengths_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Long functions and modules are listed as places to look; the guide is not a law, so only a
    module of 1,000 lines fails."""
    for _name, path, tree in ALL:
        lines = len(path.read_text().splitlines())
        if lines > 400:
            print(f"{path.relative_to(ROOT)}: {lines} lines")
        assert lines <= 1000, f"{path.relative_to(ROOT)}: {lines} lines are more than one idea"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = (node.end_lineno or node.lineno) - node.lineno
                if body > 60:
                    print(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} {body} lines")
