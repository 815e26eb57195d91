"""Sending and receiving over the clients' contract, and the files that messages and receipts come
from or go to."""
