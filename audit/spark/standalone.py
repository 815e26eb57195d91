"""Starting a standalone Spark master or worker from the installed packages, with the packaged Java;
no download is needed.

    python -m ledgermq.audit.spark.standalone master --host HOST --port 7077
    python -m ledgermq.audit.spark.standalone worker spark://HOST:7077 --cores 4 --memory 4g

This process is replaced by Spark's; arguments after the role are passed on unchanged. This module
does not know what an audit is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ledgermq.audit.spark.java import QUICK_START, NoJava, cache_directory, java_home

DAEMON_OPTIONS = f"{QUICK_START} -Dspark.master.rest.enabled=false"
"""Disables job submission over an unauthenticated port: the audit is its own driver."""
ROLES = {
    "master": "org.apache.spark.deploy.master.Master",
    "worker": "org.apache.spark.deploy.worker.Worker",
}


def command(role: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and its environment. Raises NoJava."""
    try:
        import pyspark
    except ImportError as error:
        raise NoJava(
            "the package pyspark is not installed", "pip install 'ledgermq[spark]'"
        ) from error
    home = str(Path(pyspark.__file__).parent)
    settings = {
        "JAVA_HOME": java_home(),
        "SPARK_HOME": home,
        # Tasks run in this Python, which has the data source.
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": (
            f"{DAEMON_OPTIONS} {os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')}".strip()
        ),
    }
    scratch = cache_directory() / "spark"
    place = (
        ["--work-dir", str(scratch / "work")]
        if role == "worker" and "--work-dir" not in arguments
        else []
    )
    return [f"{home}/bin/spark-class", ROLES[role], *place, *arguments], {**os.environ, **settings}


def main() -> None:
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role not in ROLES:
        sys.exit("give a role: python -m ledgermq.audit.spark.standalone master|worker …")
    try:
        words, environment = command(role, sys.argv[2:])
    except NoJava as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    # Spark's own files hold parts of messages: other users must not read them, like files that
    # `ledgermq` writes.
    os.umask(os.umask(0o027) | 0o027)
    os.execve(words[0], words, environment)


if __name__ == "__main__":
    main()
