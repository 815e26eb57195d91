"""What the world asks of one broker group, and what it answers: the inputs and results of `Group.turn`.

Only frozen values, a module for each kind of business. Calls arrive validated and with stored names (format §4.2); protobuf, deadlines of
the transport and authentication stay outside. `token` is opaque to the core and unique per node process: every call is answered by
exactly one `Done` with its token, except those marked "no answer". Times are monotonic nanoseconds (`…_ns`) of the node's clock unless the
name says otherwise.
"""

from __future__ import annotations

Token = int
