"""The faults of a soak. Each one is done to a whole cluster under load and undone; afterwards the
cluster must become whole by itself.

A fault takes the cluster and a source of chance, and returns once it is undone. `kinds` lists all
of them; a piece draws from it. Steps of the clock are not among them, because all processes share
the clock of the machine.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ledgermq.node.process.local import Child
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import ExitCode
from tests.builds import Build
from tests.cluster import admin, leader, wait_for, wipe
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import GROUP, FaultyCluster
from tests.faults.test_faults_disk import BadDisks

WAIT_S = 240.0
"""For one step of the cluster on a busy machine."""
SHORT_S, LONG_S = (0.2, 3.0), (3.0, 20.0)
"""Ranges of the duration of a fault: shorter and longer than an election."""
DISK_BYTES, BLOCK_BYTES = 256 << 20, 4096
EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH = 0x8004587D, 2
"""`_IOR('X', 125, __u32)` of Linux: the file system stops without writing its journal or any dirty
page."""


class SoakedCluster(BadDisks):
    """Every node has a file system of its own, in a file, and a library that makes calls fail. It
    may run another build of the program."""

    builds: Mapping[str, Build]

    def start(self, node: str) -> Child:
        if not self.data(node).is_mount():
            self.mount(node)
        build = self.builds.get(node)
        environment = self.environment
        self.environment = {**environment, **({} if build is None else build.environment)}
        try:
            return super().start(node)
        finally:
            self.environment = environment

    def log_file(self, node: str) -> Path:
        """Outside of the node's file system, so that it survives every fault."""
        return self.directory / f"{node}.log"

    def mount(self, node: str) -> None:
        image, place = self.directory / f"{node}.ext4", self.data(node)
        fresh = not image.exists()
        if fresh:
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
        if fresh:
            (place / "lost+found").rmdir()

    def unmount(self, node: str) -> None:
        """The node does not run; the kernel may hold its files a little longer."""

        def gone() -> bool:
            place = self.data(node)
            return (
                not place.is_mount()
                or subprocess.run(["umount", str(place)], capture_output=True).returncode == 0
            )

        wait_for(gone, WAIT_S, f"the end of the file system of {node}")

    def cut_power(self, nodes: Sequence[str]) -> None:
        """The file systems stop where they are: what was written and not synced is gone. Then the
        processes end."""
        for node in nodes:
            descriptor = os.open(self.data(node), os.O_RDONLY)
            fcntl.ioctl(
                descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", EXT4_GOING_FLAGS_NOLOGFLUSH)
            )
            os.close(descriptor)
        for node in nodes:
            self.kill(node)
            self.unmount(node)

    def fill(self, node: str) -> Path:
        """Take all free space. Returns the file that must go to make room."""
        filler = self.data(node) / "filler"
        with filler.open("wb") as file:
            taken, size = 0, DISK_BYTES
            while size >= BLOCK_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), taken, size)
                    taken += size
                except OSError:
                    size //= 2
        return filler

    def pick(self, chance: random.Random) -> str:
        """The leader as often as any of the others."""
        leads = leader(self, timeout_s=WAIT_S)
        return leads if chance.random() < 0.5 else chance.choice(self.others(leads))

    def data_files(self, node: str) -> str:
        """The part of a path that every log file of the node has."""
        return f"/dledger-{node}/data/"

    def back(self, *nodes: str) -> None:
        """Start nodes that ended, and wait until they serve."""
        for node in nodes:
            self.start(node)
        self.wait_ready(WAIT_S, nodes)


Fault = Callable[[SoakedCluster, random.Random], None]


def kill_one(cluster: SoakedCluster, chance: random.Random) -> None:
    victim = cluster.pick(chance)
    cluster.kill(victim)
    time.sleep(chance.uniform(0.0, 10.0))
    cluster.back(victim)


def kill_all(cluster: SoakedCluster, chance: random.Random) -> None:
    """One after the other with short pauses, so that their logs end at different places."""
    nodes = chance.sample(list(cluster.nodes), len(cluster.nodes))
    for node in nodes:
        cluster.kill(node)
        time.sleep(chance.uniform(0.0, 0.2))
    cluster.back(*nodes)


def pause(cluster: SoakedCluster, chance: random.Random) -> None:
    victims = [cluster.pick(chance)]
    if chance.random() < 0.3:
        victims = cluster.others(victims[0])
    for victim in victims:
        cluster.children[victim].signal(signal.SIGSTOP)
    try:
        time.sleep(chance.uniform(*chance.choice((SHORT_S, LONG_S))))
    finally:
        for victim in victims:
            cluster.children[victim].signal(signal.SIGCONT)


def failed_sync(cluster: SoakedCluster, chance: random.Random) -> None:
    victim = cluster.pick(chance)
    cluster.order(victim, "sync", cluster.data_files(victim))
    child = cluster.children[victim]
    wait_for(lambda: child.exit_code is not None, WAIT_S, "a node that ends after a failed sync")
    assert child.exit_code == ExitCode.SYNC_FAILED, child.exit_code
    cluster.back(victim)


def slow_disk(cluster: SoakedCluster, chance: random.Random) -> None:
    victims = list(cluster.nodes) if chance.random() < 0.3 else [cluster.pick(chance)]
    orders = [cluster.order(victim, "slow", cluster.data_files(victim)) for victim in victims]
    try:
        time.sleep(chance.uniform(*LONG_S))
    finally:
        for order in orders:
            order.unlink()


def full_disk(cluster: SoakedCluster, chance: random.Random) -> None:
    """The nodes refuse writes by their own rule for free space, and take them again."""
    victims = list(cluster.nodes) if chance.random() < 0.3 else [cluster.pick(chance)]
    fillers = [cluster.fill(victim) for victim in victims]
    try:
        time.sleep(chance.uniform(*LONG_S))
    finally:
        for filler in fillers:
            filler.unlink()


def power_cut(cluster: SoakedCluster, chance: random.Random) -> None:
    victims = list(cluster.nodes) if chance.random() < 0.5 else [cluster.pick(chance)]
    cluster.cut_power(victims)
    cluster.back(*victims)


def isolate(cluster: SoakedCluster, chance: random.Random) -> None:
    victim = cluster.pick(chance)
    cluster.network.isolate(victim)
    try:
        time.sleep(chance.uniform(*LONG_S))
    finally:
        cluster.network.heal()


def one_way(cluster: SoakedCluster, chance: random.Random) -> None:
    victim = cluster.pick(chance)
    inwards = [(other, victim) for other in cluster.others(victim)]
    cluster.network.block(
        inwards if chance.random() < 0.5 else [(to, other) for other, to in inwards]
    )
    try:
        time.sleep(chance.uniform(*LONG_S))
    finally:
        cluster.network.heal()


def bad_network(cluster: SoakedCluster, chance: random.Random) -> None:
    rules = {
        "delay_s": chance.uniform(0.0, 0.05),
        "jitter_s": chance.uniform(0.0, 0.05),
        "loss": chance.uniform(0.0, 0.1),
    }
    cluster.network.shape(cluster.network.ways, **rules)
    try:
        time.sleep(chance.uniform(*LONG_S))
    finally:
        cluster.network.heal()


def torn_streams(cluster: SoakedCluster, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 5)):
        cluster.network.reset()
        time.sleep(chance.uniform(0.0, 1.0))


def transfer(cluster: SoakedCluster, chance: random.Random) -> None:
    to = chance.choice(cluster.others(leader(cluster, timeout_s=WAIT_S)))
    request = admin_pb2.TransferLeadershipRequest(broker_group=GROUP, to=to)
    wait_for(
        lambda: admin(cluster, to, "TransferLeadership", request).done or None,
        WAIT_S,
        f"a transfer to {to}",
    )


def lost_directory(cluster: SoakedCluster, chance: random.Random) -> None:
    victim = cluster.pick(chance)
    cluster.kill(victim)
    wipe(cluster, victim)
    cluster.back(victim)


def member_moved(cluster: SoakedCluster, chance: random.Random) -> None:
    """Out of the group, and in again with an empty directory, as a learner and then as a voter."""
    victim, cli = cluster.pick(chance), CommandLine.of(cluster)
    cli.ok("member", "remove", victim, "--yes", "--timeout", "60s")
    wait_for(lambda: _leads_without(cluster, victim), WAIT_S, f"a leader other than {victim}")
    assert cluster.terminate(victim) == 0
    wipe(cluster, victim)
    cluster.own_settings[victim] = ("join=true",)
    cluster.start(victim)
    cli.ok("member", "add", victim, "--address", cluster.address(victim), "--timeout", "60s")
    # Refused while it is behind.
    promotion = ("member", "promote", victim, "--timeout", "30s")
    wait_for(lambda: cli.run(*promotion).status == 0, WAIT_S, f"{victim} to vote")
    del cluster.own_settings[victim]


def _leads_without(cluster: FaultyCluster, gone: str) -> bool:
    return leader(cluster, timeout_s=WAIT_S) != gone


def restarts(builds: tuple[Build, Build]) -> Fault:
    """A rolling restart, the leader last: every node stops cleanly and runs the other build, as in
    an upgrade and on the way back."""

    def fault(cluster: SoakedCluster, chance: random.Random) -> None:
        first = leader(cluster, timeout_s=WAIT_S)
        older, newer = builds
        for node in [*cluster.others(first), first]:
            assert cluster.terminate(node, WAIT_S) == 0
            cluster.builds = {
                **cluster.builds,
                node: older if cluster.builds.get(node, older) is newer else newer,
            }
            cluster.back(node)

    return fault


def kinds(builds: tuple[Build, Build]) -> dict[str, Fault]:
    """Name → fault. A piece draws each as often as the others."""
    return {
        "kill one": kill_one,
        "kill all": kill_all,
        "pause": pause,
        "failed sync": failed_sync,
        "full disk": full_disk,
        "slow disk": slow_disk,
        "power cut": power_cut,
        "isolate": isolate,
        "one way": one_way,
        "bad network": bad_network,
        "torn streams": torn_streams,
        "transfer": transfer,
        "lost directory": lost_directory,
        "member moved": member_moved,
        "upgrade": restarts(builds),
    }


def library_in(place: Path) -> type[SoakedCluster]:
    """The class of clusters whose disks fail by the library at `place`."""
    return type("SoakedHere", (SoakedCluster,), {"library": place, "builds": {}})
