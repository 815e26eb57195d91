"""The small files of a replica: its identity, hard state, snapshots, checkpoint files, and what was
recovered or heard."""
