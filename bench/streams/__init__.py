"""The benchmark of native streams: its load generator, its faults, and the page that publishes
it."""
