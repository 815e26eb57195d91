"""The audit as one self-contained HTML file: the verdict, one bar per replica and file, the
findings, the next steps.

Only presentation; every text is escaped.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.stored_objects import lines_of
from ledgermq.audit.cli.report import checked, coverage, next_steps, undecidable
from ledgermq.audit.rules import RULES, Finding
from ledgermq.audit.run.jobs import Audit
from ledgermq.proto import units

FINDINGS_MAX = 1000


def as_html(audit: Audit) -> str:
    """The whole page."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        verdict=audit.verdict,
        summary=_summary(audit),
        reasons=_list([*audit.reasons, *(f"note: {note}" for note in audit.notes)]),
        replicas="\n".join(
            _replica(audit, one) for group in audit.groups for one in group.replicas
        ),
        bars="\n".join(
            bar for group in audit.groups for one in group.replicas for bar in _bars(audit, one)
        ),
        checked=_checked(audit),
        undecidable=_undecidable(audit),
        findings=_findings(audit.findings),
        steps=_steps(audit),
    )


def _summary(audit: Audit) -> str:
    sentences = []
    for group in audit.groups:
        compared = (
            "nothing was compared"
            if group.compared is None
            else f"all replicas compared up to index {group.compared:,}"
        )
        sentences.append(
            f"Broker group {escape(group.group)}"
            f" ({escape(', '.join(group.voters)) or 'voters unknown'}): {compared}."
        )
    if audit.clients is not None:
        sentences += [escape(line) + "." for line in audit.clients.lines()]
    return " ".join(sentences) or "No replica was found."


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _replica(audit: Audit, one: Replica) -> str:
    verdict = audit.replica_verdicts[one.directory, one.group, one.name]
    share = coverage(audit, one)
    commit = "–" if one.commit is None else f"{one.commit:,}"
    cells = [
        (
            f"<td>{escape(one.name)}</td><td>{escape(one.group)}</td><td"
            f" class='{verdict}'>{verdict}</td>"
        ),
        (
            f"<td class=n>{one.entries:,}</td><td class=n title='{one.end_pos:,}"
            f" bytes'>{units.size_words(one.end_pos)}</td>"
        ),
        f"<td class=n>{commit}</td>",
        (
            f"<td class=n>{'–' if share is None else f'{share:.2%}'}</td><td><code>{escape(one.directory)}</code></td>"
        ),
    ]
    return "<tr>" + "".join(cells) + "</tr>"


def _checked(audit: Audit) -> str:
    rows = [
        f"<tr><td>{escape(one.name)}</td><td>{escape(one.group)}</td><td>{_list(checked(audit, one, exact=False))}</td></tr>"
        for group in audit.groups
        for one in group.replicas
    ]
    rows += [
        f"<tr><td>store</td><td>{escape(group.group)}</td><td>{_list(lines_of(stored))}</td></tr>"
        for group in audit.groups
        for stored in group.stored
    ]
    clients = "" if audit.clients is None else _list(audit.clients.lines())
    away = [
        f"{group.group}: {name}: nothing was verified"
        for group in audit.groups
        for name in group.missing
    ]
    return (
        "<table><tr><th>Replica</th><th>Group</th><th>What was"
        f" verified</th></tr>{''.join(rows)}</table>{_list(away)}{clients}"
    )


def _undecidable(audit: Audit) -> str:
    places = undecidable(audit)
    if not places:
        return ""
    more = (
        [f"{len(places) - FINDINGS_MAX:,} more are not shown"] if len(places) > FINDINGS_MAX else []
    )
    explanation = (
        "<p>No majority proves which bytes are right here; a repair leaves these places alone.</p>"
    )
    return f"<h2>Undecidable</h2>{explanation}{_list([*places[:FINDINGS_MAX], *more])}"


def _steps(audit: Audit) -> str:
    steps = [step.removeprefix("next step for ") for step in next_steps(audit)]
    if not steps:
        again = "Provide or fix what the reasons above name, then audit again."
        return f"<p>{again if audit.reasons else 'None.'}</p>"
    return _list(steps)


def _bars(audit: Audit, one: Replica) -> list[str]:
    """One bar per log file, in order of position; a missing file has a bar too, marked from end to
    end."""
    bars = {report.file: _bar(audit, one, report) for report in one.reports}
    for finding in audit.findings:
        flaw = finding.flaw
        own = (
            finding.replica == one.name
            and finding.group == one.group
            and flaw.file.startswith(one.shown(f"{one.log_folder}/data/"))
        )
        if own and flaw.file not in bars:
            mark = (
                f"<span class=hurt title='{escape(finding.text)}' style='left:0;width:100%'></span>"
            )
            name = f"{one.name} {one.group} {flaw.file.rpartition('/')[2]} (missing)"
            bars[flaw.file] = _row(name, flaw.file, mark)
    return [bars[file] for file in sorted(bars)]


def _row(name: str, file: str, content: str) -> str:
    return (
        f"<div class=row><span class=name title='{escape(file)}'>{escape(name)}</span><div"
        f" class=bar>{content}</div></div>"
    )


def _bar(audit: Audit, one: Replica, report: LogReport) -> str:
    length = max(report.length, one.sizes[0], 1)
    marks = [
        f
        for f in audit.findings
        if f.replica == one.name and f.group == one.group and f.flaw.file == report.file
    ]
    hurt = "".join(
        f"<span class={'hurt' if mark.fails else 'torn'} title='{escape(mark.text)}'"
        f" style='left:{100 * mark.flaw.byte_from / length:.3f}%;"
        f"width:{100 * max(mark.flaw.byte_to - mark.flaw.byte_from, 0) / length:.3f}%'></span>"
        for mark in marks[:FINDINGS_MAX]
    )
    filled = f"<span class=log style='width:{100 * report.end / length:.3f}%'></span>"
    name = f"{one.name} {one.group} {report.base:020d}"
    return _row(name, report.file, f"{filled}{hurt}")


def _findings(findings: list[Finding]) -> str:
    if not findings:
        return "<p>None.</p>"
    rows = "\n".join(_finding(finding) for finding in findings[:FINDINGS_MAX])
    more = (
        f"<p>{len(findings) - FINDINGS_MAX:,} more are not shown.</p>"
        if len(findings) > FINDINGS_MAX
        else ""
    )
    head = "<tr><th>Class</th><th>Replica</th><th>File</th><th>Entry</th><th>Bytes</th><th>Rule</th><th>Proof</th></tr>"
    return f"<div class=scroll><table>{head}\n{rows}</table></div>{more}"


def _finding(finding: Finding) -> str:
    flaw = finding.flaw
    entry = "–" if flaw.index is None else f"{flaw.index:,}"
    style = "FAIL" if finding.fails else "INCOMPLETE"
    return (
        "<tr><td"
        f" class={style}>{finding.klass}</td><td>{escape(finding.replica)}</td><td><code>{escape(flaw.file)}</code></td>"
        f"<td class=n>{entry}</td><td class=n>{flaw.byte_from}–{flaw.byte_to}</td>"
        f"<td title='{escape(RULES[flaw.rule].meaning)}'>{flaw.rule}</td><td>{escape(flaw.proof)}</td></tr>"
    )
