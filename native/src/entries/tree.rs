//! The tree over the entries of a sealed log file (docs/format.md §11): RFC 6962's tree hash, grown entry by entry.

use sha2::{Digest, Sha256};

use super::layout::{ENTRY_MAGIC, ENTRY_MIN_BYTES};

pub const HASH_BYTES: usize = 32;
/// No entry is so large; a larger size is damage.
const ENTRY_BYTES_MOST: usize = 64 << 20;
type Hash = [u8; HASH_BYTES];

/// The perfect subtrees of a tree of `count` leaves, the largest first: one for each bit that is set in `count`.
pub struct Peaks {
    pub count: u64,
    pub hashes: Vec<Hash>,
}

impl Peaks {
    pub fn new(count: u64, hashes: &[u8]) -> Option<Self> {
        let (hashes, rest) = (hashes.chunks_exact(HASH_BYTES), hashes.len() % HASH_BYTES);
        if rest != 0 || hashes.len() != count.count_ones() as usize {
            return None;
        }
        let hashes = hashes.map(Hash::try_from).collect::<Result<_, _>>().ok()?;
        Some(Peaks { count, hashes })
    }

    fn add(&mut self, entry: &[u8]) -> Option<()> {
        let mut hash: Hash = Sha256::new()
            .chain_update([0])
            .chain_update(entry)
            .finalize()
            .into();
        for _ in 0..self.count.trailing_ones() {
            let left = self.hashes.pop()?;
            let mut node = [1; 1 + 2 * HASH_BYTES];
            node[1..1 + HASH_BYTES].copy_from_slice(&left);
            node[1 + HASH_BYTES..].copy_from_slice(&hash);
            hash = Sha256::digest(node).into();
        }
        self.hashes.push(hash);
        self.count = self.count.checked_add(1)?;
        Some(())
    }

    /// Add every entry that lies whole in `data`, from its start on; how many bytes these are. `None` if something else than an entry
    /// begins where one is expected.
    pub fn grow(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(head) = data[at..].first_chunk::<8>() {
            let [m0, m1, m2, m3, s0, s1, s2, s3] = *head;
            let size = usize::try_from(i32::from_be_bytes([s0, s1, s2, s3])).ok()?;
            if [m0, m1, m2, m3] != ENTRY_MAGIC.to_be_bytes()
                || !(ENTRY_MIN_BYTES..=ENTRY_BYTES_MOST).contains(&size)
            {
                return None;
            }
            let Some(entry) = data[at..].get(..size) else {
                break;
            };
            self.add(entry)?;
            at += size;
        }
        Some(at)
    }
}
