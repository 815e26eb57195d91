"""Raises the operating system's limits of this process, as far as the process may do so itself."""

from __future__ import annotations

import resource

from ledgermq.node.runtime.logs import get_logger

DESCRIPTORS_WANTED = 1 << 16
DESCRIPTORS_FEW = 4096
"""Below this limit, a node with many queues and clients may fail to open files. Log and index files
are bounded, connections are not."""

log = get_logger()


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to `DESCRIPTORS_WANTED` or the hard limit, and returns
    the limit then in force. The usual soft limit suits programs with few files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_FEW:
        log.warning("few files can be open: raise ulimit -n", limit=soft, wanted=DESCRIPTORS_FEW)
    return soft
