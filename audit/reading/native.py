"""Whether the audit reads log files with `ledgermq-native`, the optional compiled package; decided
once, at import.

The compiled scan is a decoder of its own: this module imports nothing but its part of the package.
The Python scan explains every window that the compiled one does not find in order, and does all the
work where the package is missing, does not fit or is switched off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ledgermq import __version__

if TYPE_CHECKING:
    from ledgermq_native.audit_scan import Clean

PYTHON = "python"
Wanted = Sequence[tuple[bytes, int | None]]


@runtime_checkable
class Kernel(Protocol):
    """The functions of `ledgermq_native.audit_scan`. A package that was built from older sources of
    the same version lacks some."""

    def scan(
        self,
        window: bytes,
        *,
        pos: int,
        room: int,
        left: int,
        chain: int,
        index: int | None,
        term: int,
        store_ms: int,
        deep: bool,
        wanted: Wanted,
    ) -> Clean | None: ...

    def find(
        self, window: bytes, *, pos: int, room: int
    ) -> tuple[bytes, bytes, int, bool, int] | None: ...

    def grow_tree(
        self, towers: Sequence[tuple[int, bytes]], data: bytes
    ) -> tuple[list[tuple[int, bytes]], int, bool]: ...


def _find() -> tuple[Kernel | None, str]:
    """The compiled scan, if it is used; and the name of the scan that is used."""
    if os.environ.get("LEDGERMQ_PURE") == "1":
        return None, PYTHON
    try:
        from ledgermq_native import __version__ as found
        from ledgermq_native import audit_scan
    except ImportError:
        return None, PYTHON
    if found != __version__ or not isinstance(audit_scan, Kernel):
        return None, PYTHON
    return audit_scan, f"ledgermq-native {found}"


KERNEL, SCAN = _find()


def may_ask(pos: int, index: int, chain: int = 0) -> bool:
    """Whether these fit the kernel's numbers. A damaged header, file name or begin file can make
    others."""
    return 0 <= pos < 1 << 62 and 0 <= index < 1 << 62 and 0 <= chain < 1 << 32
