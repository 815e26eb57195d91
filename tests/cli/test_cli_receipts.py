"""`ledgermq receipts`: files of receipts held against what a cluster says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq import cli
from ledgermq.client.messages import receipts as receipt_files
from ledgermq.proto import admin_pb2
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import row_of
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

TRUE, FALSE, UNVERIFIABLE = pb.Verdict.TRUE, pb.Verdict.FALSE, pb.Verdict.UNVERIFIABLE


def receipt(number: int) -> pb.Receipt:
    """One whose first index says what the cluster thinks of it: below 100 true, below 200 false,
    else unverifiable."""
    ranges = [pb.QueueRange(queue=1, first_offset=number, count=2)]
    replicas = [pb.ReplicaDurable(node="n1", durable_index=9)]
    return pb.Receipt(
        broker_group="g1",
        topic="T",
        count=2,
        first_index=number,
        ranges=ranges,
        replicas=replicas,
        durability=pb.DURABLE,
        mac=b"m" * 32,
    )


def judged(request: pb.VerifyRequest) -> pb.VerifyResponse:
    results = [
        TRUE if one.first_index < 100 else FALSE if one.first_index < 200 else UNVERIFIABLE
        for one in request.receipts
    ]
    verdicts = [
        pb.Verdict(result=result, reason="" if result == TRUE else "so it is") for result in results
    ]
    return pb.VerifyResponse(verdicts=verdicts)


def lines(path: Path, *numbers: int) -> Path:
    rows = [row_of(receipt(number)) for number in numbers]
    path.write_text("".join(json.dumps({**row, "mac": row["mac"].hex()}) + "\n" for row in rows))
    return path


def parquet(path: Path, *numbers: int) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([row_of(receipt(number)) for number in numbers]), path)
    return path


def run(
    capfd: pytest.CaptureFixture[str], *arguments: str, answer: Any = judged
) -> tuple[int, str, str, FakeNode]:
    with fake_nodes() as [node]:
        node.answers("Verify", answer)
        node.answers(
            "RotateReceiptKey",
            admin_pb2.RotateReceiptKeyResponse(status=admin_status(), key_id="k2", keys=2),
        )
        code = cli.run(["receipts", *arguments, "--endpoints", node.endpoint, "--timeout", "2s"])
    return (code, *capfd.readouterr(), node)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([1, 2], 0), ([1, 150, 2], 1), ([1, 250], 2), ([250, 150], 1), ([], 2)],
    ids=["true", "false", "some", "worst", "none"],
)
@pytest.mark.parametrize("write", [lines, parquet])
def test_the_exit_status_is_the_worst_verdict(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, write: Any, numbers: list[int], expected: int
) -> None:
    """0 all true, 1 a false one, 2 some that cannot be verified; nothing compared is no proof."""
    if write is parquet and not numbers:
        pytest.skip("a table without rows has no types")
    path = write(tmp_path / ("r.parquet" if write is parquet else "r.jsonl"), *numbers)
    assert run(capfd, "verify", str(path))[0] == expected


def test_untrue_receipts_are_named_with_row_and_reason(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With its row, the reason, and where it claims to be; in words and as JSON."""
    path = lines(tmp_path / "r.jsonl", 1, 150, 250)
    _, out, error, _ = run(capfd, "verify", str(path))
    assert "row 2: FALSE: so it is (g1, topic T, entries 150 to 151)" in out
    assert "row 3: UNVERIFIABLE" in out and "3 receipts: 1 true, 1 false, 1 unverifiable" in out
    assert "error: 1 receipts are false" in error
    code, out, _, _ = run(capfd, "verify", str(path), "--json")
    found = json.loads(out)
    assert (code, found["receipts"], found["true"], found["false"], found["unverifiable"]) == (
        1,
        3,
        1,
        1,
        1,
    )
    assert [(finding["row"], finding["result"]) for finding in found["findings"]] == [
        (2, "false"),
        (3, "unverifiable"),
    ]


def test_rows_that_are_no_receipts_are_false(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The file was changed; its other rows are still judged."""
    path = lines(tmp_path / "r.jsonl", 1)
    path.write_text(path.read_text() + 'no json\n[1]\n{"count": 1}\n' + "[" * 100_000)
    code, out, _, node = run(capfd, "verify", str(path))
    assert (code, out.count("FALSE")) == (1, 4)
    assert len(node.requests["Verify"][0].receipts) == 1


def test_long_files_go_in_parts(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """However long the file is, one request is bounded."""
    count = receipt_files.BATCH + 1
    code, out, _, node = run(capfd, "verify", str(lines(tmp_path / "r.jsonl", *[5] * count)))
    assert (code, f"{count} receipts" in out) == (0, True)
    assert [len(request.receipts) for request in node.requests["Verify"]] == [
        receipt_files.BATCH,
        1,
    ]


def test_files_and_clusters_that_do_not_answer(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """64 for a file, 4 for a refusal, 3 for a cluster that only promises to answer later."""
    assert run(capfd, "verify", str(tmp_path / "missing.jsonl"))[0] == 64
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    assert run(capfd, "verify", str(tmp_path / "bad.parquet"))[0] == 64
    path = str(lines(tmp_path / "r.jsonl", 1))
    refused = pb.VerifyResponse(problem=pb.Problem(code=40300, message="no"))
    assert run(capfd, "verify", path, answer=refused)[0] == 4
    later = pb.VerifyResponse(problem=pb.Problem(code=50002, message="later", retryable=True))
    assert run(capfd, "verify", path, answer=later)[0] == 3


def test_rotate_says_which_key_signs_now(capfd: pytest.CaptureFixture[str]) -> None:
    """Never the key itself: only its id."""
    code, out, _, _ = run(capfd, "rotate", "--json")
    assert (code, json.loads(out)["key_id"], json.loads(out)["keys"]) == (0, "k2", 2)
    assert "signed with key k2 (2 keys verify)" in run(capfd, "rotate")[1]
