"""The entry log: append, group commit, reading, recovery and verification of log files and their
index files.

It imports `files` alone: it knows neither queues nor the state that is derived from the log.
"""
