"""A cluster of `serve` processes on this machine, for `ledgermq up`, the demo and the slow tests.

This module has the layout of the cluster's directory (cluster id and secret are created once, ports
rewritten at every start), finds free ports, and starts, watches and ends the processes. It speaks
no protocol of the product; it asks for readiness over HTTP, as any external watcher does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from ledgermq.node.frontend.security.minting import CA_CERTIFICATE, ensure
from ledgermq.node.process.ports import Process
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup, NodeAddress
from ledgermq.node.runtime.config_loading import ENV_PREFIX, is_setting, validate
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.host_port import joined
from ledgermq.proto.status import ExitCode
from ledgermq.proto.workers import WORKER_PORT_STEP, node_of, worker_name
from ledgermq.storage.files.real_disk import DirectoryLock, replace_file
from ledgermq.storage.state.identity import NODE_FILE

CLUSTER_FILE = "cluster.yaml"
SECRET_FILE = "secret"
LOG_FILE = "node.log"
TLS_DIRECTORY = "tls"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
DEFAULT_GROUP = "g1"
DEFAULT_LOG_FILE_BYTES = 64 << 20
PORT_STEPS = {"client_port": 0, "peer_port": 1000, "controller_port": 2000, "http_port": 3000}
ANSWER_BYTES = 1 << 20
"""No answer of a node at /readyz is longer."""

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ports_from_base(nodes: int, base_port: int, workers: int = 1) -> list[NodeAddress]:
    """Node k: client P+k−1, peer P+1000+k−1, controller P+2000+k−1, HTTP P+3000+k−1."""
    ports = [
        {kind: base_port + step + k for kind, step in PORT_STEPS.items()} for k in range(nodes)
    ]
    return [NodeAddress.model_validate({**each, "workers": workers}) for each in ports]


def port_range() -> Sequence[int]:
    """The ports from which `free_ports` chooses."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return range(10_000, max(lowest, 12_000))


def free_ports(nodes: int, workers: int = 1) -> list[NodeAddress]:
    """Addresses with free ports, including those of further workers.

    The ports lie below the range from which the system numbers outgoing connections. Otherwise,
    while a node is down, its port could become the source port of a connection, even of one that
    tries to reach that node.
    """
    candidates = random.sample(port_range(), 400)
    found: list[int] = []
    taken: set[int] = set()
    for port in candidates:
        # Reserves a port of each worker for every port, although workers share some kinds.
        whole = {port + WORKER_PORT_STEP * number for number in range(workers)}
        if taken & whole or not all(map(_is_free, whole)):
            continue
        taken |= whole
        found.append(port)
        if len(found) == nodes * len(PORT_STEPS):
            break
    fours = [found[k : k + len(PORT_STEPS)] for k in range(0, len(found), len(PORT_STEPS))]
    return [
        NodeAddress.model_validate({**dict(zip(PORT_STEPS, four, strict=True)), "workers": workers})
        for four in fours
    ]


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def launch(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """Start `ledgermq ARGUMENTS` as the leader of a process group of its own, with stderr going to
    `log`."""
    return subprocess.Popen(
        [sys.executable, "-m", "ledgermq", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env={**environment, f"{ENV_PREFIX}PARENT": str(os.getpid())},
        start_new_session=True,
    )


@dataclass(slots=True)
class Child:
    """One `serve` process."""

    node: str
    process: Process
    log: IO[bytes]

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code; a process that does not end in time is killed, and the code says so."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


@dataclass(slots=True)
class LocalCluster:
    """The directory of a local cluster, and its running processes."""

    directory: Path
    nodes: dict[str, NodeAddress]
    cluster_id: str
    groups: tuple[BrokerGroup, ...]
    settings: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        directory: Path,
        *,
        addresses: Sequence[NodeAddress] | None = None,
        nodes: int | None = None,
        base_port: int | None = None,
        log_file_bytes: int | None = None,
        groups: Sequence[str | Mapping[str, Any]] | None = None,
        workers: int | None = None,
        extra: Mapping[str, Any] | None = None,
        settings: Sequence[str] = (),
        tls: bool = False,
    ) -> LocalCluster:
        """Create or resume a cluster directory. Raises FatalError.

        `nodes` and `log_file_bytes` must agree with an existing directory. Without a base port,
        free ports are chosen. `groups`: names, or settings of broker groups with their names.
        `extra`: further configuration sections (raft, delivery, limits), used when the directory is
        created. `tls`: use certificates of the directory's own authority; this is permanent.
        `workers`: processes of each node, by default as in an existing directory; without `groups`
        there is one group for each worker."""
        directory = directory.absolute()
        path = directory / CLUSTER_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                if (directory / NODE_FILE).exists():
                    what = (
                        f"{directory} is the directory of one node, not of a cluster on this"
                        " machine"
                    )
                    raise FatalError(
                        ExitCode.REFUSED,
                        what,
                        "give the directory above it, or start the node with ledgermq serve",
                    )
                _create(
                    directory,
                    nodes=nodes or 3,
                    workers=workers or 1,
                    log_file_bytes=log_file_bytes or DEFAULT_LOG_FILE_BYTES,
                    groups=groups,
                    extra=extra or {},
                )
            tree = _load(path)
            names = [f"n{k + 1}" for k in range(len(tree["nodes"]))]
            _check_agrees(directory, tree, nodes, log_file_bytes)
            _check_stopped(directory, names)
            each = (
                max(address.get("workers", 1) for address in tree["nodes"].values())
                if workers is None
                else workers
            )
            if addresses is None:
                addresses = (
                    ports_from_base(len(names), base_port, each)
                    if base_port is not None
                    else free_ports(len(names), each)
                )
            tree["nodes"] = {
                name: address.model_dump(exclude_none=True)
                for name, address in zip(names, addresses, strict=True)
            }
            _replace(path, tree)
            if tls or (directory / TLS_DIRECTORY).exists():
                ensure(
                    directory / TLS_DIRECTORY,
                    {
                        name: (at.host, *LOCAL_NAMES)
                        for name, at in zip(names, addresses, strict=True)
                    },
                )
        except OSError as error:
            what = f"the directory {directory} cannot be used ({error.strerror})"
            raise FatalError(
                ExitCode.DATA_UNUSABLE, what, "choose another one with --data, or make it writable"
            ) from error
        checked = validate({**tree, "node": names[0], "data": str(directory / names[0])})
        return cls(
            directory, dict(checked.nodes), checked.cluster_id, checked.cluster.groups, settings
        )

    @property
    def config_file(self) -> Path:
        return self.directory / CLUSTER_FILE

    @property
    def endpoints(self) -> str:
        """The endpoints in the format of the clients, separated by semicolons."""
        return ";".join(
            joined(address.host, address.client_port) for address in self.nodes.values()
        )

    def data(self, member: str) -> Path:
        """The directory of a node, or of one of its workers."""
        node = node_of(member)
        return self.directory / node if member == node else self.directory / node / member

    def log_file(self, node: str) -> Path:
        return self.directory / node / LOG_FILE

    def start(self, node: str) -> Child:
        """Start one node; its log is appended to its node.log."""
        former = self.children.get(node)
        assert former is None or former.exit_code is not None, f"{node} is running"
        self.data(node).mkdir(parents=True, exist_ok=True)
        log = self.log_file(node).open("ab")
        arguments = ["serve", "--config", str(self.config_file)]
        for setting in (
            f"node={node}",
            f"data={self.data(node)}",
            *self._tls_settings(node),
            *self.settings,
        ):
            arguments += ["--set", setting]
        # Only its files configure a node of a local cluster; settings for other nodes must not leak
        # in.
        kept = {name: value for name, value in os.environ.items() if not is_setting(name, value)}
        process = launch(arguments, {**kept, **self.environment}, log)
        child = Child(node, process, log)
        self.children[node] = child
        return child

    @property
    def ca_file(self) -> Path | None:
        """The CA certificate with which clients verify the nodes; None if this cluster speaks
        plaintext."""
        path = self.directory / TLS_DIRECTORY / CA_CERTIFICATE
        return path if path.exists() else None

    def _tls_settings(self, node: str) -> list[str]:
        if self.ca_file is None:
            return []
        own = {
            "certificate_file": self.ca_file.with_name(f"{node}.pem"),
            "key_file": self.ca_file.with_name(f"{node}.key"),
        }
        clients = [f"tls.{key}={path}" for key, path in own.items()]
        peers = [f"peer_tls.{key}={path}" for key, path in {**own, "ca_file": self.ca_file}.items()]
        return ["tls.mode=both", *clients, "peer_tls.mode=required", *peers]

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node)

    def kill(self, node: str) -> None:
        """Send SIGKILL to a node and all its workers, and wait until all processes are gone."""
        process_group = self.children[node].process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process_group, signal.SIGKILL)
        self.children[node].wait(30)
        deadline = time.monotonic() + 30
        while _is_there(process_group) and time.monotonic() < deadline:
            time.sleep(0.005)

    def terminate(self, node: str, timeout_s: float = 30) -> int:
        """Send SIGTERM to a node. Returns its exit code."""
        self.children[node].signal(signal.SIGTERM)
        return self.children[node].wait(timeout_s)

    def stop(self, timeout_s: float = 30) -> dict[str, int]:
        """Send SIGTERM to every running node. Returns their exit codes."""
        running = [child for child in self.children.values() if child.exit_code is None]
        for child in running:
            child.signal(signal.SIGTERM)
        return {child.node: child.wait(timeout_s) for child in running}

    def ready(self, node: str) -> bool:
        """Whether this node, and not another process on its port, answers "ready" at /readyz."""
        address = self.nodes[node]
        try:
            with _OPENER.open(
                f"http://{joined(address.host, address.http_port)}/readyz", timeout=2
            ) as response:
                answer = json.loads(response.read(ANSWER_BYTES))
        except (http.client.HTTPException, OSError, ValueError):
            # URLError is an OSError. Any other program may listen there until the node has found
            # out that the port is taken.
            return False
        return isinstance(answer, dict) and (answer.get("cluster"), answer.get("node")) == (
            self.cluster_id,
            node,
        )

    def wait_ready(self, timeout_s: float = 60, nodes: Sequence[str] | None = None) -> None:
        """Return when the nodes (default: all) are ready. Raises FatalError if one stopped or the
        time is over."""
        deadline = time.monotonic() + timeout_s
        waiting = list(self.nodes if nodes is None else nodes)
        while waiting:
            for node in list(waiting):
                code = self.children[node].exit_code
                if code is not None:
                    raise FatalError(
                        code if 64 <= code <= 78 else 1,
                        f"node {node} stopped: {self.last_error(node)}",
                        "correct this and start again",
                    )
                if self.ready(node):
                    waiting.remove(node)
            if waiting and time.monotonic() > deadline:
                what = f"not ready after {timeout_s:g} s: {', '.join(waiting)}"
                raise FatalError(
                    ExitCode.UNREACHABLE, what, f"look into {self.log_file(waiting[0])}"
                )
            time.sleep(0.05)

    def last_error(self, node: str) -> str:
        """The last `error:` line in the node's own log."""
        try:
            lines = self.log_file(node).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        own = [line.removeprefix("error: ") for line in lines[-50:] if line.startswith("error: ")]
        return (
            own[-1]
            if own
            else f"exit status {self.children[node].exit_code}, see {self.log_file(node)}"
        )


def _is_there(process_group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return False
    return True


def _create(
    directory: Path,
    nodes: int,
    workers: int,
    log_file_bytes: int,
    groups: Sequence[str | Mapping[str, Any]] | None,
    extra: Mapping[str, Any],
) -> None:
    names = [f"n{k + 1}" for k in range(nodes)]
    secret = directory / SECRET_FILE
    if not secret.exists():
        make_secret(secret)
    cluster = {
        "id": str(uuid.uuid4()),
        "created_ms": time.time_ns() // 1_000_000,
        "secret_file": str(secret),
        "groups": [
            {
                "replicas": [worker_name(name, place % workers + 1) for name in names],
                "data_file_bytes": log_file_bytes,
                **({"name": group} if isinstance(group, str) else group),
            }
            for place, group in enumerate(
                groups or [f"g{number}" for number in range(1, workers + 1)]
            )
        ],
    }
    _replace(
        directory / CLUSTER_FILE,
        {**extra, "cluster": cluster, "nodes": {name: {"workers": workers} for name in names}},
    )


def make_secret(path: Path) -> None:
    """Write a new secret that only its owner can read. Raises FileExistsError, and then changes
    nothing, or another OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, fails if the file exists: a secret in use is never replaced.
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _load(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        tree["nodes"].keys()
        tree["cluster"]["groups"][0]["data_file_bytes"] += 0
    except (
        yaml.YAMLError,
        UnicodeDecodeError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
    ) as error:
        raise FatalError(
            ExitCode.DATA_UNUSABLE,
            f"{path} is not the description of a cluster",
            "restore it, or choose another directory with --data",
        ) from error
    # The directory may have been moved.
    tree["cluster"]["secret_file"] = str(path.parent / SECRET_FILE)
    loaded: dict[str, Any] = tree
    return loaded


def _check_agrees(
    directory: Path, tree: Mapping[str, Any], nodes: int | None, log_file_bytes: int | None
) -> None:
    has = len(tree["nodes"])
    if nodes is not None and nodes != has:
        what = f"{directory} holds a cluster of {has} nodes, not {nodes}"
        raise FatalError(ExitCode.REFUSED, what, f"use --nodes {has} or another --data")
    size = tree["cluster"]["groups"][0]["data_file_bytes"]
    if log_file_bytes is not None and log_file_bytes != size:
        what = f"{directory} was created with log files of {size} bytes, not {log_file_bytes}"
        raise FatalError(ExitCode.REFUSED, what, "omit --log-file-size or use another --data")


def _check_stopped(directory: Path, names: Sequence[str]) -> None:
    """The ports of running nodes are not rewritten, and their answers at /readyz would pass for
    those of nodes started now."""
    for name in names:
        if (directory / name).is_dir():
            try:
                DirectoryLock(str(directory / name)).close()
            except BlockingIOError:
                what = f"node {name} of {directory} is running"
                raise FatalError(
                    ExitCode.DATA_UNUSABLE,
                    what,
                    "stop the process that started it, or use another --data",
                ) from None


def _replace(path: Path, tree: Mapping[str, Any]) -> None:
    text = (
        "# Written by `ledgermq up`: the cluster's identity is minted once, `nodes` is rewritten at"
        " every start.\n"
    )
    text += yaml.safe_dump(dict(tree), sort_keys=False)
    replace_file(str(path), text.encode())


def config_of(cluster: LocalCluster, node: str) -> NodeConfig:
    """The configuration of one node of a local cluster."""
    tree = _load(cluster.config_file)
    return validate({**tree, "node": node, "data": str(cluster.data(node))})
