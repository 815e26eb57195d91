"""The commented example of a configuration file, as `ledgermq config example` prints it. A test reads it back."""

from __future__ import annotations

EXAMPLE = """\
# A node of a three-node cluster. Every key may also be given as LEDGERMQ_<KEY> (levels joined by __, e.g.
# LEDGERMQ_DELIVERY__LIVENESS_MS=30s) or as --set key=value (e.g. --set delivery.liveness_ms=30s); the latter wins.
node: n1                       # this node; must be one of `nodes`
data: ./ledgermq-data/n1       # its directory; created when missing
listen_host: 127.0.0.1         # 0.0.0.0 to be reachable from other machines
log_level: info                # debug, info, warning, error
cluster:
  id: 6f9619ff-8b86-4d01-b42d-00cf4fc964ff   # the same on all nodes; mint one with: uuidgen
  created_ms: 1767225600000                  # the same on all nodes
  secret_file: ./ledgermq-data/secret        # the same content on all nodes, mode 0600; openssl rand -hex 32
  groups:                                    # broker groups as they are created
    - name: g1
      replicas: [n1, n2, n3]
      data_file_bytes: 1GiB                  # fixed when the group is created
      # preferred_leader: n1                 # leads whenever it has kept up for a while
      replication: raft                      # or ha: a master appointed by the controller quorum, with the settings below (docs/ha.md)
      # ack: in-sync                         # or async: the master alone
      # min_in_sync: 2                       # with in-sync: fewer members, and sends are refused
      # in_sync_lag_ms: 10s                  # a slave that lacks something for longer,
      # in_sync_lag_bytes: 64MiB             # or more than this, leaves the in-sync set
      # transfer: push                       # or pull: slaves ask for what is new
      # follower_reads: true                 # replicas that do not lead serve readers that allow it (docs/observers.md),
      # follower_read_age_ms: 2s             # unless what they know is older,
      # follower_pull_bytes: 64MiB           # and answer pulls of official clients that begin so far behind the end of the log
nodes:                         # where every node is reached; workers: 2 makes it two processes (docs/workers.md)
  n1: {host: 127.0.0.1, client_port: 8081, peer_port: 9081, controller_port: 10081, http_port: 11081}
  n2: {host: 127.0.0.1, client_port: 8082, peer_port: 9082, controller_port: 10082, http_port: 11082}
  n3: {host: 127.0.0.1, client_port: 8083, peer_port: 9083, controller_port: 10083, http_port: 11083}
# join: true                   # a node that is added later (ledgermq member add): `nodes` names the present ones and itself
# join: spare                  # the same without a replica of any group, until one is moved there (ledgermq rebalance)
raft:
  heartbeat_ms: 100ms
  election_min_ms: 400ms       # an election timeout is drawn between the two
  election_max_ms: 800ms
  # observer_bytes_per_s: 4MiB # pushed to each observer of a group led here, at most (docs/observers.md); 0: no limit
delivery:
  min_invisible_ms: 1s         # shortest lease a client may ask for
  liveness_ms: 65s             # a client silent for longer loses its automatically renewed leases
  long_poll_max_ms: 20s
limits:
  max_body_bytes: 4MiB
  max_frame_bytes: 1MiB        # entries in a native frame; never more than a quarter of a log file
access:                        # who may call (docs/security.md)
  authentication: none         # required: every call is signed by a user (ledgermq user create); none: only on loopback, unless
  # allow_unauthenticated: "anyone who reaches the port may read and write"
  # allow_open_http: "anyone who reaches the port may read health and metrics"
  ignore_namespaces: false     # true: as the reference server, which knows topics and groups by their plain names only
tls:
  mode: "off"                  # both: TLS and plaintext on the one client port; required: TLS only
  # certificate_file: ./tls/n1.pem     # read again when they change
  # key_file: ./tls/n1.key
  # client_ca_file: ./tls/ca.pem       # clients must have a certificate of it
  # users: {billing-service: billing}  # common name of a client's certificate: the user it stands for
peer_tls:
  mode: "off"                  # required: the nodes speak mutual TLS among each other (certificate_file, key_file, ca_file)
quotas:                        # on each node; 0 = no limit; what is too much is answered with TOO_MANY_REQUESTS
  client: {messages_per_s: 0, bytes_per_s: 0, calls: 0, receives: 0}
  topics: {}                   # by name or pattern, e.g. {"orders*": {messages_per_s: 1000}}; likewise users and groups
  connections: 0
  connections_per_address: 0
  new_connections_per_s: 0     # more than these wait for their turn
tracing:                       # OpenTelemetry spans of sends, receives and acknowledgements; needs: pip install 'ledgermq[tracing]'
  otlp_endpoint: ""            # such as http://127.0.0.1:4317; empty: nothing is exported
  sample_ratio: 1.0            # of the calls whose caller has not decided already
flush:
  policy: durable              # durable, memory or hybrid: what a send's acknowledgement waits for
  groups: {}                   # one broker group otherwise, e.g. {g1: memory}
  interval_ms: 500ms           # messages of the class memory wait this long for their sync when least_pages of 4 KiB are there,
  least_pages: 4
  thorough_ms: 10s             # and never longer than this
storage:
  append: pwrite               # how the log is written: pwrite, map (through the mapped file), pool (buffers; only with flush memory)
  lock_memory: false           # lock the file being written, the next one and the pool (needs a high limit on locked memory)
  pool_buffers: 5              # append: pool only; a broker group takes pool_buffers x pool_buffer_bytes of memory
  pool_buffer_bytes: 8MiB
retention:                     # whole log files go, oldest first; 0 = no such limit
  hours: 72                    # since the file's last message was stored
  max_bytes: 0                 # per broker group, complete files together
  warn_percent: 80             # of the file system: a warning in the log,
  delete_percent: 85           # files go before their time,
  refuse_percent: 90           # clients' messages are refused (all three only with less than ample_bytes free)
  ample_bytes: 20GiB
  reserve_bytes: 8MiB          # per broker group, kept for cleaning up when the disk is full
  follower_hours: 1            # a replica that lacks entries keeps their files until it was silent for so long; 0: for ever
  observer_bytes: 1GiB         # an observer at most so much of them; beyond that it is brought files
audit:
  bytes_per_s: 128MiB          # audits of the running node (ledgermq audit --endpoints) read no faster, and slower while it is busy
agreement:
  check_ms: 500ms              # how often replicas compare the digests of log files that were sealed meanwhile
scrub:                         # the logs are read again, for ever, to find rot
  bytes_per_s: 16MiB           # of all broker groups of this node together; see: ledgermq doctor
  again_hours: 24              # a file that was verified as a whole rests for so long
"""
