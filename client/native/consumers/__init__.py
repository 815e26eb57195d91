"""Native consumers: the streams that batches arrive on, positions, membership, and the records of
what was delivered."""
