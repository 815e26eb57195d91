"""Files of a running node through the auditor's door: the same bytes, names and holes as on the
node's own disk."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.reading import files, remote
from ledgermq.audit.reading.decode import read_sealed_json, read_space
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.reading.remote import Access
from ledgermq.node.frontend.ports import Listening
from ledgermq.node.process.client_port import call_server
from ledgermq.proto.signature import Credentials
from tests.audit.running_nodes import signed_in
from tests.contract.backend import run
from tests.node.test_node_replicas import PASSWORD, Stage

MIB = 1 << 20


def in_a_thread(stage: Stage, work: Callable[[str], Any]) -> Any:
    """`work` with the path of the node's directory, beside the loop that serves it."""
    found: list[Any] = []

    async def served() -> None:
        server = call_server()
        server.add_service("ledgermq.v1.Replicas", stage.replicas.methods())
        port = await server.listen(Listening("127.0.0.1", 0))
        try:
            found.append(await asyncio.to_thread(work, f"node://127.0.0.1:{port}"))
        finally:
            remote.forget()
            await server.stop(0)

    run(served)
    return found[0]


@pytest.fixture(autouse=True)
def own_access() -> Iterator[None]:
    """Tests set their credentials themselves, independent of the environment."""
    with signed_in(Access()):
        yield


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    (tmp_path / "node.json").write_bytes(b"node")
    return made


def tree(directory: str) -> dict[str, bool]:
    """All names below a path, and whether each is a directory, as the server lists them."""
    found: dict[str, bool] = {}
    for name in files.names_in(directory):
        path = f"{directory}/{name}"
        found[path] = files.is_directory(path)
        if found[path]:
            found.update(tree(path))
    return found


def test_a_running_nodes_files_are_those_on_its_disk(stage: Stage) -> None:
    """Names, kinds, sizes, times and every byte, through every function of the door."""
    local = str(stage.directory)
    # Nothing works on the files while they are compared.
    stage.driver.group.close()

    def compare(node: str) -> int:
        there = tree(node)
        assert {path.removeprefix(node) for path in there} == {
            path.removeprefix(local) for path in tree(local)
        }
        for path, directory in there.items():
            here = local + path.removeprefix(node)
            assert files.exists(path)
            if not directory:
                assert files.read_whole(path) == files.read_whole(here), path
                assert path.endswith("/node.json") or files.stat_of(path) == files.stat_of(here), (
                    path
                )
                assert files.size_of(path) == files.size_of(here)
        assert (
            read_sealed_json(f"{node}/g1/identity.json")
            == read_sealed_json(f"{local}/g1/identity.json")
            is not None
        )
        return len(there)

    assert in_a_thread(stage, compare) > 12


def test_absent_remote_file_is_not_found_and_empty_space_is_empty(stage: Stage) -> None:
    """A file that is gone is no failure of the node, and an empty place is no file."""

    def look(node: str) -> None:
        for absent in (
            f"{node}/g1/nothing",
            f"{node}/g1/no/way",
            f"{node}/g7",
            f"{node}/g7/identity.json",
        ):
            assert (
                not files.exists(absent)
                and files.stat_of(absent) is None
                and files.names_in(absent) == []
            )
            assert files.read_if_there(absent) is None and not files.is_directory(absent)
            with pytest.raises(FileNotFoundError):
                files.open_file(absent)
            with pytest.raises(FileNotFoundError):
                files.size_of(absent)
        assert read_space(f"{node}/g1/dledger-n1/index", 1 << 20, 5 << 30, 6 << 30) == b""

    in_a_thread(stage, look)


@pytest.mark.parametrize("seed", range(4))
def test_reads_in_any_order_give_the_bytes_of_the_disk(
    stage: Stage, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows that overlap, steps back, leaps, single bytes, ends of the file: whatever is read
    ahead or kept never shows."""
    chance = random.Random(seed)
    path = stage.directory / "g1" / "large"
    with path.open("wb") as large:
        large.truncate(7 * MIB + 333)
        for _ in range(9):
            large.seek(chance.randrange(7 * MIB))
            large.write(chance.randbytes(chance.choice([1, 5000, 300_000])))
    content = path.read_bytes()
    for name, value in (
        ("STREAM_BYTES", 64 << 10),
        ("BEHIND_BYTES", 8 << 10),
        ("AHEAD_BYTES", 256 << 10),
        ("BLOCK_BYTES", 4 << 10),
    ):
        monkeypatch.setattr(remote, name, value)

    def read(node: str) -> None:
        with files.open_file(f"{node}/g1/large") as file:
            assert file.size == len(content)
            at = 0
            for _ in range(120):
                size = chance.choice([1, 100, 5000, 70_000, 400_000])
                assert file.pread(size, at) == content[at : at + size]
                step = chance.choice([size, size - 48, 0, -9000, 200_000, 2 * MIB])
                at = (
                    chance.randrange(len(content) + 10)
                    if chance.random() < 0.1
                    else max(0, at + step)
                )
            data = [content[begin:stop] for begin, stop in file.stretches(0, file.size)]
            assert sum(map(len, data)) < len(content) and sum(map(sum, data)) == sum(content)

    in_a_thread(stage, read)


def test_a_file_that_shrinks_ends_earlier(stage: Stage) -> None:
    """No zeros are made up for what is gone."""
    path = stage.directory / "g1" / "shrinks"
    path.write_bytes(b"x" * 100_000)

    def read(node: str) -> None:
        with files.open_file(f"{node}/g1/shrinks") as file:
            os.truncate(path, 70_000)
            assert file.pread(100, 90_000) == b"" and file.pread(50_000, 60_000) == b"x" * 10_000

    in_a_thread(stage, read)


def test_a_stream_that_breaks_goes_on_where_it_was(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is lost for a moment costs a new question, no byte and no finding."""
    content = random.Random(5).randbytes(3 * MIB)
    (stage.directory / "g1" / "large").write_bytes(content)
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    asked: list[int] = []
    real = remote._Stream.pieces

    def breaking(self: Any) -> Iterator[tuple[int, int, bytes]]:
        asked.append(1)
        for number, piece in enumerate(real(self)):
            if number == 1 and len(asked) == 1:
                raise NodeLost("127.0.0.1:1", "gone")
            yield piece

    monkeypatch.setattr(remote._Stream, "pieces", breaking)

    def read(node: str) -> bytes:
        with files.open_file(f"{node}/g1/large") as file:
            return file.pread(file.size, 0)

    assert in_a_thread(stage, read) == content and len(asked) == 2


@contextmanager
def lost(words: str) -> Iterator[None]:
    with pytest.raises(NodeLost) as error:
        yield
    assert words in str(error.value)


def test_a_node_that_is_not_there_or_refuses_is_no_failure_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence and never an OSError, which would be a finding. What a node's disk says is
    one."""
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    for ask in (files.exists, files.names_in, files.read_whole, files.open_file):
        with lost("the node at 127.0.0.1:1 does not answer (UNAVAILABLE)"):
            ask("node://127.0.0.1:1/g1/identity.json")
    stage = Stage(tmp_path, required=True)

    def refused(node: str) -> None:
        for ask in (files.exists, files.names_in, files.read_whole, files.open_file):
            with lost("an audit needs the permission admin:cluster:*"):
                ask(f"{node}/g1/identity.json")
        with signed_in(Access(Credentials("auditor", PASSWORD))):
            assert files.exists(f"{node}/g1/identity.json")
            stage.replicas._files.open = fails  # type: ignore[method-assign]
            with pytest.raises(OSError, match="Input/output error"):
                files.read_whole(f"{node}/g1/identity.json")

    def fails(group: str, path: str) -> Any:
        raise OSError(5, os.strerror(5))

    in_a_thread(stage, refused)


def test_a_secret_does_not_travel_in_clear(tmp_path: Path) -> None:
    """To another machine only over TLS."""
    with (
        signed_in(Access(Credentials("auditor", PASSWORD))),
        lost("the secret would travel to 192.0.2.1 unencrypted"),
    ):
        files.exists("node://192.0.2.1:8081/g1")
    assert PASSWORD not in repr(
        Access(Credentials("auditor", PASSWORD), certificate=(b"k", PASSWORD.encode()))
    )


def test_the_environment_says_how_to_sign_in(tmp_path: Path) -> None:
    """The same variables as for every other command, and PEM files."""
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_bytes(name.encode())
    environment = {
        "LEDGERMQ_ACCESS_KEY": "a",
        "LEDGERMQ_SECRET_KEY": "s",
        "LEDGERMQ_TLS": "1",
        "LEDGERMQ_TLS_CA": str(tmp_path / "ca"),
    }
    environment |= {
        "LEDGERMQ_TLS_CERTIFICATE": str(tmp_path / "cert"),
        "LEDGERMQ_TLS_CERTIFICATE_KEY": str(tmp_path / "key"),
    }
    assert remote.access_of(environment) == Access(
        Credentials("a", "s"), True, b"ca", (b"key", b"cert")
    )
    assert remote.access_of({}) == Access()
