"""The wheel and the source distribution, in fresh environments of every supported Python, against a
cluster from the same wheel; and the wheel of ledgermq-native in each of them.

They need a package index.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.audit.damage_cases import NODES, history, write_cluster
from tests.cluster import base_port

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: 3." in text]
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
NATIVE = """
import sys
from ledgermq.client import Producer
with Producer(sys.argv[1], "orders") as producer:
    producer.send_batch([b"one", b"two"]).result()
"""

ARROW = """
import sys
import duckdb, pandas, polars
from ledgermq.client import Consumer
readers = {
    "duckdb": lambda orders: duckdb.sql("SELECT body FROM orders").fetchall(),
    "pandas": lambda orders: list(zip(pandas.DataFrame.from_arrow(orders)["body"])),
    "polars": lambda orders: polars.DataFrame(orders).select("body").rows(),
}
for name, read in readers.items():
    with Consumer(sys.argv[1], "orders", until_end=True) as consumer:
        print(name, sorted(read(consumer.arrow(["queue", "offset", "body"]))))
"""

SPARK = """
import os, sys
from ledgermq.audit.spark.java import java_home
from pyspark.sql import SparkSession
# The environment is not activated, so `python3` on the PATH is another one, without the package (docs/spark.md).
os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"] = java_home(), sys.executable
spark = SparkSession.builder.master("local[2]").getOrCreate()
print("entries:", spark.read.format("ledgermq").load(sys.argv[1]).where("index >= 10").count(), "of PySpark", spark.version)
spark.stop()
"""


@cache
def pythons() -> dict[str, str]:
    """Version, as 3.12 → an interpreter that works, of each version from 3.11 on."""
    found: dict[str, str] = {}
    names = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    for path in [
        sys.executable,
        *names,
        *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"))),
    ]:
        asked = (
            [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"]
            if path
            else ["false"]
        )
        version = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        if path and version and tuple(map(int, version.split("."))) >= (3, 11):
            found.setdefault(version, path)
    return found


def run(*command: str, code: int = 0, cwd: Path | None = None) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=environment, cwd=cwd
    )
    assert done.returncode == code, (
        f"{' '.join(command)}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    )
    return done.stdout + done.stderr


def install(place: Path, python: str, *what: str) -> Path:
    """The folder of the programs of a fresh environment with this in it."""
    run(python, "-m", "venv", str(place))
    run(str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *what)
    run(str(place / "bin/pip"), "check")
    return place / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, the source distribution, and the wheel made from that one, of a copy of the
    tracked files."""
    place = tmp_path_factory.mktemp("built")
    tree = place / "tree"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git repository")
    for name in listed.stdout.splitlines():
        if os.path.lexists(ROOT / name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    (place / "sdist").mkdir()
    run(sys.executable, "-c", SDIST, str(place / "sdist"), cwd=tree)
    (sdist,) = (place / "sdist").iterdir()
    run(*wheel, "--wheel-dir", str(place / "wheel"), str(tree))
    run(*wheel, "--wheel-dir", str(place / "again"), str(sdist))
    (direct,), (again,) = (list((place / name).iterdir()) for name in ("wheel", "again"))
    return {"wheel": direct, "again": again}


@contextmanager
def cluster(programs: Path, data: Path) -> Iterator[str]:
    """Three nodes of an installed package, and the endpoint of the first."""
    base = base_port()
    command = [str(programs / "ledgermq"), "up", "--base-port", str(base), "--data", str(data)]
    with (
        (data.parent / "up.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as nodes,
    ):
        try:
            endpoint = f"127.0.0.1:{base}"
            run(
                str(programs / "ledgermq"),
                "status",
                "--wait",
                "60s",
                "--strict",
                "--endpoints",
                endpoint,
            )
            yield endpoint
        finally:
            nodes.send_signal(signal.SIGINT)
            assert nodes.wait(60) in (0, 130), (data.parent / "up.log").read_text()[-2000:]


def test_both_ways_give_the_same_wheel(built: dict[str, Path]) -> None:
    """The wheel has the whole product and nothing else, whether it is built from the repository or
    from the source distribution."""
    names = [set(zipfile.ZipFile(built[which]).namelist()) for which in ("wheel", "again")]
    assert names[0] == names[1]
    assert {name.split("/")[0] for name in names[0]} == {
        "ledgermq",
        "pyspark_ledgermq.py",
        built["wheel"].name.split("-py3")[0] + ".dist-info",
    }
    assert {
        "ledgermq/py.typed",
        "ledgermq/cli.py",
        "ledgermq/audit/cli/page.html",
        "ledgermq/proto/log.proto",
    } <= names[0]
    assert {
        "ledgermq/client/console/templates/frame.html",
        "ledgermq/client/console/assets/htmx.min.js",
    } <= names[0]


@pytest.fixture(scope="module")
def server(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of nodes, of the newest Python that is here."""
    newest = max(pythons(), key=lambda version: int(version[2:]))
    return install(
        tmp_path_factory.mktemp("server") / "venv", pythons()[newest], f"{built['wheel']}[server]"
    )


@pytest.mark.parametrize("client", [*VERSIONS, "oldest"])
def test_a_client_carries_messages(
    built: dict[str, Path], server: Path, tmp_path: Path, client: str
) -> None:
    """It sends to and consumes from nodes of the wheel, and audits their files: of each Python with
    the newest libraries, and of the oldest Python with the oldest libraries."""
    libraries: list[str] = []
    if client == "oldest":
        libraries = [
            re.sub(r">=([\d.]+).*", r"==\1.*", requirement)
            for requirement in PROJECT["dependencies"]
        ]
    python = pythons().get(VERSIONS[0] if client == "oldest" else client)
    if python is None:
        pytest.skip(f"no Python {client} here")
    programs = install(tmp_path / "client", python, str(built["wheel"]), *libraries)
    ledgermq = str(programs / "ledgermq")
    assert PROJECT["version"] in run(ledgermq, "--version")
    said = run(ledgermq, "up", code=64).splitlines()
    assert len(said) == 1 and said[0].endswith("pip install 'ledgermq[server]'"), said
    with cluster(server, tmp_path / "data") as endpoint:
        run(ledgermq, "topic", "create", "orders", "--endpoints", endpoint)
        run(
            ledgermq,
            "send",
            "--topic",
            "orders",
            "--body",
            "of the command line",
            "--endpoints",
            endpoint,
        )
        run(str(programs / "python"), "-c", NATIVE, endpoint)
        got = run(
            ledgermq,
            "consume",
            "--topic",
            "orders",
            "--group",
            "g",
            "--until-empty",
            "3s",
            "--endpoints",
            endpoint,
        )
        assert sorted(got.splitlines()) == ["of the command line", "one", "two"]
        assert (
            json.loads(run(ledgermq, "status", "--json", "--endpoints", endpoint))["health"] == "ok"
        )
    run(
        ledgermq,
        "audit",
        *(str(tmp_path / "data" / node) for node in ("n1", "n2", "n3")),
        "--engine",
        "local",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_use_the_compiled_package(
    built: dict[str, Path], tmp_path: Path, version: str
) -> None:
    """One wheel of it for all versions of Python, beside the product's own wheel; LEDGERMQ_PURE=1
    does without it."""
    wheels = sorted((ROOT / "dist/native").glob("*.whl"))
    if not wheels or version not in pythons():
        pytest.skip(
            f"no Python {version} here" if wheels else "ledgermq-native is not built (make native)"
        )
    programs = install(
        tmp_path / "venv", pythons()[version], f"{built['wheel']}[server]", *map(str, wheels)
    )
    ledgermq = str(programs / "ledgermq")
    release = PROJECT["version"]
    assert run(ledgermq, "--version").strip() == f"ledgermq {release} (ledgermq-native {release})"
    assert "switched off by LEDGERMQ_PURE=1" in run("env", "LEDGERMQ_PURE=1", ledgermq, "--version")
    with cluster(programs, tmp_path / "data") as endpoint:
        run(ledgermq, "topic", "create", "orders", "--endpoints", endpoint)
        run(str(programs / "python"), "-c", NATIVE, endpoint)
        got = run(
            ledgermq,
            "consume",
            "--topic",
            "orders",
            "--group",
            "g",
            "--until-empty",
            "3s",
            "--endpoints",
            endpoint,
        )
        assert sorted(got.splitlines()) == ["one", "two"]
        nodes = json.loads(run(ledgermq, "status", "--json", "--endpoints", endpoint))["nodes"]
        assert [node["native"] for node in nodes] == [release] * 3
    directories = [str(tmp_path / "data" / node) for node in ("n1", "n2", "n3")]
    report = run(ledgermq, "audit", *directories, "--engine", "local")
    assert f"log files scanned by: ledgermq-native {release}" in report and "audit: PASS" in report


def test_the_readers_of_the_documentation_take_the_arrow_stream(
    built: dict[str, Path], server: Path, tmp_path: Path
) -> None:
    """The newest DuckDB, pandas and Polars, each by its own import of `__arrow_c_stream__`."""
    programs = install(
        tmp_path / "client",
        pythons()[VERSIONS[0]],
        f"{built['wheel']}[audit]",
        "duckdb",
        "pandas>=3",
        "polars",
    )
    with cluster(server, tmp_path / "data") as endpoint:
        run(str(programs / "ledgermq"), "topic", "create", "orders", "--endpoints", endpoint)
        run(str(programs / "python"), "-c", NATIVE, endpoint)
        said = run(str(programs / "python"), "-c", ARROW, endpoint).splitlines()
    assert said == [f"{name} [(b'one',), (b'two',)]" for name in ("duckdb", "pandas", "polars")]


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_spark_reads_and_audits_node_directories(
    built: dict[str, Path], tmp_path: Path, which: str
) -> None:
    """With the oldest PySpark, pandas and pyarrow of the extra, and with the newest. A session of
    the user's own finds the source."""
    extra = PROJECT["optional-dependencies"]["spark"]
    libraries = (
        [re.sub(r">=([\d.]+).*", r"==\1.*", requirement) for requirement in extra]
        if which == "oldest"
        else []
    )
    programs = install(
        tmp_path / "spark", pythons()[VERSIONS[0]], f"{built['wheel']}[spark]", *libraries
    )
    (tmp_path / "data").mkdir()
    writers = write_cluster(tmp_path / "data", history(9, 80))
    directories = [str(tmp_path / "data" / name) for name in NODES]
    (bounds,) = (
        re.findall(r"\d+\.\d+", requirement)
        for requirement in extra
        if requirement.startswith("pyspark")
    )
    read = run(str(programs / "python"), "-c", SPARK, directories[0])
    assert f"entries: {len(writers[0].entries) - 10} of PySpark " in read
    if which == "oldest":
        assert f"of PySpark {bounds[0]}." in read
    assert "PASS" in run(str(programs / "ledgermq"), "audit", *directories, "--engine", "spark")
