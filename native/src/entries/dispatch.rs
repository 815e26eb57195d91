//! The columns of a range that the dispatcher needs (docs/format.md §4, §6).

use std::collections::HashMap;

use memchr::{memchr, memmem};

use super::layout::{entry_at, i32_at, i64_at, split, HEADER_BYTES};

const TAG_FIELD: &[u8] = b"TAGS\x01";
const FIRE_FIELD: &[u8] = b"\x02TIMER_OUT_MS\x01";
/// The length of a property string that is only the usual message id.
const USUAL_ID_BYTES: usize = 44;

/// One row for each entry.
pub struct Columns<'a> {
    pub topics: Vec<&'a str>,
    pub topic_of: Vec<i32>,
    pub queues: Vec<i32>,
    pub queue_offsets: Vec<i64>,
    pub tags_codes: Vec<i64>,
    pub physical_offsets: Vec<i64>,
    pub origins: Vec<i64>,
    pub flags: Vec<i32>,
}

/// The distinct topics in the order in which they first occur.
#[derive(Default)]
pub struct Topics<'a> {
    numbers: HashMap<&'a [u8], i32>,
    last: Option<(&'a [u8], i32)>,
    pub names: Vec<&'a str>,
}

impl<'a> Topics<'a> {
    /// The number of a topic; `None` if it is not UTF-8.
    pub fn number(&mut self, topic: &'a [u8]) -> Option<i32> {
        if let Some((last, number)) = self.last {
            if last == topic {
                return Some(number);
            }
        }
        let number = match self.numbers.get(topic) {
            Some(number) => *number,
            None => {
                let number = i32::try_from(self.names.len()).ok()?;
                self.names.push(std::str::from_utf8(topic).ok()?);
                self.numbers.insert(topic, number);
                number
            }
        };
        self.last = Some((topic, number));
        Some(number)
    }
}

/// `None` if the columns of an entry are not what its writer or a verification has made sure of: the caller's own code then decides.
pub fn columns<'a>(
    data: &'a [u8],
    starts: &[i64],
    sizes: &[i32],
    timer_topic: &[u8],
) -> Option<Columns<'a>> {
    let n = starts.len();
    if sizes.len() != n {
        return None;
    }
    let mut topics = Topics::default();
    let mut out = Columns {
        topics: Vec::new(),
        topic_of: Vec::with_capacity(n),
        queues: Vec::with_capacity(n),
        queue_offsets: Vec::with_capacity(n),
        tags_codes: Vec::with_capacity(n),
        physical_offsets: Vec::with_capacity(n),
        origins: Vec::with_capacity(n),
        flags: Vec::with_capacity(n),
    };
    for (start, size) in starts.iter().zip(sizes) {
        let (entry, head) = entry_at(data, *start, i64::from(*size))?;
        let parts = split(entry, head)?;
        let topic = entry.get(parts.topic_at..parts.topic_end)?;
        let properties = entry.get(parts.properties_at..)?;
        out.topic_of.push(topics.number(topic)?);
        out.queues.push(i32_at(head, 60));
        out.queue_offsets.push(i64_at(head, 68));
        out.physical_offsets.push(i64_at(head, 76));
        out.origins.push(i64_at(head, 124));
        out.flags.push(i32_at(head, 64));
        out.tags_codes.push(if topic == timer_topic {
            fire_time(properties)?
        } else {
            i64::from(tags_code(properties)?)
        });
    }
    out.topics = topics.names;
    Some(out)
}

/// The hash of the first TAGS property; 0 without one, `None` if it is not UTF-8.
pub fn tags_code(properties: &[u8]) -> Option<i32> {
    let mut rest = properties;
    if rest.len() == USUAL_ID_BYTES
        && rest.starts_with(b"UNIQ_KEY\x01")
        && memchr(2, rest) == Some(USUAL_ID_BYTES - 1)
    {
        return Some(0);
    }
    loop {
        let end = memchr(2, rest);
        let field = &rest[..end.unwrap_or(rest.len())];
        if let Some(tag) = field.strip_prefix(TAG_FIELD) {
            return java_hash(0, tag);
        }
        match end {
            Some(end) => rest = &rest[end + 1..],
            None => return Some(0),
        }
    }
}

/// Java's `String.hashCode` of a text whose beginning has the hash `from`; `None` if the bytes are not UTF-8.
pub fn java_hash(from: u32, text: &[u8]) -> Option<i32> {
    let step = |hash: u32, unit: u32| hash.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        return Some(
            text.iter()
                .fold(from, |hash, unit| step(hash, u32::from(*unit))) as i32,
        );
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(
        text.encode_utf16()
            .fold(from, |hash, unit| step(hash, u32::from(unit))) as i32,
    )
}

/// When a message on the timer topic leaves its slot: its last property.
fn fire_time(properties: &[u8]) -> Option<i64> {
    let at = memmem::rfind(properties, FIRE_FIELD)? + FIRE_FIELD.len();
    let digits = properties.get(at..)?.strip_suffix(b"\x02")?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The TOTALSIZE of each entry.
pub fn record_sizes(sizes: &[i32]) -> Vec<i32> {
    sizes
        .iter()
        .map(|size| size - HEADER_BYTES as i32)
        .collect()
}
