//! One message record (docs/format.md §4): its rules, and the values that derived files have of it.

use super::bytes::{i16_at, i32_at, i64_at, length, u32_at};

pub const RAFT_TOPIC: &[u8] = b"rmq_sys_ledgermq_raft";
const TIMER_TOPIC: &[u8] = b"rmq_sys_ledgermq_timer";
const FIRE_TIME: &[u8] = b"\x02TIMER_OUT_MS\x01";
const TAGS: &[u8] = b"TAGS\x01";
const GROUP: &[u8] = b"__SHARDINGKEY\x01";
const ID: &[u8] = b"UNIQ_KEY\x014C";
const ID_DIGITS: usize = 32;
const FIXED_BYTES: usize = 88;
const V1: u32 = 0xDAA3_20A7;
const V2: u32 = 0xDAA3_20AB;
const LONG_TOPIC: usize = 127;
const PACKINGS: [i32; 3] = [0, 0x101, 0x201];
const OLD_PACKING: i32 = 0x301;

/// What is known of the entry around the record.
pub struct Around {
    pub index: i64,
    pub term: i64,
    pub pos: i64,
    pub channel: i32,
    /// FLAG of the entry before it in the window.
    pub flag_before: Option<i32>,
    /// Check every property, not the end of the last one alone.
    pub deep: bool,
}

/// A record that is in order.
pub struct Record<'a> {
    pub queue: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub store_ms: i64,
    pub topic: &'a [u8],
    /// What the consume queue unit has in its last field.
    pub tags_code: i64,
    pub id: Option<NativeId>,
    pub properties: &'a [u8],
    pub has_group: bool,
}

#[derive(Clone, Copy)]
pub struct NativeId {
    pub producer: u32,
    pub epoch: i64,
    pub sequence: i64,
}

/// The parts of a record; None if one of its rules is broken. `known_topic`: whether these bytes were found to be a topic's name before.
pub fn read<'a>(
    data: &'a [u8],
    around: &Around,
    known_topic: impl Fn(&[u8]) -> bool,
) -> Option<Record<'a>> {
    if length(i32_at(data, 0)?)? != data.len() {
        return None;
    }
    let wide = match u32_at(data, 4)? {
        V1 => false,
        V2 => true,
        _ => return None,
    };
    let flag = i32_at(data, 16)?;
    check_fixed(data, around, flag)?;
    let body_end = FIXED_BYTES.checked_add(length(i32_at(data, 84)?)?)?;
    let body = data.get(FIXED_BYTES..body_end)?;
    let (topic_bytes, topic_at) = if wide {
        (length(i32::from(i16_at(data, body_end)?))?, body_end + 2)
    } else {
        (usize::from(*data.get(body_end)?), body_end + 1)
    };
    if wide != (topic_bytes > LONG_TOPIC) {
        return None;
    }
    let topic = data.get(topic_at..topic_at.checked_add(topic_bytes)?)?;
    let length_at = topic_at + topic_bytes;
    let property_bytes = length(i32::from(i16_at(data, length_at)?))?;
    let properties = data.get(length_at + 2..)?;
    if properties.len() != property_bytes || !closed(properties) {
        return None;
    }
    if i32_at(data, 8)? != (crc32fast::hash(body) & 0x7FFF_FFFF) as i32 {
        return None;
    }
    if !known_topic(topic) && (topic.is_empty() || std::str::from_utf8(topic).is_err()) {
        return None;
    }
    let queue = i32_at(data, 12)?;
    if queue < 0 {
        return None;
    }
    let (tag, has_group) = properties_of(properties, around.deep)?;
    let membership = topic == RAFT_TOPIC && tag == b"membership";
    if around.channel != i32::from(membership) {
        return None;
    }
    let id = if flag > 0 {
        Some(native_id(properties)?)
    } else {
        None
    };
    let tags_code = if topic == TIMER_TOPIC {
        fire_time(properties)
    } else {
        i64::from(hash(tag))
    };
    Some(Record {
        queue,
        flag,
        queue_offset: i64_at(data, 20)?,
        store_ms: i64_at(data, 56)?,
        topic,
        tags_code,
        id,
        properties,
        has_group,
    })
}

/// The rules of the fixed fields.
fn check_fixed(data: &[u8], around: &Around, flag: i32) -> Option<()> {
    let place = i64_at(data, 28)? == around.pos.checked_add(48)?;
    let packing = i32_at(data, 36)?;
    let packed = PACKINGS.contains(&packing) || (packing == OLD_PACKING && flag == 0);
    // Term 0 has no leader: its entries were imported, and keep these fields.
    let plain = around.term <= 0 || (i64_at(data, 48)? == 0 && i32_at(data, 72)? == 0);
    let origin = i64_at(data, 76)?;
    let made_later = origin >= 0 && origin < around.index.max(1);
    let follows = flag <= 1
        || around
            .flag_before
            .is_none_or(|before| i64::from(before) + 1 == i64::from(flag));
    (place && packed && plain && made_later && flag >= 0 && follows).then_some(())
}

fn closed(properties: &[u8]) -> bool {
    properties.last().is_none_or(|last| *last == 2)
}

/// The value of the first TAGS, empty without one, and whether there is a message group. None if `deep` and one is not name 01 value 02.
fn properties_of(properties: &[u8], deep: bool) -> Option<(&[u8], bool)> {
    let mut tag: Option<&[u8]> = None;
    let mut has_group = false;
    for property in each(properties) {
        if tag.is_none() {
            tag = property.strip_prefix(TAGS);
        }
        has_group |= property.starts_with(GROUP);
        let names = || memchr::memchr_iter(1, property).count();
        if deep && (property.first() == Some(&1) || names() != 1) {
            return None;
        }
    }
    Some((tag.unwrap_or(b""), has_group))
}

/// The message groups that closed properties name.
pub fn groups(properties: &[u8]) -> impl Iterator<Item = &[u8]> {
    each(properties).filter_map(|property| property.strip_prefix(GROUP))
}

/// Closed properties, each without its end.
fn each(properties: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = properties;
    std::iter::from_fn(move || {
        let end = memchr::memchr(2, rest)?;
        let property = &rest[..end];
        rest = &rest[end + 1..];
        Some(property)
    })
}

/// The fire time of a message on the timer topic; −1 if its last property is none.
fn fire_time(properties: &[u8]) -> i64 {
    let Some(at) = memchr::memmem::rfind(properties, FIRE_TIME) else {
        return -1;
    };
    let value = &properties[at + FIRE_TIME.len()..];
    let Some((2, digits)) = value.split_last() else {
        return -1;
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return -1;
    }
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Java's String.hashCode. Bytes that are no UTF-8 are replaced.
fn hash(tag: &[u8]) -> i32 {
    let add = |value: i32, unit: u16| value.wrapping_mul(31).wrapping_add(i32::from(unit));
    if tag.is_ascii() {
        return tag
            .iter()
            .fold(0, |value, letter| add(value, u16::from(*letter)));
    }
    String::from_utf8_lossy(tag).encode_utf16().fold(0, add)
}

/// The id that the properties of a native message begin with (§4.5).
fn native_id(properties: &[u8]) -> Option<NativeId> {
    let digits = properties.strip_prefix(ID)?;
    if *digits.get(ID_DIGITS)? != 2 {
        return None;
    }
    let mut value: u128 = 0;
    for digit in &digits[..ID_DIGITS] {
        let number = match digit {
            b'0'..=b'9' => digit - b'0',
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(number);
    }
    // log tag u32, producer u32, epoch u16, sequence u48
    let word = value.to_be_bytes();
    Some(NativeId {
        producer: u32_at(&word, 4)?,
        epoch: i64::from(u16::from_be_bytes([word[8], word[9]])),
        sequence: i64_at(&word, 8)? & 0xFFFF_FFFF_FFFF,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_that_of_java() {
        assert_eq!(hash(b"UA"), 31 * 85 + 65);
        assert_eq!(hash("é".as_bytes()), 233);
        assert_eq!(hash("😀".as_bytes()), 0xD83D * 31 + 0xDE00);
        assert_eq!(hash(b"\xFF"), 0xFFFD);
    }

    #[test]
    fn fire_time_is_the_last_property() {
        assert_eq!(fire_time(b"A\x01b\x02TIMER_OUT_MS\x0117\x02"), 17);
        assert_eq!(fire_time(b"TIMER_OUT_MS\x0117\x02"), -1);
        assert_eq!(fire_time(b"A\x01b\x02TIMER_OUT_MS\x01\x02"), -1);
        assert_eq!(
            fire_time(b"A\x01b\x02TIMER_OUT_MS\x011234567890123456789\x02"),
            -1
        );
    }

    #[test]
    fn properties_are_whole() {
        assert!(properties_of(b"A\x01b\x02", true).is_some());
        for broken in [
            b"\x02".as_slice(),
            b"A\x02",
            b"\x01b\x02",
            b"A\x01b\x01\x02",
        ] {
            assert!(properties_of(broken, true).is_none());
            assert!(properties_of(broken, false).is_some());
        }
    }
}
