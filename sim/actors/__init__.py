"""Who uses a simulated cluster: clients of every kind, operators, and the stand-in of the
controller."""
