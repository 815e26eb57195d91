"""Opens the object store that the configuration names. Imports its client, which is an extra of the
package, only if there is one."""

from __future__ import annotations

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.storage.tiered.ports import ObjectStore


def store_of(config: NodeConfig) -> ObjectStore | None:
    """The store for tiered storage; None if the configuration names none. Sends no request. Raises
    FatalError for unsafe credentials, Unusable for the address."""
    tiered = config.tiered
    if not tiered.url:
        return None
    config.check_store_credentials()
    from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place

    file = "" if tiered.credentials_file is None else str(tiered.credentials_file.absolute())
    ca_file = "" if tiered.ca_file is None else str(tiered.ca_file.absolute())
    return S3ObjectStore(
        S3Place(
            url=tiered.url,
            endpoint=tiered.endpoint,
            region=tiered.region,
            credentials_file=file,
            timeout_s=tiered.timeout_ms / 1000,
            ca_file=ca_file,
        )
    )
