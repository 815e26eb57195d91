"""Dead letters: copies of messages that a consumer group gave up, and how each of them was settled.

`letters.py` is the state, `dead_letters.py` makes the copies, `dead_lettering.py` decides.
"""
