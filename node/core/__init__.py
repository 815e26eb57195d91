"""One broker group without the world around it: replication behind a port, and the machine that turns committed entries into state.

Plain synchronous code: no asyncio, threads, sockets, clock or chance of its own. Time, packets and calls come in as values, and what is
left to do goes out as values, so that the simulator and the tests run exactly what a node runs.
"""
