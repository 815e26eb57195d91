//! The keys of messages, as in RocketMQ's key index (docs/format.md §14).

use super::dispatch::java_hash;
use super::layout::{entry_at, i32_at, i64_at, split};
use super::producing::ID_PROPERTY_BYTES;

const ID_FIELD: &[u8] = b"UNIQ_KEY\x01";
const KEYS_FIELD: &[u8] = b"KEYS\x01";
const ID_BYTES: usize = 34;

/// One row for each key, in log order.
#[derive(Default)]
pub struct Keys {
    pub entry_of: Vec<i64>,
    pub hashes: Vec<i32>,
    pub physical_offsets: Vec<i64>,
    pub store_ms: Vec<i64>,
}

/// `None` if a topic or a key is not UTF-8, or an entry is not whole.
pub fn keys(data: &[u8], starts: &[i64], sizes: &[i32], keyless_topics: &[&[u8]]) -> Option<Keys> {
    if starts.len() != sizes.len() {
        return None;
    }
    let mut out = Keys::default();
    for (place, (start, size)) in starts.iter().zip(sizes).enumerate() {
        let (entry, head) = entry_at(data, *start, i64::from(*size))?;
        let parts = split(entry, head)?;
        let topic = entry.get(parts.topic_at..parts.topic_end)?;
        let properties = entry.get(parts.properties_at..)?;
        let flag = i32_at(head, 64);
        let only_an_id = flag > 1 && properties.len() == ID_PROPERTY_BYTES;
        if only_an_id && !begins_stretch(&properties[..ID_PROPERTY_BYTES - 1])
            || keyless_topics.contains(&topic)
        {
            continue;
        }
        let prefix = java_hash(java_hash(0, topic)? as u32, b"#")? as u32;
        let mut add = |name: &[u8]| {
            if !name.is_empty() {
                out.entry_of.push(i64::try_from(place).ok()?);
                // The one hash whose absolute value overflows is stored as 0.
                out.hashes
                    .push(java_hash(prefix, name)?.checked_abs().unwrap_or(0));
                out.physical_offsets.push(i64_at(head, 76));
                out.store_ms.push(i64_at(head, 104));
            }
            Some(())
        };
        let fields = || properties.split(|byte| *byte == 2);
        for id in fields().filter_map(|field| field.strip_prefix(ID_FIELD)) {
            if flag == 0 || !is_native(id) {
                add(id)?;
            } else if flag == 1 {
                add(&stretch_of(id))?;
            } else if begins_stretch(id) {
                add(id)?;
            }
        }
        for key in fields()
            .filter_map(|field| field.strip_prefix(KEYS_FIELD))
            .flat_map(|keys| keys.split(|byte| *byte == b' '))
        {
            add(key)?;
        }
    }
    Some(out)
}

/// Whether this is the form of a native message's id.
fn is_native(id: &[u8]) -> bool {
    id.len() == ID_BYTES
        && id.starts_with(b"4C")
        && id
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'))
}

/// Whether the number that these digits end with has ten zero bits at its end.
fn begins_stretch(digits: &[u8]) -> bool {
    matches!(digits, [.., b'0' | b'4' | b'8' | b'C', b'0', b'0'])
}

/// The id of the first sequence number of a native id's stretch.
fn stretch_of(id: &[u8]) -> Vec<u8> {
    let mut first = id.to_vec();
    if let [.., high, middle, low] = first.as_mut_slice() {
        *high = match *high {
            b'0'..=b'3' => b'0',
            b'4'..=b'7' => b'4',
            b'8' | b'9' | b'A' | b'B' => b'8',
            _ => b'C',
        };
        (*middle, *low) = (b'0', b'0');
    }
    first
}
