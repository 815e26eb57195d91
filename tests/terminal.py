"""A person at a terminal who types an answer."""

from __future__ import annotations

import io


class Typed(io.StringIO):
    """A stdin that is a terminal, on which this text was typed."""

    def isatty(self) -> bool:
        return True
