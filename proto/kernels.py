"""Whether this process uses `ledgermq-native`, the optional package of compiled kernels; decided
once, at import.

Every kernel has a Python twin in the module that calls it, and gives the same results. Where the
package is missing, cannot be loaded, has another version than this program, lacks a function, or is
switched off by `LEDGERMQ_PURE=1`, the twins do all the work.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from ledgermq import __version__

SWITCH = "LEDGERMQ_PURE"
FUNCTIONS = (
    "seal",
    "verify",
    "columns",
    "key_columns",
    "check_frame",
    "build_frame",
    "read_entries",
    "grow_tree",
)
"""What this program calls in `entries`. A package that was built from older sources of the same
version lacks some."""
FRONT = ("END_TAKEN",)
"""What it uses of `front` that older sources of the same version lack."""


def _find() -> tuple[ModuleType | None, str]:
    """The package, if it is used; and its version, or the reason why it is not used."""
    if os.environ.get(SWITCH) == "1":
        return None, f"switched off by {SWITCH}=1"
    try:
        import ledgermq_native
    except ModuleNotFoundError:
        return None, "not installed"
    except ImportError as error:
        return None, f"cannot be loaded: {error}"
    found = ledgermq_native.__version__
    if found != __version__:
        return None, f"version {found} does not fit version {__version__}"
    lacking = [name for name in FUNCTIONS if not hasattr(ledgermq_native.entries, name)]
    lacking += [name for name in FRONT if not hasattr(ledgermq_native.front, name)]
    return (
        (None, f"it lacks {lacking[0]}; build it again: make native")
        if lacking
        else (ledgermq_native, found)
    )


_package, STATE = _find()
NATIVE = _package is not None
"""Callers test this flag before they use `entries`."""
VERSION = STATE if NATIVE else None

if TYPE_CHECKING:
    from ledgermq_native import entries as entries
else:
    entries = None if _package is None else _package.entries


def described() -> str:
    """For people: the version in use, or why it is not used."""
    return f"ledgermq-native {STATE}" if NATIVE else f"ledgermq-native is not used: {STATE}"
