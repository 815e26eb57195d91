"""One simulated node: its permanent medium, its processes, and the bugs that tests plant in
them."""
