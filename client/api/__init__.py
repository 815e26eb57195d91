"""The connection to a cluster, and its administration in plain values: what applications and all
other rooms of the client are built on."""
