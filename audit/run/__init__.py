"""The audit as a whole: its sources, the partitions of its work, and the verdict over all of them,
with one of two engines."""
