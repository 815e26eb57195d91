"""Judgements and plans about a cluster, made from its answers: its health, the cost of a stop,
members to add, definitions to apply.

`definitions` reads what a cluster has, and `applying` changes what a plan says and no more; the
others call nothing.
"""
