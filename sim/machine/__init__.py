"""What a simulated node stands on: its clock, its disk that forgets, the network between nodes, and
the settings of a run."""
