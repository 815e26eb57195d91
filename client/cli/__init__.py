"""The commands that talk to a cluster, a module for each noun: arguments, calls and output. No rule
about a cluster is decided here."""
