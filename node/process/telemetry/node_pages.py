"""The HTTP pages of a node with several workers: its first worker answers for all of them.

The other workers answer on sockets that only workers of the node can reach; the first one asks them
and merges the answers. The node is ready only if all workers are, and every metric has a label with
its worker. If a worker does not answer, the node is not healthy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry

SIBLING_ANSWERS_WITHIN_S = 5.0
_FAMILY = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? ([^{}]*)")


class WorkerPages:
    """Asks the other workers for their pages."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers

    async def json(self, path: str) -> dict[str, dict[str, Any] | None]:
        """The JSON answer of each other worker; None if it does not answer in time."""
        found = await self._all(path)
        return {
            worker: answer if isinstance(answer, dict) else None for worker, answer in found.items()
        }

    async def text(self, path: str) -> dict[str, str]:
        """The text page of each other worker; workers that do not answer are left out."""
        found = await self._all(path)
        return {worker: answer for worker, answer in found.items() if isinstance(answer, str)}

    async def _all(self, path: str) -> dict[str, Any]:
        answers = await asyncio.gather(
            *(self._one(worker, path) for worker in self._workers.others)
        )
        return dict(zip(self._workers.others, answers, strict=True))

    async def _one(self, worker: str, path: str) -> Any:
        wait = aiohttp.ClientTimeout(total=SIBLING_ANSWERS_WITHIN_S)
        try:
            connector = aiohttp.UnixConnector(self._workers.pages(worker))
            async with (
                aiohttp.ClientSession(connector=connector, timeout=wait) as session,
                session.get(f"http://worker{path}") as response,
            ):
                return await (
                    response.json()
                    if response.content_type == "application/json"
                    else response.text()
                )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            # The caller handles a worker that does not answer.
            return None


def merged_metrics(pages: Mapping[str, str]) -> str:
    """Merge the metrics of all workers into one page: each family once, with the samples of every
    worker, each with the label `worker`."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        family = ""
        for line in page.splitlines():
            named = _FAMILY.match(line)
            if named is not None:
                if named[1] != family:
                    family = named[1]
                    head = heads.setdefault(family, [])
                    fresh = not head
                    samples.setdefault(family, [])
                if fresh:
                    head.append(line)
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                labels = f'worker="{worker}"' + (f",{sample[2]}" if sample[2] else "")
                samples.setdefault(family, []).append(f"{sample[1]}{{{labels}}} {sample[3]}")
    lines = [
        line for family, values in samples.items() for line in (*heads.get(family, ()), *values)
    ]
    return "".join(f"{line}\n" for line in lines)
