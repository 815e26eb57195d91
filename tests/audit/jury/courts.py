"""All courts by name: each state of a cluster under damage of its bytes, and what is beside or between the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ledgermq.sim.settings import Settings
from tests.audit.jury.appointed import Appointed
from tests.audit.jury.called import Running
from tests.audit.jury.claimed import Claims
from tests.audit.jury.clusters import HEALTHY, Cluster, interrupted
from tests.audit.jury.court import Court, spread
from tests.audit.jury.damage import SCRAMBLES
from tests.audit.jury.sealed import Agreement, Seals
from tests.audit.jury.trial import Case, Stage, matrix
from tests.audit.jury.witnesses import Backups

SHARE = 6
"""Damage of the bytes of a spot is tried so much more often than that of whole files."""
ALL = ("bytes", "rewritten", "forged")


@dataclass
class Damaged(Stage):
    """One healthy cluster that is damaged in every way of some families."""

    families: tuple[str, ...] = ALL

    def cases(self, seed: int, only: str = "") -> Iterator[Case]:
        """Over the whole matrix."""
        strata = [case for case in matrix(self.replicas) if case.family in self.families and only in str(case)]
        return spread(strata, seed, dict.fromkeys(SCRAMBLES, SHARE))


def _damaged(make: Callable[[], Cluster], *families: str) -> Callable[[Path], Court]:
    return lambda base: Damaged(make(), base, families=families or ALL)


STATES: dict[str, Callable[[Path], Court]] = {name: _damaged(make) for name, make in HEALTHY.items()}
"""A court for each state of a cluster."""
BENCHES: dict[str, Callable[[Path], Court]] = {
    "in sync": _damaged(lambda: interrupted(18, 700, kinds=(), group=Settings.of_ha(3)), "bytes"),
    "appointed": Appointed,
    "seals": Seals,
    "agreement": Agreement,
    "clients": Claims,
    "backups": Backups,
    "running": Running,
}
"""What is beside or between the logs, and groups of another rule."""
COURTS = STATES | BENCHES
