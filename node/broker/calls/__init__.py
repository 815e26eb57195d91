"""The calls to a broker group and their answers, as immutable values.

There is one module for each kind of caller: senders, consumers, members, operators, readers.
`outcome.py` has the refusals that all calls share, `group_view.py` what a group publishes between
its turns. A new client method adds its call here and nothing else: no rule, no state, no I/O. Every
room above may import this package.

Calls arrive validated and with stored names (format §4.2); protobuf, transport deadlines and
authentication stay outside. `token` is opaque to the group and unique per node process: every call
is answered by exactly one `Done` with its token, except those marked "no answer". Times are
monotonic nanoseconds (`…_ns`) of the node's clock unless the name says otherwise.
"""

from __future__ import annotations

Token = int
