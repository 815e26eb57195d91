"""The chart's pods as containers: names, addresses, users, secrets, probes and limits are those
that the chart renders, and nothing of its texts is replaced.

The network stands for that of the cluster: a container has the name of its pod, and another address
after every start; the Service has one address, at which each connection leads to one of the pods
that are ready. Clients outside use the addresses that the chart's value `external` advertises,
which are ports of this machine.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from tests.builds import Build
from tests.containers.engine import DOCKER_S, OPENER, docker
from tests.mounted_secret import MountedSecret
from tests.packaging.pods import NAME, Pods, Rendered, Service

DOMAIN = f"{NAME}-nodes.queues.svc.cluster.local"
INJECTED = {
    "LEDGERMQ_SERVICE_HOST": "10.96.0.17",
    "LEDGERMQ_SERVICE_PORT": "8081",
    "LEDGERMQ_PORT": "tcp://10.96.0.17:8081",
    "LEDGERMQ_PORT_8081_TCP_ADDR": "10.96.0.17",
}
"""What Kubernetes puts into pods beside a Service named `ledgermq`, if the links to Services are
on."""
LEVELS = "import ledgermq.proto.levels as levels; print(levels.__file__)"


class Container(subprocess.Popen[Any]):
    """A running container: signals reach its process, and its status is that of this process."""

    def __init__(self, name: str, command: list[str], **options: Any) -> None:
        self.name = name
        super().__init__(command, **options)

    def kill(self) -> None:
        docker("kill", self.name, check=False)


class ContainerPods(Pods):
    """The pods of a release, none of which runs yet."""

    ready_s = 180

    def __init__(
        self, found: Rendered, directory: Path, tls: MountedSecret | None, image: str, port: int
    ) -> None:
        """`port`: the port at 127.0.0.10 and so on that the chart advertises."""
        super().__init__(found, directory, tls)
        self.ports = {8081: port}
        self.addresses: dict[int, str] = {}
        """Ordinal → the address of its newest container."""
        self._image = image
        self._images: dict[Build, str] = {}
        self._name = f"ledgermq-chart-{uuid.uuid4().hex[:8]}"
        self._starts = itertools.count(1)
        self._prefix = f"10.213.{uuid.uuid4().int % 250}"
        self._config = directory / "config"
        self._config.mkdir()
        for name, text in found["ConfigMap"]["data"].items():
            (self._config / name).write_text(text)
        for mounted in self._mounted.values():
            _give(Path(mounted), self.rendered.pod["securityContext"]["fsGroup"])

    def here(self, text: str, ordinal: int) -> str:
        return text.replace("$(LEDGERMQ_NODE)", f"{NAME}-{ordinal}")

    @contextmanager
    def all_running(self, count: int | None = None) -> Iterator[None]:
        docker("network", "create", "--subnet", f"{self._prefix}.0/24", self._name)
        try:
            with Service(self, f"{self._prefix}.1", 8081), super().all_running(count):
                yield
        finally:
            for kind, listed in (("container", ["ps", "-aq"]), ("volume", ["volume", "ls", "-q"])):
                for found in docker(*listed, "--filter", f"label={self._name}").split():
                    docker(kind, "rm", "--force", found, check=False)
            for tag in self._images.values():
                docker("image", "rm", tag, check=False)
            docker("network", "rm", self._name, check=False)

    def start(self, ordinal: int) -> None:
        number = next(self._starts)
        pod, spec = f"{NAME}-{ordinal}", self.rendered.container
        self.addresses[ordinal] = f"{self._prefix}.{number + 9}"
        options = [
            "--ip",
            self.addresses[ordinal],
            "--hostname",
            pod,
            "--memory",
            spec["resources"]["limits"]["memory"].removesuffix("i"),
        ]
        options += [
            "--network-alias",
            f"{pod}.{DOMAIN}",
            "--publish",
            f"{self.endpoint(ordinal)}:8081",
        ]
        options += ["--volume", f"{self._volume(ordinal)}:/data"]
        (command,) = spec["command"]
        with self._log(ordinal).open("ab") as log:
            arguments = [self.here(argument, ordinal) for argument in spec["args"]]
            self.running[ordinal] = self._run(
                f"pod-{number}", ordinal, spec, options, command, arguments, stderr=log
            )

    def ready(self, ordinal: int) -> bool:
        """Ask as the readiness probe does, at the address of the pod."""
        process = self.running.get(ordinal)
        if process is None or process.poll() is not None:
            return False
        with suppress(OSError):
            return (
                self.asked(ordinal, self.rendered.container["readinessProbe"]["httpGet"]["path"])
                == 200
            )
        return False

    def asked(self, ordinal: int, path: str) -> int:
        """The HTTP status that the pod answers to other machines. Raises OSError."""
        try:
            with OPENER.open(f"http://{self.addresses[ordinal]}:11081{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.request.HTTPError as refused:
            return int(refused.code)

    def inside(self, ordinal: int, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container of a pod."""
        name = cast(Container, self.running[ordinal]).name
        return subprocess.run(
            ["docker", "exec", name, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=DOCKER_S * 2,
        )

    def hook(self, ordinal: int, command: list[str]) -> subprocess.CompletedProcess[str]:
        return self.inside(ordinal, *command)

    def lose(self, ordinal: int) -> None:
        process = self.running.pop(ordinal)
        process.kill()
        process.wait(DOCKER_S)
        docker("volume", "rm", self._volume_name(ordinal))

    def begin_job(self, command: list[str]) -> subprocess.Popen[str]:
        (spec,) = self.rendered.jobs()[0]["spec"]["template"]["spec"]["containers"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return self._run(f"job-{next(self._starts)}", 0, spec, [], command[0], command[1:], **pipes)

    def _run(
        self,
        name: str,
        ordinal: int,
        spec: Any,
        options: list[str],
        command: str,
        arguments: list[str],
        **streams: Any,
    ) -> Container:
        """A container with the user, the rights, the variables and the secrets of a pod."""
        user, rights = self.rendered.pod["securityContext"], spec["securityContext"]
        assert (
            rights["readOnlyRootFilesystem"]
            and not rights["allowPrivilegeEscalation"]
            and rights["capabilities"]["drop"] == ["ALL"]
        )
        name = f"{self._name}-{name}"
        words = [
            "docker",
            "run",
            "--rm",
            "--name",
            name,
            "--label",
            self._name,
            "--network",
            self._name,
            *options,
        ]
        words += [
            "--user",
            f"{user['runAsUser']}:{user['runAsGroup']}",
            "--group-add",
            str(user["fsGroup"]),
        ]
        words += ["--add-host", f"{NAME}:{self._prefix}.1", "--tmpfs", "/tmp"]
        words += [
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--no-healthcheck",
        ]
        variables = INJECTED | {
            found["name"]: self.environment(ordinal)[found["name"]] for found in spec.get("env", ())
        }
        words += [
            part
            for variable, value in variables.items()
            for part in ("--env", f"{variable}={value}")
        ]
        for inside, outside in {**self._mounted, "/etc/ledgermq/config": str(self._config)}.items():
            words += ["--volume", f"{outside}:{inside}:ro"]
        image = self._image if self.build is None else self._image_of(self.build)
        return Container(name, [*words, "--entrypoint", command, image, *arguments], **streams)

    def _volume_name(self, ordinal: int) -> str:
        return f"{self._name}-data-{ordinal}"

    def _volume(self, ordinal: int) -> str:
        """A volume as Kubernetes hands it over: of root, writable for the group of the pod, and
        with what a file system has at its root."""
        name, group = self._volume_name(ordinal), self.rendered.pod["securityContext"]["fsGroup"]
        if name not in docker("volume", "ls", "-q", "--filter", f"label={self._name}").split():
            docker("volume", "create", "--label", self._name, name)
            prepare = (
                f"mkdir /data/lost+found && chown root:{group} /data && chmod 2770 /data && chmod"
                " 700 /data/lost+found"
            )
            docker(
                "run",
                "--rm",
                "--user",
                "0",
                "--volume",
                f"{name}:/data",
                "--entrypoint",
                "sh",
                self._image,
                "-c",
                prepare,
            )
        return name

    def _image_of(self, build: Build) -> str:
        """The image with the table of levels of another build, in which they differ."""
        if build not in self._images:
            assert build.source is not None
            tag = self._images[build] = f"{self._name}:next"
            table = docker("run", "--rm", "--entrypoint", "python3", self._image, "-c", LEVELS)
            context = self.directory / "next-image"
            context.mkdir()
            (context / "levels.py").write_bytes(
                (build.source / "ledgermq/proto/levels.py").read_bytes()
            )
            (context / "Dockerfile").write_text(f"FROM {self._image}\nCOPY levels.py {table}\n")
            docker("build", "--tag", tag, str(context))
        return self._images[build]


def _give(directory: Path, group: int) -> None:
    """Give the files of a Secret, and those that will replace them, to the group of the pod."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            os.chown(path, -1, group)
    directory.chmod(0o2755)
