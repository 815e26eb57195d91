"""Filters: statements 51 and 52 of the contract's checklist, raw, on virtual time."""

from __future__ import annotations

from typing import Any

from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, Received, contract, message, receive_request
from tests.contract.test_contract_telemetry import consumer, say


def with_user(tag: str = "", **user: str) -> pb.Message:
    out = message(tag=tag) if tag else message()
    out.user_properties.update(user)
    return out


async def sql(server: Backend, expression: str, **options: Any) -> Received:
    request = receive_request(expression=expression, **options)
    request.filter_expression.type = pb.SQL
    return await server.raw.collect(server.raw.stream(request))


@contract()
async def test_statement_051_tag_filters(server: Backend) -> None:
    """Only matching messages come; the others are consumed for the group and stay for other
    groups."""
    for tag in ("tagA", "tagB", "tagC", "", "tagA"):
        await server.raw.send(message(tag=tag) if tag else message())
    got = await server.raw.receive(expression="tagA || tagB")
    assert sorted(m.system_properties.tag for m in got.messages) == ["tagA", "tagA", "tagB"]
    assert (await server.raw.receive(expression="*")).status.code == pb.MESSAGE_NOT_FOUND
    assert len((await server.raw.receive(group="other", expression="")).messages) == 5


@contract()
async def test_statement_051_tags_with_equal_hashes(server: Backend) -> None:
    """The exact tag decides, not its hash: "Aa" and "BB" have one."""
    await server.raw.send(message(tag="Aa"), message(tag="BB"))
    got = await server.raw.receive(expression="BB")
    assert [m.system_properties.tag for m in got.messages] == ["BB"]


@contract()
async def test_statement_051_broken_tag_expressions(server: Backend) -> None:
    """An invalid tag expression is 40010; a filter without a type is a tag filter."""
    for expression in ("||", "a | b", "a\x00", "x" * 70_000):
        assert (
            await server.raw.receive(expression=expression)
        ).status.code == pb.ILLEGAL_FILTER_EXPRESSION, expression
    request = receive_request()
    request.filter_expression.Clear()
    assert (
        await server.raw.collect(server.raw.stream(request))
    ).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_052_sql_filter(server: Backend) -> None:
    """`a > 1 AND b = 'x'` delivers what matches; a message without a property is not delivered, and
    consumed for the group."""
    await server.raw.send(with_user(a="2", b="x"))
    for user in ({"a": "1", "b": "x"}, {"a": "2"}, {"b": "x"}, {}, {"a": "many", "b": "x"}):
        await server.raw.send(with_user(**user))
    got = await sql(server, "a > 1 AND b = 'x'")
    assert [dict(m.user_properties) for m in got.messages] == [{"a": "2", "b": "x"}]
    assert await server.raw.ack(got.messages[0]) == pb.OK
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
    assert len((await server.raw.receive(group="other")).messages) == 6


@contract()
async def test_statement_052_sql_sees_tags(server: Backend) -> None:
    """TAGS is the message's tag."""
    await server.raw.send(with_user("red", a="1"))
    await server.raw.send(with_user("blue", a="1"))
    got = await sql(server, "TAGS IN ('blue', 'green') AND a IS NOT NULL")
    assert [m.system_properties.tag for m in got.messages] == ["blue"]


@contract()
async def test_statement_052_sql_on_a_node_that_forwards(server: Backend) -> None:
    """The expression travels to the leader with the call."""
    await server.raw.send(with_user(a="2"))
    await server.raw.send(with_user(a="1"))
    request = receive_request(expression="a = 1")
    request.filter_expression.type = pb.SQL
    got = await server.raw2.collect(server.raw2.stream(request))
    assert [dict(m.user_properties) for m in got.messages] == [{"a": "1"}]


@contract()
async def test_statement_052_syntax_errors(server: Backend) -> None:
    """A wrong expression is 40010, whose text shows the place; nothing is consumed by it."""
    await server.raw.send(with_user(a="2"))
    got = await sql(server, "a > 1 AND\n b == 'x'")
    assert got.status.code == pb.ILLEGAL_FILTER_EXPRESSION
    assert got.status.message.splitlines() == [
        'the SQL filter is wrong at line 2, column 5: expected a property or a value, got "="',
        " b == 'x'",
        "    ^",
    ]
    for expression in (
        "",
        "(" * 300 + "a = 1",
        "a = '" + "x" * 70_000 + "'",
        "a = 1 OR " * 5000,
        "\x00",
    ):
        assert (await sql(server, expression)).status.code == pb.ILLEGAL_FILTER_EXPRESSION, (
            expression[:20]
        )
    assert len((await server.raw.receive()).messages) == 1


@contract()
async def test_statement_052_settings_with_sql(server: Backend) -> None:
    """Settings with an SQL subscription are returned unchanged, even with an invalid expression:
    the application gets the error when it receives."""
    for expression in ("a > 1 AND b = 'x'", "a >"):
        said = consumer(expression, pb.SQL)
        got = (await say(server.raw.telemetry(), said)).settings
        assert got.subscription.subscriptions == said.settings.subscription.subscriptions
    refused = (await sql(server, "a >")).status
    assert refused.code == pb.ILLEGAL_FILTER_EXPRESSION and "line 1, column 4" in refused.message
