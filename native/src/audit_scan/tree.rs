//! The tree over the entries of a log file (docs/format.md §11), as the audit computes it.

use sha2::{Digest, Sha256};

use super::bytes::{i32_at, u32_at};
use super::window::{ENTRY_BYTES_MIN, MAGIC};

const ENTRY_BYTES_LIMIT: usize = 1 << 27;
type Hash = [u8; 32];
/// Height and root of a perfect tree.
pub type Tower = (u32, Hash);

/// Add the entries that lie whole in `data`, from its start on, to perfect trees, the highest first. Returns the place behind these entries,
/// and whether something else than an entry begins there.
pub fn grow(towers: &mut Vec<Tower>, data: &[u8]) -> (usize, bool) {
    let mut at = 0;
    while let (Some(magic), Some(size)) = (i32_at(data, at), u32_at(data, at + 4)) {
        let size = size as usize;
        if magic != MAGIC || !(ENTRY_BYTES_MIN..ENTRY_BYTES_LIMIT).contains(&size) {
            return (at, true);
        }
        let Some(entry) = data.get(at..at + size) else {
            break;
        };
        let (mut height, mut root) = (0, hash(0, entry, &[]));
        while towers.last().is_some_and(|tower| tower.0 == height) {
            let left = towers.pop().map_or(root, |tower| tower.1);
            (height, root) = (height + 1, hash(1, &left, &root));
        }
        towers.push((height, root));
        at += size;
    }
    (at, false)
}

fn hash(kind: u8, first: &[u8], second: &[u8]) -> Hash {
    Sha256::new()
        .chain_update([kind])
        .chain_update(first)
        .chain_update(second)
        .finalize()
        .into()
}
