//! Frames from producers (docs/format.md §4.5): checking a received one, and building one.

use super::layout::{i32_at, i64_at, put, Head, BODY_AT, HEADER_BYTES};

const ID_FIELD: &[u8] = b"UNIQ_KEY\x01";
const ID_BYTES: usize = 34;
/// Name, value and end of the property with the message id.
pub const ID_PROPERTY_BYTES: usize = ID_FIELD.len() + ID_BYTES + 1;
/// An entry without topic (and its length), body and properties.
const ENTRY_FIXED_BYTES: usize = BODY_AT + 2;
const PROPERTIES_MAX: usize = i16::MAX as usize;
/// The end of the year 9999, the latest time in a client's timestamp.
const BORN_MS_MAX: i64 = 253_402_300_799_999;
const TAG: &[u8] = b"TAGS";
const KEYS: &[u8] = b"KEYS";
const TRACE_CONTEXT: &[u8] = b"TRACE_CONTEXT";
const OWN_PREFIX: &[u8] = b"__LMQ.";
/// More names of user properties than this are judged one message at a time.
const NAMES_MAX: usize = 256;

/// Who sent the messages, and what each record of theirs has in common.
pub struct Frame<'a> {
    pub record_magic: i32,
    /// The topic preceded by its length, as it stands behind a body.
    pub topic: &'a [u8],
    pub log_tag: u32,
    pub producer_id: u32,
    pub epoch: u16,
    pub first_sequence: u64,
}

impl Frame<'_> {
    /// The property with the id of the first message, whose last twelve digits are those of the sequence number.
    fn id_property(&self) -> [u8; ID_PROPERTY_BYTES] {
        let mut out = [2; ID_PROPERTY_BYTES];
        out[..ID_FIELD.len()].copy_from_slice(ID_FIELD);
        let number = [
            &[0x4C][..],
            &self.log_tag.to_be_bytes(),
            &self.producer_id.to_be_bytes(),
            &self.epoch.to_be_bytes(),
            &self.first_sequence.to_be_bytes()[2..],
        ]
        .concat();
        hexadecimal(&mut out[ID_FIELD.len()..ID_FIELD.len() + ID_BYTES], &number);
        out
    }
}

fn hexadecimal(out: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

fn put_sequence(id_property: &mut [u8; ID_PROPERTY_BYTES], sequence: u64) {
    hexadecimal(
        &mut id_property[ID_PROPERTY_BYTES - 13..ID_PROPERTY_BYTES - 1],
        &sequence.to_be_bytes()[2..],
    );
}

/// What a node permits.
pub struct Limits<'a> {
    pub queues: i32,
    pub body_bytes: usize,
    pub entry_bytes: usize,
    pub properties_bytes: usize,
    pub user_properties: usize,
    /// SYSFLAG of a compressed body, and its first bytes.
    pub compressions: &'a [(i32, Vec<u8>)],
}

/// A frame in which everything is right, if the names of its user properties are.
#[derive(Default)]
pub struct Checked<'a> {
    pub starts: Vec<i64>,
    pub sizes: Vec<i32>,
    pub queues: Vec<i32>,
    /// The distinct names of user properties.
    pub names: Vec<&'a str>,
}

/// `None` if a message is bad, or unusual: the caller's own code then decides.
pub fn check<'a>(
    data: &'a [u8],
    sizes: &[u8],
    frame: &Frame<'_>,
    limits: &Limits<'_>,
) -> Option<Checked<'a>> {
    let n = sizes.len() / 4;
    let mut out = Checked {
        starts: Vec::with_capacity(n),
        sizes: Vec::with_capacity(n),
        queues: Vec::with_capacity(n),
        names: Vec::new(),
    };
    let mut id_property = frame.id_property();
    let mut sequence = frame.first_sequence;
    let mut at = 0_usize;
    for (place, raw) in sizes.chunks_exact(4).enumerate() {
        let size = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        let end = at.checked_add(usize::try_from(size).ok()?)?;
        let entry = data.get(at..end)?;
        if entry.len() > limits.entry_bytes {
            return None;
        }
        put_sequence(&mut id_property, sequence);
        let (queue, rest) = check_one(
            entry,
            i32::try_from(place + 1).ok()?,
            frame,
            &id_property,
            limits,
        )?;
        check_properties(rest, limits, &mut out.names)?;
        out.starts.push(i64::try_from(at).ok()?);
        out.sizes.push(i32::try_from(size).ok()?);
        out.queues.push(queue);
        at = end;
        sequence = sequence.checked_add(1)?;
    }
    (at == data.len()).then_some(out)
}

/// The queue of a message, and its properties behind its id.
fn check_one<'a>(
    entry: &'a [u8],
    flag: i32,
    frame: &Frame<'_>,
    id_property: &[u8; ID_PROPERTY_BYTES],
    limits: &Limits<'_>,
) -> Option<(i32, &'a [u8])> {
    let head: &Head = entry.first_chunk()?;
    let body_bytes = usize::try_from(i32_at(head, 132)).ok()?;
    if body_bytes == 0 || body_bytes > limits.body_bytes {
        return None;
    }
    let (_, rest) = entry.split_first_chunk::<BODY_AT>()?;
    let body = rest.get(..body_bytes)?;
    let tail = &rest[body_bytes..];
    let properties = tail.strip_prefix(frame.topic)?;
    let (length, properties) = properties.split_first_chunk::<2>()?;
    let rest = properties.strip_prefix(id_property)?;
    let queue = i32_at(head, 60);
    let born_ms = i64_at(head, 88);
    let sysflag = i32_at(head, 84);
    let fixed = fixed_head(entry.len(), frame, body, flag, queue, born_ms, sysflag)?;
    let right = *head == fixed
        && usize::try_from(i16::from_be_bytes(*length)) == Ok(properties.len())
        && (0..limits.queues).contains(&queue)
        && (0..=BORN_MS_MAX).contains(&born_ms)
        && (sysflag == 0
            || (limits.compressions.iter())
                .any(|(known, first)| *known == sysflag && body.starts_with(first)));
    right.then_some((queue, rest))
}

/// The first 136 bytes of an unsealed entry.
fn fixed_head(
    size: usize,
    frame: &Frame<'_>,
    body: &[u8],
    flag: i32,
    queue: i32,
    born_ms: i64,
    sysflag: i32,
) -> Option<Head> {
    let mut head = [0; BODY_AT];
    put(
        &mut head,
        48,
        i32::try_from(size - HEADER_BYTES).ok()?.to_be_bytes(),
    );
    put(&mut head, 52, frame.record_magic.to_be_bytes());
    put(
        &mut head,
        56,
        (crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes(),
    );
    put(&mut head, 60, queue.to_be_bytes());
    put(&mut head, 64, flag.to_be_bytes());
    put(&mut head, 84, sysflag.to_be_bytes());
    put(&mut head, 88, born_ms.to_be_bytes());
    put(
        &mut head,
        132,
        i32::try_from(body.len()).ok()?.to_be_bytes(),
    );
    Some(head)
}

/// `None` unless these are usual properties: ASCII, in their order, with a permitted tag and simple keys. New names of user properties are
/// added to `names`, for the caller to judge.
fn check_properties<'a>(
    properties: &'a [u8],
    limits: &Limits<'_>,
    names: &mut Vec<&'a str>,
) -> Option<()> {
    if properties.len() > limits.properties_bytes {
        return None;
    }
    let mut rest = properties;
    let mut before: (u8, &[u8]) = (0, &[]);
    let mut users = 0;
    while !rest.is_empty() {
        let end = memchr::memchr(2, rest)?;
        let (field, behind) = (&rest[..end], &rest[end + 1..]);
        let middle = memchr::memchr(1, field)?;
        let (name, value) = (&field[..middle], &field[middle + 1..]);
        if ![name, value]
            .iter()
            .all(|text| text.iter().all(|byte| (0x20..0x7F).contains(byte)))
        {
            return None;
        }
        let place: (u8, &[u8]) = match name {
            TAG if value.iter().any(|byte| *byte != b' ') && !value.contains(&b'|') => (1, &[]),
            KEYS if value.split(|byte| *byte == b' ').all(|key| !key.is_empty()) => (2, &[]),
            TRACE_CONTEXT => (3, &[]),
            TAG | KEYS => return None,
            _ if name.is_empty() || name.starts_with(OWN_PREFIX) => return None,
            _ => (4, name),
        };
        if place <= before {
            return None;
        }
        if place.0 == 4 {
            users += 1;
            let name = std::str::from_utf8(name).ok()?;
            if !names.contains(&name) {
                if names.len() == NAMES_MAX {
                    return None;
                }
                names.push(name);
            }
        }
        before = place;
        rest = behind;
    }
    (users <= limits.user_properties).then_some(())
}

/// Columns of messages to be sent; `rests` are the properties behind each message id, as stored.
pub struct Messages<'a> {
    pub bodies: Vec<&'a [u8]>,
    pub queues: Vec<i32>,
    pub born_ms: Vec<i64>,
    pub sysflags: Vec<i32>,
    pub rests: Option<Vec<&'a [u8]>>,
}

impl Messages<'_> {
    fn rest(&self, row: usize) -> &[u8] {
        self.rests.as_ref().map_or(&[], |rests| rests[row])
    }
}

/// The size of each entry; `None` if a column is shorter than the others, or something does not fit its field.
pub fn sizes_of(frame: &Frame<'_>, messages: &Messages<'_>) -> Option<Vec<u32>> {
    let n = messages.bodies.len();
    let columns = [
        messages.queues.len(),
        messages.born_ms.len(),
        messages.sysflags.len(),
    ];
    if columns != [n; 3]
        || messages
            .rests
            .as_ref()
            .is_some_and(|rests| rests.len() != n)
    {
        return None;
    }
    let one = |row: usize| {
        let properties = messages.rest(row).len().checked_add(ID_PROPERTY_BYTES)?;
        let size = messages.bodies[row]
            .len()
            .checked_add(ENTRY_FIXED_BYTES + frame.topic.len())?
            .checked_add(properties)?;
        (properties <= PROPERTIES_MAX && i32::try_from(size).is_ok()).then_some(size as u32)
    };
    (0..n).map(one).collect()
}

/// Write the entries of a frame, whose sizes are those of `sizes_of`, into `out`, which has room for just them.
pub fn build(
    out: &mut [u8],
    sizes: &[u32],
    frame: &Frame<'_>,
    messages: &Messages<'_>,
) -> Option<()> {
    let mut id_property = frame.id_property();
    let mut sequence = frame.first_sequence;
    let mut rest_of_out = out;
    for (row, size) in sizes.iter().enumerate() {
        let (entry, behind) = rest_of_out.split_at_mut_checked(*size as usize)?;
        let (body, rest) = (messages.bodies[row], messages.rest(row));
        let (queue, born_ms, sysflag) = (
            messages.queues[row],
            messages.born_ms[row],
            messages.sysflags[row],
        );
        let head = fixed_head(
            entry.len(),
            frame,
            body,
            i32::try_from(row + 1).ok()?,
            queue,
            born_ms,
            sysflag,
        )?;
        put_sequence(&mut id_property, sequence);
        let length = i16::try_from(ID_PROPERTY_BYTES + rest.len())
            .ok()?
            .to_be_bytes();
        let mut at = 0;
        for part in [&head[..], body, frame.topic, &length, &id_property, rest] {
            entry.get_mut(at..at + part.len())?.copy_from_slice(part);
            at += part.len();
        }
        sequence = sequence.checked_add(1)?;
        rest_of_out = behind;
    }
    rest_of_out.is_empty().then_some(())
}
