"""Sends: which messages are stored, where, and how a message that comes twice is answered.

`send_admission.py` decides, `message_ids.py` is the state, `sequencer.py` assigns queue offsets.
"""
