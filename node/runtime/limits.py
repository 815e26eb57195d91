"""The limits the operating system sets this process, as far as the process may move them itself."""

from __future__ import annotations

import resource

from ledgermq.node.runtime.logs import get_logger

DESCRIPTORS_WANTED = 1 << 16
DESCRIPTORS_FEW = 4096
"""Below this a node with many queues and clients may be refused files: log and index files are bounded, connections are not."""

log = get_logger()


def raise_descriptor_limit() -> int:
    """Have as many open files as are wanted and allowed; what there is then. The usual soft limit is meant for programs with few files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_FEW:
        log.warning("few files can be open: raise ulimit -n", limit=soft, wanted=DESCRIPTORS_FEW)
    return soft
