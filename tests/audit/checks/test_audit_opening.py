"""What the small files of a node directory say, and which of them is named when they are damaged or
disagree."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks import opening
from ledgermq.audit.checks.opening import (
    SLOT_LOOKS,
    find_replicas,
    fingerprint,
    limit,
    open_running,
)
from ledgermq.audit.checks.replica import Mark, Point, Replica
from ledgermq.audit.reading.begin import WHOLE, Begin
from tests.audit.log_writer import Writer, checksum, sealed

FOREVER = Point(1 << 40, 1 << 40, 1, 0)
"""The point of a running node behind everything that these tests write."""
SLOT = {"syncedmark": 88, "hardstate": 96}
RULE = {"syncedmark": "mark", "hardstate": "hardstate"}
TRIMMED = {"begin_index": 5, "begin_pos": 8192, "begin_term": 2, "begin_chain": 9}
BEGIN = {"v": 1, "index": 5, "pos": 8192, "term": 2, "chain": 9}


@pytest.fixture
def node(tmp_path: Path) -> Writer:
    """A node that has stored nothing yet."""
    return Writer(tmp_path / "n1").finish()


def opened(node: Writer, point: Point | None = None) -> Replica:
    if point is not None:
        replica = open_running(str(node.node_dir), node.group)
        limit(replica, point)
        return replica
    (replica,) = find_replicas(str(node.node_dir))
    return replica


def told(replica: Replica) -> list[str]:
    """Rule, file and bytes of each flaw; none names an entry or comes from a torn write."""
    assert all(flaw.index is None and not flaw.torn for flaw in replica.flaws)
    return [f"{flaw.rule} {flaw.file} {flaw.byte_from}-{flaw.byte_to}" for flaw in replica.flaws]


def put(path: Path, value: dict[str, Any] | bytes) -> int:
    """Write a file, a JSON object with its checksum. Returns its length."""
    raw = value if isinstance(value, bytes) else sealed(value)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    return len(raw)


def content(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_bytes())
    del value["crc32c"]
    return value


def change(path: Path, **values: object) -> int:
    return put(path, {**content(path), **values})


def mark_slot(node: Writer, sequence: int, index: int) -> bytes:
    body = node.log_id.encode() + struct.pack(">iqqqI", 0, 3, index, 100 * index, index)
    return node.slot(b"LMSM", sequence, body)


def mark(node: Writer, index: int) -> Mark:
    return Mark(3, index, 100 * index, index, node.log_id)


def test_opened_directory_has_each_value_of_its_files(node: Writer) -> None:
    """Each value from its file, of a stopped node and of a running one."""
    put(node.log / "syncedmark", mark_slot(node, 6, 4) + mark_slot(node, 7, 5))
    put(node.log / "checkpoint", b"endIndex=7\ncommittedIndex=6\n")
    put(node.root / "checkpoint", struct.pack(">3q", 5, -6, 1 << 50).ljust(4096, b"\0"))
    put(node.root / "state" / "snapshot", {"v": 3, "applied_index": 4})
    put(node.root / "state" / "peers.json", {"peers": {"n2": "a"}, "met_by": [], "vouched": True})
    put(node.root / "state" / "boots.json", {"generation": 1, "boots": []})
    for one in (opened(node), opened(node, FOREVER)):
        assert (one.directory, one.root, one.group, one.name) == (
            str(node.node_dir),
            str(node.root),
            "g1",
            "n1",
        )
        assert (one.log_folder, one.log_id, one.sizes) == (
            "dledger-n1",
            node.log_id,
            (8192, 1024, 200),
        )
        assert one.node == content(node.node_dir / "node.json") and one.identity == content(
            node.root / "identity.json"
        )
        assert (one.mark, one.older_mark, one.hard_term) == (mark(node, 5), mark(node, 4), 0)
        assert (one.end_hint, one.commit, one.begin) == (7, 6, WHOLE)
        assert one.snapshots == {"state/snapshot": {"v": 3, "applied_index": 4}}
        assert one.snapshot == one.snapshots["state/snapshot"] and one.upgraded is False
        assert (one.peers, one.vouched, one.store_stamps) == ({"n2": "a"}, True, (5, -6, 1 << 50))
        assert one.clean is True and told(one) == []


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("identity", [False, True])
def test_which_folders_are_broker_groups(tmp_path: Path, identity: bool, log: bool) -> None:
    """Those with an identity or a log, whatever lies between them; node.json is read once for all
    of them."""
    base = tmp_path / "n1"
    for name in ("a1", "b1", "lost+found", "z1"):
        writer = Writer(base, name).finish()
        if name == "b1" and not identity:
            (writer.root / "identity.json").unlink()
        if name == "b1" and not log:
            shutil.rmtree(writer.log)
    (base / "lost+found" / "state").mkdir()
    (base / "controller").mkdir()
    (base / "z1" / "extra").mkdir()
    length = put(base / "node.json", b"{}")
    found = find_replicas(str(base))
    assert [one.group for one in found] == (["a1", "b1", "z1"] if identity or log else ["a1", "z1"])
    assert told(found[0]) == [f"identity.json node.json 0-{length}"] and told(found[-1]) == []
    assert find_replicas(str(base / "a1")) == find_replicas(str(tmp_path / "none")) == []


def test_whether_a_node_was_stopped_in_good_order(node: Writer) -> None:
    """Its abort file is gone; what a running node has told of is committed, so there is nothing
    torn before it."""
    assert opened(node).clean
    put(node.root / "abort", b"")
    assert not opened(node).clean and opened(node, FOREVER).clean


def sealed_files(node: Writer) -> Iterator[tuple[Path, str, str, dict[str, Any], bool]]:
    """Path, shown path, rule, content, and whether the keys are fixed, of each file with a
    checksum, in a node whose log is trimmed."""
    begin = {**BEGIN, "log_id": node.log_id}
    for name, rule, value, fixed in (
        ("identity.json", "identity.json", content(node.root / "identity.json"), True),
        ("dledger-n1/begin", "begin.json", begin, True),
        (
            "state/snapshot",
            "snapshot.json",
            {"v": 3, "applied_index": 1, "retained": TRIMMED},
            False,
        ),
        (
            "state/snapshot.previous",
            "snapshot.json",
            {"v": 3, "applied_index": 0, "retained": TRIMMED},
            False,
        ),
        ("state/peers.json", "peers.json", {"peers": {}, "met_by": []}, True),
        ("state/boots.json", "boots.json", {"generation": 1, "boots": []}, True),
    ):
        yield node.root / name, f"g1/{name}", rule, value, fixed
    yield (
        node.node_dir / "node.json",
        "node.json",
        "identity.json",
        content(node.node_dir / "node.json"),
        True,
    )


def test_files_with_a_checksum(node: Writer) -> None:
    """One without its checksum or its keys is a flaw of all its bytes. Identities have to be there,
    and the begin of a trimmed log."""
    files = list(sealed_files(node))
    for path, _, _, value, _ in files:
        put(path, value)
    min((node.log / "data").iterdir()).unlink()
    assert told(opened(node)) == []
    for path, shown, rule, value, fixed in files:
        good = path.read_bytes()
        other = max(value)
        for raw in (
            b"", b"[]", good[:-2] + b"}", good + b"\n", json.dumps(value).encode(), sealed({**value, other: 99})[:-1],
        ):  # fmt: skip
            path.write_bytes(raw)
            assert told(opened(node)) == [f"{rule} {shown} 0-{len(raw)}"], (shown, raw)
        for keys in ({**value, "other": 1}, {key: value[key] for key in value if key != other}):
            length = put(path, keys)
            assert told(opened(node)) == ([f"{rule} {shown} 0-{length}"] if fixed else []), (
                shown,
                keys,
            )
        path.unlink()
        missing = {"identity.json": "identity.missing", "begin.json": "begin.missing"}.get(rule)
        assert told(opened(node)) == ([f"{missing} {shown} 0-0"] if missing else []), shown
        path.mkdir()
        assert told(opened(node)) == [f"file.read {shown} 0-0"], shown
        path.rmdir()
        path.write_bytes(good)
    assert told(opened(node)) == []


def test_the_types_of_an_identity(node: Writer) -> None:
    """Names are texts, lengths of files are positive numbers."""
    good = {
        path: path.read_bytes()
        for path in (node.root / "identity.json", node.node_dir / "node.json")
    }
    for path, names in zip(
        good,
        (("cluster_id", "group", "log_id", "replica", "incarnation"), ("cluster_id", "node")),
        strict=True,
    ):
        for key, bad in product(names, (7, None, [])):
            length = change(path, **{key: bad})
            assert told(opened(node)) == [
                f"identity.json {path.relative_to(node.node_dir)} 0-{length}"
            ], (key, bad)
            path.write_bytes(good[path])
    for key, bad in product(
        ("data_file_bytes", "index_file_bytes", "consume_queue_file_bytes"),
        (0, -1, 1.5, True, "1", None),
    ):
        length = change(node.root / "identity.json", **{key: bad})
        assert told(opened(node)) == [f"identity.json g1/identity.json 0-{length}"], (key, bad)
        (node.root / "identity.json").write_bytes(good[node.root / "identity.json"])
    change(
        node.root / "identity.json",
        data_file_bytes=1,
        index_file_bytes=2,
        consume_queue_file_bytes=3,
    )
    assert (told(opened(node)), opened(node).sizes) == ([], (1, 2, 3))


@pytest.mark.parametrize("backup", [False, True])
def test_identity_that_names_another_node_is_wrong(node: Writer, backup: bool) -> None:
    """The log belongs to the node in the name of its folder, and an identity that names another one
    is wrong, also in a backup."""
    if backup:
        put(node.node_dir / "backup.json", {"v": 1, "groups": {}, "files": {}})
    for replica, named, group in product(("n1", "n2"), ("n1", "n2", "n3"), ("g1", "g2")):
        change(node.root / "identity.json", replica=replica, group=group)
        change(node.node_dir / "node.json", node=named)
        expected = ["identity.agree g1/identity.json 0-0"] * (group != "g1") + [
            "identity.agree g1/identity.json 0-0"
        ] * (replica != "n1")
        if named != replica:
            expected.append(
                f"identity.agree {'g1/identity.json' if named == 'n1' else 'node.json'} 0-0"
            )
        one = opened(node)
        assert (told(one), one.name) == (expected, "n1:backup" if backup else "n1"), (
            replica,
            named,
            group,
        )
        assert opened(node, FOREVER).name == "n1"


def test_the_folder_of_the_log(node: Writer) -> None:
    """That of the identity if it exists; without an identity the first one, and without a log that
    of the identity."""
    one = opened(node)
    assert (one.name, one.log_folder) == ("n1", "dledger-n1")
    (node.root / "dledger-a").mkdir()
    assert (opened(node).name, told(opened(node))) == ("n1", [])
    (node.root / "identity.json").unlink()
    assert (opened(node).name, opened(node).log_folder) == ("a", "dledger-a")
    node.identities()
    node.log.rename(node.root / "dledger-z")
    one = opened(node)
    assert (one.name, told(one)[0]) == ("a", "identity.agree g1/identity.json 0-0")
    shutil.rmtree(node.root / "dledger-z")
    shutil.rmtree(node.root / "dledger-a")
    assert (opened(node).name, told(opened(node))) == (
        "n1",
        [f"{rule}.missing g1/dledger-n1/{name} 0-0" for name, rule in RULE.items()],
    )


@pytest.mark.parametrize(
    ("lengths", "size"),
    [((), 0), ((5,), 5), ((5, 6, 6), 6), ((6, 5, 6), 6), ((5, 5, 6), 5), ((0, 4, 0), 0)],
)
def test_without_an_identity_log_files_have_their_usual_length(
    node: Writer, lengths: Sequence[int], size: int
) -> None:
    """That of most of them; those of derived files are the default."""
    shutil.rmtree(node.log / "data")
    for number, length in enumerate(lengths):
        put(node.log / "data" / f"{number:020d}", bytes(length))
    (node.root / "identity.json").unlink()
    one = opened(node)
    assert (one.sizes, one.log_id, one.name) == ((size, 167_772_160, 6_000_000), None, "n1")
    assert told(one) == ["identity.missing g1/identity.json 0-0"]


def test_flaws_of_the_node_are_those_of_its_first_group(tmp_path: Path) -> None:
    """Each group without an identity of its own is passed over when the identities are compared."""
    writers = [Writer(tmp_path / "n1", group).finish() for group in ("g1", "g2", "g3")]
    change(tmp_path / "n1" / "node.json", node="n7")
    (writers[1].root / "identity.json").unlink()
    first, second, third = find_replicas(str(tmp_path / "n1"))
    assert told(first) == told(third) == ["identity.agree node.json 0-0"]
    assert told(second) == ["identity.missing g2/identity.json 0-0"]
    assert [one.node for one in (first, second, third)] == [
        content(tmp_path / "n1" / "node.json")
    ] * 3
    assert told(open_running(str(tmp_path / "n1"), "g3")) == ["identity.agree node.json 0-0"]


def test_the_manifest_of_a_backup(node: Writer) -> None:
    """Only that of a backup is read, and a damaged one is a flaw of all its bytes."""
    content: dict[str, object] = {"groups": {}, "files": {}}
    for raw, good in (
        (sealed({"v": 1, **content}), True),
        (sealed({"v": 2, **content}), False),
        (b"{}", False),
    ):
        put(node.node_dir / "backup.json", raw)
        assert told(opened(node)) == ([] if good else [f"backup.json backup.json 0-{len(raw)}"])
        assert (opened(node).is_backup, told(opened(node, FOREVER))) == (True, [])


# ---------------------------------------------------------------------------------------------------------------- slots

STATES = ("empty", "damaged", 1, 2, 3)


def slot_of(node: Writer, name: str, state: object) -> bytes:
    """A slot of a file that is empty, damaged, or holds the value with this number, whose term or
    index is ten times that."""
    if state == "empty":
        return bytes(4096)
    sequence = state if isinstance(state, int) else 9
    vote = struct.pack(">qi64s", 10 * sequence, 0, b"")
    raw = (
        mark_slot(node, sequence, 10 * sequence)
        if name == "syncedmark"
        else node.slot(b"LMHS", sequence, vote)
    )
    return (
        raw[: SLOT[name] - 1] + bytes([raw[SLOT[name] - 1] ^ 1]) + raw[SLOT[name] :]
        if state == "damaged"
        else raw
    )


def values_of(one: Replica, name: str) -> list[int]:
    """The numbers of the values that count."""
    if name == "hardstate":
        return [] if one.hard_term is None else [one.hard_term // 10]
    return [found.index // 10 for found in (one.mark, one.older_mark) if found is not None]


@pytest.mark.parametrize("name", SLOT)
def test_two_slots(node: Writer, name: str) -> None:
    """Every pair of slots: the intact one with the highest number counts. One is empty only as long
    as there was one value, and no two hold the same one."""
    used = SLOT[name]
    file, rule = f"g1/dledger-n1/{name}", RULE[name]
    for pair in product(STATES, repeat=2):
        put(node.log / name, b"".join(slot_of(node, name, state) for state in pair))
        numbers = sorted((state for state in pair if isinstance(state, int)), reverse=True)
        bad = [
            at
            for at, state in enumerate(pair)
            if state == "damaged" or (state == "empty" and numbers and numbers[0] > 1)
        ]
        expected = [f"{rule}.slot {file} {4096 * at}-{4096 * at + used}" for at in bad]
        expected += [f"{rule}.slot {file} 0-{4096 + used}"] * (
            len(numbers) == 2 and numbers[0] == numbers[1]
        )
        expected += [f"{rule}.missing {file} 0-8192"] * (not numbers)
        one = opened(node)
        assert told(one) == expected, pair
        assert values_of(one, name) == (numbers[:1] if name == "hardstate" else numbers), pair


@pytest.mark.parametrize("name", SLOT)
def test_bytes_outside_of_slots(node: Writer, name: str) -> None:
    """All from the first to the last one that is not zero, of each page."""
    used, file, rule = SLOT[name], f"g1/dledger-n1/{name}", RULE[name]
    good = slot_of(node, name, 1) + slot_of(node, name, 2)
    for page, places in product(
        (0, 1), ((used,), (4095,), (used, 4095), (used + 3, used + 7, 4000))
    ):
        raw = bytearray(good)
        for place in places:
            raw[4096 * page + place] = 7
        put(node.log / name, bytes(raw))
        assert told(opened(node)) == [
            f"{rule}.fill {file} {4096 * page + places[0]}-{4096 * page + places[-1] + 1}"
        ]
    filled = good[:used].ljust(4096, b"\1") + good[4096:]
    put(node.log / name, filled)
    assert told(opened(node)) == [f"{rule}.fill {file} {used}-4096"]


@pytest.mark.parametrize("name", SLOT)
def test_the_length_of_a_file_of_slots(node: Writer, name: str) -> None:
    """A slot that is cut off is damaged; what lies behind the second page is no slot."""
    used, file, rule = SLOT[name], f"g1/dledger-n1/{name}", RULE[name]
    good = slot_of(node, name, 1) + slot_of(node, name, 2)
    cut = {
        0: [0, 1],
        used - 1: [0, 1],
        used: [1],
        4096 + used - 1: [1],
        4096 + used: [],
        8191: [],
        8193: [],
    }
    for length, damaged in cut.items():
        put(node.log / name, good[:length].ljust(length, b"\1"))
        low, high = sorted((length, 8192))
        expected = [f"file.length {file} {low}-{high}"]
        expected += [f"{rule}.slot {file} {4096 * at}-{4096 * at + used}" for at in damaged]
        expected += [f"{rule}.missing {file} 0-{length}"] * (len(damaged) == 2)
        one = opened(node)
        assert (told(one), values_of(one, name)) == (
            expected,
            [[2, 1], [1], []][len(damaged)][: 1 if name == "hardstate" else 2],
        )
    (node.log / name).unlink()
    assert (told(opened(node)), values_of(opened(node), name)) == (
        [f"{rule}.missing {file} 0-0"],
        [],
    )


@pytest.mark.parametrize("torn", range(SLOT_LOOKS + 2))
@pytest.mark.parametrize("running", [False, True])
def test_a_slot_that_is_being_written(
    node: Writer, monkeypatch: pytest.MonkeyPatch, running: bool, torn: int
) -> None:
    """A running node is asked again, some times; nobody writes to the directory of a stopped
    one."""
    good = slot_of(node, "syncedmark", 2)
    seen: list[str] = []
    real = opening.read_if_there

    def look(path: str) -> bytes | None:
        seen.append(path)
        if not path.endswith("syncedmark"):
            return real(path)
        return good + slot_of(
            node,
            "syncedmark",
            "damaged" if len([one for one in seen if one == path]) <= torn else 3,
        )

    monkeypatch.setattr(opening, "read_if_there", look)
    one = opened(node, FOREVER if running else None)
    looks = [path for path in seen if path.endswith("syncedmark")]
    assert len(looks) == (min(torn, SLOT_LOOKS) + 1 if running else 1)
    assert values_of(one, "syncedmark") == ([2] if torn >= len(looks) else [3, 2])
    assert told(one) == (
        ["mark.slot g1/dledger-n1/syncedmark 4096-4184"] if torn >= len(looks) else []
    )


def test_a_file_of_slots_that_goes_during_the_looks(
    node: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is none, and nobody looks again."""
    real, seen = opening.read_if_there, []

    def look(path: str) -> bytes | None:
        seen.append(path)
        return (
            real(path)
            if not path.endswith("syncedmark")
            else bytes(10)
            if seen.count(path) == 1
            else None
        )

    monkeypatch.setattr(opening, "read_if_there", look)
    one = opened(node, FOREVER)
    assert (one.mark, told(one), sum(path.endswith("syncedmark") for path in seen)) == (None, [], 2)


@pytest.mark.parametrize(("older", "newer"), [(4, 5), (5, 6), (6, 7)])
def test_a_mark_behind_the_point_of_a_running_node_does_not_count(
    node: Writer, older: int, newer: int
) -> None:
    """It is of an entry that is not checked."""
    put(node.log / "syncedmark", mark_slot(node, 2, older) + mark_slot(node, 3, newer))
    one = opened(node, Point(5, 500, 3, 5))
    expected = [mark(node, index) if index <= 5 else None for index in (newer, older)]
    assert [one.mark, one.older_mark] == expected


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_the_checkpoint_of_the_log(node: Writer) -> None:
    """Two numbers of at least -1, of which the second is not larger."""
    path = node.log / "checkpoint"
    for end, commit in product(range(-3, 4), repeat=2):
        length = put(path, f"endIndex={end}\ncommittedIndex={commit}\n".encode())
        good = -1 <= commit <= end
        for point, most in ((None, 9), (Point(1, 100, 1, 0), 1)):
            one = opened(node, point)
            assert (one.end_hint, one.commit) == (
                (end, min(commit, most)) if good else (None, None)
            ), (end, commit)
            assert told(one) == (
                [] if good else [f"checkpoint.text g1/dledger-n1/checkpoint 0-{length}"]
            )
    texts = [
        "endIndex=1\n",
        "endIndex=1\ncommittedIndex=1",
        "committedIndex=1\nendIndex=1\n",
        "endIndex=1\ncommittedIndex=1\n\n",
    ]
    for other in ("+1", "01", "1_0", " 1", "1 ", "-0", "--1", "", "x", "1\n", "1" * 20, "1" * 5000):
        texts += [f"endIndex={other}\ncommittedIndex=0\n", f"endIndex=9\ncommittedIndex={other}\n"]
    for text in texts:
        length = put(path, text.encode())
        assert told(opened(node)) == [f"checkpoint.text g1/dledger-n1/checkpoint 0-{length}"], text
    path.unlink()
    assert (told(opened(node)), opened(node).commit) == ([], None)


def test_the_checkpoint_of_the_store(node: Writer) -> None:
    """Three times and zeros, one page in all: otherwise a flaw of all from the first byte to the
    last that is not zero, or of the end."""
    path, stamps = node.root / "checkpoint", struct.pack(">3q", 1, -2, 3)
    assert (told(opened(node)), opened(node).store_stamps) == ([], ())
    for length in (0, 7, 23, 24, 25, 4095, 4096, 4097):
        put(path, stamps.ljust(length, b"\0")[:length])
        one, end = opened(node), min(length, 4096)
        assert told(one) == (
            [] if length == 4096 else [f"checkpoint.store g1/checkpoint {end}-{end + 1}"]
        )
        assert one.store_stamps == ((1, -2, 3) if length >= 24 else ())
    for places in ((24,), (25,), (4095,), (24, 4095), (100, 200, 300), (4096,)):
        raw = bytearray(stamps.ljust(max(4096, places[-1] + 1), b"\0"))
        for place in places:
            raw[place] = 1
        put(path, bytes(raw))
        assert told(opened(node)) == [
            f"checkpoint.store g1/checkpoint {places[0]}-{places[-1] + 1}"
        ]
    put(path, stamps.ljust(4096, b"\1"))
    assert told(opened(node)) == ["checkpoint.store g1/checkpoint 24-4096"]


# ------------------------------------------------------------------------------------------- begin, snapshots and peers


def begin_flaws(one: Replica) -> list[str]:
    return [
        text.replace("g1/dledger-n1/begin 0-0", "begin").replace(
            "g1/state/snapshot 0-0", "snapshot"
        )
        for text in told(one)
    ]


def test_a_begin_and_the_snapshot(node: Writer) -> None:
    """A snapshot of the same begin tells the same of it; a trimmed log needs a snapshot."""
    path, snapshot = node.log / "begin", node.root / "state" / "snapshot"
    put(path, {**BEGIN, "log_id": node.log_id})
    assert begin_flaws(opened(node)) == ["snapshot.needed snapshot"]
    assert opened(node).begin == Begin(5, 8192, 2, 9)
    for retained in (None, [], {}, {"begin_index": 5}, TRIMMED, {**TRIMMED, "begin_pos": None}):
        put(snapshot, {"v": 3, "retained": retained})
        assert begin_flaws(opened(node)) == [], retained
    for index, pos, term, chain in product((4, 5), (8192, 1), (2, 1), (9, 1)):
        own = {"begin_index": index, "begin_pos": pos, "begin_term": term, "begin_chain": chain}
        put(snapshot, {"v": 3, "retained": own})
        differing = (pos == 1) + (term == 1) + (chain == 1)
        assert begin_flaws(opened(node)) == ["begin.snapshot begin"] * (
            differing if index == 5 else 0
        )


def test_the_log_of_a_begin(node: Writer) -> None:
    """Its log is that of the identity, if there is one."""
    put(node.root / "state" / "snapshot", {"v": 3})
    put(node.log / "begin", {**BEGIN, "log_id": "another"})
    assert begin_flaws(opened(node)) == ["identity.agree begin"]
    (node.root / "identity.json").unlink()
    assert begin_flaws(opened(node)) == ["identity.missing g1/identity.json 0-0"]


def test_a_begin_that_no_log_can_have(node: Writer) -> None:
    """With its checksum and its keys it is as good as damaged: the log begins where the snapshot
    says, or with entry 0."""
    put(node.root / "state" / "snapshot", {"v": 3, "retained": TRIMMED})
    nonsense = [
        {"v": 2},
        {"log_id": 7},
        {"index": 0},
        {"pos": 0},
        {"index": -5},
        {"term": None},
        {"chain": "9"},
    ]
    for begin in (WHOLE, Begin(5, 8192, 2, 9)):
        for bad in nonsense:
            length = put(node.log / "begin", {**BEGIN, "log_id": node.log_id, **bad})
            one = opened(node)
            assert (one.begin, told(one)) == (
                begin,
                [f"begin.json g1/dledger-n1/begin 0-{length}"],
            ), bad
        min((node.log / "data").iterdir()).unlink()


def test_a_begin_that_only_the_snapshot_knows(node: Writer) -> None:
    """It counts if the first file is named so. Without a begin file that is a flaw, and with a
    damaged one the damage is."""
    snapshot, first, second = (
        node.root / "state" / "snapshot",
        *sorted((node.log / "data").iterdir()),
    )
    put(snapshot, {"v": 3, "retained": TRIMMED})
    assert (opened(node).begin, told(opened(node))) == (WHOLE, [])
    first.unlink()
    assert (opened(node).begin, begin_flaws(opened(node))) == (
        Begin(5, 8192, 2, 9),
        ["begin.missing begin"],
    )
    length = put(node.log / "begin", b"{}")
    assert (opened(node).begin, told(opened(node))) == (
        Begin(5, 8192, 2, 9),
        [f"begin.json g1/dledger-n1/begin 0-{length}"],
    )
    (node.log / "begin").unlink()
    for retained in (
        None,
        {},
        *({**TRIMMED, f"begin_{key}": None} for key in ("index", "pos", "term", "chain")),
    ):
        put(snapshot, {"v": 3, "retained": retained})
        assert (opened(node).begin, told(opened(node))) == (WHOLE, []), retained
    put(snapshot, {"v": 3, "retained": TRIMMED})
    second.rename(second.with_name(f"{5:020d}"))
    assert (opened(node).begin, told(opened(node))) == (WHOLE, [])
    (node.log / "data" / f"{5:020d}").unlink()
    assert (opened(node).begin, told(opened(node))) == (WHOLE, [])
    # The first entry of a log that only has another name is not looked for.
    put(node.log / "data" / f"{0:020d}", bytes(8192))
    put(
        snapshot,
        {
            "v": 3,
            "retained": {"begin_index": 0, "begin_pos": 0, "begin_term": -1, "begin_chain": 4},
        },
    )
    assert (opened(node).begin, told(opened(node))) == (WHOLE, [])


def test_a_log_that_goes_on_from_another_one(node: Writer) -> None:
    """The record of its recovery names that one first."""
    put(
        node.log / "begin",
        {
            "v": 1,
            "log_id": node.log_id,
            "index": 0,
            "pos": 0,
            "term": -1,
            "chain": checksum(b"former"),
        },
    )
    for record, explained in (
        (None, False),
        ({}, False),
        ({"former": "former"}, False),
        ({"former": []}, False),
        ({"former": ["former"]}, True),
        ({"former": ["former", "other"]}, True),
        ({"former": ["other", "former"]}, False),
    ):
        if record is not None:
            put(node.root / "recovery.json", record)
        assert begin_flaws(opened(node)) == ([] if explained else ["identity.agree begin"]), record
        assert opened(node).begin == Begin(0, 0, -1, checksum(b"former"))
    put(node.root / "recovery.json", b"{}")
    assert begin_flaws(opened(node)) == [
        "identity.json g1/recovery.json 0-2",
        "identity.agree begin",
    ]


def test_which_snapshot_counts(node: Writer) -> None:
    """The newest. A damaged one is as good as none."""
    names = ("snapshot", "snapshot.previous")
    for newest, previous in product((None, b"{}", 4, 5, 6, "x"), repeat=2):
        kept: dict[str, dict[str, Any]] = {}
        damaged = []
        for name, told_index in zip(names, (newest, previous), strict=True):
            (node.root / "state" / name).unlink(missing_ok=True)
            if isinstance(told_index, bytes):
                put(node.root / "state" / name, told_index)
                damaged.append(f"snapshot.json g1/state/{name} 0-2")
            elif told_index is not None:
                kept[f"state/{name}"] = {"applied_index": told_index}
                put(node.root / "state" / name, kept[f"state/{name}"])
        for point in (None, FOREVER):
            one = opened(node, point)
            assert (one.snapshots, one.snapshot) == (kept, next(iter(kept.values()), None)), (
                newest,
                previous,
            )
            assert told(one) == damaged[::-1]


def test_an_upgrade_is_told_by_two_versions_of_snapshots(node: Writer) -> None:
    for versions in ((), (2,), (3, 3), (3, 2), (3, None)):
        for name, version in zip(("snapshot", "snapshot.previous"), versions, strict=False):
            put(node.root / "state" / name, {} if version is None else {"v": version})
        assert opened(node).upgraded is (len(set(versions)) == 2)


def test_peers(node: Writer) -> None:
    """The shapes of the file of all versions. Only newer ones say whether the group began with this
    directory, and no replica is its own peer."""
    path = node.root / "state" / "peers.json"
    assert (opened(node).peers, opened(node).vouched) == ({}, None)
    for met, boots, vouched, other in product(
        (False, True), (False, True), (None, True, False, 1), (False, True)
    ):
        value = {
            "peers": {"n2": "a"},
            "met_by": ["n3"],
            "boots": {},
            "vouched": vouched,
            "other": 1,
        }
        wanted = {
            "peers": True,
            "met_by": met,
            "boots": boots,
            "vouched": vouched is not None,
            "other": other,
        }
        length = put(path, {key: value[key] for key in value if wanted[key]})
        good = not other and (met or not (boots or vouched is not None))
        one = opened(node)
        assert told(one) == ([] if good else [f"peers.json g1/state/peers.json 0-{length}"]), wanted
        assert (one.peers, one.vouched) == (
            ({"n2": "a"} if good else {}),
            (vouched is True if met and good else None),
        )
    length = put(path, {"peers": ["n1"]})
    assert (opened(node).peers, told(opened(node))) == (
        {},
        [f"peers.json g1/state/peers.json 0-{length}"],
    )
    put(path, {"peers": {"n1": "a"}})
    assert told(opened(node)) == ["peers.incarnation g1/state/peers.json 0-0"]


def test_a_node_that_works_meanwhile_is_noticed(node: Writer) -> None:
    """By any file of the log that it changes, adds or removes, except that a running node is
    expected to."""
    (node.log / "begin").write_bytes(b"x")
    names = [
        "syncedmark",
        "hardstate",
        "checkpoint",
        "begin",
        *(f"data/{path.name}" for path in (node.log / "data").iterdir()),
    ]
    before = opened(node)
    assert len(before.fingerprint) == len(names) and fingerprint(before) == before.fingerprint
    for name in names:
        good = (node.log / name).read_bytes()
        for done in (lambda path: path.write_bytes(b"xyz"), Path.unlink):
            done(node.log / name)
            assert fingerprint(before) != before.fingerprint, name
            put(node.log / name, good)
        before = opened(node)
    put(node.log / "data" / f"{1 << 20:020d}", b"")
    assert fingerprint(before) != before.fingerprint
    assert opened(node, FOREVER).fingerprint == ()
