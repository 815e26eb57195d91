"""Files: the disk port (`ports.py`) and its implementation over POSIX, and the small forms of files
that all rooms of the store use.

Nothing here knows what the bytes mean. This room imports no other room of the store.
"""
