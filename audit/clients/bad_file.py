"""The one error of the client side of the audit that its user can mend. It stands alone, for it has to be known where pyarrow is not."""


class BadFile(ValueError):
    """A file of clients that cannot be used, and what to give instead, in one sentence."""
