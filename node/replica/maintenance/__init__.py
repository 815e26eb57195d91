"""Work on all groups of a node that asks other nodes, too: comparing digests of sealed files, and retention.

One loop for each subject, on the event loop, with slow parts on threads. Questions to a group go through the engine, questions to peers
through the forwarder. A new loop over all groups goes here; its rule goes to a pure package. `frontend/admin` and `process` import this
package.
"""
