"""The services `ledgermq.v1.Admin` and `ledgermq.v1.Replicas`: what operators and audits ask of any node, and how it is answered.
"""
