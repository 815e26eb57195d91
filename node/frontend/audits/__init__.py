"""The service behind an audit of the running cluster: markers, facts and bytes of this node's
replicas."""
