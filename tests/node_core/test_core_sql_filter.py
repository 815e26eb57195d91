"""The SQL92 filter language: what expressions mean, against a second evaluator; where mistakes are,
as a golden table; limits."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.filters.filters import TagFilter, sql_filter
from ledgermq.node.broker.filters.sql_filter import (
    DEPTH_MAX,
    EXPRESSION_MAX,
    SYMBOLS_MAX,
    FilterError,
    compiled,
    number_of,
)
from ledgermq.proto.entries.properties import Fields, encode

# -- a second evaluator: over trees, not text, by truth tables

ORDER = {None: 1, False: 0, True: 2}
BACK = {value: key for key, value in ORDER.items()}


def plain_number(text: str) -> Fraction | None:
    """Read a number by the rules of Java's own text form, one character class at a time."""
    text = text.strip()
    mantissa, _, exponent = text.lower().partition("e")
    sign, digits = (mantissa[:1], mantissa[1:]) if mantissa[:1] in ("+", "-") else ("", mantissa)
    whole, dot, part = digits.partition(".")
    if (
        not (whole or part)
        or any(c not in "0123456789" for c in whole + part)
        or (dot and not whole and not part)
    ):
        return None
    if "e" in text.lower():
        power = exponent.lstrip("+-")
        if not power or any(c not in "0123456789" for c in power) or len(exponent) - len(power) > 1:
            return None
    value = Fraction(int((whole + part) or "0"), 10 ** len(part)) * (-1 if sign == "-" else 1)
    return value * Fraction(10) ** int(exponent or "0")


Tree = tuple[Any, ...]
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def value_of(tree: Tree, properties: Mapping[str, str], kind: str) -> Any:
    if tree[0] != "property":
        return tree[1]
    text = properties.get(tree[1])
    if text is None or kind == "text":
        return text
    return plain_number(text) if kind == "number" else text.lower() == "true"


def kind_of(*trees: Tree) -> str:
    return next((tree[0] for tree in trees if tree[0] != "property"), "text")


def truth(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    """What SQL says, straight from its tables."""
    what, *of = tree
    if what == "and":
        return BACK[min(ORDER[truth(one, properties)] for one in of)]
    if what == "or":
        return BACK[max(ORDER[truth(one, properties)] for one in of)]
    if what == "not":
        return BACK[2 - ORDER[truth(of[0], properties)]]
    if what == "null":
        return of[0][1] not in properties
    if what == "in":
        return truth(("or", *[("=", of[0], element) for element in of[1:]]), properties)
    if what == "between":
        return truth(("and", (">=", of[0], of[1]), ("<=", of[0], of[2])), properties)
    left, right = of
    word = what.removeprefix("NOT ")
    if word in SEARCHES:
        held, text = value_of(left, properties, "text"), right[1]
        if held is None or not text:
            return False
        found = {
            "CONTAINS": text in held,
            "STARTSWITH": held[: len(text)] == text,
            "ENDSWITH": held[len(held) - len(text) :] == text,
        }
        return found[word] != what.startswith("NOT ")
    kind = "number" if what in ("<", ">", "<=", ">=") else kind_of(left, right)
    a, b = value_of(left, properties, kind), value_of(right, properties, kind)
    if a is None or b is None:
        return None
    tests = {
        "=": a == b,
        "<": what == "<" and a < b,
        ">": what == ">" and a > b,
        "<=": what == "<=" and a <= b,
        ">=": what == ">=" and a >= b,
    }
    return tests[what]


def written(tree: Tree) -> str:
    """The tree as an expression."""
    what, *of = tree
    if what in ("and", "or"):
        return "(" + f" {what.upper()} ".join(written(one) for one in of) + ")"
    if what == "not":
        inner = of[0]
        if inner[0] in ("null", "in", "between"):
            return negated(inner)
        return (
            f"{written(inner[1])} <> {written(inner[2])}"
            if inner[0] == "="
            else f"NOT {written(inner)}"
        )
    if what == "null":
        return f"{written(of[0])} is null"
    if what == "in":
        return f"{written(of[0])} In ({', '.join(map(written, of[1:]))})"
    if what == "between":
        return f"{written(of[0])} between {written(of[1])} and {written(of[2])}"
    if what == "property":
        return str(of[0])
    if what == "text":
        return "'" + of[0].replace("'", "''") + "'"
    if what == "number":
        return str(float(of[0])) if of[0].denominator > 1 else str(int(of[0]))
    if what == "boolean":
        return str(of[0])
    return f"{written(of[0])} {what} {written(of[1])}"


def negated(tree: Tree) -> str:
    what, *of = tree
    if what == "null":
        return f"{written(of[0])} IS NOT NULL"
    if what == "in":
        return f"{written(of[0])} NOT IN ({','.join(map(written, of[1:]))})"
    return f"{written(of[0])} NOT BETWEEN {written(of[1])} AND {written(of[2])}"


NAMES = ("a", "b", "TAGS", "_x$1", "PRIORITY")
TEXTS = (
    "",
    "1",
    "2",
    "1.50",
    "-3",
    "x",
    "xy",
    "true",
    "FALSE",
    "it's",
    " 1 ",
    "1e1",
    "é",
    "0x1",
    "1_0",
    "٣",
    ".",
    "+",
    "9" * 30,
)
names = st.sampled_from(NAMES).map(lambda name: ("property", name))
texts = st.sampled_from(TEXTS).map(lambda text: ("text", text))
numbers = st.sampled_from(
    [Fraction(1), Fraction(2), Fraction(3, 2), Fraction(-3), Fraction(10), Fraction(0)]
).map(lambda n: ("number", n))
conditions = st.one_of(
    st.tuples(
        st.just("="),
        names,
        st.one_of(names, texts, numbers, st.booleans().map(lambda b: ("boolean", b))),
    ),
    st.tuples(
        st.sampled_from(("<", ">", "<=", ">=")),
        st.one_of(names, numbers),
        st.one_of(names, numbers),
    ),
    st.tuples(st.just("between"), names, numbers, names),
    st.lists(st.one_of(texts, numbers), min_size=1, max_size=4).flatmap(
        lambda e: names.map(lambda n: ("in", n, *e))
    ),
    names.map(lambda name: ("null", name)),
    st.tuples(st.sampled_from([*SEARCHES, *(f"NOT {word}" for word in SEARCHES)]), names, texts),
)
trees = st.recursive(
    conditions,
    lambda inner: st.one_of(
        inner.map(lambda one: ("not", one)),
        st.lists(inner, min_size=2, max_size=4).flatmap(
            lambda some: st.sampled_from(("and", "or")).map(lambda word: (word, *some))
        ),
    ),
    max_leaves=12,
)


@given(trees, st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS)))
def test_sql_filter_equals_a_second_evaluator(tree: Tree, properties: dict[str, str]) -> None:
    """Every expression gives the verdict of a second evaluator, and a tag filter in front of it
    never hides a match."""
    expression = written(tree)
    user = {name: value for name, value in properties.items() if name != "TAGS"}
    stored = encode(Fields(message_id="id", tag=properties.get("TAGS") or None, user=user))
    if properties.get("TAGS") == "":
        # An empty tag counts as none.
        properties = user
    made = sql_filter(expression)
    assert made.matches(stored) is (truth(tree, properties) is True), expression
    if made.matches(stored) and made.tags:
        assert properties.get("TAGS", "") in made.tags, expression


@given(st.text("0123456789+-.eE xdL_", max_size=12))
def test_numbers_in_properties_are_read_by_one_rule(text: str) -> None:
    """A property holds a number exactly when its text has the form of one; what Python alone would
    read does not count."""
    mine, plain = number_of(text), None
    if (
        len(text.partition("e")[2].strip("+- ")) < 4
        and len(text.partition("E")[2].strip("+- ")) < 4
    ):
        plain = plain_number(text)
        assert (mine is None) == (plain is None), text
        if plain is not None and abs(plain) < 10**15:
            assert mine == pytest.approx(float(plain), rel=1e-12)


def matches(expression: str, **properties: str) -> bool | None:
    return compiled(expression).test(properties)


@pytest.mark.parametrize(
    ("expression", "properties", "verdict"),
    [
        ("a > 1 AND b = 'x'", {"a": "2", "b": "x"}, True),
        ("a > 1 AND b = 'x'", {"b": "x"}, None),
        ("a > 1 AND b = 'x'", {"b": "y"}, False),
        ("NOT a = 1", {"a": "2"}, True),
        ("NOT (a = 1 OR b = 2)", {"a": "2"}, None),
        ("a = 1", {"a": "1.0"}, True),
        ("a = '1'", {"a": "1.0"}, False),
        ("a > 9", {"a": "10"}, True),
        ("a > 1", {"a": "many"}, None),
        ("a <> 1", {"a": "many"}, None),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a = b", {"a": "1.0", "b": "1"}, False),
        ("9007199254740993 = a", {"a": "9007199254740992"}, False),
        ("a = TRUE", {"a": "True"}, True),
        ("a <> true", {"a": "yes"}, True),
        ("a", {"a": "true"}, True),
        ("a OR TRUE", {}, True),
        ("a AND FALSE", {}, False),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {}, False),
        ("a IN ('x', 'y') AND a NOT IN ('z')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, None),
        ("a IN (1, 'x')", {"a": "1.0"}, True),
        ("a BETWEEN -2 AND 1e1", {"a": "-1.5"}, True),
        ("a NOT BETWEEN 1 AND 2", {"a": "2.01"}, True),
        ("a between 1 and 2 and b = 'x'", {"a": "1", "b": "x"}, True),
        ("a CONTAINS 'b%'", {"a": "ab%c"}, True),
        ("a CONTAINS ''", {"a": "x"}, False),
        ("a NOT CONTAINS ''", {"a": "x"}, False),
        ("a STARTSWITH 'x'", {}, False),
        ("a NOT ENDSWITH 'x'", {}, False),
        ("NOT (a CONTAINS 'x')", {}, True),
        ("a > 9 -- no more than nine\nOR /* or * else */ b = '--'", {"a": "1", "b": "--"}, True),
        ("a NOT STARTSWITH 'a' or a endswith 'c'", {"a": "abc"}, True),
        ("$a_1 = 10L and\n\tor_b = 'AND'", {"$a_1": "10", "or_b": "AND"}, True),
        ("A = 1", {"a": "1"}, None),
    ],
)
def test_the_language_by_example(
    expression: str, properties: dict[str, str], verdict: bool | None
) -> None:
    """One example of each construct and each rule for values."""
    assert matches(expression, **properties) is verdict


def test_reserved_names_are_no_way_to_server_properties() -> None:
    """Only user properties and the tag are seen, whatever else a record carries."""
    stored = encode(
        Fields(
            message_id="m1",
            keys=("k",),
            message_group="g",
            tag="t",
            user={"PRIORITY": "7"},
            priority=3,
        )
    )
    for name in ("UNIQ_KEY", "KEYS", "__SHARDINGKEY", "__BORNHOST", "TRACE_CONTEXT"):
        assert sql_filter(f"{name} IS NULL").matches(stored), name
    assert sql_filter("TAGS = 't' AND PRIORITY = 7").matches(stored)


ERRORS = {
    "": (1, 1, "the expression ends where a condition should follow"),
    "  ": (1, 1, "the expression ends where a condition should follow"),
    "a >": (1, 4, "the expression ends where a property or a value should follow"),
    "a > AND b = 1": (1, 5, 'expected a property or a value, got "AND"'),
    "a = 'x": (1, 5, "the text that begins here has no end: a ' is missing"),
    "a ! 1": (1, 3, '"!" is not part of the filter language'),
    "a = 1 AND\n  b # 2": (2, 5, '"#" is not part of the filter language'),
    "010 = a": (1, 1, '"010" is not part of the filter language'),
    "1a = a": (1, 1, '"1a" is not part of the filter language'),
    "a-b = 1": (1, 2, "arithmetic is not supported: compare a property with a value"),
    "a + 1 = 2": (1, 3, "arithmetic is not supported: compare a property with a value"),
    "a = 3 * 2": (1, 7, "arithmetic is not supported: compare a property with a value"),
    "a = 3 +2": (1, 7, "arithmetic is not supported: compare a property with a value"),
    "-a = 5": (1, 1, "arithmetic is not supported: compare a property with a value"),
    "a / 2 = 1": (1, 3, "arithmetic is not supported: compare a property with a value"),
    "a % 2 = 1": (1, 3, "arithmetic is not supported: compare a property with a value"),
    "a = 1 /* b": (1, 7, "the comment that begins here has no end: */ is missing"),
    "-- a": (1, 5, "the expression ends where a condition should follow"),
    "max(a) = 1": (1, 4, 'expected a comparison, got "("'),
    "a == 1": (1, 4, 'expected a property or a value, got "="'),
    'a = "x"': (1, 5, '""" is not part of the filter language'),
    "a in ()": (1, 7, 'expected a value, got ")"'),
    "a in ('x' 'y')": (1, 11, "expected a comma or ), got \"'y'\""),
    "a in 'x'": (1, 6, "expected (, got \"'x'\""),
    "a in (b)": (1, 7, 'expected a value, got "b"'),
    "a in (true)": (1, 7, "a list holds texts and numbers, not true"),
    "'a' in ('a')": (
        1,
        1,
        "expected a property, got 'a': only a property can be looked up in a list",
    ),
    "a between 1 or 2": (1, 13, 'expected AND, got "or"'),
    "a between 5 and 1": (1, 17, "nothing lies between 5 and 1: the smaller number comes first"),
    "a between 'x' and 'y'": (1, 11, "expected a number, got 'x': only numbers have an order"),
    "a = 1 b": (1, 7, 'expected AND, OR or the end, got "b"'),
    "a = 1)": (1, 6, 'expected AND, OR or the end, got ")"'),
    "(a = 1": (1, 7, "the expression ends where AND, OR or ) should follow"),
    "a is 5": (1, 6, 'expected NULL or NOT NULL, got "5"'),
    "5 is null": (1, 1, "expected a property, got 5: only a property can be NULL"),
    "a like 'x'": (1, 3, "LIKE is not supported: use CONTAINS, STARTSWITH or ENDSWITH"),
    "a = 1 and b NOT LIKE 'x%'": (
        1,
        17,
        "LIKE is not supported: use CONTAINS, STARTSWITH or ENDSWITH",
    ),
    "a = 1 b like 'x'": (1, 7, 'expected AND, OR or the end, got "b"'),
    "a not 5": (1, 7, 'expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, got "5"'),
    "a contains 5": (1, 12, "CONTAINS takes a text in quotes, not 5"),
    "a contains b": (1, 12, 'expected a value, got "b"'),
    "5 contains 'x'": (1, 1, "expected a property, got 5: only a property can be searched"),
    "'x'": (1, 1, "'x' is not a condition: compare it with something"),
    "a = 1 or 5": (1, 10, "5 is not a condition: compare it with something"),
    "a > 'x'": (1, 5, "expected a number, got 'x': only numbers have an order"),
    "a > true": (1, 5, "expected a number, got true: only numbers have an order"),
    "1 = 'x'": (1, 5, "1 and 'x' cannot be equal: a number and a text"),
    "AND": (1, 1, 'expected a condition, got "AND"'),
    "a AND": (1, 6, "the expression ends where a condition should follow"),
    "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1): (
        1,
        1,
        "parentheses and NOT are nested more than 32 deep",
    ),
    "a = 1 OR " * 200 + "a": (1, 1153, "the expression has more than 512 names, values and signs"),
    "a = '" + "x" * EXPRESSION_MAX + "'": (
        1,
        4097,
        "the expression is longer than 4096 characters",
    ),
    "a = " + "9" * 65: (1, 5, "a number has at most 64 characters"),
}


@pytest.mark.parametrize("expression", ERRORS)
def test_mistakes_are_named_with_their_place(expression: str) -> None:
    """Golden table: line, column and reason of every kind of mistake, and a caret below the
    place."""
    with pytest.raises(FilterError) as caught:
        compiled(expression)
    error = caught.value
    assert (error.line, error.column, error.reason) == ERRORS[expression]
    head, shown, caret = str(error).split("\n")
    assert head == f"line {error.line}, column {error.column}: {error.reason}"
    assert caret.endswith("^") and len(caret) <= len(shown) + 1 and len(shown) <= 60


@given(st.text(st.sampled_from("ab1'()<>=!,. \n\t-+ANDORNTISIULé\x00\x02$_"), max_size=60))
def test_any_text_parses_or_fails_with_a_position(text: str) -> None:
    """Any text either parses or raises FilterError with a position in the text or directly after
    it."""
    try:
        compiled(text).test({"a": "1", "b": "x"})
    except FilterError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines) and 1 <= error.column <= len(lines[error.line - 1]) + 1


def test_the_largest_expressions_are_evaluated_without_deep_recursion() -> None:
    """At its limits of length and depth an expression still compiles and runs within the
    interpreter's own stack limit."""
    long = " OR ".join(["a=1"] * ((SYMBOLS_MAX + 1) // 4))
    deep = "(" * (DEPTH_MAX - 1) + "NOT a = 2" + ")" * (DEPTH_MAX - 1)
    assert matches(long, a="1") is True
    assert matches(deep, a="1") is True


def test_tags_that_an_expression_implies() -> None:
    """If only some tags can match, the filter reports them, and their hashes are tested before any
    record is read."""
    implied = {
        "TAGS = 'x'": {"x"},
        "'x' = TAGS AND a > 1": {"x"},
        "TAGS IN ('x', 'y') AND (a = 1 OR b = 2)": {"x", "y"},
        "(TAGS = 'x' AND a = 1) OR (b = 2 AND TAGS = 'y')": {"x", "y"},
        "TAGS IN ('x', 'y') AND TAGS = 'y' AND TAGS IN ('x', 'y', 'z')": {"y"},
        "a = 1 AND b = 2": set(),
        "TAGS = 'x' OR a = 1": set(),
        "NOT TAGS = 'x'": set(),
        "TAGS <> 'x'": set(),
        "TAGS IN ('x', 1)": set(),
        "TAGS CONTAINS 'x'": set(),
        "a = 1": set(),
    }
    assert {expression: set(sql_filter(expression).tags) for expression in implied} == implied
    assert (
        TagFilter().cost
        == 0
        < TagFilter(frozenset({"x"})).cost
        <= sql_filter("a = 1").cost
        < sql_filter("a = 1 OR " * 20 + "b").cost
    )
