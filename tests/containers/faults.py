"""Faults for running containers: signals, the freezer, the network from outside and inside, a slow
disk, too little memory.

Each function causes one fault, and each context manager undoes its fault. Kernel rules (iptables,
tc) are set in the network namespace of a container and disk limits in its control group, both from
the host: this needs root on the host and nothing in the image. `missing` lists the faults that the
host does not support. The tests decide on the schedule and the assertions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import wait_for
from tests.containers.engine import DOCKER_S, IMAGE, NODES, Project, docker

CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = "1t"
TOO_LITTLE = "48m"
"""A memory limit below the needs of the interpreter and the imports of a node."""
SQUATTERS = "squatter"


def missing() -> dict[str, str]:
    """Faults that this host does not support, with the reasons."""
    found: dict[str, str] = {}
    tools = {"iptables": ("cannot hear", "cannot speak", "loss"), "tc": ("rate",)}
    for tool, needing in tools.items():
        why = (
            "changing a container's network takes root"
            if os.geteuid()
            else _lacks(tool) or _lacks("nsenter")
        )
        if why is None and subprocess.run(_TRIALS[tool], capture_output=True).returncode != 0:
            why = f"this kernel does not do what is asked of {tool}"
        found.update(dict.fromkeys(needing, why) if why else {})
    if os.geteuid():
        found["slow disk"] = "limiting a container's disk takes root"
    elif (
        not (CGROUPS / "blkio/blkio.throttle.write_iops_device").exists()
        and "io" not in _controllers()
    ):
        found["slow disk"] = "the kernel does not limit disks by control group"
    return found


_TRIALS = {
    "iptables": [
        "unshare",
        "-n",
        "iptables",
        "-A",
        "INPUT",
        "-m",
        "statistic",
        "--mode",
        "random",
        "--probability",
        "0.1",
        "-j",
        "DROP",
    ],
    "tc": [
        "unshare",
        "-n",
        "tc",
        "qdisc",
        "add",
        "dev",
        "lo",
        "root",
        "tbf",
        "rate",
        "1mbit",
        "burst",
        "32kb",
        "latency",
        "400ms",
    ],
}


def _lacks(tool: str) -> str | None:
    return None if shutil.which(tool) else f"{tool} is not installed"


def _controllers() -> str:
    path = CGROUPS / "cgroup.controllers"
    return path.read_text() if path.exists() else ""


# -- processes


def kill(project: Project, node: str) -> None:
    docker("kill", "-s", "KILL", project.container(node))


def start(project: Project, node: str) -> None:
    docker("start", project.container(node))


def stop(project: Project, node: str) -> int:
    """Stop a node as an operator does. Returns its exit status."""
    docker("stop", "-t", "30", project.container(node))
    return exit_status(project, node)


def exit_status(project: Project, node: str) -> int:
    return int(project.inspect(node)["State"]["ExitCode"])


@contextmanager
def paused(project: Project, *nodes: str) -> Iterator[None]:
    """Freeze all processes of these containers."""
    for node in nodes:
        docker("pause", project.container(node))
    try:
        yield
    finally:
        for node in nodes:
            docker("unpause", project.container(node))


@contextmanager
def too_little_memory(project: Project, node: str) -> Iterator[None]:
    """Start the node with less memory than it needs, until the kernel has killed it more than
    once."""
    container = project.container(node)
    kill(project, node)
    docker("update", "--memory", TOO_LITTLE, "--memory-swap", TOO_LITTLE, container)
    try:
        docker("start", container)
        wait_for(
            lambda: project.inspect(node)["RestartCount"] >= 2,
            60,
            f"{node} to be killed for want of memory",
        )
        state = project.inspect(node)["State"]
        assert state["OOMKilled"] or state["ExitCode"] == 137, state
        yield
    finally:
        docker("update", "--memory", UNLIMITED, "--memory-swap", UNLIMITED, container)
        docker("restart", "-t", "1", container)


# -- networks


def address(project: Project, node: str) -> str:
    """The address of the node in the network of the nodes."""
    found = project.inspect(node)["NetworkSettings"]["Networks"][project.network]["IPAddress"]
    assert found, f"{node} has no address"
    return str(found)


@contextmanager
def disconnected(project: Project, node: str, elsewhere: bool = False) -> Iterator[None]:
    """Disconnect a node from its network, then reconnect it under its name. `elsewhere`: another
    container takes its address in the meantime."""
    container, squatter = project.container(node), f"{project.name}_{SQUATTERS}"
    docker("network", "disconnect", project.network, container)
    try:
        if elsewhere:
            docker(
                "run",
                "-d",
                "--rm",
                "--name",
                squatter,
                "--network",
                project.network,
                "--entrypoint",
                "sleep",
                IMAGE,
                "600",
            )
        yield
    finally:
        docker("network", "connect", "--alias", node, project.network, container)
        docker("rm", "-f", squatter, check=False)


@contextmanager
def dropping(
    project: Project, node: str, chain: str, peers: Sequence[str], probability: float = 1.0
) -> Iterator[None]:
    """Drop packets from other nodes (`INPUT`) or to them (`OUTPUT`) inside the node's network; its
    clients are not affected."""
    side = "-s" if chain == "INPUT" else "-d"
    chance = (
        []
        if probability >= 1
        else ["-m", "statistic", "--mode", "random", "--probability", str(probability)]
    )
    rules = [[chain, side, address(project, peer), *chance, "-j", "DROP"] for peer in peers]
    pid = process_of(project, node)
    for rule in rules:
        inside(pid, "iptables", "-I", *rule)
    try:
        yield
    finally:
        for rule in rules:
            inside(pid, "iptables", "-D", *rule)


@contextmanager
def limited_rate(project: Project, node: str, bits_per_s: int) -> Iterator[None]:
    """Limit the rate at which the node sends, to peers and clients."""
    pid = process_of(project, node)
    device = next(
        line.split()[0]
        for line in Path(f"/proc/{pid}/net/route").read_text().splitlines()
        if line.split()[1] == "00000000"
    )
    inside(
        pid,
        "tc",
        "qdisc",
        "add",
        "dev",
        device,
        "root",
        "tbf",
        "rate",
        f"{bits_per_s}bit",
        "burst",
        "16kb",
        "latency",
        "400ms",
    )
    try:
        yield
    finally:
        inside(pid, "tc", "qdisc", "del", "dev", device, "root")


def process_of(project: Project, node: str) -> int:
    return int(project.inspect(node)["State"]["Pid"])


def inside(pid: int, *command: str) -> None:
    """Run a command of the host in the network namespace of a container."""
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-n", *command],
        capture_output=True,
        text=True,
        timeout=DOCKER_S,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


# -- disks


@contextmanager
def slow_disk(project: Project, node: str, writes_per_s: int) -> Iterator[None]:
    """Limit the number of writes per second from the node to the device of its volumes."""
    mounts = project.inspect(node)["Mounts"]
    data = next(mount["Source"] for mount in mounts if mount["Destination"] == "/data")
    file, write = _limits_of(process_of(project, node), whole_disk(os.stat(data).st_dev))
    file.write_text(write.format(writes_per_s))
    try:
        yield
    finally:
        # The limit is already gone if the container is.
        if file.exists():
            file.write_text(write.format(0 if file.name.startswith("blkio") else "max"))


def _limits_of(pid: int, device: str) -> tuple[Path, str]:
    """The file of a process's control group that limits writes, and what to write into it."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "blkio" in controllers.split(","):
            return CGROUPS / "blkio" / path.lstrip(
                "/"
            ) / "blkio.throttle.write_iops_device", f"{device} {{}}"
        if not controllers and "io" in _controllers():
            return CGROUPS / path.lstrip("/") / "io.max", f"{device} wiops={{}}"
    raise AssertionError(f"process {pid} is in no control group that limits disks")


def whole_disk(device: int) -> str:
    """The disk of a partition; only whole disks have limits."""
    name = f"{os.major(device)}:{os.minor(device)}"
    place = Path(f"/sys/dev/block/{name}").resolve()
    return (place.parent / "dev").read_text().strip() if (place / "partition").exists() else name


def others(node: str) -> list[str]:
    return [name for name in NODES if name != node]
