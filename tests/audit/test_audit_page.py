"""The page for people: what was verified of each replica, the picture of the log, what is
undecidable, what to do next."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from ledgermq.audit.cli.page import as_html
from ledgermq.audit.cli.report import as_json, as_text
from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import Writer

FILE = "00000000000000008192"


def directories(base: Path) -> list[str]:
    return [str(base / name) for name in NODES]


def damage(writers: list[Writer]) -> None:
    entry = writers[0].entries[33]
    for writer in writers:
        flip(writer.log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 50)


def page_of(result: Audit) -> str:
    return unescape(as_html(result))


def test_text_object_and_page_state_the_same_verification(tmp_path: Path) -> None:
    """Entries, files, derived files and state of every replica, word for word."""
    write_cluster(tmp_path, history(8))
    result = audit(directories(tmp_path))
    page, text, exact = page_of(result), as_text(result), as_text(result, exact=True)
    for row in as_json(result)["replicas"]:  # type: ignore[attr-defined]
        kinds = [line.partition(":")[0] for line in row["checked"]]
        assert kinds == ["log", "derived files", "state"]
        assert (
            row["checked"][0]
            == "log: entries 0 to 62, 19,602 bytes in 4 files: every byte, both CRCs and the chain"
        )
        assert re.search(
            r"index, key index and \d+ consume queues compared with the log", row["checked"][1]
        )
        assert (
            all(f"    {line}\n" in exact for line in row["checked"])
            and f"bytes={row['bytes']} " in exact
        )
        shown = [line.replace("19,602 bytes", "19.1 KiB") for line in row["checked"]]
        assert (
            all(f"<li>{line}</li>" in page and f"    {line}\n" in text for line in shown)
            and "size=19.1 KiB " in text
        )


def test_page_states_unread_bytes_and_replicas(tmp_path: Path) -> None:
    """Of a comparison by edges, and of a replica that was not given."""
    write_cluster(tmp_path, history(8))
    page = page_of(audit(directories(tmp_path)[:2], agreement=True))
    assert page.count("the edges of the files only") == 2 and "every byte" not in page
    assert "g1: n3: nothing was verified" in page
    assert "Provide or fix what the reasons above name, then audit again." in page


def test_a_file_that_cannot_be_read_was_not_verified(tmp_path: Path) -> None:
    writers = write_cluster(tmp_path, history(8))
    (writers[1].log / "data" / FILE).unlink()
    (writers[1].log / "data" / FILE).mkdir()
    page = page_of(audit(directories(tmp_path)))
    assert page.count("but 1 could not be read to the end") == 1


def test_a_missing_file_is_in_the_picture(tmp_path: Path) -> None:
    """Between its neighbours, marked from end to end."""
    writers = write_cluster(tmp_path, history(8))
    (writers[1].log / "data" / FILE).unlink()
    page = page_of(audit(directories(tmp_path)))
    rows = [
        re.search(r"title='([^']*)'", line).group(1)
        for line in page.splitlines()
        if line.startswith("<div class=row>")
    ]  # type: ignore[union-attr]
    assert [row.rpartition("/")[2] for row in rows if "n2" in row] == [
        f"{base:020d}" for base in (0, 8192, 16384, 24576)
    ]
    (bar,) = [line for line in page.splitlines() if "(missing)" in line]
    assert FILE in bar and "left:0;width:100%" in bar and "class=log" not in bar
    assert "ledgermq repair --from-findings" in page[page.index("Next steps") :]


def test_undecidable_places_are_said_to_be(tmp_path: Path) -> None:
    """And only where there are some."""
    writers = write_cluster(tmp_path, history(8))
    assert "Undecidable" not in page_of(audit(directories(tmp_path)))
    damage(writers)
    result = audit(directories(tmp_path))
    page = page_of(result)
    told = page[page.index("<h2>Undecidable") : page.index("<h2>Findings")]
    places = [finding.text for finding in result.findings if finding.klass == "undecidable"]
    assert places and all(place in told for place in places) and "No majority proves" in told
