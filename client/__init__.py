"""The Python client and the client side of the command line.

Here lives what talks to a cluster from outside: connection and retries, administration, sending, receiving, and the commands built on
them. Nothing here opens a data directory, and nothing in a node imports it.
"""
