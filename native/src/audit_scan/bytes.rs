//! Big-endian numbers at places that need not exist.

fn word<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub fn i16_at(data: &[u8], at: usize) -> Option<i16> {
    word(data, at).map(i16::from_be_bytes)
}

pub fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    word(data, at).map(i32::from_be_bytes)
}

pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    word(data, at).map(u32::from_be_bytes)
}

pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    word(data, at).map(i64::from_be_bytes)
}

/// A length or count: a number that is not negative.
pub fn length(value: i32) -> Option<usize> {
    usize::try_from(value).ok()
}
