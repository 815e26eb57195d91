"""Messages for an operator: peeks, queries, histories, progress, dead letters, what waits."""
