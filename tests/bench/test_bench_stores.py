"""The stores that `storage_modes` compares keep what they were given: a comparison with a store
that loses messages would prove nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import storage_modes
from bench.tools import page_tree, stores
from bench.tools.page_tree import PageTree
from bench.tools.stores import STORES

KEPT = [name for name in STORES if name != "memory"]


def filled(name: str, directory: Path, messages: int) -> Any:
    directory.mkdir()
    store = STORES[name](directory)
    for batch in storage_modes.batches(messages):
        store.write(batch)
    return store


@pytest.mark.verify
@pytest.mark.parametrize("name", KEPT)
def test_store_is_whole_after_its_process_ended(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the files hold while the store is open, as a kill leaves them, gives back every message
    by offset and by key, also after more writing, a checkpoint in between and a good stop."""
    monkeypatch.setattr(storage_modes, "BATCH", 100)
    monkeypatch.setattr(storage_modes, "LOOKUPS", 100)
    monkeypatch.setattr(stores, "DIRTY_PAGES_MAX", 20)
    monkeypatch.setattr(stores, "JOURNAL_FILE_BYTES", 100_000)
    monkeypatch.setattr(stores, "SNAPSHOT_EVERY_BYTES", 100_000)
    monkeypatch.setattr(stores, "LOG_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(stores, "KEY_SLOTS", 500)
    monkeypatch.setattr(stores, "KEY_UNITS", 1000)
    store = filled(name, tmp_path / "a", 1500)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.close()
    for _ in range(2):
        store = STORES[name](tmp_path / "b")
        storage_modes.read_all(store, 1500)
        assert list(store.read(1499 % 8, 1499 // 8, 1)) == [storage_modes.body_of(1499)]
        store.close()


def test_memory_store_returns_its_messages(tmp_path: Path) -> None:
    """The ceiling is honest as well."""
    storage_modes.read_all(filled("memory", tmp_path / "m", 1000), 1000)


def test_page_tree_against_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordered and random keys, replaced values, small pages and a small cache: scans equal the
    sorted dictionary, also after reopening."""
    monkeypatch.setattr(page_tree, "ENTRIES_MAX", 8)
    monkeypatch.setattr(page_tree, "CACHED_PAGES", 10)
    chance, model = random.Random(3), {}
    tree = PageTree(tmp_path)
    for number in range(3000):
        key = number.to_bytes(16, "big") if number % 3 else chance.randbytes(1).rjust(16, b"k")
        tree.put(key, number)
        model[key] = number
        if number % 500 == 499:
            tree.checkpoint(number)
    tree.checkpoint(7)
    tree.close()
    tree = PageTree(tmp_path)
    ordered = sorted(model)
    assert tree.position == 7
    assert list(tree.scan(bytes(16), b"\xff" * 16)) == [model[key] for key in ordered]
    for low in range(0, len(ordered) - 20, 97):
        assert list(tree.scan(ordered[low], ordered[low + 20])) == [
            model[key] for key in ordered[low : low + 20]
        ]
    tree.close()


def test_torn_page_is_repaired_from_the_recovery_file(tmp_path: Path) -> None:
    """A page of the last checkpoint that reached the file in part is written again at the next
    start."""
    tree = PageTree(tmp_path)
    for number in range(500):
        tree.put(number.to_bytes(16, "big"), number)
    tree.checkpoint(1)
    tree.close()
    data = bytearray((tmp_path / "pages").read_bytes())
    data[page_tree.PAGE_BYTES + 100 : page_tree.PAGE_BYTES + 2000] = bytes(1900)
    (tmp_path / "pages").write_bytes(data)
    tree = PageTree(tmp_path)
    assert list(tree.scan(bytes(16), b"\xff" * 16)) == list(range(500))
    tree.close()


def test_table_and_plot_are_functions_of_the_figures(tmp_path: Path) -> None:
    """The same figures give the same page and the same picture, between the marks and nowhere
    else."""
    row = {
        "write_messages_per_s": 1e5,
        "batch_p50_ms": 1.0,
        "batch_p99_ms": 2.0,
        "read_one_us": 3.0,
        "read_run_messages_per_s": 1e6,
        "by_key_us": 4.0,
        "absent_key_us": 5.0,
        "killed_open_s": 0.1,
        "clean_open_s": None,
        "disk_bytes": 1 << 20,
    }
    figures = {
        "messages": 1,
        "body_bytes": 2,
        "queues": 3,
        "batch": 4,
        "versions": stores.versions(),
        "stores": dict.fromkeys(STORES, row),
    }
    page = tmp_path / "page.md"
    page.write_text(f"before\n{storage_modes.MARKS[0]}\nold\n{storage_modes.MARKS[1]}\nafter\n")
    made = []
    for number in range(2):
        storage_modes.publish(page, tmp_path / f"{number}.svg", figures)
        made.append((page.read_text(), (tmp_path / f"{number}.svg").read_bytes()))
    assert made[0] == made[1]
    assert (
        made[0][0].startswith("before\n")
        and made[0][0].endswith("\nafter\n")
        and "old" not in made[0][0]
    )
    assert "| LedgerMQ | 100,000 | 1.00 / 2.00 ms | 3.0 µs |" in made[0][0]
