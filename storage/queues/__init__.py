"""Consume queues: the positions of a queue's messages by offset, written by the group's owner and
read by others."""
