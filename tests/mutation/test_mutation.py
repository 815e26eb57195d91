"""The mutation tester on small programs: which mutants there are, which of them tests find, and
what a run needs to pass."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import (
    AREAS,
    EXPLAINED,
    RESULTS,
    ROOT,
    complaints,
    files_of,
    read,
    work_on,
)
from tests.mutation.judging import differs
from tests.mutation.mutants import functions, mutants, source_digest, watched

CASES = {
    "return a < b": ["return a ⟦< → <=⟧ b"],
    "return a == b == c": ["return a ⟦== → !=⟧ b == c", "return a == b ⟦== → !=⟧ c"],
    "return a is not None": ["return a is ⟦not None → None⟧"],
    "return a and b": ["return a ⟦and → or⟧ b"],
    "return not a": ["return ⟦not a → a⟧"],
    "return a": ["return ⟦a → None⟧"],
    "return 1": ["return ⟦1 → 2⟧"],
    "return True": ["return ⟦True → False⟧"],
    "return a['key']": ["return ⟦a['key'] → None⟧", "return a[⟦'key' → 'key?'⟧]"],
    "a = b + 1": ["a = b ⟦+ → -⟧ 1", "a = b + ⟦1 → 2⟧"],
    "a.b = c": ["⟦a.b = c → pass⟧"],
    "a[b], c.d = c": ["⟦a[b], c.d = c → pass⟧"],
    "a += 1": ["⟦a += 1 → pass⟧", "a ⟦+= → -=⟧ 1", "a += ⟦1 → 2⟧"],
    "f(a)": ["⟦f(a) → pass⟧"],
    "b = f(a, k=c)": ["b = f(⟦a, k=c → a⟧)"],
    "b = min(a, c)": ["b = ⟦min(a → max(a⟧, c)"],
    "if a: return": ["if ⟦a → not a⟧:"],
    "a = [b for b in c if b]": ["a = [b for b in c if ⟦b → not b⟧]"],
    "raise ValueError(a + 1)": [],
    "assert a < b": [],
    "a: int = f'{b + 1}'": [],
    "a = 'text'": [],
}


def made(source: str) -> list[str]:
    ((_, function),) = functions(ast.parse(source))
    before = ast.dump(function)
    found = [mutant.text for mutant in mutants(function)]
    assert ast.dump(function) == before, "a change was not undone"
    return found


@pytest.mark.parametrize("body", list(CASES))
def test_every_rule(body: str) -> None:
    assert made(f"def f(a=1 + 1, b: x < y = 2):\n    'docstring'\n    {body}") == CASES[body]


WATCHED = {
    "if a < b + 1: pass": ["a <= b + 1", "a < b - 1", "a < b + 2"],
    "return f(a < b)": [None, "a <= b"],
    "return a in b": [None],
    "return f(a) and a.b < 1": [None, "a.b <= 1", "a.b < 2"],
    "if a: b[0] = a[b - 1] - b": [
        "not a",
        None,
        "1",
        "a[b + 1] - b",
        "a[b - 2] - b",
        "a[b - 1] + b",
    ],
    "a += 1": [None, None, "2"],
    "return [a for a in b if a]": [None, "not a"],
    "match a:\n        case 1: return 2": [None, "3"],
}
"""What becomes of the largest expression around each change that can be evaluated twice."""


@pytest.mark.parametrize("body", list(WATCHED))
def test_watched_expressions_of_a_mutant(body: str) -> None:
    ((_, function),) = functions(ast.parse(f"def f(a, b):\n    {body}"))
    found = [watched(mutant.change) for mutant in mutants(function)]
    assert [one and ast.unparse(one.new) for one in found] == WATCHED[body]


def _fails() -> object:
    raise ValueError


@pytest.mark.parametrize(
    ("value", "other", "truth", "differ"),
    [
        (1, 1, False, False),
        ("a", "".join("a"), False, False),
        (1, 2, False, True),
        (1, True, False, True),
        (None, False, False, True),
        (None, False, True, False),
        ((), (1,), True, True),
        ((1,), (1, 2)[:1], False, True),
        (1, ValueError, False, True),
    ],
)
def test_values_that_differ(value: object, other: object, truth: bool, differ: bool) -> None:
    """What cannot be compared differs: a test too many is run then, and none too few."""
    assert differs(value, _fails if other is ValueError else lambda: other, truth=truth) is differ


def test_mutants_with_the_same_text_are_numbered() -> None:
    assert made("def f(a):\n    g(a)\n    g(a)") == ["⟦g(a) → pass⟧", "⟦g(a) → pass⟧ #2"]


def test_methods_are_functions_and_nested_functions_are_parts() -> None:
    source = (
        "class A:\n  def f(self):\n    def g():\n      return 1\n    return g\n  def"
        " __repr__(self): return self.a + 1\ndef f(): pass"
    )
    assert [name for name, _ in functions(ast.parse(source))] == ["A.f", "f"]


def test_the_digest_ignores_comments_and_lines() -> None:
    digests = []
    for source in ("def f(): return 1", "\n\ndef f():\n    return 1  # one", "def f(): return 2"):
        ((_, function),) = functions(ast.parse(source))
        digests.append(source_digest(function))
    assert digests[0] == digests[1] != digests[2]


PRODUCT = """
class Counter:
    def __init__(self, bound):
        self._bound = bound
        self.count = 0

    @property
    def full(self):
        return self.count >= self._bound

    def take(self):
        if self.full:
            return False
        self.count += 1
        return True


class Doubled(Counter):
    def take(self):
        return super().take() and super().take()


def loop(n):
    while n > 0:
        n -= 1
    return n


def unused(n):
    return n + 1


def step(n, found):
    if n > 2:
        return found.pop() > n
    return False
"""
TESTS = """
from product import Counter, Doubled, loop, step
import signal


def test_counter():
    counter = Counter(2)
    assert [counter.take() for _ in range(4)] == [True, True, False, False]


def test_doubled():
    doubled = Doubled(4)
    assert [doubled.take() for _ in range(3)] == [True, True, False] and doubled.count == 4


def test_loop():
    assert loop(3) == 0


def test_step(tmp_path):
    assert tmp_path.is_dir(), "also of the first run in a clone"
    assert [step(1, []), step(3, [4]), step(5, [4])] == [False, True, False]


def test_fails():
    assert False
"""
RUN = """
import sys
from pathlib import Path
from tests.mutation import judging

def work(judge):
    for target in judging.targets(Path("real/product.py").resolve()):
        verdict = judge.judged(target)
        print("VERDICT", target.name, verdict.mutants, verdict.by_time, verdict.left, verdict.untried, flush=True)

judging.GRACE_S = 0.3
judging.judge([Path("real/product.py").resolve()], ["-c", "pytest.ini", "test_product.py"], Path("kept/kept.json"), work)
"""


@pytest.mark.verify
def test_mutants_of_a_small_program_are_judged_by_its_tests(tmp_path: Path) -> None:
    """The product is imported through a link, as ours is. A property, a method, a loop that does
    not end, a function without a test, and a comparison of which no test reaches the edge."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/product.py").write_text(PRODUCT)
    (tmp_path / "product.py").symlink_to("real/product.py")
    (tmp_path / "test_product.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\nmarkers =\n slow: .\n soak: .\n verify: .\n"
    )
    # The options of this run, such as a profile of hypothesis, are not those of the small program.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    for _ in range(2):  # the second run reads what the tests reach
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{RUN}"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found = [
            line.removeprefix("VERDICT ")
            for line in done.stdout.splitlines()
            if line.startswith("VERDICT")
        ]
        assert found == [
            "Counter.__init__ 3 0 [] 0",
            "Counter.full 1 0 [] 0",
            "Counter.take 6 0 [] 0",
            "Doubled.take 1 0 [] 0",
            "loop 6 2 [] 0",
            "unused 3 0 ['return ⟦n + 1 → None⟧', 'return n ⟦+ → -⟧ 1', 'return n + ⟦1 → 2⟧'] 3",
            "step 4 0 ['if n ⟦> → >=⟧ 2:', 'return found.pop() ⟦> → >=⟧ n'] 1",
        ], done.stdout + done.stderr
        assert (tmp_path / "kept/kept.json").exists()


def test_mutation_run_reports_unexplained_and_stale_rows() -> None:
    """A mutant without a row, a row without a mutant, and an explanation without a kind."""
    results = {"a.py": {"f": {"source": "", "mutants": 3, "by_time": 0, "left": ["one", "two"]}}}
    rows = {
        "a.py:f": {"one": "equivalent: it is", "three": "speed: less work"},
        "b.py:g": {"four": "because"},
    }
    assert complaints(results, rows) == [
        "a.py:f: two: no row",
        "a.py:f: three: explained, but not left",
        "b.py:g: four: the explanation begins with none of equivalent, text, speed, defence",
        "b.py:g: four: explained, but not left",
    ]


def test_every_mutant_that_was_left_is_explained() -> None:
    """The committed results and explanations agree."""
    assert complaints(read(RESULTS), read(EXPLAINED)) == []


@pytest.mark.parametrize("area", AREAS)
def test_every_function_was_judged_as_it_is(area: str) -> None:
    """One that changed is to be judged again: `python -m tests.mutation --tests FILE --paths
    FILE`."""
    paths, _ = AREAS[area]
    assert [
        f"{file} {target.name}" for file, target, _ in work_on(files_of(paths), fresh=False)
    ] == []
