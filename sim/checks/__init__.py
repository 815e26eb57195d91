"""What no interleaving may show: invariants, the single log of a run, and the histories that
clients were told."""
