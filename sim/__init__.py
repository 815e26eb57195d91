"""The whole cluster in one thread on virtual time: the shipped driver, Raft core and storage over a
forgetful disk and a lossy network.

All randomness comes from one seed. This package holds the forgetful disk, the simulated network,
fault schedules, the wiring of the checkers and the `ledgermq sim` command. It does not define how a
node behaves: the simulated nodes run the product's own code.
"""
