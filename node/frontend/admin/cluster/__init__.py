"""Nodes, members, broker groups, their leaders and log files, users, upgrades."""
