"""The log tree in the state of a group: where it begins, that it only grows, and that the audit's
own code derives the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ledgermq.audit.state.reader import Entry
from ledgermq.audit.state.records import Retained as Derived
from ledgermq.node.broker.parts.retention.file_tree import NO_ROOT, leaf_of
from ledgermq.node.broker.parts.retention.retained import Retained
from ledgermq.proto.proofs.log_tree import FileLeaf, check_consistency, consistency_path, tree_root
from ledgermq.proto.records.control import (
    LevelRecord,
    SealRecord,
    TrimRecord,
    UnknownControlRecord,
    decode,
)

SIZE = 1000
"""Every file of these logs has so many bytes and ten entries."""


def seal(number: int, root: bool = True) -> SealRecord:
    first = 10 * number
    told = bytes([number + 1]) * 32
    return SealRecord(
        SIZE * number,
        first,
        first + 9,
        SIZE * number + 900,
        told.hex(),
        ("n1", "n2"),
        told[::-1].hex() if root else "",
    )


def trim(begin: int, end: int) -> TrimRecord:
    """Files `begin` to `end`, exclusive, go."""
    files = tuple((SIZE * number, None) for number in range(begin, end))
    return TrimRecord(10 * end, SIZE * end, 1, 7, 10 * begin, files, "disk")


class Both:
    """The state of a node and that of the audit, given the same records."""

    def __init__(self) -> None:
        self.node, self.audit = Retained(), Derived()
        self.index = 0
        self.begin = 0

    def apply(self, record: SealRecord | TrimRecord | LevelRecord) -> None:
        self.index += 1
        if isinstance(record, SealRecord):
            self.node.apply_seal(record)
        elif isinstance(record, TrimRecord):
            self.node.apply_trim(self.index, 5, record)
            self.begin = record.begin_pos // SIZE
        else:
            self.node.begin_tree()
        body = record.encode()
        fields = {"level": 2} if isinstance(record, LevelRecord) else record.fields()
        self.audit.apply(Entry(self.index, 1, 0, 0, "t", 0, 0, 5, 0, {}, record.TAG, fields, body))

    def check(self) -> None:
        """Both say the same, and a snapshot brings it back."""
        assert self.audit.values()["retained"] == self.node.export()
        again = Retained()
        again.restore(self.node.export())
        assert again.export() == self.node.export()
        loaded = Derived()
        loaded.load({"retained": self.node.export(), "level": 1 if self.node.tree is None else 2})
        assert loaded.values() == self.audit.values()

    @property
    def hashes(self) -> list[bytes]:
        return [] if self.node.tree is None else list(self.node.tree.hashes)


def test_a_new_log_has_all_its_files_in_the_tree() -> None:
    both = Both()
    for record in (LevelRecord(2), seal(0), seal(1), seal(2)):
        both.apply(record)
        both.check()
    assert both.hashes == [leaf_of(seal(number)).hash() for number in range(3)]
    told: Any = both.node.tree
    assert (told.first_index, told.base, told.next_index, told.end_pos) == (0, 0, 30, 2900)


def test_files_that_are_sealed_without_order_wait_for_the_one_before_them() -> None:
    both = Both()
    for record in (LevelRecord(2), seal(2), seal(1)):
        both.apply(record)
    assert both.hashes == []
    both.apply(seal(0))
    both.check()
    assert both.hashes == [leaf_of(seal(number)).hash() for number in range(3)]


def test_tree_begins_behind_the_last_seal_without_a_root() -> None:
    """Also behind a file that was not sealed yet, if a later one was: a tree has no gap, and it is
    never begun again."""
    both = Both()
    for record in (
        seal(0, root=False),
        seal(2, root=False),
        LevelRecord(2),
        seal(1),
        seal(4),
        seal(3),
    ):
        both.apply(record)
        both.check()
    told: Any = both.node.tree
    assert both.hashes == [leaf_of(seal(3)).hash(), leaf_of(seal(4)).hash()] and (
        told.first_index,
        told.base,
    ) == (30, 3000)
    assert [
        told.number_of(both.node.seals[SIZE * n], both.node.seals.values()) for n in range(5)
    ] == [None, None, None, 0, 1]


def test_seal_without_a_root_is_ignored_once_a_tree_exists() -> None:
    both = Both()
    for record in (LevelRecord(2), seal(0, root=False)):
        both.apply(record)
    both.check()
    assert not both.node.seals and both.node.sealing(seal(0))


def test_trimmed_files_stay_in_the_tree_and_unsealed_ones_get_a_leaf_without_a_root() -> None:
    both = Both()
    for record in (LevelRecord(2), seal(0), seal(1), trim(0, 1)):
        both.apply(record)
    assert len(both.hashes) == 2
    both.apply(trim(1, 4))
    both.apply(seal(5))
    both.apply(seal(4))
    both.check()
    gap = FileLeaf(2 * SIZE, 20, 20, 4 * SIZE, NO_ROOT)
    assert both.hashes == [
        one.hash()
        for one in (leaf_of(seal(0)), leaf_of(seal(1)), gap, leaf_of(seal(4)), leaf_of(seal(5)))
    ]
    tree = both.node.tree
    assert (
        tree is not None
        and tree.number_of(both.node.seals[5 * SIZE], both.node.seals.values()) == 4
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_records(seed: int) -> None:
    """Node and audit agree after every record, and each tree continues every earlier one."""
    rng, both, seen = Random(seed), Both(), [[]]
    raised = rng.randrange(30)
    for step in range(80):
        number = both.begin + rng.randrange(6)
        if step == raised:
            both.apply(LevelRecord(2))
        elif rng.random() < 0.8:
            both.apply(seal(number, root=step > raised and rng.random() < 0.9))
        else:
            both.apply(trim(both.begin, min(250, both.begin + rng.randrange(1, 3))))
        both.check()
        new, old = both.hashes, seen[-1]
        assert new[: len(old)] == old
        check_consistency(
            len(old), tree_root(old), len(new), tree_root(new), consistency_path(new, len(old))
        )
        seen.append(new)
    assert len(both.hashes) > 4


def test_a_seal_in_both_versions() -> None:
    """The version is that of what it holds, and a root that is no hash stops the reader."""
    for record, version in ((seal(3), 2), (seal(3, root=False), 1)):
        body = record.encode()
        assert (
            record.version == version
            and body.startswith(b'{"v":%d,' % version)
            and decode("seal", body) == record
        )
    assert seal(3).fields()["tree"] == {"entries": 10, "root": seal(3).root}
    for wrong in (seal(3).root[:-2], "zz" * 32):
        with pytest.raises(UnknownControlRecord):
            decode("seal", seal(3).encode().replace(seal(3).root.encode(), wrong.encode()))
