"""Power cuts page by page: of the pages that are dirty in the moment before a sync, every subset
survives in turn, and each is torn alone.

The dirty pages are those of mapped memory as well: what a store through a map leaves is kept or
lost like what a write leaves.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from ledgermq.sim.machine.disk import ForgetfulDisk
from tests.storage.kill_points import run, verify
from tests.storage.test_storage_kill_points import SCENARIOS

ALL_SUBSETS_OF = 4
"""Up to so many dirty pages every subset is tried; of more, those with at most one page lost or
kept, and a few by chance."""
Page = tuple[str, int]


def subsets(pages: list[Page], chance: random.Random, samples: int) -> Iterator[frozenset[Page]]:
    if len(pages) <= ALL_SUBSETS_OF:
        for count in range(len(pages) + 1):
            yield from map(frozenset, combinations(pages, count))
        return
    yield frozenset()
    yield from (frozenset(pages) - {page} for page in pages)
    yield from (frozenset({page}) for page in pages)
    for _ in range(samples):
        yield frozenset(page for page in pages if chance.random() < 0.5)


def check(scenario: str, *, through_map: bool, samples: int, stride: int) -> int:
    """Cut the power before every `stride`-th sync of a scenario in all these ways. Returns the
    number of cuts."""
    prepare, act = SCENARIOS[scenario]
    base, promises = prepare()
    whole, _, done = run(base, promises, act, through_map=through_map)
    assert done
    syncs = [at for at, (name, _) in enumerate(whole.operations) if name == "sync"]
    cuts = 0
    for at in syncs[::stride]:
        dying, told, _ = run(base, promises, act, at, through_map=through_map)
        pages = dying.disk.unsynced_pages()
        fates = [(kept, frozenset[Page]()) for kept in subsets(pages, random.Random(at), samples)]
        fates += [(frozenset(pages) - {page}, frozenset({page})) for page in pages]
        for kept, torn in fates:
            disk: ForgetfulDisk = copy.deepcopy(dying.disk)
            disk.power_cut_keeping(kept, torn=torn)
            try:
                verify(disk, told)
            except Exception as error:
                raise AssertionError(
                    f"{scenario}, before sync {at}: kept {sorted(kept)}, torn {sorted(torn)}:"
                    f" {error}"
                ) from error
            cuts += 1
    return cuts


@pytest.mark.one_in(3)
@pytest.mark.parametrize("through_map", [False, True])
@pytest.mark.parametrize("scenario", ["append", "roll", "early", "sync", "truncate"])
def test_any_subset_of_dirty_pages_survives(scenario: str, through_map: bool) -> None:
    """Whatever the medium holds, everything acknowledged is there, and what was not is there whole
    or not at all."""
    assert check(scenario, through_map=through_map, samples=2, stride=3) > 20


@pytest.mark.parametrize("scenario", ["snapshot", "hard state", "bootstrap", "close"])
def test_any_subset_of_dirty_pages_of_the_small_files_survives(scenario: str) -> None:
    """The same for the files beside the log."""
    assert check(scenario, through_map=False, samples=2, stride=4) > 4


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_many_more_subsets(scenario: str) -> None:
    """Before every sync of every scenario."""
    check(scenario, through_map=True, samples=8, stride=1)
