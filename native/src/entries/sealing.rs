//! Index, term, position and the server's fields of unsealed entries, then both CRCs (docs/format.md §2, §3).

use super::layout::{entry_at, put, Head, BODY_AT, CHAINED_BYTES, ENTRY_MAGIC, HEADER_BYTES};

/// What all entries of a batch have in common.
pub struct Common {
    pub first_index: i64,
    pub term: i64,
    pub store_ms: i64,
    pub store_host: [u8; 8],
}

/// One row for each entry; all columns have the same length.
pub struct Rows<'a> {
    pub starts: &'a [i64],
    pub sizes: &'a [i32],
    pub queues: &'a [i32],
    pub queue_offsets: &'a [i64],
    pub positions: &'a [i64],
}

impl Rows<'_> {
    fn all_in(&self, data: &[u8]) -> bool {
        let n = self.starts.len();
        let same = [
            self.sizes.len(),
            self.queues.len(),
            self.queue_offsets.len(),
            self.positions.len(),
        ];
        same == [n; 4]
            && (self.starts.iter().zip(self.sizes))
                .all(|(start, size)| entry_at(data, *start, i64::from(*size)).is_some())
    }
}

/// Seal every entry where it lies, and return the last chain CRC. `None`, with nothing written, if an entry does not lie in `data` or a
/// number overflows.
pub fn seal(data: &mut [u8], rows: &Rows<'_>, common: &Common, prev_chain: u32) -> Option<u32> {
    let n = i64::try_from(rows.starts.len()).ok()?;
    common.first_index.checked_add(n)?;
    if !rows.all_in(data)
        || rows
            .positions
            .iter()
            .any(|pos| pos.checked_add(HEADER_BYTES as i64).is_none())
    {
        return None;
    }
    let mut chain = prev_chain;
    for (row, start) in rows.starts.iter().enumerate() {
        let (start, size, pos) = (*start as usize, rows.sizes[row], rows.positions[row]);
        let entry = &mut data[start..start + size as usize];
        let (head, _): (&mut Head, _) = entry.split_first_chunk_mut::<BODY_AT>()?;
        put(head, 0, ENTRY_MAGIC.to_be_bytes());
        put(head, 4, size.to_be_bytes());
        put(head, 8, (common.first_index + row as i64).to_be_bytes());
        put(head, 16, common.term.to_be_bytes());
        put(head, 24, pos.to_be_bytes());
        put(head, 44, (size - HEADER_BYTES as i32).to_be_bytes());
        put(head, 60, rows.queues[row].to_be_bytes());
        put(head, 68, rows.queue_offsets[row].to_be_bytes());
        put(head, 76, (pos + HEADER_BYTES as i64).to_be_bytes());
        put(head, 104, common.store_ms.to_be_bytes());
        put(head, 112, common.store_host);
        let body_crc = crc32c::crc32c(&entry[HEADER_BYTES..]).to_be_bytes();
        // The chain covers the head and then the body CRC, which therefore stands where the chain CRC belongs for a moment.
        entry[CHAINED_BYTES..CHAINED_BYTES + 4].copy_from_slice(&body_crc);
        chain = crc32c::crc32c_append(chain, &entry[..CHAINED_BYTES + 4]);
        entry[CHAINED_BYTES..CHAINED_BYTES + 4].copy_from_slice(&chain.to_be_bytes());
        entry[CHAINED_BYTES + 4..CHAINED_BYTES + 8].copy_from_slice(&body_crc);
    }
    Some(chain)
}
