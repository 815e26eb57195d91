"""The demo: real flights through a three-node cluster whose leader is killed, then a Spark audit
(`make demo`).

`data.py` reads the flights, `traffic.py` runs the official client in its own process, `cluster.py`
runs the nodes, `verdict.py` judges the recorded results, `__main__.py` runs the steps in order.
"""
