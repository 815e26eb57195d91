"""Streams between nodes: greeting, identities of directories, frames, links and the server.

`greeting.py` decides who may speak, `peer_identities.py` remembers which directories were met, `formation_check.py` whether a directory
began its group; `links.py`, `peer_stream.py` and `peer_server.py` move bytes. What a packet means is decided elsewhere. New traffic between
nodes is a message in `proto/peer.proto` and its handling in `peer_stream.py`. `hosting`, `frontend/routing` and `process` import this
package.
"""
