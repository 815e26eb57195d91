"""Checks of the directories given to an audit: whether this program can read them, and whether they
belong together. Errors are no damage.

A directory of another format version is skipped and makes the audit incomplete. Directories of two
clusters, or unreadable ones, are usage errors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from ledgermq.audit.checks.opening import FOUND_FOLDER
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import sealed_json
from ledgermq.audit.reading.files import exists, is_directory, is_readable, names_in, read_if_there
from ledgermq.proto.carried import Carried
from ledgermq.proto.status import ExitCode

FORMAT_VERSION = 1


class MixedClusters(Carried):
    """Directories of several clusters were given. Carries the messages of the command line."""

    exit_code = ExitCode.USAGE
    remedy = "give the directories of one cluster at a time"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {self.remedy}")
        self.what = what


def other_version(directory: str) -> int | None:
    """An unknown format version of a node directory, or of a broker group in it; None if all
    versions are known.

    Only an identity file with a valid checksum counts; a damaged one tells no version. Raises
    PermissionError.
    """
    groups = [name for name in names_in(directory) if name != FOUND_FOLDER]
    for path in (
        f"{directory}/node.json",
        *(f"{directory}/{name}/identity.json" for name in groups),
    ):
        try:
            raw = read_if_there(path)
        except PermissionError:
            raise
        except OSError:
            # Unreadable files are reported when the replica is opened.
            continue
        value = None if raw is None else sealed_json(raw)
        version = None if value is None else value.get("format_version")
        if isinstance(version, int) and version != FORMAT_VERSION:
            return version
    return None


def refuse_unreadable(one: Replica) -> None:
    """Raises PermissionError with the first file or folder of a replica that this user may not
    read."""
    places = [one.root]
    while places:
        place = places.pop()
        # A running node may have removed it since the directory was listed.
        if not is_readable(place) and exists(place):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
        if is_directory(place):
            places += [f"{place}/{name}" for name in names_in(place)]


def refuse_mixed(replicas: Sequence[Replica]) -> None:
    """Raises MixedClusters if whole directories, node and group, belong to different clusters, down
    to the log ids. If only one of these differs, that is a finding."""
    members: dict[str, list[Replica]] = {}
    for one in replicas:
        if (
            one.node is not None
            and one.identity is not None
            and one.node["cluster_id"] == one.identity["cluster_id"]
        ):
            members.setdefault(one.identity["cluster_id"], []).append(one)
    logs = [{one.log_id for one in own} for own in members.values()]
    if len(members) > 1 and sum(len(own) for own in logs) == len(set().union(*logs)):
        clusters = " and ".join(
            f"{own[0].directory} belongs to cluster {cluster}"
            for cluster, own in sorted(members.items())
        )
        raise MixedClusters(f"the directories belong to several clusters: {clusters}")
