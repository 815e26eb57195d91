"""`ledgermq definitions`: what is exported, what an import changes, and what it leaves."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq import cli
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.plans import definitions
from ledgermq.client.plans.applying import apply
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes
from tests.example_counts import examples
from tests.node.test_node_broker_groups import NODES, World


class Cluster:
    """Keeps objects as a cluster does, behind a scripted node."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.topics: dict[str, pb.TopicInfo] = {}
        self.groups: dict[str, pb.ConsumerGroupInfo] = {}
        self.users: dict[str, pb.UserInfo] = {}
        self.broker_groups: dict[str, pb.BrokerGroupEntry] = {}
        self.secrets: dict[str, str] = {}
        ok = admin_status()
        node.answers(
            "ListTopics", lambda _: pb.ListTopicsResponse(status=ok, topics=self.topics.values())
        )
        node.answers(
            "ListGroups", lambda _: pb.ListGroupsResponse(status=ok, groups=self.groups.values())
        )
        node.answers(
            "ListUsers", lambda _: pb.ListUsersResponse(status=ok, users=self.users.values())
        )
        node.answers(
            "ListBrokerGroups",
            lambda _: pb.ListBrokerGroupsResponse(status=ok, groups=self.broker_groups.values()),
        )
        for method in (
            "CreateTopic",
            "UpdateTopic",
            "CreateGroup",
            "UpdateGroup",
            "CreateUser",
            "ChangeUser",
            "AddBrokerGroup",
            "PreferLeader",
        ):
            node.answers(method, getattr(self, method))

    def CreateTopic(self, asked: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        settings = {"kind": asked.kind, "queues": asked.queues, "permission": asked.permission}
        self.topics[asked.topic.name] = pb.TopicInfo(
            topic=asked.topic, durability=asked.durability, dedup_ms=asked.dedup_ms, **settings
        )
        return pb.CreateTopicResponse(
            status=admin_status(), topic=self.topics[asked.topic.name], created=True
        )

    def UpdateTopic(self, asked: pb.UpdateTopicRequest) -> pb.UpdateTopicResponse:
        topic = self.topics[asked.topic.name]
        for name in ("queues", "permission", "durability", "dedup_ms"):
            if asked.HasField(name):
                setattr(topic, name, getattr(asked, name))
        return pb.UpdateTopicResponse(status=admin_status(), topic=topic)

    def CreateGroup(self, asked: pb.CreateGroupRequest) -> pb.CreateGroupResponse:
        settings = {
            name: getattr(asked, name)
            for name in ("max_attempts", "fifo", "broadcast", "lite_topic")
        }
        made = pb.ConsumerGroupInfo(group=asked.group, configured=True, **settings)
        if asked.HasField("backoff"):
            made.backoff.CopyFrom(asked.backoff)
        self.groups[asked.group.name] = made
        return pb.CreateGroupResponse(status=admin_status(), group=made, created=True)

    def UpdateGroup(self, asked: pb.UpdateGroupRequest) -> pb.UpdateGroupResponse:
        group = self.groups[asked.group.name]
        for name in ("max_attempts", "fifo", "broadcast", "lite_topic"):
            if asked.HasField(name):
                setattr(group, name, getattr(asked, name))
        if asked.HasField("backoff"):
            group.backoff.CopyFrom(asked.backoff)
            if asked.backoff == pb.Backoff():
                group.ClearField("backoff")
        return pb.UpdateGroupResponse(status=admin_status(), group=group)

    def CreateUser(self, asked: pb.CreateUserRequest) -> pb.CreateUserResponse:
        self.secrets[asked.name] = asked.secret_key
        self.users[asked.name] = pb.UserInfo(
            name=asked.name, role=not asked.secret_key, grants=asked.grants, roles=asked.roles
        )
        return pb.CreateUserResponse(
            status=admin_status(), user=self.users[asked.name], created=True
        )

    def ChangeUser(self, asked: pb.ChangeUserRequest) -> pb.ChangeUserResponse:
        user = self.users[asked.name]
        grants = sorted((set(user.grants) | set(asked.grant)) - set(asked.revoke))
        roles = sorted((set(user.roles) | set(asked.give_roles)) - set(asked.take_roles))
        self.users[asked.name] = pb.UserInfo(
            name=asked.name, role=user.role, grants=grants, roles=roles
        )
        return pb.ChangeUserResponse(status=admin_status(), user=self.users[asked.name])

    def AddBrokerGroup(self, asked: pb.AddBrokerGroupRequest) -> pb.AddBrokerGroupResponse:
        made = pb.BrokerGroupEntry(
            broker_group=asked.name,
            replicas=asked.replicas,
            replication=asked.settings["replication"],
        )
        made.settings.update(
            {key: value for key, value in asked.settings.items() if key != "replication"}
        )
        self.broker_groups[asked.name] = made
        return pb.AddBrokerGroupResponse(status=admin_status(), done=True, created=True)

    def PreferLeader(self, asked: pb.PreferLeaderRequest) -> pb.PreferLeaderResponse:
        self.broker_groups[asked.broker_group].preferred = asked.node
        return pb.PreferLeaderResponse(status=admin_status())

    def fill(self) -> None:
        shop = {"namespace": "shop", "name": "orders"}
        self.topics["orders"] = pb.TopicInfo(
            topic=pb.Name(**shop), kind="fifo", queues=8, permission="rw", dedup_ms=120_000
        )
        self.topics["dead"] = pb.TopicInfo(
            topic=pb.Name(name="%DLQ%billing"), kind="normal", queues=1, permission="rw"
        )
        backoff = pb.Backoff(initial_ms=5000, max_ms=7_200_000, multiplier=2)
        self.groups["billing"] = pb.ConsumerGroupInfo(
            group=pb.Name(name="billing"), max_attempts=5, configured=True, backoff=backoff
        )
        self.groups["used"] = pb.ConsumerGroupInfo(group=pb.Name(name="used"), max_attempts=17)
        self.users["readers"] = pb.UserInfo(name="readers", role=True, grants=["subscribe:topic:*"])
        self.users["alice"] = pb.UserInfo(
            name="alice", roles=["readers"], grants=["subscribe:group:billing"], secrets=1
        )
        sizes = {"data_file_bytes": "1048576", "follower_reads": "false"}
        replicas = ["n2", "n1"]
        self.broker_groups["g1"] = pb.BrokerGroupEntry(
            broker_group="g1", replicas=replicas, replication="raft", preferred="n2", settings=sizes
        )

    def writes(self) -> list[str]:
        return [name for name in self.node.requests if not name.startswith("List")]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Cluster]]:
    monkeypatch.delenv("LEDGERMQ_ENDPOINTS", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with fake_nodes(2) as nodes:
        yield [Cluster(node) for node in nodes]


def run(
    capsys: pytest.CaptureFixture[str], cluster: Cluster, *arguments: str | Path
) -> tuple[int, str, str]:
    status = cli.run(["definitions", *map(str, arguments), "--endpoints", cluster.node.endpoint])
    out, err = capsys.readouterr()
    assert "Traceback" not in err and (
        status in (0, 1) or err.splitlines()[-1].startswith("error: ")
    )
    return status, out, err


def test_an_export_imported_elsewhere_is_exported_again_byte_for_byte(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """Every setting travels; dead-letter topics and groups that only exist by use do not. Secrets
    are new, and in their own file."""
    full, empty = clusters
    full.fill()
    path, secrets = tmp_path / "cluster.json", tmp_path / "secrets"
    assert run(capsys, full, "export", "--to", path)[:2] == (0, f"written: {path}\n")
    tree = json.loads(path.read_text())
    assert [
        [one["name"] for one in tree[section]]
        for section in ("broker_groups", "topics", "consumer_groups", "users")
    ] == [
        ["g1"],
        ["shop@orders"],
        ["billing"],
        ["alice", "readers"],
    ]
    status, out, _ = run(capsys, empty, "import", path, "--secrets", secrets)
    assert status == 0 and [line[0] for line in out.splitlines()] == ["+"] * 5 + ["d"]
    assert (
        empty.secrets["readers"] == ""
        and secrets.read_text() == f"alice {empty.secrets['alice']}\n"
    )
    assert secrets.stat().st_mode & 0o777 == 0o600 and empty.secrets["alice"] not in out
    assert run(capsys, empty, "export")[1] == path.read_text()
    before = dict(empty.node.requests)
    assert run(capsys, empty, "import", path)[:2] == (0, "no difference\n")
    assert empty.writes() == [name for name in before if not name.startswith("List")]


@pytest.mark.parametrize(
    ("section", "name", "changes", "line", "left"),
    [
        ("topics", "shop@orders", {"queues": 16}, "~ topic shop@orders: queues 8 → 16", False),
        (
            "topics",
            "shop@orders",
            {"queues": 4},
            "! topic shop@orders: queues 8 → 4 is not changed",
            True,
        ),
        (
            "topics",
            "shop@orders",
            {"kind": "normal"},
            "! topic shop@orders: kind fifo → normal is not changed",
            True,
        ),
        (
            "topics",
            "shop@orders",
            {"permission": "r", "dedup": "0s"},
            "permission rw → r, dedup 2m → 0s",
            False,
        ),
        ("topics", "shop@orders", {"durability": "memory"}, "durability group → memory", False),
        (
            "consumer_groups",
            "billing",
            {"max_attempts": 3, "fifo": True},
            "max_attempts 5 → 3, fifo no → yes",
            False,
        ),
        ("consumer_groups", "billing", {"backoff": "default"}, "→ default", False),
        ("consumer_groups", "billing", {"backoff": "1s,5s"}, "→ 1s,5s", False),
        (
            "users",
            "alice",
            {"grants": ["publish:topic:x"], "roles": []},
            "roles readers → none",
            False,
        ),
        ("users", "alice", {"role": True}, "! user alice: role no → yes is not changed", True),
        (
            "broker_groups",
            "g1",
            {"replication": "ha"},
            "! broker group g1: replication raft → ha is not changed",
            True,
        ),
        (
            "broker_groups",
            "g1",
            {"replicas": ["n1", "n3"]},
            "! broker group g1: replicas n1 n2 → n1 n3 is not changed",
            True,
        ),
        (
            "broker_groups",
            "g1",
            {"preferred_leader": "n1"},
            "~ broker group g1: preferred_leader n2 → n1",
            False,
        ),
        (
            "broker_groups",
            "g1",
            {"settings": {"data_file_bytes": "2MiB", "follower_reads": False}},
            (
                "! broker group g1: settings data_file_bytes=1048576 → data_file_bytes=2097152 is"
                " not changed"
            ),
            True,
        ),
        (
            "broker_groups",
            "g1",
            {"settings": {"ack": "async"}},
            "settings ack=default → ack=async is not changed",
            True,
        ),
    ],
)
def test_a_difference_is_shown_then_changed_or_left(
    capsys: pytest.CaptureFixture[str],
    clusters: list[Cluster],
    tmp_path: Path,
    section: str,
    name: str,
    changes: dict[str, Any],
    line: str,
    left: bool,
) -> None:
    """--dry-run says what an import would do; the import does exactly that, and a second one finds
    nothing more to change."""
    cluster = clusters[0]
    cluster.fill()
    path = tmp_path / "cluster.json"
    tree = json.loads(run(capsys, cluster, "export")[1])
    next(one for one in tree[section] if one["name"] == name).update(changes)
    path.write_text(json.dumps(tree))
    status, shown, _ = run(capsys, cluster, "import", path, "--dry-run")
    assert status == 1 and line in shown and not cluster.writes()
    status, out, _ = run(capsys, cluster, "import", path, "--yes")
    assert status == int(left) and shown in out
    status, again, _ = run(capsys, cluster, "import", path, "--dry-run")
    assert (status, again) == ((1, shown) if left else (0, "no difference\n"))


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"data_file_bytes": "1MiB"}},
        {"settings": {}, "preferred_leader": "", "replicas": []},
    ],
)
def test_omitted_or_reworded_definitions_are_no_difference(
    capsys: pytest.CaptureFixture[str],
    clusters: list[Cluster],
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    """The cluster has chosen what the file does not name."""
    cluster, path = clusters[0], tmp_path / "cluster.json"
    cluster.fill()
    tree = json.loads(run(capsys, cluster, "export", "--only", "broker-groups")[1])
    tree["broker_groups"][0].update(changes)
    path.write_text(json.dumps(tree))
    assert (
        run(capsys, cluster, "import", path)[:2] == (0, "no difference\n") and not cluster.writes()
    )


class DecidedCluster(Cluster):
    """Its broker groups are those of the administration service on the state of a controller quorum
    with four nodes and the group g1."""

    def __init__(self, node: FakeNode) -> None:
        super().__init__(node)
        self.world = World()
        node.answers("ListBrokerGroups", lambda _: self._ok(self.world.unit.listed()))

    def AddBrokerGroup(self, asked: pb.AddBrokerGroupRequest) -> pb.AddBrokerGroupResponse:
        return self._ok(self.world.unit.add(asked))

    def PreferLeader(self, asked: pb.PreferLeaderRequest) -> pb.PreferLeaderResponse:
        return self._ok(self.world.unit.prefer(asked))

    @staticmethod
    def _ok(answer: Any) -> Any:
        found = asyncio.run(answer)
        found.status.CopyFrom(admin_status())
        return found


def names(prefix: str, count: int = 3) -> st.SearchStrategy[list[str]]:
    return st.lists(
        st.sampled_from([f"{prefix}{number}" for number in range(2, 2 + count)]), unique=True
    )


@st.composite
def a_broker_group(draw: st.DrawFn, name: str) -> dict[str, Any]:
    replicas = sorted(draw(st.sets(st.sampled_from(NODES), min_size=2)))
    sizes = st.sampled_from(["64KiB", 1 << 20, "1GiB"])
    settings: dict[str, st.SearchStrategy[Any]] = {
        "data_file_bytes": sizes,
        "index_file_bytes": st.integers(1, 1000).map(lambda count: 32 * count),
        "consume_queue_file_bytes": st.integers(1, 1000).map(lambda count: 20 * count),
        "key_index_slots": st.integers(1, 1000),
        "follower_reads": st.booleans(),
        "follower_read_age_ms": st.sampled_from(["2s", 700]),
    }
    replication, ack = (
        draw(st.sampled_from(["raft", "ha"])),
        draw(st.sampled_from(["async", "in-sync"])),
    )
    if replication == "ha":
        settings |= {
            "ack": st.just(ack),
            "in_sync_lag_ms": st.sampled_from(["5s", 100]),
            "in_sync_lag_bytes": sizes,
        }
        settings["transfer"] = st.sampled_from(["push", "pull"])
        if ack == "in-sync":
            settings["min_in_sync"] = st.integers(1, len(replicas))
    chosen = draw(st.fixed_dictionaries({}, optional=settings))
    if "ack" not in chosen and draw(st.booleans()):
        chosen.pop("min_in_sync", None)
    preferred = draw(st.sampled_from(["", *replicas]))
    return {
        "name": name,
        "replication": replication,
        "replicas": replicas,
        "preferred_leader": preferred,
        "settings": chosen,
    }


def a_topic(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": st.sampled_from([name, f"shop@{name}"])},
        optional={
            "kind": st.sampled_from(definitions.TOPIC_KINDS),
            "queues": st.integers(1, 64),
            "permission": st.sampled_from(definitions.PERMISSIONS),
            "durability": st.sampled_from(definitions.DURABILITIES),
            "dedup": st.sampled_from(["0s", "60s", "1500ms", "1h"]),
        },
    )


def a_consumer_group(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": st.sampled_from([name, f"shop@{name}"])},
        optional={
            "max_attempts": st.integers(1, 100),
            "fifo": st.booleans(),
            "broadcast": st.booleans(),
            "backoff": st.sampled_from(["default", "5s", "1s,2m,1h"]),
            "lite_topic": st.sampled_from(["", "t2"]),
        },
    )


def a_user(name: str) -> st.SearchStrategy[dict[str, Any]]:
    grants = st.lists(
        st.sampled_from(["publish:topic:*", "subscribe:topic:a", "subscribe:group:*"]), unique=True
    )
    return st.fixed_dictionaries(
        {"name": st.just(name)}, optional={"role": st.booleans(), "grants": grants}
    )


def several(
    one: Callable[[str], st.SearchStrategy[Any]], prefix: str
) -> st.SearchStrategy[list[Any]]:
    return names(prefix).flatmap(lambda chosen: st.tuples(*map(one, chosen)).map(list))


FILES = st.fixed_dictionaries(
    {
        "v": st.just(definitions.VERSION),
        "broker_groups": several(a_broker_group, "g"),
        "topics": several(a_topic, "t"),
        "consumer_groups": several(a_consumer_group, "c"),
        "users": several(a_user, "u"),
    }
)


@given(FILES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
def test_definitions_survive_export_and_import(tree: dict[str, Any]) -> None:
    """Whatever a file sets, its import leaves no difference, and what is exported then gives an
    empty cluster the same export."""
    texts, file = [], json.dumps(tree)
    with fake_nodes(2) as nodes:
        for cluster in map(DecidedCluster, nodes):
            with Connection(cluster.node.endpoint) as connection:
                admin, wanted = Admin(connection), definitions.parse(file)
                for step in definitions.plan(definitions.read(admin, wanted), wanted):
                    assert step.sign in "+~", step
                    apply(admin, step, lambda name, secret: None)
                assert definitions.plan(definitions.read(admin, wanted), wanted) == []
                file = definitions.dump(definitions.read(admin, definitions.SECTIONS))
                texts.append(file)
    assert texts[0] == texts[1]


def test_changes_need_a_confirmation(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """Of objects that exist; creating does not."""
    cluster = clusters[0]
    cluster.fill()
    path = tmp_path / "cluster.json"
    path.write_text(
        '{"v": 1, "topics": [{"name": "new"}, {"name": "shop@orders", "kind": "fifo", "permission":'
        ' "r"}]}'
    )
    status, _, err = run(capsys, cluster, "import", path)
    assert status == 64 and "--yes" in err and not cluster.writes()
    path.write_text('{"v": 1, "topics": [{"name": "new"}]}')
    assert run(capsys, cluster, "import", path)[0] == 0 and cluster.topics["new"].queues == 8


def test_only_some_kinds_of_objects(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """Neither asked for nor written."""
    full, empty = clusters
    full.fill()
    path = tmp_path / "cluster.json"
    assert run(capsys, full, "export", "--to", path)[0] == 0
    assert list(json.loads(run(capsys, full, "export", "--only", "topics")[1])) == ["v", "topics"]
    assert (
        run(capsys, empty, "import", path, "--only", "topics", "--only", "consumer-groups")[0] == 0
    )
    assert (
        sorted(empty.topics) == ["orders"]
        and not empty.users
        and "ListUsers" not in empty.node.requests
    )


def test_secrets_need_a_file_of_their_own(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """Without one nothing is changed; one that exists is kept; one that no user needed is not
    left."""
    cluster = clusters[0]
    path, secrets = tmp_path / "cluster.json", tmp_path / "secrets"
    path.write_text('{"v": 1, "topics": [{"name": "t"}], "users": [{"name": "bob"}]}')
    status, _, err = run(capsys, cluster, "import", path)
    assert status == 64 and "--secrets" in err and not cluster.writes()
    secrets.write_text("bob former")
    status, _, err = run(capsys, cluster, "import", path, "--secrets", secrets)
    assert (
        status == 64
        and "exists" in err
        and not cluster.writes()
        and secrets.read_text() == "bob former"
    )
    secrets.unlink()
    cluster.node.answers(
        "CreateTopic", pb.CreateTopicResponse(status=admin_status(40300, "no permission; ask"))
    )
    assert (
        run(capsys, cluster, "import", path, "--secrets", secrets)[0] == 4 and not secrets.exists()
    )


def test_secrets_are_not_sent_unencrypted_to_another_machine(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """As for `user create`, and nothing is changed before; roles have no secret."""
    cluster, path, secrets = clusters[0], tmp_path / "cluster.json", tmp_path / "secrets"
    cluster.node.endpoint += ";10.0.0.1:8081"
    path.write_text('{"v": 1, "topics": [{"name": "t"}], "users": [{"name": "bob"}]}')
    status, _, err = run(capsys, cluster, "import", path, "--secrets", secrets)
    assert status == 64 and "the secret would travel to 10.0.0.1 unencrypted" in err
    assert not cluster.writes() and not secrets.exists()
    path.write_text('{"v": 1, "users": [{"name": "readers", "role": true}]}')
    assert run(capsys, cluster, "import", path)[0] == 0


def test_a_refused_object_is_named_and_the_import_can_be_continued(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """What was created before stays; the same command continues."""
    cluster = clusters[0]
    path = tmp_path / "cluster.json"
    path.write_text('{"v": 1, "topics": [{"name": "a"}, {"name": "b"}]}')
    refusal = pb.CreateTopicResponse(
        status=admin_status(40002, "the topic name is reserved; choose another")
    )
    cluster.node.answers("CreateTopic", cluster.CreateTopic, refusal)
    status, _, err = run(capsys, cluster, "import", path)
    assert status == 4 and "error: topic b: the topic name is reserved; choose another" in err
    cluster.node.answers("CreateTopic", cluster.CreateTopic)
    assert run(capsys, cluster, "import", path)[1].splitlines()[0].startswith("+ topic b")
    assert sorted(cluster.topics) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "not a set of definitions"),
        ('{"v": 2}', "not a set of definitions"),
        ('{"v": 1, "queues": []}', "'queues' is not known"),
        ('{"v": 1, "topics": {}}', "not a list"),
        ('{"v": 1, "topics": [{}]}', "entry 1 has no name"),
        (
            '{"v": 1, "topics": [{"name": "t", "queue": 1}]}',
            "topic t: the key 'queue' is not known",
        ),
        (
            '{"v": 1, "topics": [{"name": "t", "queues": "8"}]}',
            'queues is "8"; give a whole number',
        ),
        ('{"v": 1, "topics": [{"name": "t", "queues": true}]}', "queues is true"),
        ('{"v": 1, "topics": [{"name": "t", "kind": "odd"}]}', "kind is 'odd'; give one of normal"),
        ('{"v": 1, "topics": [{"name": "t", "dedup": "2"}]}', "dedup is '2'"),
        ('{"v": 1, "topics": [{"name": "t"}, {"name": "t"}]}', "topic t is there twice"),
        ('{"v": 1, "consumer_groups": [{"name": "g", "backoff": "soon"}]}', "is not a backoff"),
        ('{"v": 1, "users": [{"name": "u", "grants": "all"}]}', "give a list of texts"),
        (
            '{"v": 1, "broker_groups": [{"name": "g", "settings": {"ack": null}}]}',
            "give an object of texts",
        ),
        (b"\xff", "not UTF-8"),
    ],
)
def test_invalid_definitions_file_is_refused_without_a_call(
    capsys: pytest.CaptureFixture[str],
    clusters: list[Cluster],
    tmp_path: Path,
    text: str | bytes,
    said: str,
) -> None:
    """64, with the place, before any call."""
    path = tmp_path / "cluster.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, _, err = run(capsys, clusters[0], "import", path)
    assert status == 64 and said in err and not clusters[0].node.requests


def test_an_export_that_failed_leaves_no_file(
    capsys: pytest.CaptureFixture[str], clusters: list[Cluster], tmp_path: Path
) -> None:
    """A file that exists is kept, before and after."""
    cluster = clusters[0]
    path = tmp_path / "cluster.json"
    cluster.node.answers(
        "ListUsers", pb.ListUsersResponse(status=admin_status(40300, "no permission; ask"))
    )
    assert run(capsys, cluster, "export", "--to", path)[0] == 4 and list(tmp_path.iterdir()) == []
    path.write_text("mine")
    cluster.fill()
    status, _, err = run(capsys, cluster, "export", "--only", "topics", "--to", path)
    assert status == 64 and "exists" in err and path.read_text() == "mine"
    assert run(capsys, cluster, "export", "--only", "topics", "--to", "/proc/no/file")[0] == 64
    assert run(capsys, cluster, "import", tmp_path / "absent.json")[0] == 64
    cluster.node.stop()
    assert run(capsys, cluster, "export", "--timeout", "200ms")[0] == 3
