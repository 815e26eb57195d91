"""The whole cluster in one thread on virtual time: the shipped driver, raft core and storage over a disk that forgets and a lossy network.

Every source of chance is one seed. Here live the forgetful disk, the simulated network, fault schedules, the checkers' wiring and the
`ledgermq sim` command. Nothing here decides how a node behaves: what runs is the product's own code.
"""
