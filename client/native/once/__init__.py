"""Exactly-once reading and writing for sequential programs: ranges read offset by offset, and
numbered messages, each stored once."""
