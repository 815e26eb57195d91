"""Producers: native producers number their messages, so a frame is stored once and in order.

`producers.py` is the state, `producer_sequencing.py` decides about frames, `frame_appending.py`
appends them, `frame_results.py` makes their answers.
"""
