"""Who may call, and how much: the front of the client port, identities, permissions, quotas, and
the encryption of secrets.

`front.py` limits and ends connections before gRPC sees them, `authority.py` checks signatures and
grants, `quotas.py` enforces quotas, and `admin_guard.py` protects every admin method. A check
belongs here if more than one service needs it. The services of the frontend and `process` import
this package.
"""
