"""The error table: complete, equal to the contract, and with retryability."""

from __future__ import annotations

import pytest

from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto import status
from ledgermq.proto.status import Code, ExitCode, Fault, fail


def test_codes_are_the_contracts() -> None:
    """Name and number of every code equal the contract's enum."""
    assert {code.name: code.value for code in Code}.items() <= dict(pb.Code.items()).items()


def test_every_code_has_a_meaning() -> None:
    """No code without a row, no row without a text."""
    assert set(status.MEANINGS) == set(Code) and all(m.text for m in status.MEANINGS.values())


@pytest.mark.parametrize("code", [c for c in Code if c.value >= 40000])
def test_fail_picks_class_and_flags(code: Code) -> None:
    """An error is never of the bare base class and carries the table's flags; a fault of the caller
    is never retryable."""
    error = fail(code)
    assert type(error) is not status.LedgerError and error.message == status.MEANINGS[code].text
    assert (error.retryable, error.at_fault) == (
        status.MEANINGS[code].retryable,
        status.MEANINGS[code].at_fault,
    )
    assert not (error.retryable and error.at_fault is Fault.CALLER)
    assert str(error) == f"{error.message} ({code.name} {code.value})"


def test_a_code_of_a_newer_server_is_an_error_too() -> None:
    """An unknown number keeps its class where the class is known, and is Unsupported otherwise."""
    assert isinstance(fail(40499), status.NotFound) and isinstance(fail(60000), status.Unsupported)
    assert fail(40499).code == 40499 and "40499" in str(fail(40499))


def test_common_code() -> None:
    """The outer status is the common code, or MULTIPLE_RESULTS."""
    assert status.common(set()) is Code.OK and status.common({40013}) is Code.INVALID_RECEIPT_HANDLE
    assert status.common({20000, 40013}) is Code.MULTIPLE_RESULTS


@pytest.mark.parametrize("reason", sorted(status.REFUSALS))
def test_refusals_of_the_core(reason: str) -> None:
    """Each refusal of the core becomes a contract code, with its detail as the text when there is
    one."""
    error = status.refused(reason, "why")
    assert (
        error.code == status.REFUSALS[reason]
        and error.message == "why"
        and status.refused(reason).message
    )


def test_exit_codes() -> None:
    """They are part of what scripts rely on: none changes its number."""
    assert [int(code) for code in ExitCode] == [
        0,
        1,
        2,
        3,
        4,
        64,
        65,
        70,
        71,
        72,
        73,
        74,
        75,
        76,
        77,
        78,
        79,
        130,
    ]
