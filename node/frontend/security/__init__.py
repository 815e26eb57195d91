"""Who may call, and how much: the port's front, identities, rights, quotas, and the sealing of secrets.

`front.py` limits and ends connections before gRPC sees them, `authority.py` checks signatures and grants, `quotas.py` counts,
`admin_guard.py` stands before every admin method. A check belongs here if more than one service needs it. The services of the frontend and
`process` import this package.
"""
