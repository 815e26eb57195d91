"""Users, permissions and the authority that holds calls against them, as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import pytest

from ledgermq.node.controller import metadata
from ledgermq.node.controller.grants import Action, Kind, Need, User, effective, grant_of
from ledgermq.node.controller.state import Outcome, State, export, restore
from ledgermq.node.frontend.admin.cluster.user_admin import UserAdmin
from ledgermq.node.frontend.ports import ServerCall
from ledgermq.node.frontend.security import admin_guard
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.proto import admin_pb2
from ledgermq.proto.signature import OPERATOR, Credentials, operator_of, sign
from ledgermq.proto.status import Code, LedgerError, fail

PUB, SUB, ADMIN = Action.PUBLISH, Action.SUBSCRIBE, Action.ADMIN
TOPIC, GROUP, CLUSTER = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER
SECRET = b"0123456789abcdef0123456789abcdef"
DATE = "20260102T030405Z"


@pytest.mark.parametrize(
    ("grant", "need", "covered"),
    [
        ("publish:topic:orders", Need(PUB, TOPIC, "orders"), True),
        ("publish:topic:orders", Need(PUB, TOPIC, "orders2"), False),
        ("publish:topic:orders", Need(SUB, TOPIC, "orders"), False),
        ("publish:topic:orders*", Need(PUB, TOPIC, "orders2"), True),
        ("publish:topic:orders*", Need(PUB, TOPIC, "order"), False),
        ("publish:topic:orders*", Need(PUB, TOPIC, "orders@orders"), False),
        ("publish:topic:*", Need(PUB, TOPIC, "ns@orders"), False),
        ("publish:topic:ns@*", Need(PUB, TOPIC, "ns@orders"), True),
        ("publish:topic:n*@orders", Need(PUB, TOPIC, "ns@orders"), True),
        ("publish:topic:n*@orders", Need(PUB, TOPIC, "orders"), False),
        ("publish:topic:*@*", Need(PUB, TOPIC, "orders"), True),
        ("subscribe:group:g", Need(SUB, GROUP, "g"), True),
        ("subscribe:group:g", Need(SUB, TOPIC, "g"), False),
        ("subscribe:topic:%DLQ%*", Need(SUB, TOPIC, "%DLQ%g"), True),
        ("admin:topic:orders", Need(PUB, TOPIC, "orders"), True),
        ("admin:topic:orders", Need(ADMIN, TOPIC, "orders"), True),
        ("admin:topic:orders", Need(ADMIN, GROUP, "orders"), False),
        ("admin:topic:*@*", Need(ADMIN, CLUSTER), False),
        ("admin:cluster:*", Need(ADMIN, CLUSTER), True),
        ("admin:cluster:*", Need(ADMIN, CLUSTER, "users"), True),
        ("admin:cluster:*", Need(PUB, TOPIC, "ns@orders"), True),
        ("admin:cluster:users", Need(ADMIN, CLUSTER, "users"), True),
        ("admin:cluster:users", Need(ADMIN, CLUSTER), False),
        ("admin:cluster:users", Need(PUB, TOPIC, "users"), False),
    ],
)
def test_grant_covers_its_pattern_only(grant: str, need: Need, covered: bool) -> None:
    """One row for every kind of pattern; what no row covers is denied."""
    assert grant_of(grant).covers(need) is covered


NO_GRANTS = [
    "",
    "publish",
    "publish:topic",
    "publish:topic:",
    "publish:group:g",
    "publish:cluster:*",
    "read:topic:t",
    "admin:cluster:x",
]
NO_GRANTS += [
    "publish:topic:a b",
    "publish:topic:**",
    "publish:topic:a*b",
    "publish:topic:a@b@c",
    "publish:topic:*a",
]


@pytest.mark.parametrize("text", NO_GRANTS)
def test_malformed_grant_is_refused(text: str) -> None:
    """Refused with a sentence, never half understood."""
    with pytest.raises(ValueError):
        grant_of(text)


def apply(state: State, op: str, **arguments: Any) -> tuple[State, Outcome]:
    return metadata.apply(state, {"op": op, **arguments})


def test_users_in_the_controller() -> None:
    """Created, changed and deleted; the same again changes nothing; a restored state is the same;
    no answer holds a secret."""
    state, made = apply(
        State(),
        "create-user",
        name="alice",
        secret="sealed-1",
        grants=["publish:topic:a"],
        roles=[],
    )
    assert (made.code, made.changed) == (20000, True)
    again, outcome = apply(
        state, "create-user", name="alice", secret="sealed-1", grants=["publish:topic:a"], roles=[]
    )
    assert (again.revision, outcome.changed, outcome.code) == (state.revision, False, 20000)
    assert (
        apply(state, "create-user", name="alice", secret="other")[1].code
        == Code.PRECONDITION_FAILED
    )
    state, _ = apply(state, "create-user", name="readers", grants=["subscribe:topic:*"])
    changes = {
        "grant": ["publish:topic:b"],
        "revoke": ["publish:topic:a"],
        "give_roles": ["readers"],
    }
    state, outcome = apply(state, "change-user", name="alice", **changes)
    assert outcome.value == {
        "name": "alice",
        "role": False,
        "grants": ["publish:topic:b"],
        "roles": ["readers"],
        "secrets": 1,
    }
    assert {str(g) for g in effective(state.users["alice"], state.users)} == {
        "publish:topic:b",
        "subscribe:topic:*",
    }
    for number in (2, 3):
        state, outcome = apply(state, "change-user", name="alice", secret=f"sealed-{number}")
        assert (
            outcome.value is not None
            and outcome.value["secrets"] == 2
            and "sealed" not in str(outcome)
        )
    assert state.users["alice"].secrets == ("sealed-3", "sealed-2") and "sealed" not in repr(
        state.users
    )
    assert restore(export(state)) == state
    state, _ = apply(state, "change-user", name="alice", end_former=True)
    assert state.users["alice"].secrets == ("sealed-3",)
    assert apply(state, "delete-user", name="readers")[1].code == Code.PRECONDITION_FAILED
    state, _ = apply(state, "delete-user", name="alice")
    state, _ = apply(state, "delete-user", name="readers")
    assert state.users == {}


def test_a_state_without_users_is_readable() -> None:
    """Snapshots from before there were users."""
    tree = export(State())
    del tree["users"]
    assert restore(tree) == State()


@pytest.mark.parametrize(
    ("op", "arguments", "code"),
    [
        ("create-user", {"name": "_operator", "secret": "x"}, Code.BAD_REQUEST),
        ("create-user", {"name": "a/b", "secret": "x"}, Code.BAD_REQUEST),
        ("create-user", {"name": "a", "secret": 3}, Code.BAD_REQUEST),
        ("create-user", {"name": "a", "roles": ["nobody"]}, Code.BAD_REQUEST),
        ("create-user", {"name": "a", "grants": ["publish"]}, Code.BAD_REQUEST),
        (
            "create-user",
            {"name": "a", "grants": [f"publish:topic:t{k}" for k in range(300)]},
            Code.BAD_REQUEST,
        ),
        ("change-user", {"name": "a"}, Code.NOT_FOUND),
        ("delete-user", {"name": "a"}, Code.NOT_FOUND),
    ],
)
def test_refused_commands(op: str, arguments: dict[str, Any], code: Code) -> None:
    """Nothing changes, and the sentence says why."""
    state, outcome = apply(State(), op, **arguments)
    assert outcome.code == code and outcome.detail and state == State()


def test_sealed_secrets() -> None:
    """They open with the right cluster secret for the right user of the right cluster only, also
    the one before; equal in, equal out."""
    sealer = Sealer((SECRET,), "c1")
    sealed = sealer.seal("alice", "open sesame")
    assert sealer.seal("alice", "open sesame") == sealed and "sesame" not in sealed
    assert sealer.open("alice", sealed) == "open sesame"
    assert sealer.open("bob", sealed) is None and sealer.open("alice", "?") is None
    assert Sealer((SECRET,), "c2").open("alice", sealed) is None
    assert Sealer((b"n" * 32,), "c1").open("alice", sealed) is None
    assert Sealer((b"n" * 32, SECRET), "c1").open("alice", sealed) == "open sesame"


class Scene:
    """An authority over users that the test changes."""

    def __init__(self, **options: Any) -> None:
        self.users: Mapping[str, User] = MappingProxyType({})
        self.sealer = Sealer((SECRET,), "c1")
        self.now = 100.0
        self.barriers = 0
        self.late: User | None = None
        self.authority = Authority(
            lambda: self.users,
            self.catch_up,
            self.sealer,
            operator_of(SECRET),
            required=True,
            now=lambda: self.now,
            **options,
        )

    async def catch_up(self) -> None:
        self.barriers += 1
        if self.late is not None:
            self.put(self.late)

    def put(self, user: User) -> None:
        self.users = MappingProxyType({**self.users, user.name: user})

    def user(self, name: str, *secrets: str, grants: tuple[str, ...] = ()) -> User:
        return User(
            name,
            tuple(self.sealer.seal(name, secret) for secret in secrets),
            frozenset(map(grant_of, grants)),
        )

    def who(self, access_key: str, secret: str, common_name: str = "") -> str | int:
        """The user, or the code of the refusal."""
        header = {
            "x-mq-date-time": DATE,
            "authorization": sign(Credentials(access_key, secret), DATE),
        }
        try:
            return asyncio.run(
                self.authority.authenticate(header if access_key else {}, common_name)
            )
        except LedgerError as error:
            return int(error.code)

    def may(self, user: str, *needs: Need) -> bool:
        try:
            self.authority.authorize(user, needs)
        except LedgerError as error:
            assert error.code == Code.FORBIDDEN
            return False
        return True


def test_caller_is_identified_by_secret_or_refused() -> None:
    """Right and wrong secrets, two secrets during a change, a role, an unknown user, and no
    user."""
    scene = Scene()
    scene.put(scene.user("alice", "new secret", "old secret"))
    scene.put(scene.user("readers"))
    assert scene.who("alice", "new secret") == scene.who("alice", "old secret") == "alice"
    assert {
        scene.who("alice", "bad"),
        scene.who("readers", ""),
        scene.who("bob", "x"),
        scene.who("", ""),
    } == {40100}
    assert scene.who("readers", "no secret of anybody") == 40100
    scene.put(scene.user("alice", "new secret"))
    assert scene.who("alice", "old secret") == 40100


def test_a_user_made_elsewhere_a_moment_ago() -> None:
    """A stranger makes the node catch up, once a second for all strangers together; a wrong secret
    of a known user does not."""
    scene = Scene()
    scene.put(scene.user("alice", "secret"))
    scene.who("alice", "bad")
    assert scene.barriers == 0
    scene.late = scene.user("bob", "secret of bob")
    assert scene.who("bob", "secret of bob") == "bob" and scene.barriers == 1
    assert scene.who("eve", "x") == 40100 and scene.barriers == 1
    scene.now += 1
    assert scene.who("eve", "x") == 40100 and scene.barriers == 2


def test_certificates_stand_for_users() -> None:
    """By common name, for a call without a signature; a signature counts before it."""
    scene = Scene(common_names={"billing-service": "alice", "stale": "gone"})
    scene.put(scene.user("alice", "a"))
    scene.put(scene.user("bob", "b"))
    assert scene.who("", "", "billing-service") == "alice"
    assert scene.who("bob", "b", "billing-service") == "bob"
    assert scene.who("", "", "stale") == scene.who("", "", "other") == 40100


def test_verdicts_follow_the_users() -> None:
    """Cached verdicts end with any change of users; anonymous and unknown users have no
    permissions; one of several needs suffices."""
    scene = Scene()
    orders, logs = Need(PUB, TOPIC, "orders"), Need(PUB, TOPIC, "logs")
    scene.put(scene.user("alice", "a", grants=("publish:topic:orders",)))
    assert (
        scene.may("alice", orders)
        and not scene.may("alice", logs)
        and scene.may("alice", logs, orders)
    )
    assert not scene.may("alice") and not scene.may("bob", orders)
    scene.put(scene.user("alice", "a", grants=("publish:topic:logs",)))
    assert scene.may("alice", logs) and not scene.may("alice", orders)


def test_the_operator_looks_after_users_only() -> None:
    """The owner of the cluster's secret file may create the first user, but not access messages."""
    scene = Scene()
    assert scene.who(OPERATOR, operator_of(SECRET).secret_key) == OPERATOR
    assert scene.who(OPERATOR, "x") == 40100
    assert scene.may(OPERATOR, Need(ADMIN, CLUSTER, "users"))
    assert not scene.may(OPERATOR, Need(ADMIN, CLUSTER)) and not scene.may(
        OPERATOR, Need(PUB, TOPIC, "t")
    )


def test_admin_methods_need_an_administrator() -> None:
    """Every method of the service has a need of the kind admin, and those on a topic or group name
    it."""
    for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods:
        request = getattr(admin_pb2, method.input_type.name)()
        for name in ("topic", "group"):
            field = request.DESCRIPTOR.fields_by_name.get(name)
            if field is not None and field.message_type is not None:
                getattr(request, name).name = "orders"
        need = admin_guard.needs_of(method.name, request)[0]
        assert need.action is ADMIN, method.name
        names_one = any(name in request.DESCRIPTOR.fields_by_name for name in ("topic", "group"))
        assert need.name == "orders" if names_one else need.kind is CLUSTER, method.name


def _named(**fields: str) -> dict[str, Any]:
    """`topic` and `group` as messages, all other fields as they are."""
    return {
        key: admin_pb2.Name(namespace="ns", name=value) if key in ("topic", "group") else value
        for key, value in fields.items()
    }


def test_call_with_topic_and_group_needs_rights_on_both() -> None:
    """Rights on a group alone neither show nor move anything in a topic. A question that searches
    all topics needs all of them."""
    of_group = Need(ADMIN, GROUP, "ns@g")
    cases = [
        ("WhyNotDelivered", {"message_id": "m"}, "ns@*"),
        ("WhyNotDelivered", {"message_id": "m", "topic": "t"}, "ns@t"),
        ("GroupLag", {"topic": "t"}, "ns@t"),
        ("ResetGroup", {"topic": "t"}, "ns@t"),
        ("CreateGroup", {"lite_topic": "t"}, "ns@t"),
        ("UpdateGroup", {"lite_topic": "t"}, "ns@t"),
    ]
    for method, fields, topic in cases:
        request = getattr(admin_pb2, f"{method}Request")(**_named(group="g", **fields))
        assert admin_guard.needs_of(method, request) == (of_group, Need(SUB, TOPIC, topic)), (
            method,
            fields,
        )
    for method in ("GroupLag", "CreateGroup", "UpdateGroup", "DescribeGroup", "DeleteGroup"):
        request = getattr(admin_pb2, f"{method}Request")(**_named(group="g"))
        assert admin_guard.needs_of(method, request) == (of_group,), method
    beside = {
        method.name
        for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
        if "group" in (fields := method.input_type.fields_by_name)
        and ("topic" in fields or "lite_topic" in fields)
    }
    assert beside == {method for method, _, _ in cases}, (
        "a method that names a topic beside a group has no case here"
    )


@pytest.mark.parametrize(
    ("grants", "code"),
    [
        (("admin:group:mg*",), Code.FORBIDDEN),
        (("admin:group:mg*", "subscribe:topic:other"), Code.FORBIDDEN),
        (("admin:group:mg*", "publish:topic:orders"), Code.FORBIDDEN),
        (("admin:group:mg*", "subscribe:topic:orders"), Code.OK),
        (("admin:group:mg*", "admin:topic:orders"), Code.OK),
        (("admin:topic:orders",), Code.FORBIDDEN),
    ],
)
def test_lag_and_reset_in_a_topic_of_others_are_refused(
    grants: tuple[str, ...], code: Code
) -> None:
    """Before the service sees the call."""
    scene = Scene()
    scene.put(scene.user("mallory", "m", grants=grants))
    served = []

    def handler(method: str) -> admin_guard.Serve:
        async def serve(request: Any, context: Any) -> Any:
            served.append(method)
            return getattr(admin_pb2, f"{method}Response")(
                status=admin_pb2.Status(code=int(Code.OK))
            )

        return serve

    class Context:
        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (
                ("x-mq-date-time", DATE),
                ("authorization", sign(Credentials("mallory", "m"), DATE)),
            )

        def peer(self) -> str:
            return "test"

    async def asked(serve: admin_guard.Serve, request: Any) -> Any:
        return await serve(request, cast(ServerCall, Context()))

    methods = ("GroupLag", "ResetGroup")
    guarded = admin_guard.guarded(
        {method: handler(method) for method in methods}, scene.authority, str
    )
    for method in methods:
        request = getattr(admin_pb2, f"{method}Request")(
            group=admin_pb2.Name(name="mg1"), topic=admin_pb2.Name(name="orders")
        )
        answer = asyncio.run(asked(guarded[method], request))
        assert answer.status.code == code, answer
    assert served == (list(methods) if code == Code.OK else [])


def test_the_operator_may_let_nodes_come_stop_and_go() -> None:
    """A node's own machine has the cluster secret and no user's keys; it changes who replicates and
    who leads, and no setting."""
    scene = Scene()
    served = []

    async def serve(request: Any, context: Any) -> Any:
        served.append(type(request).__name__.removesuffix("Request"))
        return getattr(admin_pb2, f"{served[-1]}Response")(
            status=admin_pb2.Status(code=int(Code.OK))
        )

    class Context:
        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return (("x-mq-date-time", DATE), ("authorization", sign(operator_of(SECRET), DATE)))

        def peer(self) -> str:
            return "test"

    async def asked(method: str) -> int:
        request = getattr(admin_pb2, f"{method}Request")()
        answer = await guarded[method](request, cast(ServerCall, Context()))
        return int(answer.status.code)

    methods = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods]
    guarded = admin_guard.guarded(dict.fromkeys(methods, serve), scene.authority, str)
    codes = {method: asyncio.run(asked(method)) for method in methods}
    nodes = {
        "ClusterStatus",
        "ListMembers",
        "TransferLeadership",
        "ListBrokerGroups",
        "ChangeMember",
        "MoveReplica",
        "PlanRebalance",
    }
    allowed = {*nodes, "PreferLeader", "CreateUser", "ChangeUser", "DeleteUser", "ListUsers"}
    assert {method for method, code in codes.items() if code == Code.OK} == allowed == set(served)
    assert {code for method, code in codes.items() if method not in allowed} == {Code.FORBIDDEN}


class Quorum:
    """The controller's state, changed by the real commands."""

    def __init__(self, *, silent: bool = False) -> None:
        self.state = State()
        self.silent = silent
        self.barriers = 0

    async def barrier(self) -> None:
        self.barriers += 1
        if self.silent:
            raise fail(Code.HA_NOT_AVAILABLE, "no quorum")

    async def submit(self, operation: str, arguments: dict[str, Any], timeout: float) -> Outcome:
        self.state, outcome = metadata.apply(self.state, {"op": operation, **arguments})
        return outcome


def test_a_cluster_without_users_gets_its_first_one_once() -> None:
    """Every node asks; one of them creates the administrator. Whoever deletes it later, beside
    another user, does not get it back."""
    quorum = Quorum()
    users = UserAdmin(cast(Any, quorum), Sealer((SECRET,), "c1"))
    assert asyncio.run(users.bootstrap("root", "the secret of root"))
    root = quorum.state.users["root"]
    assert (
        root.grants == {grant_of("admin:cluster:*")}
        and Sealer((SECRET,), "c1").open("root", root.secrets[0]) == "the secret of root"
    )
    assert not asyncio.run(users.bootstrap("root", "the secret of root"))
    asyncio.run(quorum.submit("create-user", {"name": "other", "secret": "x"}, 5))
    asyncio.run(quorum.submit("delete-user", {"name": "root"}, 5))
    assert not asyncio.run(users.bootstrap("root", "the secret of root")) and set(
        quorum.state.users
    ) == {"other"}


def test_without_a_quorum_no_first_user_is_created() -> None:
    """The state of a node that is behind may be empty although the cluster has users."""
    quorum = Quorum(silent=True)
    with pytest.raises(LedgerError, match="no quorum"):
        asyncio.run(
            UserAdmin(cast(Any, quorum), Sealer((SECRET,), "c1")).bootstrap(
                "root", "the secret of root"
            )
        )
    assert quorum.barriers == 1 and not quorum.state.users
