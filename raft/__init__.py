"""Pure, sans-IO consensus: what a replica of one broker group decides (docs/architecture.md, Consensus).

`core.py` takes inputs (time, messages, the driver's appends and syncs) and leaves one `Effects` value behind, whose docstring fixes the
order in which the driver carries it out. Below it are layers with a law each, every one knowing only those below: `appointing.py`
(masters that a controller appoints, the in-sync set), `changing.py` (members and rule), `handing_over.py`, `following.py` and
`leading.py`, `elections.py`, `rules.py` (what safety hangs on), `state.py`. Values and arithmetic: `log_view.py` (terms of the log as
runs), `progress.py` (what a leader knows of a peer, byte window), `trail.py` (lag in time and bytes), `quorum.py`, `membership.py`,
`appointments.py` (what the controller agrees on), `transfer.py`, `reads.py`, `messages.py` (what replicas tell each other), `effects.py`,
`config.py`. No clock, no randomness of its own, no file, no payload bytes, no await; memory is O(terms + peers × window).
"""
