"""Whether this process uses `ledgermq-native`, the optional package of compiled kernels; decided once, at import.

Every kernel has a Python twin in the module that calls it, and gives the same results. Where the package is missing, cannot be loaded, has
another version than this program, or is switched off by `LEDGERMQ_PURE=1`, the twins do all the work.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from ledgermq import __version__

SWITCH = "LEDGERMQ_PURE"


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
    return (ledgermq_native, found) if found == __version__ else (None, f"version {found} does not fit version {__version__}")


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
