"""The turn of a broker group, which drives replication, state and decisions, and the answers that need all three.
"""
