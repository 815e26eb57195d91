"""The options that name a running cluster for `ledgermq audit`, and the connection to it. No check
and no other command lives here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledgermq.client.cli.commands import DURATION, credentials_of_environment, wire_of

if TYPE_CHECKING:
    from ledgermq.audit.run.running import RunningCluster

_PEM = click.Path(path_type=Path, dir_okay=False)
_VARIABLES = {
    "ca": "LEDGERMQ_TLS_CA",
    "certificate": "LEDGERMQ_TLS_CERTIFICATE",
    "certificate_key": "LEDGERMQ_TLS_CERTIFICATE_KEY",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster given on the command line."""

    endpoints: str
    timeout_s: float
    tls: bool
    files: dict[str, Path | None]

    def _announce(self) -> None:
        """Pass the credentials on to processes that this one starts: Spark plans and runs in its
        own processes. Raises BadArgument."""
        wire_of(self.tls, *self.files.values())
        credentials_of_environment()
        if self.tls:
            os.environ["LEDGERMQ_TLS"] = "1"
        for name, path in self.files.items():
            if path is not None:
                os.environ[_VARIABLES[name]] = str(path.absolute())

    @contextmanager
    def open(self) -> Iterator[RunningCluster]:
        """Open the cluster, which must answer, and close every connection to it at the end. Raises
        ClusterError."""
        from ledgermq.audit.reading import remote
        from ledgermq.audit.run.running import RunningCluster

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
    """Add the options and pass on the target, None if no cluster is given."""

    @click.option(
        "--endpoints",
        help="Audit the running cluster behind 'host:port;host:port' instead of directories.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=DURATION,
        default="10s",
        show_default=True,
        help="Time limit for an answer of a node.",
    )
    @click.option("--tls", is_flag=True, help="Connect with TLS.")
    @click.option(
        "--ca",
        type=_PEM,
        help="PEM file of the CA that signed the nodes' certificates. [default: the system's CAs]",
    )
    @click.option(
        "--certificate",
        type=_PEM,
        help="PEM file of the client certificate, if the nodes require one.",
    )
    @click.option("--certificate-key", type=_PEM, help="PEM file of the client certificate's key.")
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
            raise click.UsageError(
                "--tls, --ca and --certificate apply to a running cluster; give --endpoints"
            )
        return command(
            None if endpoints is None else Target(endpoints, timeout_s, tls, files), **options
        )

    return with_target
