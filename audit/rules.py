"""Every check of the auditor by name: rule id, the class of its findings, and the requirement in
one line.

Only names and the two value types that carry them live here; the checks live where the bytes are
read. A rule that is not in the table cannot be reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

TORN_TAIL = "torn-tail"
BIT_ROT = "bit-rot"
DIVERGENCE = "divergence"
MISSING = "missing"
EXTRA = "extra"
REORDERED = "reordered"
WRONG_DERIVED = "wrong-derived"
UNDECIDABLE = "undecidable"
CLASSES = (TORN_TAIL, BIT_ROT, DIVERGENCE, MISSING, EXTRA, REORDERED, WRONG_DERIVED, UNDECIDABLE)

NEXT_STEP = {
    TORN_TAIL: (
        "Nothing to do: a killed node cuts this off at its next start, and nothing acknowledged was"
        " in it."
    ),
    BIT_ROT: (
        "Keep the directory, check the disk, and put it back from replicas that prove theirs:"
        " ledgermq repair --from-findings."
    ),
    DIVERGENCE: (
        "Stop writing to this group; keep all directories: two replicas hold different histories,"
        " which is a bug or a foreign log."
    ),
    MISSING: (
        "It lost entries it had stored: put them back from replicas that hold them: ledgermq repair"
        " --from-findings."
    ),
    EXTRA: (
        "Keep the directory: it holds entries or files that the majority does not have; find out"
        " who wrote them before removing any."
    ),
    REORDERED: (
        "Stop writing to this group and keep all directories: the same entries stand in another"
        " order."
    ),
    WRONG_DERIVED: (
        "The log is the truth: stop the node, and have derived files made again from it: ledgermq"
        " repair --from-findings."
    ),
    UNDECIDABLE: (
        "No majority proves which bytes are right: keep all directories, look for a further copy,"
        " and do not repair by hand."
    ),
}

RULE_STEP = {
    "client.lost": (
        "Keep all directories and the receipts: an acknowledged message is gone; look for another"
        " copy of the log."
    ),
    "client.twice": (
        "Keep all directories: one message is in the log twice, and consumers received it twice."
    ),
    "client.order": "Keep all directories and the clients' files: messages changed their order.",
    "client.receipt": (
        "Check the receipts with `ledgermq receipts verify`; if they are true, the log was changed:"
        " keep all directories."
    ),
    "client.phantom": (
        "Keep all directories and the clients' files: a consumer received a message that the log"
        " does not hold."
    ),
    "client.redelivered": (
        "Compare with the consumer group's delivery records in the log; messages were processed"
        " again."
    ),
    "client.delivery": "Correct the program that wrote this file of deliveries.",
    "stored.digest": (
        "Put the object back from the store's own versions, or from a replica with the file; no"
        " node looks for it again."
    ),
    "stored.missing": (
        "Put the object back from the store's own versions, or from a replica with the file; no"
        " node looks for it again."
    ),
    "stored.gap": (
        "Put the objects back from the store's own versions; until then a restore ends before the"
        " gap."
    ),
    "stored.older": (
        "Put the newer objects back from the store's own versions, and find out who replaced or"
        " removed them."
    ),
    "stored.foreign": "Keep it, find out who wrote it, and give every cluster a prefix of its own.",
    "stored.manifest": (
        "Put the manifest back from the store's own versions; it says nothing that the log file"
        " does not say."
    ),
    "stored.entries": (
        "Put the manifest back from the store's own versions, and keep the replicas: it does not"
        " describe the stored file."
    ),
    "stored.seal": (
        "Keep all replicas and the object: the store holds another file than the one that a"
        " majority sealed."
    ),
    "stored.index": (
        "Remove the index part (its objects .index and .rows): no message is lost, the next reader"
        " makes it from the log file."
    ),
    "stored.definitions": (
        "Restart a node: it stores its definitions anew; or put the object back from the store's"
        " own versions."
    ),
    "stored.replica": (
        "Keep the replica and the object: one of them is not what a majority sealed; audit with"
        " --deep."
    ),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One check: the class of its findings, unless the circumstances change it, and its meaning."""

    id: str
    klass: str
    meaning: str


def _table(text: str) -> dict[str, Rule]:
    rules = [
        Rule(*(part.strip() for part in line.split("|"))) for line in text.strip().splitlines()
    ]
    return {rule.id: rule for rule in rules}


RULES = _table("""
    file.read            | bit-rot       | every byte of every file can be read
    file.length          | bit-rot       | a file has exactly the length that the identity gives its kind
    file.name            | extra         | files are named by their offset, a multiple of the file length; none lies ahead of the log
    file.missing         | missing       | files follow each other without a gap from offset 0
    entry.magic          | bit-rot       | an entry begins with magic 1
    entry.size           | bit-rot       | size = 48 + bodySize
    entry.body-size      | bit-rot       | bodySize = size - 48
    entry.index          | bit-rot       | the index field counts up by one
    entry.gap            | missing       | no index is left out
    entry.repeat         | extra         | no index occurs twice
    entry.term-order     | reordered     | terms never decrease along the log and are not negative
    entry.pos            | bit-rot       | pos is the place where the entry stands
    entry.channel        | bit-rot       | channel is 1 for membership records and 0 for all others
    entry.body           | bit-rot       | the CRC-32C of the body agrees with bodyCrc and the chain
    entry.body-crc       | bit-rot       | the bodyCrc word is the CRC-32C of the body
    entry.chain          | bit-rot       | chainCrc continues the chain of the entry before
    entry.chain-word     | bit-rot       | the chainCrc word is the one the next entry continues
    entry.unreadable     | bit-rot       | the place behind an entry holds an entry, a blank or nothing
    entry.room           | wrong-derived | an entry leaves at least 8 bytes in its file
    chain.seed           | divergence    | the first chainCrc continues the CRC-32C of the log id
    blank.magic          | bit-rot       | a blank begins with -1
    blank.size           | bit-rot       | a blank names the rest of its file
    blank.fill           | bit-rot       | a blank is zero behind its first 8 bytes
    blank.missing        | bit-rot       | a file with entries behind it ends in a blank
    blank.needless       | wrong-derived | a blank stands only where the entry after it did not fit, or before an audit marker
    blank.alone          | torn-tail     | a blank has an entry behind it
    tail.zero            | bit-rot       | everything behind the last entry is zero
    record.total-size    | wrong-derived | TOTALSIZE = bodySize of the entry
    record.magic         | wrong-derived | MAGICCODE is V1, or V2 exactly for topics longer than 127 bytes
    record.crc           | wrong-derived | BODYCRC is the CRC-32 of the body without its top bit, 0 for an empty body
    record.constant      | wrong-derived | born host and reconsume times are zero, but of imported messages (term 0)
    record.sysflag       | wrong-derived | SYSFLAG is zero, or says LZ4, ZSTD or zlib
    record.native        | wrong-derived | FLAG is zero, or counts the messages of a frame, whose ids are native
    record.origin        | wrong-derived | the entry that a message was made from lies before it
    record.position      | wrong-derived | PHYSICALOFFSET = pos + 48
    record.structure     | wrong-derived | body, topic and properties fill the record exactly
    record.topic         | wrong-derived | the topic is not empty and is UTF-8; the queue id is not negative
    record.properties    | wrong-derived | properties are name 01 value 02, repeated
    record.store-time    | reordered     | store times never fall along the log, but where a time epoch begins
    record.queue-offset  | missing       | queue offsets are dense from 0 in log order
    record.queue-repeat  | extra         | no queue offset occurs twice
    record.control       | wrong-derived | a control record is a JSON object with what belongs to its kind
    order.producer       | reordered     | a native producer's sequence numbers are dense along the log, its epochs never fall
    order.group          | reordered     | the messages of a message group lie in one queue of their topic
    membership.first     | wrong-derived | the first entry is a membership record of term 0
    term.leader          | divergence    | a term, or epoch, begins with one record of one leader
    index.unit           | wrong-derived | an index unit repeats its entry's magic, pos, size, index and term
    index.missing        | wrong-derived | every entry has its index unit
    index.tail           | wrong-derived | index files are zero behind the last unit
    queue.unit           | wrong-derived | a consume queue unit repeats its message's position, size and tags code
    queue.missing        | wrong-derived | every applied message has its consume queue unit
    queue.hole           | wrong-derived | consume queue units are written in order
    queue.tail           | wrong-derived | consume queues are zero behind the unit of the last message
    queue.uncommitted    | wrong-derived | only committed messages are in a consume queue
    keyindex.position    | wrong-derived | the position of the key index has its checksum, and agrees with the log and with its files
    keyindex.missing     | wrong-derived | every file that the position of the key index names is there
    keyindex.extra       | wrong-derived | a stopped node keeps no file of a key index that the position does not name
    keyindex.header      | wrong-derived | the header of a key index file tells its first and last message, slots and units
    keyindex.unit        | wrong-derived | the units are the keys of the log in their order, each with its message's place and time
    keyindex.slot        | wrong-derived | every slot leads to the newest unit of its keys
    keyindex.tail        | wrong-derived | bytes of a key index file that no unit takes are zero
    keyindex.filter      | wrong-derived | a filter is the one that the units of its file make
    backup.file          | bit-rot       | a file of a backup has the length and the digest that its manifest gives
    backup.missing       | missing       | a backup has every file that its manifest names
    backup.json          | bit-rot       | the manifest of a backup has the checksum and the keys it claims
    witness.fork         | divergence    | the log tree of a replica is the one that witnesses cosigned
    witness.missing      | missing       | the replicas have every sealed file that witnesses cosigned
    witness.log          | divergence    | the log of a group is the one that witnesses know
    witness.agree        | divergence    | witnesses cosigned the same trees
    marker.held          | missing       | the log of a running replica reaches the entry that its node says it has applied
    marker.same          | divergence    | that entry is the one that its node says it is
    mark.slot            | bit-rot       | a slot of the synced mark is intact or was never written, and its number is its own
    mark.fill            | bit-rot       | the synced mark is zero outside its slots
    mark.missing         | missing       | a slot of the synced mark is intact
    mark.log             | divergence    | mark and log tell the same term, position and chain CRC; a good stop leaves the mark at the end
    mark.end             | missing       | the log reaches the synced mark
    hardstate.slot       | bit-rot       | a slot of the hard state is intact or was never written, and its number is its own
    hardstate.fill       | bit-rot       | the hard state is zero outside its slots
    hardstate.missing    | missing       | a slot of the hard state is intact
    hardstate.term       | divergence    | the hard state's term is not below the last entry's
    identity.json        | bit-rot       | an identity file has the checksum it claims
    identity.missing     | missing       | node and replica have their identity files
    identity.agree       | divergence    | node, replica, directory and peers agree about cluster, group, log and file sizes
    identity.twice       | extra         | one replica has one directory
    peers.json           | bit-rot       | the table of peers has the checksum it claims
    peers.incarnation    | divergence    | a peer's directory is the one that was met first, or one that a membership record names
    boots.json           | bit-rot       | the list of a directory's starts has the checksum it claims
    checkpoint.text      | bit-rot       | the log checkpoint holds endIndex and committedIndex
    checkpoint.ahead     | bit-rot       | the log checkpoint of a stopped node names no entry behind the end of its log
    checkpoint.store     | bit-rot       | the store checkpoint has 4096 bytes, zero behind its stamps, none later than the log
    begin.json           | bit-rot       | the file that says where the log begins has the checksum and the keys it claims
    begin.missing        | missing       | a log that was trimmed has the file that says where it begins
    begin.snapshot       | divergence    | the begin file and the snapshot tell the same of one begin
    begin.decided        | missing       | a log begins later than with entry 0 only where a trim record or a snapshot says so
    snapshot.json        | bit-rot       | a snapshot has the checksum it claims
    snapshot.needed      | missing       | a trimmed log has a snapshot that tells what its first entries led to
    snapshot.log         | wrong-derived | the snapshot and the log tell the same log id, term, end position and chain CRC
    snapshot.queues      | wrong-derived | the snapshot's next queue offsets are those of the log
    snapshot.same        | wrong-derived | snapshots at one index are equal on all replicas
    state.queues         | wrong-derived | the snapshot's next queue offsets count the messages of the log
    state.minimums       | wrong-derived | the snapshot's minimums are where the trim records leave the queues
    state.members        | wrong-derived | the snapshot's members are those of the last membership record
    state.level          | wrong-derived | the snapshot's feature level is the one to which the level records raised the group
    state.topics         | wrong-derived | the snapshot's topics are those that the topic records left in force
    state.groups         | wrong-derived | the snapshot's consumer groups are those that the group records left in force
    state.offsets        | wrong-derived | the snapshot's committed offsets are those that the log says
    state.letters        | wrong-derived | the snapshot's settled dead letters are those that were resent or purged
    state.delivery       | wrong-derived | the snapshot's cursors and rows are what leases, acknowledgements and resets led to
    state.lapsed         | wrong-derived | the snapshot's lapsed leases are those that ended other than by their acknowledgement
    state.lite           | wrong-derived | the snapshot's sets of lite topics are those that clients read from
    state.transactions   | wrong-derived | the snapshot's half messages and their ends are those of the log
    state.time_epochs    | wrong-derived | the snapshot's time epochs are those that the log records
    state.timers         | wrong-derived | the snapshot's delayed messages are where the log leaves them
    state.ids            | wrong-derived | the snapshot's message ids are those stored within the windows of their topics
    state.producers      | wrong-derived | the snapshot's native producers are where the log leaves them
    state.retained       | wrong-derived | the snapshot's begin, seals, trims and log tree are those that the log records
    state.lite_floors    | wrong-derived | the snapshot's beginnings of lite topics are above all that vanished
    state.store_ms       | wrong-derived | the snapshot's store time is that of its entry
    state.keys           | wrong-derived | a snapshot has no keys but those of docs/format.md
    seal.record          | wrong-derived | a seal names the first and last entry of its log file, and where the last one ends
    seal.digest          | bit-rot       | a sealed log file has the bytes whose digest a majority recorded
    seal.tree            | wrong-derived | the root in a seal is that of the tree over the entries of its log file
    seal.noted           | divergence    | a node computed of a sealed log file the digest and the root that a majority recorded
    replica.divergence   | divergence    | replicas hold the same entry at every index up to the compared one
    replica.missing      | missing       | a replica skips no entry that the majority holds
    replica.extra        | extra         | a replica holds no entry that the majority skips
    replica.reordered    | reordered     | replicas hold the entries in the same order
    replica.bytes        | divergence    | replicas are byte for byte equal up to the compared index
    commit.lost          | undecidable   | a majority holds every index that any replica recorded as committed
    stored.digest        | bit-rot       | an object of tiered storage has the bytes whose digest its manifest names
    stored.missing       | missing       | the store has every object that a manifest, or the begin of its log, names
    stored.gap           | missing       | the manifests in a store follow each other, up to where the logs of the replicas begin
    stored.older         | missing       | the store still has what a replica found there, in its newest version
    stored.foreign       | extra         | the store holds only objects of the logs of its cluster
    stored.manifest      | bit-rot       | a description in the store has the checksum and the keys it claims
    stored.entries       | wrong-derived | a manifest names the entries, terms and chain CRCs at both ends of its file
    stored.seal          | divergence    | a stored file is the one that the replicas recorded: digest, entries, leaf of the log tree
    stored.index         | wrong-derived | an index part in the store has its checksum, and the digests of its log file and of its rows
    stored.definitions   | bit-rot       | what each node stored of its definitions is intact, and the store has some of the cluster
    stored.replica       | divergence    | a stored file holds what the same file of a replica holds
    client.lost          | missing       | every message that a receipt calls durable is stored
    client.twice         | extra         | a message of a native producer is stored once
    client.order         | reordered     | a producer's messages, and a message group's deliveries to a FIFO group, keep their order
    client.receipt       | divergence    | index, term, time, topic, queue offsets and chain CRC of a message are those of its receipt
    client.phantom       | missing       | every message that was delivered is stored where it was delivered from
    client.redelivered   | wrong-derived | what a consumer group acknowledged is not delivered to it again
    client.delivery      | undecidable   | a row of a file of deliveries names topic, message id and time
    """)


Place = tuple[str, int, int]
"""A file under the node directory, and the first and the last (exclusive) byte of a part of it."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """A broken rule at a place, before the circumstances (synced mark, peers, clean stop) decide
    what it means.

    `file` is a path under the node directory; bytes `byte_from` … `byte_to` − 1 of it are
    concerned. `index` is the first entry concerned. `torn`: a write that a crash interrupted could
    have left this. `measures`: the places that the bytes were compared with, if damage there would
    explain the flaw; a finding there then replaces it (`verdicts`).
    """

    rule: str
    file: str
    index: int | None
    byte_from: int
    byte_to: int
    proof: str
    torn: bool = False
    measures: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        assert self.rule in RULES, self.rule


@dataclass(frozen=True, slots=True)
class Finding:
    """A flaw with its verdict. `fails` is False for what ordinary recovery removes; every other
    finding makes the audit FAIL."""

    klass: str
    replica: str
    group: str
    flaw: Flaw
    fails: bool = True

    @property
    def next_step(self) -> str:
        """The operator's next step."""
        return RULE_STEP.get(self.flaw.rule, NEXT_STEP[self.klass])

    @property
    def text(self) -> str:
        """The finding in text form, as scripts read it."""
        flaw = self.flaw
        entry = "-" if flaw.index is None else str(flaw.index)
        return (
            f"{self.klass} {self.replica} {flaw.file} entry={entry}"
            f" bytes={flaw.byte_from}-{flaw.byte_to} rule={flaw.rule}"
        )

    def as_json(self) -> dict[str, object]:
        flaw = self.flaw
        return {
            "class": self.klass,
            "replica": self.replica,
            "group": self.group,
            "file": flaw.file,
            "index": flaw.index,
            "byte_from": flaw.byte_from,
            "byte_to": flaw.byte_to,
            "rule": flaw.rule,
            "proof": flaw.proof,
        }


def coalesce(flaws: Sequence[Flaw], limit: int) -> list[Flaw]:
    """Join runs of the same rule over consecutive entries of a file, so that a systematic writer
    error is one finding, not a million. Beyond `limit` flaws, the others of a rule in a file become
    one flaw that covers them all."""
    joined: list[Flaw] = []
    counts: list[int] = []
    last: dict[tuple[object, ...], tuple[int, int]] = {}
    for flaw in flaws:
        key = (flaw.rule, flaw.file, flaw.torn, flaw.measures)
        before = last.get(key)
        if before is not None and flaw.index is not None and flaw.index == before[1] + 1:
            place = before[0]
            joined[place] = _over(joined[place], flaw)
            counts[place] += 1
        else:
            place = len(joined)
            joined.append(flaw)
            counts.append(1)
        if flaw.index is not None:
            last[key] = (place, flaw.index)
    rows = [
        (
            replace(flaw, proof=f"{flaw.proof}; and {count - 1} more entries in a row")
            if count > 1
            else flaw
        )
        for flaw, count in zip(joined, counts, strict=True)
    ]
    return [*rows[:limit], *_summed(rows[limit:])]


def _over(one: Flaw, other: Flaw) -> Flaw:
    """The first flaw, extended to the bytes of both."""
    return replace(
        one, byte_from=min(one.byte_from, other.byte_from), byte_to=max(one.byte_to, other.byte_to)
    )


def _summed(flaws: Sequence[Flaw]) -> list[Flaw]:
    """One flaw per rule and file, as strict as the strictest: of the first entry, torn only if all
    are."""
    sums: dict[tuple[str, str], list[Flaw]] = {}
    for flaw in flaws:
        sums.setdefault((flaw.rule, flaw.file), []).append(flaw)
    summed = []
    for same in sums.values():
        whole = reduce(_over, same)
        index = min((flaw.index for flaw in same if flaw.index is not None), default=None)
        proof = f"{whole.proof}; and {len(same) - 1} more places up to byte {whole.byte_to}"
        summed.append(
            replace(
                whole, index=index, torn=all(flaw.torn for flaw in same), measures=(), proof=proof
            )
        )
    return summed
