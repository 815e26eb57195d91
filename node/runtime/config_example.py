"""The commented example of a configuration file, as `ledgermq config example` prints it. A test
reads it back."""

from __future__ import annotations

EXAMPLE = """\
# A node of a three-node cluster. Every key may also be given as LEDGERMQ_<KEY> (levels joined by __, e.g.
# LEDGERMQ_DELIVERY__LIVENESS_MS=30s) or as --set key=value (e.g. --set delivery.liveness_ms=30s); --set wins.
node: n1                       # this node; must be one of `nodes`
data: ./ledgermq-data/n1       # its directory; created when missing
listen_host: 127.0.0.1         # 0.0.0.0 to be reachable from other machines; "::" for IPv6 and IPv4
log_level: info                # debug, info, warning, error
cluster:
  id: 6f9619ff-8b86-4d01-b42d-00cf4fc964ff   # the same on all nodes; create one with: uuidgen
  created_ms: 1767225600000                  # the same on all nodes
  secret_file: ./ledgermq-data/secret        # the same content on all nodes, made by: ledgermq config secret FILE
  groups:                                    # broker groups as they are created
    - name: g1
      replicas: [n1, n2, n3]
      data_file_bytes: 1GiB                  # fixed when the group is created
      # preferred_leader: n1                 # gets leadership once it has kept up for a while
      replication: raft                      # or ha: the controller quorum appoints a master; settings below (docs/ha.md)
      # ack: in-sync                         # or async: wait for the master only
      # min_in_sync: 2                       # with in-sync: sends are refused if fewer members are in sync
      # in_sync_lag_ms: 10s                  # a slave that lacks entries for longer than this,
      # in_sync_lag_bytes: 64MiB             # or more bytes than this, leaves the in-sync set
      # transfer: push                       # or pull: slaves ask for new entries
      # follower_reads: true                 # replicas that do not lead serve readers that allow it (docs/observers.md),
      # follower_read_age_ms: 2s             # unless their knowledge is older than this,
      # follower_pull_bytes: 64MiB           # and official clients' pulls this far behind the end of the log
nodes:                         # addresses of all nodes; workers: 2 runs a node as two processes (docs/workers.md)
  n1: {host: 127.0.0.1, client_port: 8081, peer_port: 9081, controller_port: 10081, http_port: 11081}
  n2: {host: 127.0.0.1, client_port: 8082, peer_port: 9082, controller_port: 10082, http_port: 11082}
  n3: {host: 127.0.0.1, client_port: 8083, peer_port: 9083, controller_port: 10083, http_port: 11083}
  # advertised_host: mq1.example.com         # inside the braces of a node: where clients reach it, if not at host
  # advertised_port: 31081                   # and client_port
# join: true                   # for a node that is added later (ledgermq member add): `nodes` names the present nodes and itself
# join: spare                  # the same, but without replicas until one is moved there (ledgermq rebalance)
raft:
  heartbeat_ms: 100ms
  election_min_ms: 400ms       # election timeouts are random between these two values
  election_max_ms: 800ms
  # observer_bytes_per_s: 4MiB # limit for each observer of a group led here (docs/observers.md); 0: no limit
clock:
  max_offset_ms: 1s            # a wall clock that is further from those of a majority of the nodes is not followed
delivery:
  min_invisible_ms: 1s         # shortest lease that a client may request
  liveness_ms: 65s             # a client that is silent for longer loses its automatically renewed leases
  auto_renew_max_ms: 3h        # how long such a lease is renewed at most: also if its answer was lost behind a proxy (docs/delivery.md)
  long_poll_max_ms: 20s
limits:
  max_body_bytes: 4MiB
  max_frame_bytes: 1MiB        # entries in a native frame; never more than a quarter of a log file
access:                        # who may call (docs/security.md)
  authentication: none         # required: users sign every call (ledgermq user create); none: only on loopback, unless
  # allow_unauthenticated: "anyone who reaches the port may read and write"
  # allow_open_http: "anyone who reaches the port may read health and metrics"
  # bootstrap_user: root                # a cluster without any user gets this administrator,
  # bootstrap_secret_file: ./root.secret  # with the secret in this file
  ignore_namespaces: false     # true: like the reference server, use plain names of topics and groups only
tls:
  mode: "off"                  # both: TLS and plaintext on the same client port; required: TLS only
  # certificate_file: ./tls/n1.pem     # reloaded when they change
  # key_file: ./tls/n1.key
  # client_ca_file: ./tls/ca.pem       # clients need a certificate signed by it
  # users: {billing-service: billing}  # common name of a client's certificate: user
peer_tls:
  mode: "off"                  # required: mutual TLS between nodes (certificate_file, key_file, ca_file)
quotas:                        # for each node; 0 = no limit; calls beyond a quota get TOO_MANY_REQUESTS
  client: {messages_per_s: 0, bytes_per_s: 0, calls: 0, receives: 0}
  topics: {}                   # by name or pattern, e.g. {"orders*": {messages_per_s: 1000}}; likewise users and groups
  connections: 0
  connections_per_address: 0
  new_connections_per_s: 0     # further connections wait for their turn
tracing:                       # OpenTelemetry spans of sends, receives and acknowledgements; needs: pip install 'ledgermq[otlp]'
  otlp_endpoint: ""            # for example http://127.0.0.1:4317; empty: no export
  sample_ratio: 1.0            # of calls whose caller did not decide about sampling
metrics:
  series_max: 20000            # of topics and consumer groups; what does not fit is left out and counted
  otlp_endpoint: ""            # exports the metrics of /metrics too, as tracing.otlp_endpoint does spans; needs the same packages
  otlp_interval_ms: 60s        # between two exports
flush:
  policy: durable              # what the acknowledgement of a send waits for: durable, memory or hybrid
  groups: {}                   # exceptions by broker group, e.g. {g1: memory}
  interval_ms: 500ms           # sync messages of the class memory after this time if least_pages of 4 KiB are unsynced,
  least_pages: 4
  thorough_ms: 10s             # and in any case after this time
storage:
  append: pwrite               # how to write the log: pwrite, map (through the mapped file), pool (buffers; only with flush memory)
  lock_memory: false           # lock the file being written, the next one and the pool (needs a high limit on locked memory)
  pool_buffers: 5              # only with append: pool; a broker group uses pool_buffers x pool_buffer_bytes of memory
  pool_buffer_bytes: 8MiB
retention:                     # removes whole log files, oldest first; 0 = no such limit
  hours: 72                    # after the file's last message was stored
  max_bytes: 0                 # per broker group, all complete files
  warn_percent: 80             # of the file system: log a warning,
  delete_percent: 85           # remove files early if it is crossed on a majority of the replicas,
  refuse_percent: 90           # take no messages, and leave leading to others (all three only with less than ample_bytes free)
  ample_bytes: 20GiB
  reserve_bytes: 8MiB          # per broker group, reserved for cleaning up a full disk
  follower_hours: 1            # a replica keeps the files that it still needs until it was silent for this long; 0: for ever
  observer_bytes: 1GiB         # limit of that for an observer; beyond it the observer is installed from files
# tiered:                      # sealed log files go to an object store, too (docs/tiered-storage.md); the same on all nodes;
#   url: s3://bucket/prefix    # needs: pip install 'ledgermq[tiered]'
#   endpoint: https://store.example.com:9000   # of a server other than AWS's
#   region: us-east-1
#   credentials_file: ./store.credentials      # as AWS's shared credentials; without: environment or role of the machine
#   ca_file: ./store-ca.pem    # authority of the server's certificate, if this machine does not trust it anyway
#   bytes_per_s: 64MiB         # limit of reading files for upload, and of reading them back
#   check_ms: 1s
#   retry_ms: 10s              # pause after the store failed
#   cache_bytes: 1GiB          # limit of what is kept on this disk of data that readers fetched from the store
#   timeout_ms: 15s            # of one request
#   retention: {hours: 0, max_bytes: 0}        # what the store keeps of each broker group; 0: no such limit
audit:
  bytes_per_s: 128MiB          # limit for audits of the running node (ledgermq audit --endpoints); lower while it is busy
agreement:
  check_ms: 500ms              # how often replicas compare digests of newly sealed log files
scrub:                         # reads the logs continuously to find rot
  bytes_per_s: 16MiB           # for all broker groups of this node; see: ledgermq doctor
  again_hours: 24              # pause after a file was completely verified
"""
