"""Administration: the methods behind the operator's commands, over gRPC.

`service.py` maps requests to the modules, one for each subject: members, leadership, broker groups, users, queries, retention, audits. This
package alone may look into replicas, between two turns. A new operator method is a method of the subject's module, its request in
`proto/admin.proto`, and its permission in `security/admin_guard.py`. Only `process` imports this package.
"""
