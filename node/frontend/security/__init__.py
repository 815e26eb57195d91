"""Who may do what on this node, over which wire, and how much of it: users, signatures, certificates, the public port, quotas.

Everything here stands in front of the services: a call that has come past it is trusted to be what it says. What users there are is agreed
in the controller quorum (`controller/users.py`); nothing in here keeps state of its own that anybody would miss after a restart.
"""
