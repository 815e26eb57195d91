"""Pure, sans-IO consensus: what a replica of one broker group decides (design §5).

`core.py` takes inputs (time, messages, the driver's appends and syncs) and leaves one `Effects` value behind, whose docstring fixes the
order in which the driver carries it out. Around it: `log_view.py` (terms of the log as runs), `progress.py` (what a leader knows of a
peer, byte window), `quorum.py` (arithmetic), `messages.py` (what replicas tell each other), `effects.py`, `config.py`. No clock, no
randomness of its own, no file, no payload bytes, no await; memory is O(terms + peers × window).
"""
