//! Entries that a client received: their lengths and body CRCs (docs/format.md §2, §3, §4).

use super::layout::{entry_at, i32_at, i64_at, split, u32_at, BODY_AT, ENTRY_MAGIC, HEADER_BYTES};

/// One row for each entry; offsets are in the data.
pub struct Read {
    pub starts: Vec<i64>,
    pub sizes: Vec<i32>,
    pub queues: Vec<i32>,
    pub queue_offsets: Vec<i64>,
    pub sysflags: Vec<i32>,
    pub body_lengths: Vec<i64>,
    pub topic_at: Vec<i64>,
    pub topic_lengths: Vec<i64>,
    pub property_offsets: Vec<i64>,
    pub property_lengths: Vec<i64>,
}

/// `sizes` holds 32 bits, little-endian, for each entry. `None` if an entry is not whole or, with `verify`, its body CRC is wrong.
pub fn read(data: &[u8], sizes: &[u8], verify: bool) -> Option<Read> {
    let n = sizes.len() / 4;
    let column = || Vec::with_capacity(n);
    let mut out = Read {
        starts: column(),
        sizes: Vec::with_capacity(n),
        queues: Vec::with_capacity(n),
        queue_offsets: column(),
        sysflags: Vec::with_capacity(n),
        body_lengths: column(),
        topic_at: column(),
        topic_lengths: column(),
        property_offsets: column(),
        property_lengths: column(),
    };
    let mut start = 0_i64;
    for raw in sizes.chunks_exact(4) {
        let size = i32::try_from(u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])).ok()?;
        let (entry, head) = entry_at(data, start, i64::from(size))?;
        let right = i32_at(head, 0) == ENTRY_MAGIC
            && i32_at(head, 4) == size
            && i32_at(head, 44) == size - HEADER_BYTES as i32
            && (!verify || u32_at(head, 40) == crc32c::crc32c(&entry[HEADER_BYTES..]));
        if !right {
            return None;
        }
        let parts = split(entry, head)?;
        let length = |low: usize, high: usize| (high - low) as i64;
        out.starts.push(start);
        out.sizes.push(size);
        out.queues.push(i32_at(head, 60));
        out.queue_offsets.push(i64_at(head, 68));
        out.sysflags.push(i32_at(head, 84));
        out.body_lengths.push(length(BODY_AT, parts.body_end));
        out.topic_at.push(start + parts.topic_at as i64);
        out.topic_lengths
            .push(length(parts.topic_at, parts.topic_end));
        out.property_offsets
            .push(start + parts.properties_at as i64);
        out.property_lengths
            .push(length(parts.properties_at, entry.len()));
        start += i64::from(size);
    }
    (usize::try_from(start) == Ok(data.len()) && sizes.len() % 4 == 0).then_some(out)
}
