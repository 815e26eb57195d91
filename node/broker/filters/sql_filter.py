"""SQL92 filter expressions: compiles their text to a predicate over a message's properties
(contract §5.8).

The module has the grammar, the rules that a grammar cannot express, three-valued evaluation, and
the position of errors in the text. It is pure: an expression is compiled once and keeps no state of
the messages it tests. `filters.py` applies filters to a Receive.

A condition is true, false or unknown, and only a true one matches. A condition is unknown if it
needs a property that the message does not have, or a number where the property is not one; NOT
leaves it unknown, AND and OR treat it as SQL does. Only a search (CONTAINS, STARTSWITH, ENDSWITH,
with and without NOT) is false then, and with an empty text, as in RocketMQ. Values of properties
are texts. Compared with a number, or by order, they are read as numbers; compared with TRUE or
FALSE, they are read as Java reads a boolean: any text but "true" is false.

Nothing here recurses with the length of the text: the parser keeps its own stack and builds the
predicate while it reads, chains of AND and OR are flat, and only parentheses and NOT nest, to a
limit.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ledgermq.proto.entries.properties import TAG, stored_key

EXPRESSION_MAX = 4096
"""In characters."""
SYMBOLS_MAX = 512
"""Names, values, signs and keywords: a client's call pays for parsing each of them, and every
message for evaluating them."""
DEPTH_MAX = 32
"""Levels of parentheses and NOT: each uses frames of the interpreter's stack when a message is
tested."""
EXCERPT = 60

Verdict = bool | None
"""None: unknown."""
Test = Callable[[Mapping[str, str]], Verdict]
"""A predicate over properties by their stored names (format §4.1)."""
Number = int | float

GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction
    | conjunction (_OR conjunction)+                  -> any_of
?conjunction: negation
    | negation (_AND negation)+                       -> all_of
?negation: NOT negation                               -> negated
    | condition
?condition: value COMPARATOR value                    -> comparison
    | value BETWEEN value _AND value                  -> between
    | value NOT BETWEEN value _AND value              -> not_between
    | value IN "(" literal ("," literal)* ")"         -> within
    | value NOT IN "(" literal ("," literal)* ")"     -> not_within
    | value IS NULL                                   -> is_null
    | value IS NOT NULL                               -> is_not_null
    | value SEARCH literal                            -> search
    | value NOT SEARCH literal                        -> not_search
    | value                                           -> alone
    | LPAR disjunction ")"                            -> nested
?value: NAME -> property
    | literal
?literal: STRING -> text
    | NUMBER -> number
    | TRUE -> boolean
    | FALSE -> boolean
LPAR: "("
COMPARATOR: "<>" | "!=" | "<=" | ">=" | "=" | "<" | ">"
STRING: /'(?:[^']|'')*'/
NUMBER: /[+-]?(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|(?:0|[1-9][0-9]*)[lL]?)(?![\w$.])/
_OR.2: /OR(?![\w$])/i
_AND.2: /AND(?![\w$])/i
NOT.2: /NOT(?![\w$])/i
BETWEEN.2: /BETWEEN(?![\w$])/i
IN.2: /IN(?![\w$])/i
IS.2: /IS(?![\w$])/i
NULL.2: /NULL(?![\w$])/i
TRUE.2: /TRUE(?![\w$])/i
FALSE.2: /FALSE(?![\w$])/i
SEARCH.2: /(?:CONTAINS|STARTSWITH|ENDSWITH)(?![\w$])/i
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%ignore /[ \t\r\n\f]+/
%ignore /--[^\r\n]*/
%ignore /\/\*(?:[^*]|\*(?!\/))*\*\//
"""

_SYMBOL = re.compile(r"'(?:[^']|'')*'|[\w$.]+|[^\s\w]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_INTEGER = re.compile(r"[+-]?[0-9]+").fullmatch
_NUMBER_CHARACTERS_MAX = 64
_ARITHMETIC = frozenset("+-*/%")
_NO_ARITHMETIC = "arithmetic is not supported: compare a property with a value"
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class FilterError(ValueError):
    """An invalid expression. `line` and `column` count from 1; the text ends with the line and a
    caret below the error."""

    def __init__(self, expression: str, at: int, reason: str) -> None:
        begin = expression.rfind("\n", 0, at) + 1
        self.line = expression.count("\n", 0, at) + 1
        self.column = at - begin + 1
        end = expression.find("\n", at)
        text = expression[begin : len(expression) if end < 0 else end]
        # A long line is cut around the error, so that the caret stays visible.
        cut = max(0, self.column - 1 - EXCERPT // 2)
        shown = "".join([c if c.isprintable() else " " for c in text[cut : cut + EXCERPT]])
        self.reason = reason
        super().__init__(
            f"line {self.line}, column {self.column}:"
            f" {reason}\n{shown.rstrip()}\n{' ' * (self.column - 1 - cut)}^"
        )


class Part(NamedTuple):
    """A condition. If `tags` is not None, the condition is true only for messages with one of these
    tags."""

    test: Test
    tags: frozenset[str] | None = None
    depth: int = 0
    symbols: int = 0
    """The number of symbols of the whole expression."""


def compiled(expression: str) -> Part:
    """Compile an expression. Raises FilterError."""
    if len(expression) > EXPRESSION_MAX:
        raise FilterError(
            expression, EXPRESSION_MAX, f"the expression is longer than {EXPRESSION_MAX} characters"
        )
    symbols = [symbol.start() for symbol in islice(_SYMBOL.finditer(expression), SYMBOLS_MAX + 1)]
    if len(symbols) > SYMBOLS_MAX:
        raise FilterError(
            expression,
            symbols[-1],
            f"the expression has more than {SYMBOLS_MAX} names, values and signs",
        )
    try:
        part: Part = _parser().parse(expression)  # type: ignore[assignment]  # what the builder makes of the start rule
    except _Mistake as mistake:
        raise FilterError(expression, mistake.at, mistake.reason) from None
    except UnexpectedInput as error:
        at, reason = _explained(expression, error)
        raise FilterError(expression, at, reason) from None
    return part._replace(symbols=len(symbols))


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR, parser="lalr", lexer="basic", maybe_placeholders=False, transformer=_Builder()
    )


class _Mistake(Exception):
    """An error that the grammar does not detect."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


# -- values


class _Value(NamedTuple):
    """One operand: the property of this stored name, or a literal."""

    at: int
    shown: str
    name: str | None
    literal: str | Number | bool | None = None

    def as_text(self) -> Callable[[Mapping[str, str]], Any]:
        return _getter(self.name) if self.name is not None else _constant(self.literal)

    def as_number(self) -> Callable[[Mapping[str, str]], Any]:
        if self.name is None:
            return _constant(self.literal)
        get = _getter(self.name)
        return lambda properties: number_of(get(properties))

    def as_boolean(self) -> Callable[[Mapping[str, str]], Any]:
        if self.name is None:
            return _constant(self.literal)
        get = _getter(self.name)
        return lambda properties: (
            None if (text := get(properties)) is None else text.lower() == "true"
        )

    @property
    def kind(self) -> str:
        """One of: property, text, number, boolean."""
        if self.name is not None:
            return "property"
        return (
            "boolean"
            if isinstance(self.literal, bool)
            else "text"
            if isinstance(self.literal, str)
            else "number"
        )


def _getter(name: str) -> Callable[[Mapping[str, str]], str | None]:
    return lambda properties: properties.get(name)


def _constant(value: Any) -> Callable[[Mapping[str, str]], Any]:
    return lambda _: value


def number_of(text: str | None) -> Number | None:
    """The number in a property's text; None if the text is None or not a number."""
    if text is None or len(text) > _NUMBER_CHARACTERS_MAX:
        return None
    text = text.strip()
    if not _NUMBER(text):
        return None
    return int(text) if _INTEGER(text) else float(text)


# -- conditions


def _negation(test: Test) -> Test:
    return lambda properties: None if (verdict := test(properties)) is None else not verdict


def _all_of(tests: tuple[Test, ...]) -> Test:
    def test(properties: Mapping[str, str]) -> Verdict:
        verdict: Verdict = True
        for one in tests:
            found = one(properties)
            if found is False:
                return False
            if found is None:
                verdict = None
        return verdict

    return test


def _any_of(tests: tuple[Test, ...]) -> Test:
    def test(properties: Mapping[str, str]) -> Verdict:
        verdict: Verdict = False
        for one in tests:
            found = one(properties)
            if found:
                return True
            if found is None:
                verdict = None
        return verdict

    return test


def _related(
    relation: Callable[[Any, Any], bool], left: Callable[..., Any], right: Callable[..., Any]
) -> Test:
    def test(properties: Mapping[str, str]) -> Verdict:
        a, b = left(properties), right(properties)
        return None if a is None or b is None else relation(a, b)

    return test


def _ordered(relation: str, left: _Value, right: _Value) -> Test:
    for value in (left, right):
        if value.kind not in ("property", "number"):
            raise _Mistake(
                value.at, f"expected a number, got {value.shown}: only numbers have an order"
            )
    return _related(_ORDERS[relation], left.as_number(), right.as_number())


def _equal(left: _Value, right: _Value) -> Test:
    kinds = {left.kind, right.kind} - {"property"}
    if len(kinds) > 1:
        raise _Mistake(
            right.at,
            f"{left.shown} and {right.shown} cannot be equal: a {left.kind} and a {right.kind}",
        )
    if kinds == {"number"}:
        return _related(operator.eq, left.as_number(), right.as_number())
    if kinds == {"boolean"}:
        return _related(operator.eq, left.as_boolean(), right.as_boolean())
    return _related(operator.eq, left.as_text(), right.as_text())


def _implied(tags: list[frozenset[str] | None]) -> frozenset[str] | None:
    """For conditions that must all be true: the smallest set of tags that one of them implies; None
    if none implies any."""
    return min((some for some in tags if some is not None), key=len, default=None)


class _Builder(Transformer[Token, Any]):
    """Turns each grammar rule into its value or condition as soon as the parser has read it."""

    def property(self, items: list[Token]) -> _Value:
        (token,) = items
        return _Value(_at(token), str(token), stored_key(str(token)))

    def text(self, items: list[Token]) -> _Value:
        (token,) = items
        return _Value(_at(token), _short(token), None, token[1:-1].replace("''", "'"))

    def number(self, items: list[Token]) -> _Value:
        (token,) = items
        number = token.rstrip("lL")
        if len(number) > _NUMBER_CHARACTERS_MAX:
            raise _Mistake(_at(token), f"a number has at most {_NUMBER_CHARACTERS_MAX} characters")
        return _Value(
            _at(token), str(token), None, int(number) if _INTEGER(number) else float(number)
        )

    def boolean(self, items: list[Token]) -> _Value:
        (token,) = items
        return _Value(_at(token), str(token), None, token.upper() == "TRUE")

    def any_of(self, parts: list[Part]) -> Part:
        tags = [part.tags for part in parts]
        joined = (
            None
            if None in tags
            else frozenset[str]().union(*[some for some in tags if some is not None])
        )
        return Part(
            _any_of(tuple([part.test for part in parts])), joined, max(part.depth for part in parts)
        )

    def all_of(self, parts: list[Part]) -> Part:
        tags = _implied([part.tags for part in parts])
        return Part(
            _all_of(tuple([part.test for part in parts])), tags, max(part.depth for part in parts)
        )

    def negated(self, items: list[Any]) -> Part:
        token, part = items
        return Part(_negation(part.test), None, _deeper(token, part))

    def nested(self, items: list[Any]) -> Part:
        token, part = items
        return part._replace(depth=_deeper(token, part))  # type: ignore[no-any-return]

    def alone(self, items: list[_Value]) -> Part:
        (value,) = items
        if value.kind not in ("property", "boolean"):
            raise _Mistake(value.at, f"{value.shown} is not a condition: compare it with something")
        return Part(value.as_boolean())

    def comparison(self, items: list[Any]) -> Part:
        left, relation, right = items
        if relation in _ORDERS:
            return Part(_ordered(relation, left, right))
        equal = _equal(left, right)
        if relation != "=":
            return Part(_negation(equal))
        texts = [value.literal for value in (left, right) if value.kind == "text"]
        tagged = TAG in (left.name, right.name) and len(texts) == 1
        return Part(equal, frozenset(texts) if tagged else None)

    def between(self, items: list[Any]) -> Part:
        value, _, low, high = items
        return Part(_all_of((_ordered(">=", value, low), _ordered("<=", value, _bound(low, high)))))

    def not_between(self, items: list[Any]) -> Part:
        value, _, _, low, high = items
        return Part(_any_of((_ordered("<", value, low), _ordered(">", value, _bound(low, high)))))

    def within(self, items: list[Any]) -> Part:
        value, _, *elements = items
        texts = frozenset([element.literal for element in elements if element.kind == "text"])
        tagged = value.name == TAG and len(texts) == len({element.literal for element in elements})
        return Part(_within(value, elements), texts if tagged else None)

    def not_within(self, items: list[Any]) -> Part:
        value, _, _, *elements = items
        return Part(_negation(_within(value, elements)))

    def is_null(self, items: list[Any]) -> Part:
        name = _property(items[0], "can be NULL").name
        return Part(lambda properties: name not in properties)

    def is_not_null(self, items: list[Any]) -> Part:
        name = _property(items[0], "can be NULL").name
        return Part(lambda properties: name in properties)

    def search(self, items: list[Any]) -> Part:
        value, word, wanted = items
        return Part(_search(value, word, wanted, wants=True))

    def not_search(self, items: list[Any]) -> Part:
        value, _, word, wanted = items
        return Part(_search(value, word, wanted, wants=False))


def _at(token: Token) -> int:
    assert token.start_pos is not None, token
    return token.start_pos


def _short(token: Token) -> str:
    return str(token) if len(token) <= EXCERPT // 2 else f"{token[: EXCERPT // 2]}…"


def _deeper(token: Token, part: Part) -> int:
    if part.depth >= DEPTH_MAX:
        raise _Mistake(_at(token), f"parentheses and NOT are nested more than {DEPTH_MAX} deep")
    return part.depth + 1


def _property(value: _Value, what: str) -> _Value:
    if value.name is None:
        raise _Mistake(value.at, f"expected a property, got {value.shown}: only a property {what}")
    return value


def _bound(low: _Value, high: _Value) -> _Value:
    if (
        isinstance(low.literal, int | float)
        and isinstance(high.literal, int | float)
        and low.literal > high.literal
    ):
        raise _Mistake(
            high.at,
            f"nothing lies between {low.shown} and {high.shown}: the smaller number comes first",
        )
    return high


def _within(value: _Value, elements: list[_Value]) -> Test:
    _property(value, "can be looked up in a list")
    texts = frozenset([element.literal for element in elements if element.kind == "text"])
    numbers = frozenset([element.literal for element in elements if element.kind == "number"])
    for element in elements:
        if element.kind == "boolean":
            raise _Mistake(element.at, f"a list holds texts and numbers, not {element.shown}")
    get, number = value.as_text(), value.as_number()

    def test(properties: Mapping[str, str]) -> Verdict:
        text = get(properties)
        if text is None:
            return None
        if text in texts:
            return True
        if not numbers:
            return False
        found = number(properties)
        return None if found is None else found in numbers

    return test


def _search(value: _Value, word: Token, wanted: _Value, *, wants: bool) -> Test:
    get = _property(value, "can be searched").as_text()
    text = wanted.literal
    if not isinstance(text, str):
        raise _Mistake(wanted.at, f"{word.upper()} takes a text in quotes, not {wanted.shown}")
    finds = _SEARCHES[word.upper()]

    def test(properties: Mapping[str, str]) -> Verdict:
        held = get(properties)
        return held is not None and text != "" and finds(held, text) is wants

    return test


# -- mistakes


def _explained(expression: str, error: UnexpectedInput) -> tuple[int, str]:
    """The position where the text stops being a valid expression, and the reason."""
    if isinstance(error, UnexpectedCharacters):
        at = error.pos_in_stream
        assert at is not None
        if expression[at] == "'":
            return at, "the text that begins here has no end: a ' is missing"
        if expression.startswith("/*", at):
            return at, "the comment that begins here has no end: */ is missing"
        if expression[at] in _ARITHMETIC:
            return at, _NO_ARITHMETIC
        word = _SYMBOL.match(expression, at)
        assert word is not None, expression
        return at, f"{_quoted(word[0])} is not part of the filter language"
    assert isinstance(error, UnexpectedToken), error
    wanted = _wanted(frozenset(error.accepts or error.expected))
    if error.token.type == "$END":
        return len(expression.rstrip()), f"the expression ends where {wanted} should follow"
    if error.token.type == "NUMBER" and error.token[0] in _ARITHMETIC:
        return _at(error.token), _NO_ARITHMETIC
    if error.token.upper() == "LIKE":
        return _at(error.token), "LIKE is not supported: use CONTAINS, STARTSWITH or ENDSWITH"
    return _at(error.token), f"expected {wanted}, got {_quoted(error.token)}"


def _quoted(symbol: str) -> str:
    return f'"{symbol if len(symbol) <= EXCERPT // 2 else symbol[: EXCERPT // 2] + "…"}"'


def _wanted(accepted: frozenset[str]) -> str:
    """What may follow, in words for people."""
    if accepted == {"LPAR"}:
        return "("
    if "LPAR" in accepted:
        return "a condition"
    if "COMPARATOR" in accepted:
        return "a comparison"
    if "NAME" in accepted:
        return "a property or a value"
    if "STRING" in accepted:
        return "a value"
    if "COMMA" in accepted:
        return "a comma or )"
    if "RPAR" in accepted:
        return "AND, OR or )"
    if "$END" in accepted:
        return "AND, OR or the end"
    if "NULL" in accepted:
        return "NULL or NOT NULL"
    if "SEARCH" in accepted:
        return "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"
    return " or ".join(sorted(name.strip("_") for name in accepted))
