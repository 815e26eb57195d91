"""What the Helm chart renders, and its pods as processes on this machine.

Each pod gets a loopback address of its own, so that all of them use the same four ports, as in
Kubernetes. Secrets are mounted as Kubernetes does it. Paths, hosts and ports of the rendered
objects are replaced; nothing else is.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_loading import load
from tests.builds import Build
from tests.cluster import base_port, wait_for
from tests.mounted_secret import MountedSecret

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/ledgermq"
HELM = shutil.which("helm")
KUBERNETES = ("1.28", "1.33", "1.37")
NAME = "mq-ledgermq"


class Rendered:
    """The objects of a release named `mq` in the namespace `queues`."""

    def __init__(self, *arguments: str, kubernetes: str = KUBERNETES[-1]) -> None:
        assert HELM is not None
        command = [
            HELM,
            "template",
            "mq",
            str(CHART),
            "-n",
            "queues",
            "--kube-version",
            kubernetes,
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        self.error = done.stderr if done.returncode else ""
        self.objects = (
            [found for found in yaml.safe_load_all(done.stdout) if found]
            if not done.returncode
            else []
        )

    def __getitem__(self, kind: str) -> Any:
        (found,) = [known for known in self.objects if known["kind"] == kind]
        return found

    def kinds(self) -> list[str]:
        return sorted(known["kind"] for known in self.objects)

    def service(self, name: str) -> Any:
        (found,) = [
            known
            for known in self.objects
            if known["kind"] == "Service" and known["metadata"]["name"] == name
        ]
        return found

    def jobs(self) -> list[Any]:
        """The jobs, by name: the one before an upgrade, and the one beside it."""
        return sorted(
            (known for known in self.objects if known["kind"] == "Job"),
            key=lambda known: str(known["metadata"]["name"]),
        )

    def job(self, name: str) -> list[str]:
        """The command of the job whose name goes on so."""
        (found,) = [
            known for known in self.jobs() if known["metadata"]["name"].startswith(f"{NAME}-{name}")
        ]
        (container,) = found["spec"]["template"]["spec"]["containers"]
        command: list[str] = container["command"]
        return command

    @property
    def pod(self) -> Any:
        return self["StatefulSet"]["spec"]["template"]["spec"]

    @property
    def container(self) -> Any:
        (found,) = self.pod["containers"]
        return found

    def config(self, ordinal: int, directory: Path) -> NodeConfig:
        """The configuration as the node of this ordinal loads it, with the environment that its pod
        has, and Services around it."""
        name = f"{NAME}-{ordinal}"
        secret = {
            key: base64.b64decode(text).decode() for key, text in self["Secret"]["data"].items()
        }
        environment = {
            "LEDGERMQ_SERVICE_HOST": "10.96.0.17",
            "LEDGERMQ_SERVICE_PORT": "8081",
            "LEDGERMQ_PORT": "tcp://10.96.0.17:8081",
            "LEDGERMQ_PORT_8081_TCP_ADDR": "10.96.0.17",
        }
        for variable in self.container["env"]:
            source = variable["valueFrom"]
            reference = source.get("secretKeyRef")
            assert reference is not None or source["fieldRef"]["fieldPath"] == "metadata.name"
            environment[variable["name"]] = name if reference is None else secret[reference["key"]]
        *_, argument = self.container["args"]
        path = argument.replace("$(LEDGERMQ_NODE)", name).removeprefix("/etc/ledgermq/config/")
        file = directory / path
        file.write_text(self["ConfigMap"]["data"][path])
        return load(file, environment=environment)


def profile(name: str, *arguments: str, **options: str) -> Rendered:
    found = Rendered("-f", str(CHART / f"values-{name}.yaml"), *arguments, **options)
    assert not found.error, found.error
    return found


class Pods:
    """The pods of a release, none of which runs yet. The host of pod 0 is 127.0.0.10, that of pod 1
    is 127.0.0.11, and so on. `tls`: the Secret with the certificate."""

    ready_s = 60

    def __init__(self, found: Rendered, directory: Path, tls: MountedSecret | None = None) -> None:
        self.rendered = found
        self.directory = directory
        self.secret = {key: base64.b64decode(text) for key, text in found["Secret"]["data"].items()}
        self.keys = self.secret["first-user"].decode(), self.secret["first-user-secret"].decode()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.terminating: set[int] = set()
        self.build: Build | None = None
        """The program of the pods that are started from now on; None: this one."""
        self._mounted = {
            "/etc/ledgermq/cluster": str(
                MountedSecret(directory / "cluster", self.secret).directory
            )
        }
        if tls is not None:
            self._mounted["/etc/ledgermq/tls"] = str(tls.directory)
        self.count = found["StatefulSet"]["spec"]["replicas"]
        base = base_port()
        self.ports = {8081: base, 9081: base + 1000, 10081: base + 2000, 11081: base + 3000}
        self._path = directory / "bin"
        self._path.mkdir()
        program = self._path / "ledgermq"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ledgermq "$@"\n')
        program.chmod(0o755)

    def host(self, ordinal: int) -> str:
        return f"127.0.0.1{ordinal}"

    def endpoint(self, ordinal: int) -> str:
        return f"{self.host(ordinal)}:{self.ports[8081]}"

    @property
    def endpoints(self) -> str:
        return ";".join(self.endpoint(ordinal) for ordinal in range(self.count))

    def here(self, text: str, ordinal: int) -> str:
        """A text of the chart with the paths, hosts and ports of the pod on this machine."""
        inside = {
            **self._mounted,
            "/data/node": str(self.directory / f"data-{ordinal}"),
            "0.0.0.0": self.host(ordinal),
        }
        inside["localhost:"] = f"{self.host(ordinal)}:"
        inside[f"{{node}}.{NAME}-nodes.queues.svc.cluster.local"] = "127.0.0.1{ordinal}"
        inside[f'"{NAME}:'] = f'"{self.host(0)}:'
        inside[f";{NAME}:"] = f";{self.host(0 if ordinal else 1)}:"
        for other in range(self.count):
            inside[f"{NAME}-{other}.{NAME}-nodes.queues.svc.cluster.local"] = self.host(other)
        for name, value in inside.items():
            text = text.replace(name, value)
        return re.sub(
            r"\b(8081|9081|10081|11081)\b", lambda match: str(self.ports[int(match[1])]), text
        )

    def environment(self, ordinal: int) -> dict[str, str]:
        """What the pod's processes see: also the hook's."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("LEDGERMQ_")}
        found = {**own, "PATH": f"{self._path}:{os.environ['PATH']}"}
        for variable in self.rendered.container["env"]:
            reference = variable["valueFrom"].get("secretKeyRef")
            found[variable["name"]] = (
                f"{NAME}-{ordinal}" if reference is None else self.secret[reference["key"]].decode()
            )
        return found

    def start(self, ordinal: int) -> None:
        file = self.directory / f"{NAME}-{ordinal}.yaml"
        file.write_text(self.here(self.rendered["ConfigMap"]["data"][file.name], ordinal))
        command = [*self.rendered.container["command"], "serve", "--config", str(file)]
        environment = self.environment(ordinal) | (self.build.environment if self.build else {})
        with self._log(ordinal).open("ab") as log:
            self.running[ordinal] = subprocess.Popen(command, env=environment, stderr=log)

    def ready(self, ordinal: int) -> bool:
        """Ask as the readiness probe does. A pod without a running process is not ready."""
        process = self.running.get(ordinal)
        if process is None or process.poll() is not None:
            return False
        probe = (
            self.here("http://0.0.0.0:11081", ordinal)
            + self.rendered.container["readinessProbe"]["httpGet"]["path"]
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), opener.open(probe, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def wait_ready(self, ordinal: int) -> None:
        def ready() -> bool:
            assert self.running[ordinal].poll() is None, self._log(ordinal).read_text()
            return self.ready(ordinal)

        wait_for(ready, self.ready_s, f"the readiness of pod {ordinal}")

    def lose(self, ordinal: int) -> None:
        """The machine of the pod is gone, with its volume."""
        process = self.running.pop(ordinal)
        process.kill()
        process.wait(30)
        shutil.rmtree(self.directory / f"data-{ordinal}")

    def stop(self, ordinal: int) -> subprocess.CompletedProcess[str]:
        """Stop a pod as Kubernetes does: the hook, whose outcome is returned, then SIGTERM, which
        must succeed."""
        self.terminating.add(ordinal)
        done = self.hook(
            ordinal,
            [
                self.here(part, ordinal)
                for part in self.rendered.container["lifecycle"]["preStop"]["exec"]["command"]
            ],
        )
        self.running[ordinal].send_signal(signal.SIGTERM)
        assert self.running.pop(ordinal).wait(30) == 0, self._log(ordinal).read_text()
        self.terminating.discard(ordinal)
        return done

    def hook(self, ordinal: int, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command where the pod runs."""
        return subprocess.run(
            command,
            env=self.environment(ordinal),
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def begin_job(self, command: list[str]) -> subprocess.Popen[str]:
        """Start the process of a job's pod."""
        begun = [self.here(part, 0) for part in command]
        return subprocess.Popen(
            begun,
            env=self.environment(0),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def job(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a job to its end."""
        process = self.begin_job(command)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    @contextmanager
    def all_running(self, count: int | None = None) -> Iterator[None]:
        """All pods, or the first ones, run and are ready; at the end those that still run are ended
        at once and must stop cleanly."""
        try:
            for ordinal in range(self.count if count is None else count):
                self.start(ordinal)
            for ordinal in list(self.running):
                self.wait_ready(ordinal)
            yield
        except BaseException:
            for process in self.running.values():
                process.kill()
                process.wait(30)
            raise
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in self.running.values()] == [0] * len(self.running)

    def _log(self, ordinal: int) -> Path:
        return self.directory / f"{NAME}-{ordinal}.log"


class Service:
    """The Service for clients, at an address of this machine: a new connection goes to the next pod
    that is ready, and ends with that pod.

    A pod counts as ready as it does for Kubernetes: after one probe that succeeds, until the probe
    has failed as often as the chart says, the process ends, or the pod is to stop.
    """

    def __init__(self, pods: Pods, host: str = "127.0.0.1", port: int = 0) -> None:
        """`port` 0: a free one."""
        self._pods = pods
        self._place = (host, port)
        self._probe = pods.rendered.container["readinessProbe"]
        self._failures: dict[int, int] = {}
        """Failed probes in a row of the processes that have been ready."""
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.endpoint = ""

    def __enter__(self) -> Service:
        self._thread.start()
        self.endpoint = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> str:
        self._probing = [
            asyncio.create_task(self._probe_often(ordinal)) for ordinal in range(self._pods.count)
        ]
        self._server = await asyncio.start_server(self._connection, *self._place)
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe_often(self, ordinal: int) -> None:
        while True:
            process = self._pods.running.get(ordinal)
            if process is not None:
                if await asyncio.to_thread(self._pods.ready, ordinal):
                    self._failures[process.pid] = 0
                elif process.pid in self._failures:
                    self._failures[process.pid] += 1
            await asyncio.sleep(self._probe["periodSeconds"])

    def _ready(self, ordinal: int) -> bool:
        process, most = self._pods.running.get(ordinal), self._probe["failureThreshold"]
        if process is None or process.poll() is not None or ordinal in self._pods.terminating:
            return False
        return bool(self._failures.get(process.pid, most) < most)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            ready = [ordinal for ordinal in range(self._pods.count) if self._ready(ordinal)]
            if not ready:
                return
            host, port = self._pods.endpoint(ready[next(self._turns) % len(ready)]).split(":")
            with suppress(OSError):
                to_client, to_pod = await asyncio.open_connection(host, int(port))
                with closing(to_pod):
                    directions = [
                        asyncio.create_task(_copy(reader, to_pod)),
                        asyncio.create_task(_copy(to_client, writer)),
                    ]
                    await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
                    for direction in directions:
                        direction.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of the two sides ends the connection."""
    with suppress(OSError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
