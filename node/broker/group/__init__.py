"""One broker group as its owner runs it: turn by turn, on every replica.

`group.py` is the turn: input, decisions, replication, application, answers. The other modules have what a turn needs and no capability
owns: linearizable reads, handovers, membership, the age of a follower's state, the history of leaders, and explanations for operators. A
module belongs here if it drives decisions and state but makes no decision about messages itself. Rooms above import this package; nothing
else in `broker` does.
"""
