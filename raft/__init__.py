"""Pure, sans-IO consensus: what a replica of one broker group decides (docs/architecture.md,
Consensus).

`core.py` takes inputs (time, messages, the driver's appends and syncs) and leaves one `Effects`
value behind, whose docstring fixes the order in which the driver carries it out. It lists the parts
of a core; every field has one owner, and a part knows only parts below it: `election.py` (term,
vote, role), `follower.py`, `member_changes.py`, `handover.py`, `leader.py`, `isr_review.py`,
`membership.py`, `policy.py` (what the rule of the group means), `isr.py`, `election_timer.py`,
`log_state.py`.

Values and arithmetic: `log_view.py` (terms of the log as runs), `progress.py` and `window.py` (what
a leader knows of a peer), `lag_samples.py` (lag in time and bytes), `quorum.py`, `ha_control.py`
(what the controller agrees on), `transfer.py`, `reads.py`, `messages.py` (messages between
replicas), `effects.py`, `config.py`. There is no clock, no randomness of its own, no file, no
payload bytes and no await; memory is O(terms + peers × window).
"""
