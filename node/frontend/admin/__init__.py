"""Administration over gRPC: the methods behind the operator's commands.

A noun, such as topics or members, is a class that says which methods it serves; `service.py`
composes them, and `process` builds them. Add a new operator method to the class of its noun, its
request to `proto/admin.proto`, and its permission to `security/admin_guard.py`. Only `process`
imports this package.
"""
