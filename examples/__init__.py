"""Runnable examples. Nothing in the product imports them; each folder or file says at its top how to start it."""
