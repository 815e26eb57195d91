"""All suites by name: damage to the bytes of a cluster in each state, and to the files beside the
logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ledgermq.sim.machine.settings import Settings
from tests.audit.fuzz.appointed import Appointed
from tests.audit.fuzz.called import Running
from tests.audit.fuzz.case import Case, DamagedCluster, matrix
from tests.audit.fuzz.claimed import Claims
from tests.audit.fuzz.clusters import HEALTHY, Cluster, interrupted
from tests.audit.fuzz.damage import SCRAMBLES
from tests.audit.fuzz.runner import Suite, spread
from tests.audit.fuzz.sealed import Agreement, Seals
from tests.audit.fuzz.witnesses import Backups

SHARE = 6
"""Damage to bytes is tried this many times more often than damage to whole files."""
ALL = ("bytes", "rewritten", "forged")


@dataclass
class Damaged(DamagedCluster):
    """A healthy cluster that is damaged in all ways of some families."""

    families: tuple[str, ...] = ALL

    def cases(self, seed: int, only: str = "") -> Iterator[Case]:
        """Cases of the whole matrix."""
        strata = [
            case
            for case in matrix(self.replicas)
            if case.family in self.families and only in str(case)
        ]
        return spread(strata, seed, dict.fromkeys(SCRAMBLES, SHARE))


def _damaged(make: Callable[[], Cluster], *families: str) -> Callable[[Path], Suite]:
    return lambda base: Damaged(make(), base, families=families or ALL)


STATES: dict[str, Callable[[Path], Suite]] = {
    name: _damaged(make) for name, make in HEALTHY.items()
}
"""A suite for each state of a cluster."""
SCENARIOS: dict[str, Callable[[Path], Suite]] = {
    "in sync": _damaged(lambda: interrupted(18, 700, kinds=(), group=Settings.of_ha(3)), "bytes"),
    "appointed": Appointed,
    "seals": Seals,
    "agreement": Agreement,
    "clients": Claims,
    "backups": Backups,
    "running": Running,
}
"""Suites of files beside the logs, and of HA groups."""
SUITES = STATES | SCENARIOS
