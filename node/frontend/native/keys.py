"""The receipt keys of a node: the newest signs, all of them verify, and a new one is added when the
newest is old.

The first node that needs a key creates it and has the controller quorum agree on it; in plain text
it exists only in the nodes' memory. Acknowledging a frame never waits for the quorum: a producer is
opened only after there is a key, and an old key signs until this node knows a newer one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from ledgermq.node.controller import signing_keys
from ledgermq.node.frontend.ports import AdminCalls, Metadata
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2
from ledgermq.proto.proofs.receipts import KEY_BYTES
from ledgermq.proto.status import Code, LedgerError, fail

TIMEOUT_S = 5.0
ROTATE_AFTER_MS = 30 * 86_400_000
_ID_BYTES = 8

log = get_logger()
Key = tuple[str, bytes]
"""(key id, key)"""


class ReceiptKeys:
    """The receipt keys of one node. Belongs to the loop's thread. `now_ms`: wall clock, in ms."""

    def __init__(self, quorum: Metadata, sealer: Sealer, now_ms: Callable[[], int]) -> None:
        self._quorum = quorum
        self._sealer = sealer
        self._now_ms = now_ms
        self._known: signing_keys.ReceiptKeys = ()
        self._opened: dict[str, bytes | None] = {}

    def calls(self) -> AdminCalls:
        """The methods of the administration that it serves."""
        return AdminCalls({"RotateReceiptKey": self._rotated})

    async def _rotated(
        self, _: admin_pb2.RotateReceiptKeyRequest
    ) -> admin_pb2.RotateReceiptKeyResponse:
        key_id, keys = await self.rotate()
        return admin_pb2.RotateReceiptKeyResponse(key_id=key_id, keys=keys)

    def __repr__(self) -> str:
        return f"ReceiptKeys({[key.key_id for key in self._quorum.state.receipt_keys]})"

    def newest(self) -> Key | None:
        """The key to sign with; None if there is none that this node can decrypt."""
        for known in reversed(self._quorum.state.receipt_keys):
            key = self._open(known.key_id)
            if key is not None:
                return known.key_id, key
        return None

    async def meet(self, key_ids: Collection[str]) -> None:
        """Fetch keys that were just created on other nodes: one barrier read if any is unknown.
        Raises LedgerError."""
        if not {known.key_id for known in self._quorum.state.receipt_keys}.issuperset(key_ids):
            await self._quorum.barrier()

    def find(self, key_id: str) -> bytes | None:
        """The key with this id; None if it is unknown or cannot be decrypted here."""
        return self._open(key_id)

    async def ready(self) -> None:
        """Ensure that there is a key; create the first one if necessary. Raises LedgerError if that
        needs the quorum and it does not answer."""
        if self.newest() is None:
            await self._quorum.barrier()
        if self.newest() is None:
            await self._add()
            if self.newest() is None:
                raise fail(
                    Code.HA_NOT_AVAILABLE, "the first receipt key is not agreed on yet; try again"
                )

    async def rotate(self) -> tuple[str, int]:
        """Sign with a new key from now on; existing receipts stay verifiable. Returns the newest
        key id and the number of keys. If another node adds a key at the same time, that key is the
        new one. Raises LedgerError."""
        # Without the barrier, a node that does not know the newest key yet would add none, and call
        # the former key new.
        await self._quorum.barrier()
        return await self._add()

    async def _add(self) -> tuple[str, int]:
        """Add a key behind the newest one that this node knows, unless there is a later one
        already."""
        known = self._quorum.state.receipt_keys
        key_id = secrets.token_hex(_ID_BYTES)
        sealed = self._sealer.seal(_name(key_id), secrets.token_bytes(KEY_BYTES).hex())
        arguments = {
            "key_id": key_id,
            "secret": sealed,
            "created_ms": self._now_ms(),
            "after": known[-1].key_id if known else "",
        }
        outcome = await self._quorum.submit("add-receipt-key", arguments, TIMEOUT_S)
        assert outcome.value is not None, "adding a key names the newest one"
        if outcome.value["key_id"] == key_id:
            log.info("receipts are signed with a new key", key=key_id)
        return outcome.value["key_id"], outcome.value["keys"]

    async def rotate_if_old(self) -> None:
        """Rotate the key if it is old. A failure is logged; the next call tries again."""
        known = self._quorum.state.receipt_keys
        if known and self._now_ms() - known[-1].created_ms >= ROTATE_AFTER_MS:
            try:
                await self._add()
            except LedgerError as error:
                log.warning("the receipt key is old and could not be rotated", reason=str(error))

    def _open(self, key_id: str) -> bytes | None:
        keys = self._quorum.state.receipt_keys
        if keys is not self._known:
            self._known = keys
            self._opened.clear()
        if key_id not in self._opened:
            sealed = next((known.sealed for known in keys if known.key_id == key_id), None)
            if sealed is None:
                return None
            text = self._sealer.open(_name(key_id), sealed)
            if text is None:
                reason = (
                    "it was sealed under another cluster secret; set cluster.former_secret_file"
                )
                log.error("receipt key not readable", key=key_id, reason=reason)
            self._opened[key_id] = None if text is None else bytes.fromhex(text)
        return self._opened[key_id]


def _name(key_id: str) -> str:
    """The name under which the key is sealed. It cannot be a user's, because user names have no
    spaces."""
    return f"receipt key {key_id}"
