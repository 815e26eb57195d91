//! The position of every field of an entry (docs/format.md §2, §4).

pub const ENTRY_MAGIC: i32 = 1;
pub const HEADER_BYTES: usize = 48;
/// The chain covers this much of the header, then the body CRC.
pub const CHAINED_BYTES: usize = 36;
pub const RECORD_V1: i32 = 0xDAA3_20A7_u32 as i32;
pub const RECORD_V2: i32 = 0xDAA3_20AB_u32 as i32;
/// Offset in the entry of a record's body; everything before it has a fixed place.
pub const BODY_AT: usize = 136;
/// Header, and the fixed part of a V1 record.
pub const ENTRY_MIN_BYTES: usize = HEADER_BYTES + 91;

/// The part of an entry with fixed places.
pub type Head = [u8; BODY_AT];

pub fn i32_at(head: &Head, at: usize) -> i32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&head[at..at + 4]);
    i32::from_be_bytes(raw)
}

pub fn u32_at(head: &Head, at: usize) -> u32 {
    i32_at(head, at) as u32
}

pub fn i64_at(head: &Head, at: usize) -> i64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&head[at..at + 8]);
    i64::from_be_bytes(raw)
}

pub fn put<const N: usize>(head: &mut Head, at: usize, value: [u8; N]) {
    head[at..at + N].copy_from_slice(&value);
}

/// The entry at `start`; `None` if it does not lie inside `data`, or is shorter than its fixed part.
pub fn entry_at(data: &[u8], start: i64, size: i64) -> Option<(&[u8], &Head)> {
    let start = usize::try_from(start).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    let entry = data.get(start..end)?;
    Some((entry, entry.first_chunk()?))
}

/// Where the parts of a record begin and end, as offsets in its entry.
#[derive(Clone, Copy)]
pub struct Parts {
    pub body_end: usize,
    pub topic_at: usize,
    pub topic_end: usize,
    pub properties_at: usize,
}

/// Follow the three length fields of a record; `None` if its magic or one of its lengths is wrong.
pub fn split(entry: &[u8], head: &Head) -> Option<Parts> {
    let wide = match i32_at(head, 52) {
        RECORD_V1 => false,
        RECORD_V2 => true,
        _ => return None,
    };
    let record_bytes = entry.len() - HEADER_BYTES;
    if usize::try_from(i32_at(head, 48)).ok()? != record_bytes {
        return None;
    }
    let body_end = BODY_AT.checked_add(usize::try_from(i32_at(head, 132)).ok()?)?;
    if body_end.checked_add(3)? > entry.len() {
        return None;
    }
    let (topic_at, topic_length) = if wide {
        (body_end + 2, i16_at(entry, body_end)?)
    } else {
        (body_end + 1, i16::from(*entry.get(body_end)? as i8))
    };
    let topic_end = topic_at.checked_add(usize::try_from(topic_length).ok()?)?;
    let properties_length = usize::try_from(i16_at(entry, topic_end)?).ok()?;
    let properties_at = topic_end + 2;
    (properties_at + properties_length == entry.len()).then_some(Parts {
        body_end,
        topic_at,
        topic_end,
        properties_at,
    })
}

pub fn i16_at(bytes: &[u8], at: usize) -> Option<i16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(i16::from_be_bytes([pair[0], pair[1]]))
}
