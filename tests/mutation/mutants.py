"""The mutants of a module: small changes of its functions, each of which a test should notice.

A function is a `def` that is no part of another `def`; nested functions and lambdas are mutated
with it. These rules say what is changed:

  comparison      `<` ↔ `<=`, `>` ↔ `>=`, `==` ↔ `!=`, `is` ↔ `is not`, `in` ↔ `not in`
  logic           `and` ↔ `or`; `not x` → `x`; a condition that is neither, `x` → `not x`
  arithmetic      `+` ↔ `-`, `*` → `//`, `//` → `*`, `%` → `//`, `&` ↔ `|`, `<<` ↔ `>>`, also where it is assigned (`+=`); `-x` → `x`
  constant        `n` → `n + 1`, `True` ↔ `False`; a string that is compared or is a key → another string
  call            `min` ↔ `max`, `any` ↔ `all`; one keyword argument is left out
  statement       a call, or an assignment to a field or an element → `pass`; `break` ↔ `continue`; `return x` → `return None`

These are not changed: texts (what is raised, other strings, f-strings, docstrings), annotations,
assertions (each of them states what cannot happen), default values and decorators, `__repr__`, and
what a module or a class does when it is imported. A `return` of a condition is not replaced,
because the condition is changed already.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
CONDITIONS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)
UNCHANGED = (ast.Raise, ast.Assert, ast.JoinedStr)
CONTEXT = 32
"""Characters that the text of a mutant shows on both sides of the change."""


@dataclass(frozen=True)
class Change:
    """One node of a tree, replaced by another one. `statement` is the innermost statement around
    it."""

    owner: ast.AST
    field: str
    at: int | None
    new: ast.AST
    statement: ast.stmt

    @contextmanager
    def made(self) -> Iterator[None]:
        """The tree has the change within this context."""
        held = getattr(self.owner, self.field)
        old = held if self.at is None else held[self.at]
        self._put(ast.fix_missing_locations(ast.copy_location(self.new, old)))
        try:
            yield
        finally:
            self._put(old)

    def _put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.at] = node


@dataclass(frozen=True)
class Mutant:
    """One change of a function. `text` names it: the place with the change in brackets, unique
    within the function."""

    text: str
    change: Change


@dataclass(frozen=True)
class Watched:
    """The largest expression around a change that can be evaluated a second time without an effect,
    where it stands, and what it becomes. `truth`: only whether it is true matters there."""

    owner: ast.AST
    field: str
    at: int | None
    new: ast.expr
    truth: bool


REPEATABLE = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.IfExp, ast.Name, ast.Slice, ast.Subscript, ast.Tuple, ast.UnaryOp,
)  # fmt: skip
"""Expressions without an effect, if their parts have none: properties are taken for fields. A call
may have one, and so may `in`, because of iterators."""


def watched(change: Change) -> Watched | None:
    """None where a second evaluation could have an effect: then only a run tells what the change
    does."""
    places = _places(change.statement, change)
    if any(isinstance(owner, ast.pattern) for owner, _field, _at in places):
        return None
    for owner, field, at in places:
        value = getattr(owner, field)
        found = value if at is None else value[at]
        if not isinstance(found, ast.expr) or not _is_repeatable(found):
            continue
        with change.made():
            value = getattr(owner, field)
            new = copy.deepcopy(value if at is None else value[at])
        truth = (
            field == "test" and isinstance(owner, ast.If | ast.While | ast.IfExp)
        ) or field == "ifs"
        return Watched(owner, field, at, new, truth) if _is_repeatable(new) else None
    return None


def _is_repeatable(node: ast.expr) -> bool:
    """Whether nothing happens when this is evaluated once more."""
    return all(
        isinstance(part, REPEATABLE if isinstance(part, ast.expr) else ast.AST)
        and not isinstance(part, ast.In | ast.NotIn)
        and isinstance(getattr(part, "ctx", None), ast.Load | None)
        for part in ast.walk(node)
    )


def _places(node: ast.AST, change: Change) -> list[tuple[ast.AST, str, int | None]]:
    """The places that lead from a node to the change below it, the outermost first; empty if it is
    not there. A node says no place: equal operators are the same one."""
    for field, value in ast.iter_fields(node):
        for at, below in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if node is change.owner and (field, at) == (change.field, change.at):
                return [(node, field, at)]
            if isinstance(below, ast.AST) and (found := _places(below, change)):
                return [(node, field, at), *found]
    return []


def alone(target: str, tree: ast.Module, function: Function) -> ast.Module:
    """A module that has only this function, in the classes of its qualified name and at the lines
    where it is."""
    body: list[ast.stmt] = [function]
    for name in reversed(target.split(".")[:-1]):
        body = [ast.copy_location(ast.ClassDef(name, [], [], body, []), function)]
    return ast.Module(
        [
            *[
                line
                for line in tree.body
                if isinstance(line, ast.ImportFrom) and line.module == "__future__"
            ],
            *body,
        ],
        [],
    )


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Qualified name and definition of every function that is mutated."""

    def within(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, Function) and node.name != "__repr__":
                yield prefix + node.name, node

    return within(tree.body, "")


def source_digest(function: Function) -> str:
    """A digest that changes with the function, but neither with its comments nor with its place."""
    return hashlib.sha256(ast.dump(function).encode()).hexdigest()[:16]


def mutants(function: Function) -> list[Mutant]:
    """All mutants of a function, in the order of its source."""
    before, found, seen = ast.unparse(function), [], dict[str, int]()
    for change in _changes(function):
        with change.made():
            text = _difference(before, ast.unparse(function))
        seen[text] = seen.get(text, 0) + 1
        found.append(Mutant(text if seen[text] == 1 else f"{text} #{seen[text]}", change))
    return found


def _difference(before: str, after: str) -> str:
    """Both versions of the changed place, as whole words, between what stands before and after it
    in the same line."""
    first = next(i for i in range(len(before) + 1) if before[: i + 1] != after[: i + 1])
    last = (
        next(i for i in range(1, min(len(before), len(after)) + 2) if before[-i:] != after[-i:]) - 1
    )
    last = min(last, len(before) - first, len(after) - first)
    while first and before[first - 1] not in " \n([,":
        first -= 1
    while last and before[len(before) - last] not in " \n)],:":
        last -= 1
    ahead = before[max(0, first - CONTEXT) : first].rpartition("\n")[2].lstrip()
    behind = before[len(before) - last :][:CONTEXT].partition("\n")[0]
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    return f"{ahead}⟦{' '.join(old.split())} → {' '.join(new.split())}⟧{behind}"


def _changes(function: Function) -> Iterator[Change]:
    first = function.body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    for at in range(1 if docstring else 0, len(function.body)):
        yield from _of_statement(function, "body", at, function.body[at])


def _of_statement(owner: ast.AST, field: str, at: int, statement: ast.stmt) -> Iterator[Change]:
    if isinstance(statement, UNCHANGED):
        return
    yield from (
        Change(owner, field, at, new, statement) for new in _instead_of_statement(statement)
    )
    if isinstance(statement, Function):
        yield from _changes(statement)
        return
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            yield from _of_node(statement, name, place, node, statement)


def _of_node(
    owner: ast.AST, field: str, at: int | None, node: object, statement: ast.stmt
) -> Iterator[Change]:
    if isinstance(node, ast.stmt):
        assert at is not None
        yield from _of_statement(owner, field, at, node)
    elif isinstance(node, ast.AST) and not isinstance(node, UNCHANGED):
        yield from (
            Change(owner, field, at, new, statement) for new in _instead_of(owner, field, node)
        )
        for name, value in ast.iter_fields(node):
            for place, below in enumerate(value) if isinstance(value, list) else [(None, value)]:
                yield from _of_node(node, name, place, below, statement)


def _instead_of_statement(statement: ast.stmt) -> Iterator[ast.stmt]:
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=targets) if all(_is_stored(target) for target in targets):
            yield ast.Pass()
        case ast.AugAssign() | ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Return(value=value) if value is not None and not isinstance(value, CONDITIONS):
            yield ast.Return(ast.Constant(None))


def _is_stored(target: ast.expr) -> bool:
    """Whether this is a field or an element: without the assignment it keeps an older value. A name
    would be unknown."""
    return (
        all(_is_stored(part) for part in target.elts)
        if isinstance(target, ast.Tuple)
        else not isinstance(target, ast.Name)
    )


def _instead_of(owner: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                other = COMPARISONS[type(operator)]()
                yield ast.Compare(
                    node.left, [*node.ops[:at], other, *node.ops[at + 1 :]], node.comparators
                )
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.operator() if type(node) in ARITHMETIC and isinstance(
            owner, ast.BinOp | ast.AugAssign
        ):
            yield ARITHMETIC[type(node)]()
        case ast.Constant():
            yield from _instead_of_constant(owner, field, node.value)
        case ast.Call():
            yield from _instead_of_call(node)
    if field in ("test", "ifs") and isinstance(node, ast.expr) and not isinstance(node, CONDITIONS):
        yield ast.UnaryOp(ast.Not(), node)


def _instead_of_constant(owner: ast.AST, field: str, value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and (
        isinstance(owner, ast.Compare) or (isinstance(owner, ast.Subscript) and field == "slice")
    ):
        yield ast.Constant(value + "?")


def _instead_of_call(call: ast.Call) -> Iterator[ast.Call]:
    if isinstance(call.func, ast.Name) and call.func.id in CALLS:
        yield ast.Call(ast.Name(CALLS[call.func.id], ast.Load()), call.args, call.keywords)
    for at in range(len(call.keywords)):
        yield ast.Call(call.func, call.args, [*call.keywords[:at], *call.keywords[at + 1 :]])


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))
