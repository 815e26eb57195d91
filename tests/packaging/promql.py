"""What an expression of an alert or a dashboard names, held against the declared metrics."""

from __future__ import annotations

import re

from ledgermq.node.runtime import mirrored
from ledgermq.node.runtime.metrics import DECLARED

assert mirrored.STATISTICS, "the declarations are complete once both modules are imported"
OF_SCRAPES = {"instance", "job"}
"""Labels that Prometheus adds to every sample."""
_ENDINGS = {"_bucket": {"le"}, "_sum": set[str](), "_count": set[str]()}


def _known() -> dict[str, set[str]]:
    """Name of a sample → its labels."""
    found = {"up": OF_SCRAPES, "ALERTS": {"alertname", "alertstate"}}
    for one in DECLARED:
        endings = _ENDINGS if one.kind == "histogram" else {"": set[str]()}
        found |= {
            one.name + ending: OF_SCRAPES | set(one.labels) | more
            for ending, more in endings.items()
        }
    return found


KNOWN = _known()
RATED = {one.name for one in DECLARED if one.kind == "counter"} | {
    name for name in KNOWN if name.endswith(tuple(_ENDINGS))
}


def labels_left(expression: str) -> set[str]:
    """The labels that the result of an expression may have. Fails if it names a metric or a label
    that does not exist, or takes the rate of something that is no counter."""
    names = set(re.findall(r"\b(?:(?:ledgermq|rocketmq|process)_[a-z_]+|up|ALERTS)\b", expression))
    assert names and names <= KNOWN.keys(), (expression, names - KNOWN.keys())
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        matched = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers))
        assert matched and matched <= KNOWN[name], (expression, matched - KNOWN[name])
    rated = set(re.findall(r"\b(?:rate|increase)\((\w+)", expression))
    assert rated <= RATED, (expression, rated - RATED)
    grouped = {
        label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")
    }
    for name in names:
        assert grouped <= KNOWN[name], (expression, grouped - KNOWN[name])
    if grouped or re.search(r"\b(sum|count|max) ?\(", expression):
        return grouped
    return set.intersection(*(KNOWN[name] for name in names))
