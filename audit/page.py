"""The audit as one HTML file that needs no network: the verdict first, a bar per replica and file, the findings, the next steps.

Only presentation; every text is escaped.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import RULES, Finding
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.jobs import Audit
from ledgermq.audit.report import coverage, next_steps

FINDINGS_MAX = 1000


def as_html(audit: Audit) -> str:
    """The whole page."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        verdict=audit.verdict,
        summary=_summary(audit),
        reasons=_list([*audit.reasons, *(f"note: {note}" for note in audit.notes)]),
        replicas="\n".join(_replica(audit, one) for group in audit.groups for one in group.replicas),
        bars="\n".join(_bar(audit, one, report) for group in audit.groups for one in group.replicas for report in one.reports),
        findings=_findings(audit.findings),
        steps=_list([step.removeprefix("next step for ") for step in next_steps(audit)]) or "<p>None.</p>",
    )


def _summary(audit: Audit) -> str:
    told = []
    for group in audit.groups:
        compared = "nothing was compared" if group.compared is None else f"all replicas compared up to index {group.compared:,}"
        told.append(f"Broker group {escape(group.group)} ({escape(', '.join(group.voters)) or 'voters unknown'}): {compared}.")
    if audit.clients is not None:
        told += [escape(line) + "." for line in audit.clients.lines()]
    return " ".join(told) or "No replica was found."


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _replica(audit: Audit, one: Replica) -> str:
    verdict = audit.replica_verdicts[one.directory, one.group, one.name]
    share = coverage(audit, one)
    commit = "–" if one.commit is None else f"{one.commit:,}"
    cells = [
        f"<td>{escape(one.name)}</td><td>{escape(one.group)}</td><td class='{verdict}'>{verdict}</td>",
        f"<td class=n>{one.entries:,}</td><td class=n>{one.end_pos:,}</td><td class=n>{commit}</td>",
        f"<td class=n>{'–' if share is None else f'{share:.2%}'}</td><td><code>{escape(one.directory)}</code></td>",
    ]
    return "<tr>" + "".join(cells) + "</tr>"


def _bar(audit: Audit, one: Replica, report: LogReport) -> str:
    length = max(report.length, one.sizes[0], 1)
    marks = [f for f in audit.findings if f.replica == one.name and f.group == one.group and f.flaw.file == report.file]
    hurt = "".join(
        f"<span class={'hurt' if mark.fails else 'torn'} title='{escape(mark.text)}' style='left:{100 * mark.flaw.byte_from / length:.3f}%;"
        f"width:{100 * max(mark.flaw.byte_to - mark.flaw.byte_from, 0) / length:.3f}%'></span>"
        for mark in marks[:FINDINGS_MAX]
    )
    filled = f"<span class=log style='width:{100 * report.end / length:.3f}%'></span>"
    name = f"{one.name} {one.group} {report.base:020d}"
    return f"<div class=row><span class=name title='{escape(report.file)}'>{escape(name)}</span><div class=bar>{filled}{hurt}</div></div>"


def _findings(findings: list[Finding]) -> str:
    if not findings:
        return "<p>None.</p>"
    rows = "\n".join(_finding(finding) for finding in findings[:FINDINGS_MAX])
    more = f"<p>{len(findings) - FINDINGS_MAX:,} more are not shown.</p>" if len(findings) > FINDINGS_MAX else ""
    head = "<tr><th>Class</th><th>Replica</th><th>File</th><th>Entry</th><th>Bytes</th><th>Rule</th><th>Proof</th></tr>"
    return f"<div class=scroll><table>{head}\n{rows}</table></div>{more}"


def _finding(finding: Finding) -> str:
    flaw = finding.flaw
    entry = "–" if flaw.index is None else f"{flaw.index:,}"
    style = "FAIL" if finding.fails else "INCOMPLETE"
    return (
        f"<tr><td class={style}>{finding.klass}</td><td>{escape(finding.replica)}</td><td><code>{escape(flaw.file)}</code></td>"
        f"<td class=n>{entry}</td><td class=n>{flaw.byte_from}–{flaw.byte_to}</td>"
        f"<td title='{escape(RULES[flaw.rule].meaning)}'>{flaw.rule}</td><td>{escape(flaw.proof)}</td></tr>"
    )
