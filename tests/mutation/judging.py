"""Runs tests against mutants, in forks of one process that has imported the product and collected
the tests.

A mutant replaces the code object of its function object, so neither files nor imports change, and
it does not matter by which path a module was found. One fork runs all tests to measure them, and
another one on code that notes which statements each test reaches, and which changed expressions had
another value in it (`watched` in `mutants.py`). Every mutant then gets a fork of its own, which
runs the tests that can tell it from the product: those in which its expression had another value or
raised, because every other test does exactly what it does without the change; for other changes,
those that reach its statement. The tests that found most mutants of the function come first, then
the fast ones and those that found others of the file, up to the first failure. A test that takes
much more processor time than on the product has found the mutant, too. Tests that fail on the
noting code, or that need too much processor time, judge nothing.
"""

from __future__ import annotations

import ast
import builtins
import gc
import hashlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Function, Mutant, alone, functions, mutants, parsed, watched

NOTE, EVALUATED = "__statement_reached__", "__expression_evaluated__"
PLAIN = (bool, int, str, bytes, type(None))
"""Values of these types are held against each other; of all others every two differ."""
SLOWEST_S = 1.0
"""The processor time of a test that judges mutants, unless the caller says otherwise."""
GRACE_S = 2.0
TIMES_LONGER = 5.0
WAIT_S = 900.0
"""Without any news for this long, a fork waits for something that does not come: its mutant is
found by time."""
MEMORY_BYTES = 6 << 30
FOUND, BY_TIME, LEFT = "found", "by time", "left"

Place = tuple[str, int | str]
"""File, and the line of a statement, or the name of a watched mutant."""


@dataclass(frozen=True)
class Reached:
    """What a test did on the product: its processor time, the statements it reached, and the
    watched mutants that it can tell from it."""

    seconds: float
    places: frozenset[Place]


@dataclass
class Target:
    """One function with its mutants."""

    path: Path
    name: str
    tree: ast.Module
    function: Function
    mutants: list[Mutant]


@dataclass
class Verdict:
    """How many mutants a function has, how many of them were found by time, and which were left.
    `untried` of these behave in every test as the product does."""

    mutants: int = 0
    by_time: int = 0
    left: list[str] = field(default_factory=list)
    untried: int = 0


def targets(path: Path) -> list[Target]:
    """The functions of a file that have mutants."""
    tree = parsed(path)
    found = [
        Target(path, name, tree, function, mutants(function)) for name, function in functions(tree)
    ]
    return [target for target in found if target.mutants]


class _Noting(ast.NodeTransformer):
    """Puts a note before every statement of a function: a call with the number of the statement."""

    def __init__(self, path: Path, numbers: list[Place]) -> None:
        self._path = str(path)
        self._numbers = numbers

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and not isinstance(node, ast.Module | ast.ClassDef):
                setattr(node, name, [line for statement in body for line in self._noted(statement)])
        return node

    def _noted(self, statement: ast.stmt) -> list[ast.stmt]:
        self._numbers.append((self._path, statement.lineno))
        call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(len(self._numbers) - 1)], [])
        return [ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement)), statement]


def name_of(function: str, mutant: Mutant) -> str:
    return f"{function}: {mutant.text}"


def watch(path: Path, tree: ast.Module, numbers: list[Place]) -> None:
    """Put a call around every expression that has watched mutants: it has the value of the
    expression, and compares it with what each of them makes of it."""
    found: dict[tuple[int, str, int | None], tuple[ast.AST, bool, list[ast.expr]]] = {}
    for name, function in functions(tree):
        for mutant in mutants(function):
            place = watched(mutant.change)
            if place is not None:
                numbers.append((str(path), name_of(name, mutant)))
                instead = ast.Lambda(ast.arguments([], [], None, [], [], None, []), place.new)
                key = id(place.owner), place.field, place.at
                _, _, calls = found.setdefault(key, (place.owner, place.truth, []))
                calls.append(ast.Tuple([ast.Constant(len(numbers) - 1), instead], ast.Load()))
    for (_, field_name, at), (owner, truth, calls) in found.items():
        held = getattr(owner, field_name)
        old = held if at is None else held[at]
        call = ast.Call(ast.Name(EVALUATED, ast.Load()), [old, ast.Constant(truth), *calls], [])
        new = ast.fix_missing_locations(ast.copy_location(call, old))
        if at is None:
            setattr(owner, field_name, new)
        else:
            held[at] = new


def differs(value: object, other: Callable[[], object], *, truth: bool) -> bool:
    """Whether this is another value, or its evaluation fails. Of values that cannot be compared,
    any two are different."""
    try:
        found = other()
        if truth:
            return bool(found) is not bool(value)
    except Exception:
        return True
    return found is not value and not (
        type(found) is type(value) and isinstance(found, PLAIN) and found == value
    )


def keep_class_cell(function: Function) -> None:
    """A method that calls `super()` has a cell for its class. Its mutants need that cell too,
    because code with other free variables does not fit the function: a statement that is never
    reached names it."""
    if any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(function)):
        unreached = ast.If(ast.Constant(False), [ast.Expr(ast.Name("__class__", ast.Load()))], [])
        function.body.append(
            ast.fix_missing_locations(ast.copy_location(unreached, function.body[-1]))
        )


class Codes:
    """The function objects of this process, by file and qualified name, and how their code is
    replaced."""

    def __init__(self, paths: Sequence[Path]) -> None:
        wanted = {str(path.resolve()) for path in paths}
        gc.unfreeze()  # objects that the configuration of the tests set aside are not listed
        self._objects: dict[tuple[str, str, int], list[FunctionType]] = {}
        real: dict[str, str] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                named = found.__code__.co_filename
                where = real.setdefault(named, str(Path(named).resolve()))
                if where in wanted:
                    self._objects.setdefault(
                        (where, found.__code__.co_qualname, found.__code__.co_firstlineno), []
                    ).append(found)

    def replace(self, path: Path, tree: ast.AST, names: set[str]) -> None:
        """These functions have the code of this tree from now on."""
        for code in _codes(compile(tree, str(path), "exec", dont_inherit=True)):
            if code.co_qualname in names:
                for found in self._objects.get(
                    (str(path.resolve()), code.co_qualname, code.co_firstlineno), ()
                ):
                    found.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _in_fork(work: Callable[[Callable[[object], None]], None]) -> Iterator[Any]:
    """What `work` tells in a fork of this process, as JSON values; it ends with the fork, or when
    nothing came for `WAIT_S`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        out = os.fdopen(writing, "w", buffering=1)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        status = 1
        try:
            work(lambda told: print(json.dumps(told), file=out, flush=True))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        with os.fdopen(reading) as lines:
            while select.select([lines], [], [], WAIT_S)[0] and (line := lines.readline()):
                yield json.loads(line)
    finally:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run(items: Sequence[pytest.Item], at: int) -> bool:
    """Whether a test passed, with its fixtures; those that the next one needs too stay."""
    following = items[at + 1] if at + 1 < len(items) else None
    return not any(
        report.failed for report in runtestprotocol(items[at], log=False, nextitem=following)
    )


class Judge:
    """A plugin of pytest that judges mutants instead of running the collected tests."""

    def __init__(
        self, paths: Sequence[Path], kept: Path, work: Callable[[Judge], None], slowest_s: float
    ) -> None:
        """`kept` holds what each test reaches while its file and `paths` stay the same. `work` is
        called once the tests are collected. Tests that need more processor time than `slowest_s`
        judge nothing."""
        self._paths = paths
        self._slowest_s = slowest_s
        self._kept = kept
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._reached: dict[str, Reached] = {}
        """Also that of tests which were measured in an earlier run and not collected in this
        one."""
        self._found: dict[tuple[Path, str], Counter[str]] = {}
        """By file and function, how many mutants each test found; by file and "" of all its
        functions."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """The same examples in every run, and no search for smaller ones. pytest imports hypothesis
        itself, to rewrite its asserts."""
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self._root = session.config.rootpath
        self._items = {item.nodeid: item for item in session.items}
        self._codes = Codes(self._paths)
        # Forks neither look through what was there before them nor copy it.
        gc.collect()
        gc.freeze()
        self._reached = self._read()
        missing = [item for item in session.items if item.nodeid not in self._reached]
        if missing:
            self._reached |= self._measured(missing)
            self._write()
        self._work(self)
        return True

    def _read(self) -> dict[str, Reached]:
        kept: dict[str, Any] = (
            json.loads(self._kept.read_text()) if self._kept.is_file() else {"product": ""}
        )
        if kept["product"] != self._product:
            return {}
        same = {
            file
            for file, known in kept["files"].items()
            if Path(file).is_file() and digest([Path(file)]) == known
        }
        places = [(file, what) for file, what in kept["places"]]
        return {
            test: Reached(seconds, frozenset(places[number] for number in numbers))
            for test, (seconds, numbers) in kept["tests"].items()
            if self._file(test) in same
        }

    def _file(self, test: str) -> str:
        return str(self._root / test.partition("::")[0])

    @property
    def _product(self) -> str:
        """A digest of what decides, besides the tests, what they reach: these files, and the
        tester."""
        return digest([*self._paths, *sorted(Path(__file__).parent.glob("*.py"))])

    def _write(self) -> None:
        places = dict.fromkeys(place for test in self._reached.values() for place in test.places)
        numbers = {place: number for number, place in enumerate(places)}
        tests = {
            test: (reached.seconds, [numbers[place] for place in reached.places])
            for test, reached in self._reached.items()
        }
        files = {file: digest([Path(file)]) for file in {self._file(test) for test in tests}}
        kept = {"product": self._product, "files": files, "places": list(numbers), "tests": tests}
        self._kept.write_text(json.dumps(kept))

    def _measured(self, items: Sequence[pytest.Item]) -> dict[str, Reached]:
        numbers: list[Place] = []
        trees = [(path, parsed(path)) for path in self._paths]
        for path, tree in trees:
            watch(path, tree, numbers)
            _Noting(path, numbers).visit(tree)

        def run(tell: Callable[[object], None]) -> None:
            for at, item in enumerate(items):
                before = time.process_time()
                _run(items, at)
                tell((item.nodeid, round(time.process_time() - before, 4)))

        def note(tell: Callable[[object], None]) -> None:
            reached: set[int] = set()

            def evaluated(
                value: object, truth: bool, *others: tuple[int, Callable[[], object]]
            ) -> object:
                for number, other in others:
                    if number not in reached and differs(value, other, truth=truth):
                        reached.add(number)
                return value

            setattr(builtins, NOTE, reached.add)
            setattr(builtins, EVALUATED, evaluated)
            for path, tree in trees:
                self._codes.replace(path, tree, {name for name, _ in functions(tree)})
            for at, item in enumerate(items):
                reached.clear()
                passed = _run(items, at)
                tell((item.nodeid, passed, sorted(reached)))

        took = dict(_in_fork(run))
        found: dict[str, Reached] = {}
        for test, passed, reached in _in_fork(note):
            found[test] = Reached(
                took[test], frozenset(numbers[number] for number in reached if passed)
            )
            if not passed:
                print(f"fails without a mutant, and judges none: {test}", flush=True)
        assert len(found) == len(items), f"the tests ended after {list(found)[-1:]}"
        assert any(reached.places for reached in found.values()), "no test reaches these files"
        return found

    def judged(self, target: Target, only: set[str] | None = None) -> Verdict:
        """Every mutant of a function, or only those with these texts."""
        verdict = Verdict()
        for mutant in target.mutants:
            if only is not None and mutant.text not in only:
                continue
            verdict.mutants += 1
            tests = self._tests(target, mutant)
            outcome, test = self._outcome(target, mutant, tests) if tests else (LEFT, "")
            verdict.by_time += outcome == BY_TIME
            if outcome == LEFT:
                verdict.left.append(mutant.text)
                verdict.untried += not tests
            else:
                for of in (target.name, ""):
                    self._found.setdefault((target.path, of), Counter())[test] += 1
        return verdict

    def _tests(self, target: Target, mutant: Mutant) -> list[str]:
        """The tests that can find a mutant, the most promising first."""
        what = (
            mutant.change.statement.lineno
            if watched(mutant.change) is None
            else name_of(target.name, mutant)
        )
        place = (str(target.path), what)
        here, near = (self._found.get((target.path, of), Counter()) for of in (target.name, ""))

        def cost(test: str) -> tuple[int, float]:
            return -here[test], self._reached[test].seconds / (1 + near[test])

        found = [
            test
            for test, reached in self._reached.items()
            if place in reached.places and reached.seconds <= self._slowest_s
        ]
        return sorted((test for test in found if test in self._items), key=cost)

    def _outcome(self, target: Target, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
        """What became of a mutant, and the test that was the last one."""
        items = [self._items[test] for test in tests]

        def work(tell: Callable[[object], None]) -> None:
            keep_class_cell(target.function)
            with mutant.change.made():
                self._codes.replace(
                    target.path, alone(target.name, target.tree, target.function), {target.name}
                )
            for at, test in enumerate(tests):
                tell(test)
                signal.setitimer(
                    signal.ITIMER_PROF, GRACE_S + TIMES_LONGER * self._reached[test].seconds
                )
                passed = _run(items, at)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if not passed:
                    tell(False)
                    return
            tell(True)

        test, told = "", None
        for told in _in_fork(work):
            test = told if isinstance(told, str) else test
        assert told is not None, f"no test began: {target.name}: {mutant.text}"
        return (BY_TIME if isinstance(told, str) else LEFT if told else FOUND), test


def digest(files: Sequence[Path]) -> str:
    """A digest of the contents of these files."""
    return hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
    ).hexdigest()[:16]


def judge(
    paths: Sequence[Path],
    tests: Sequence[str],
    kept: Path,
    work: Callable[[Judge], None],
    slowest_s: float = SLOWEST_S,
) -> None:
    """Collect these tests (arguments of pytest) and call `work` with the judge of the functions in
    these files."""
    kept.parent.mkdir(exist_ok=True)  # pytest makes only the last directory of `--basetemp`
    options = [
        "-q",
        "-n",
        "0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not soak and not verify",
    ]
    status = pytest.main(
        [*options, f"--basetemp={kept.parent / 'tmp'}", *tests],
        plugins=[Judge(paths, kept, work, slowest_s)],
    )
    if status is not pytest.ExitCode.OK:
        sys.exit(f"the tests could not be run: {status!r}")
