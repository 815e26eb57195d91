"""The moment between a process's start and its place on the list of those to end: an interrupt must
wait for the second."""

from __future__ import annotations

import signal

import pytest

from examples.flights.cluster import undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    """Raised inside, delivered after: what the block appends is there when the handler runs, and
    the former handlers are back."""
    started: list[str] = []
    seen: list[list[str]] = []

    def handler(*_: object) -> None:
        seen.append(list(started))

    former = signal.signal(number, handler)
    try:
        with undisturbed():
            signal.raise_signal(number)
            started.append("a process")
        assert seen == [["a process"]]
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, former)


def test_interrupt_is_delivered_when_the_block_fails() -> None:
    """An error inside does not swallow the interrupt."""
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        raise OSError("no more processes")
