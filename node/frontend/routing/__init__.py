"""Any node answers any call: one hop to the node, or the worker of this node, that leads the broker group.
"""
