"""The user error of the client side of the audit. In a module of its own, because it must be
importable without pyarrow."""


class BadFile(ValueError):
    """A clients' file that cannot be used; one sentence says what to give instead."""
