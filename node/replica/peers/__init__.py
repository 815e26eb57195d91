"""Streams between nodes: greeting, identities of directories, frames, links and the server.

`greeting.py` decides which nodes may speak, `peer_identities.py` remembers the directories of the
peers, and `formation_check.py` checks whether a directory belongs to the founding of its group.
`links.py`, `peer_stream.py` and `peer_server.py` move bytes; other packages decide what a packet
means. New traffic between nodes needs a message in `proto/peer.proto` and its handling in
`peer_stream.py`. `hosting`, `frontend/routing` and `process` import this package.
"""
