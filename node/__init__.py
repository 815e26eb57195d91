"""What acts: the process that hosts broker groups, serves clients and peers, and keeps the cluster's metadata.

`core/` holds everything a broker group decides, as plain functions over ports; `controller/` the metadata quorum; `service/` the client
contract. The modules beside them are the process around it: engine thread, peer streams, forwarding, configuration, health. Nothing here
decides about consensus or knows a byte layout.
"""
