"""A stop that takes long says what it waits for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ledgermq.node.process import stop_watch


def test_threads_and_tasks_are_named_with_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never returns and a task that waits forever are both reported, also while the
    event loop is blocked."""
    said = threading.Event()
    told: dict[str, list[str]] = {}
    release = threading.Event()

    class Log:
        def warning(self, what: str, **facts: list[str]) -> None:
            told.update(facts)
            said.set()

    monkeypatch.setattr(stop_watch, "log", Log())
    stuck = threading.Thread(target=release.wait, name="never-back", daemon=True)

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def stop() -> None:
        task = asyncio.create_task(waits_for_ever(), name="for-ever")
        await asyncio.sleep(0)
        stop_watch.watch_stop(asyncio.get_running_loop(), 0.0)
        assert said.wait(10), "nothing was said"
        task.cancel()

    stuck.start()
    asyncio.run(stop())
    release.set()
    assert any(thread.startswith("never-back: threading.py") for thread in told["threads"])
    assert any(
        task.startswith("for-ever: test_node_stop_watch.py") and "waits_for_ever" in task
        for task in told["tasks"]
    )
