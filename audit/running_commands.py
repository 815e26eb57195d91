"""The options by which `ledgermq audit` names a running cluster, and the way to it. No check lives here, and no other command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledgermq.client.commands import DURATION, credentials_of_environment, wire_of

if TYPE_CHECKING:
    from ledgermq.audit.running import RunningCluster

_PEM = click.Path(path_type=Path, dir_okay=False)
_VARIABLES = {"ca": "LEDGERMQ_TLS_CA", "certificate": "LEDGERMQ_TLS_CERTIFICATE", "certificate_key": "LEDGERMQ_TLS_CERTIFICATE_KEY"}


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that was named."""

    endpoints: str
    timeout_s: float
    tls: bool
    files: dict[str, Path | None]

    def _announce(self) -> None:
        """Say how to sign in to whatever this process starts: Spark plans and runs in processes of its own. Raises BadArgument."""
        wire_of(self.tls, *self.files.values())
        credentials_of_environment()
        if self.tls:
            os.environ["LEDGERMQ_TLS"] = "1"
        for name, path in self.files.items():
            if path is not None:
                os.environ[_VARIABLES[name]] = str(path.absolute())

    @contextmanager
    def open(self) -> Iterator[RunningCluster]:
        """The cluster, which answers, and the end of every connection to it. Raises ClusterError."""
        from ledgermq.audit.reading import remote
        from ledgermq.audit.running import RunningCluster

        self._announce()
        remote.use(remote.access_of(os.environ))
        try:
            with remote.access().connect(self.endpoints, self.timeout_s) as connection:
                cluster = RunningCluster(connection, self.timeout_s)
                cluster.ask()
                yield cluster
        finally:
            remote.forget()


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options and hands over the target, None where no cluster is named."""

    @click.option("--endpoints", help="Audit the running cluster behind 'host:port;host:port' instead of directories.")
    @click.option("--timeout", "timeout_s", type=DURATION, default="10s", show_default=True, help="How long a node may take to answer.")
    @click.option("--tls", is_flag=True, help="Encrypted; the node shows a certificate.")
    @click.option("--ca", type=_PEM, help="PEM file of the authority of that certificate; the system's by default.")
    @click.option("--certificate", type=_PEM, help="PEM file of an own certificate, where nodes ask for one.")
    @click.option("--certificate-key", type=_PEM, help="PEM file of its key.")
    @wraps(command)
    def with_target(
        endpoints: str | None,
        timeout_s: float,
        tls: bool,
        ca: Path | None,
        certificate: Path | None,
        certificate_key: Path | None,
        **options: Any,
    ) -> Any:
        files = {"ca": ca, "certificate": certificate, "certificate_key": certificate_key}
        if endpoints is None and (tls or any(files.values())):
            raise click.UsageError("--tls, --ca and --certificate are about a running cluster; name it with --endpoints")
        return command(None if endpoints is None else Target(endpoints, timeout_s, tls, files), **options)

    return with_target
