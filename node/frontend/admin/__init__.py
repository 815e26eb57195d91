"""Administration over gRPC: the methods behind the operator's commands.

`service.py` maps requests to the modules, one for each subject: members, leadership, broker groups,
users, queries, retention. Add a new operator method to its subject's module, its request to
`proto/admin.proto`, and its permission to `security/admin_guard.py`. Only `process` imports this
package.
"""
