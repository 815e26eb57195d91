//! Verification of received entries: every byte of a range, in one pass (docs/format.md §2, §3, §4).

use super::layout::{
    i32_at, i64_at, split, u32_at, Head, Parts, BODY_AT, CHAINED_BYTES, ENTRY_MAGIC,
    ENTRY_MIN_BYTES, HEADER_BYTES,
};

/// A range in which everything is right.
pub struct Verified {
    /// The start of each entry, then the end of the last one.
    pub edges: Vec<i64>,
    pub last_chain: u32,
    /// The parts of each record, if there are at most `few` entries.
    pub parts: Option<Vec<Parts>>,
}

/// `None` if anything is wrong, or if there is no entry: the caller then names the first bad entry.
pub fn verify(
    data: &[u8],
    first_index: i64,
    term: i64,
    pos: i64,
    prev_chain: u32,
    few: usize,
) -> Option<Verified> {
    let mut edges = Vec::with_capacity(data.len() / 256 + 2);
    let mut parts = Vec::with_capacity(few.min(data.len() / ENTRY_MIN_BYTES));
    let (mut at, mut index, mut chain) = (0, first_index, prev_chain);
    edges.push(0);
    while at < data.len() {
        let rest = &data[at..];
        let head: &Head = rest.first_chunk::<BODY_AT>()?;
        let size = usize::try_from(i32_at(head, 4)).ok()?;
        if size < ENTRY_MIN_BYTES {
            return None;
        }
        let entry = rest.get(..size)?;
        let entry_pos = pos.checked_add(i64::try_from(at).ok()?)?;
        let right = i32_at(head, 0) == ENTRY_MAGIC
            && i64_at(head, 8) == index
            && i64_at(head, 16) == term
            && i64_at(head, 24) == entry_pos
            && matches!(i32_at(head, 32), 0 | 1)
            && usize::try_from(i32_at(head, 44)) == Ok(size - HEADER_BYTES)
            && i64_at(head, 76) == entry_pos.checked_add(HEADER_BYTES as i64)?;
        if !right || u32_at(head, 40) != crc32c::crc32c(&entry[HEADER_BYTES..]) {
            return None;
        }
        chain = chained(chain, head);
        if u32_at(head, 36) != chain {
            return None;
        }
        let found = split(entry, head)?;
        if parts.len() < few {
            parts.push(found);
        }
        at += size;
        index = index.checked_add(1)?;
        edges.push(i64::try_from(at).ok()?);
    }
    let count = edges.len() - 1;
    (count > 0).then_some(Verified {
        edges,
        last_chain: chain,
        parts: (count <= few).then_some(parts),
    })
}

/// The chain CRC of an entry whose body CRC word is right.
fn chained(chain: u32, head: &Head) -> u32 {
    let mut covered = [0; CHAINED_BYTES + 4];
    covered[..CHAINED_BYTES].copy_from_slice(&head[..CHAINED_BYTES]);
    covered[CHAINED_BYTES..].copy_from_slice(&head[CHAINED_BYTES + 4..CHAINED_BYTES + 8]);
    crc32c::crc32c_append(chain, &covered)
}
