"""The commands that work on directories of stopped or running nodes without asking a cluster, and
the doctor's measurements."""
