"""The demo: real flights through a three-node cluster whose leader is killed, then a Spark audit (`make demo`).

`data.py` reads the flights, `traffic.py` is the official client in its own process, `cluster.py` runs the nodes, `verdict.py` judges what
was recorded, `__main__.py` tells the story in order.
"""
