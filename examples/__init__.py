"""Runnable examples. The product does not import them; each folder or file says at its top how to
start it."""
