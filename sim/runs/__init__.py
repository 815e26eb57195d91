"""One run: virtual time, the turns of the nodes, and what faults and operators do to them."""
