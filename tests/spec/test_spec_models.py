"""TLC explores the bounded groups of `models.py`: no property is violated, and without one guard
one is (docs/specification.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spec import models, tlc

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parent.parent / "docs" / "specification.md").read_text()


def explored(model: models.Model, *, short: bool) -> tlc.Checked:
    """Explore a model. Skips the test where TLC cannot be had."""
    try:
        return tlc.check("Model", model.config(), short=short)
    except tlc.NoChecker as reason:
        pytest.skip(str(reason))


@pytest.mark.verify
def test_three_nodes_in_one_term() -> None:
    """The smallest model, in every `make test`: one leader, one entry."""
    found = explored(models.ONE_TERM, short=True)
    assert found.finished and found.states > 50, found.output[-4000:]


def test_a_lost_guard_is_noticed() -> None:
    """TLC can find a violation, in every `make test`: a leader commits what it has not synced."""
    model, broken = models.PLANTED["own-copy-synced"]
    assert explored(model.without("own-copy-synced"), short=True).violated == broken


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", models.MODELS)
def test_all_behaviours_of_a_bounded_group_keep_every_property(name: str) -> None:
    """Every reachable state and step."""
    found = explored(models.MODELS[name], short=False)
    assert found.violated is None and found.finished, found.output[-4000:]


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("guard", models.PLANTED)
def test_every_lost_guard_is_noticed(guard: str) -> None:
    """Each planted error leaves out one guard, and violates the property that the page names."""
    model, broken = models.PLANTED[guard]
    found = explored(model.without(guard), short=False)
    assert found.violated == broken, found.output[-4000:]


def test_the_page_lists_every_model_and_planted_error() -> None:
    """A row for each, and no other. The planted errors are exactly the guards that can be left
    out."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M)
    assert sorted(rows) == sorted([*models.MODELS, *models.PLANTED])
    sources = "".join(path.read_text() for path in HERE.glob("*.tla"))
    named = {
        first or second
        for first, second in re.findall(
            r'(?:Guard\("([a-z-]+)"|"([a-z-]+)" \\(?:not)?in Dropped)', sources
        )
    }
    assert (
        named - set(models.PLANTED) == set(models.SHOWN_BY_TRACES) and set(models.PLANTED) <= named
    )
