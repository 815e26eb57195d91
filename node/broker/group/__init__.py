"""One broker group as its owner runs it: turn by turn, on every replica.

`group.py` is the turn: input, decisions, replication, application, answers. Beside it stand what a turn needs and no capability owns: reads
that must not miss anything, handovers, membership, the age of a follower's state, the history of leaders, and the explanations for
operators. A module belongs here if it drives decisions and state, and decides nothing about messages itself. Rooms above import this
package; nothing else in `broker` does.
"""
