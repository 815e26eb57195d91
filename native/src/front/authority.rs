//! Makes every `:authority` one that the HTTP/2 library accepts, in the bytes that come in.
//!
//! gRPC's C library sends a whole list of addresses as authority if its target has several (`127.0.0.1:8081%2C127.0.0.1:8082`), and the path
//! of a Unix socket. The library takes neither for an authority and resets the stream. No service asks for it, so its characters are replaced
//! one by one: the value keeps its length, and the header table of the connection (RFC 7541 §4.1) stays that of the client. A value in
//! Huffman code is left alone, because another one of the same length could need another number of bytes.

const HEADERS: u8 = 1;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: u32 = 5;
const NAME: &[u8] = b":authority";
const NAME_INDEX: u8 = 1;
const PLACEHOLDER: u8 = b'x';

/// Where a header block (RFC 7541 §6) is between two of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Field,
    /// Further bytes of an integer, and what follows it.
    Integer(Then),
    NameLength,
    /// Bytes of a name that are left, and how many of them were those of `NAME`; None if it is another name.
    Name {
        left: u32,
        same: Option<u32>,
    },
    ValueLength {
        authority: bool,
    },
    /// Further bytes of a length, with its sum so far and their shift. `authority`: of a name, that it may be `NAME`.
    Length {
        sum: u32,
        shift: u32,
        name: bool,
        authority: bool,
    },
    Value {
        left: u32,
        authority: bool,
    },
    /// A length that no header list can have: the HTTP/2 library will refuse it.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Field,
    Value,
}

/// Follows the header blocks of one connection.
pub struct Authority {
    at: At,
    padded: bool,
    padding: u32,
    lead: u32,
    left: u32,
}

impl Authority {
    pub fn new() -> Self {
        Authority {
            at: At::Field,
            padded: false,
            padding: 0,
            lead: 0,
            left: 0,
        }
    }

    /// A HEADERS or CONTINUATION frame begins.
    pub fn frame(&mut self, kind: u8, flags: u8, length: u32) {
        let headers = kind == HEADERS;
        self.padded = headers && flags & PADDED != 0;
        self.padding = 0;
        self.lead = if headers && flags & WITH_PRIORITY != 0 {
            PRIORITY_BYTES
        } else {
            0
        };
        self.left = length;
        if headers {
            self.at = At::Field;
        }
    }

    /// The next bytes of its payload.
    pub fn payload(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.left = self.left.saturating_sub(1);
            if self.padded {
                self.padded = false;
                self.padding = u32::from(*byte);
            } else if self.lead > 0 {
                self.lead -= 1;
            } else if self.left >= self.padding {
                self.at = step(self.at, byte);
            }
        }
    }
}

fn step(at: At, byte: &mut u8) -> At {
    let b = *byte;
    match at {
        At::Field if b & 0x80 != 0 => integer(b, 0x7f, Then::Field),
        At::Field if b & 0xe0 == 0x20 => integer(b, 0x1f, Then::Field),
        At::Field => {
            let prefix = if b & 0x40 != 0 { 0x3f } else { 0x0f };
            match b & prefix {
                0 => At::NameLength,
                index if index == prefix => At::Integer(Then::Value),
                index => At::ValueLength {
                    authority: index == NAME_INDEX,
                },
            }
        }
        At::Integer(_) if b & 0x80 != 0 => at,
        At::Integer(Then::Field) => At::Field,
        At::Integer(Then::Value) => At::ValueLength { authority: false },
        At::NameLength => length(b, true, b & 0x80 == 0),
        At::ValueLength { authority } => length(b, false, authority && b & 0x80 == 0),
        At::Length {
            sum,
            shift,
            name,
            authority,
        } => {
            if shift > 21 {
                return At::Lost;
            }
            let sum = sum + (u32::from(b & 0x7f) << shift);
            if b & 0x80 != 0 {
                At::Length {
                    sum,
                    shift: shift + 7,
                    name,
                    authority,
                }
            } else {
                text(sum, name, authority)
            }
        }
        At::Name { left, same } => {
            let same = same.filter(|&at| NAME[at as usize] == b).map(|at| at + 1);
            match left {
                1 => At::ValueLength {
                    authority: same.is_some(),
                },
                _ => At::Name {
                    left: left - 1,
                    same,
                },
            }
        }
        At::Value { left, authority } => {
            if authority {
                *byte = PLACEHOLDER;
            }
            text(left - 1, false, authority)
        }
        At::Lost => At::Lost,
    }
}

fn integer(byte: u8, prefix: u8, then: Then) -> At {
    if byte & prefix == prefix {
        At::Integer(then)
    } else {
        At::Field
    }
}

fn length(byte: u8, name: bool, authority: bool) -> At {
    match byte & 0x7f {
        0x7f => At::Length {
            sum: 0x7f,
            shift: 0,
            name,
            authority,
        },
        sum => text(u32::from(sum), name, authority),
    }
}

/// So many bytes of a text are left.
fn text(left: u32, name: bool, authority: bool) -> At {
    match (left, name) {
        (0, true) => At::ValueLength { authority: false },
        (0, false) => At::Field,
        (_, true) => At::Name {
            left,
            same: (authority && left as usize == NAME.len()).then_some(0),
        },
        (_, false) => At::Value { left, authority },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(first: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        if value.len() < 0x7f {
            bytes.push(value.len() as u8);
        } else {
            let rest = value.len() - 0x7f;
            bytes.extend_from_slice(&[0x7f, 0x80 | (rest & 0x7f) as u8, (rest >> 7) as u8]);
        }
        bytes.extend_from_slice(value);
        bytes
    }

    fn block(authority: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x3f, 0xe1, 0x1f, 0x83, 0x86];
        bytes.extend(field(0x44, b"/a.B/C"));
        bytes.extend(field(0x41, authority));
        bytes.extend(field(0x40, NAME));
        bytes.extend_from_slice(&field(0, authority)[1..]);
        bytes.extend(field(0x40, b":authoritx"));
        bytes.extend_from_slice(&[3, b'a', b',', b'b']);
        bytes.extend(field(0x40, b"name"));
        bytes.extend_from_slice(&[5, b'v', b'a', b'l', b'u', b'e', 0xbe]);
        bytes.extend(field(0x0f, b"")[..1].iter().chain(&[0x2f, 3, 1, 1, 1]));
        bytes
    }

    fn followed(mut payload: Vec<u8>, flags: u8, division: usize) -> Vec<u8> {
        let mut authority = Authority::new();
        authority.frame(HEADERS, flags, payload.len() as u32);
        for part in payload.chunks_mut(division) {
            authority.payload(part);
        }
        assert_eq!(authority.at, At::Field);
        payload
    }

    #[test]
    fn only_the_authority_is_replaced_in_any_division() {
        for authority in [
            b"127.0.0.1:8081%2C127.0.0.1:8082".to_vec(),
            vec![b'%'; 300],
            vec![],
        ] {
            let (bytes, wanted) = (block(&authority), block(&vec![b'x'; authority.len()]));
            for division in 1..=bytes.len() {
                assert_eq!(followed(bytes.clone(), 0, division), wanted);
            }
        }
    }

    #[test]
    fn padding_and_priority_are_no_fields() {
        let (bytes, wanted) = (block(b"a,b"), block(b"xxx"));
        let framed = |block: &[u8]| [&[4, 9, 9, 9, 9, 9], block, &[0x41, 2, 7, 7]].concat();
        assert_eq!(
            followed(framed(&bytes), PADDED | WITH_PRIORITY, 5),
            framed(&wanted)
        );
    }

    #[test]
    fn a_block_goes_on_in_the_next_frame() {
        let (bytes, wanted) = (block(b"a,b"), block(b"xxx"));
        for cut in 0..bytes.len() {
            let mut authority = Authority::new();
            let mut parts = bytes.clone();
            let (first, second) = parts.split_at_mut(cut);
            authority.frame(HEADERS, 0, first.len() as u32);
            authority.payload(first);
            authority.frame(9, 0, second.len() as u32);
            authority.payload(second);
            assert_eq!(parts, wanted);
        }
    }

    #[test]
    fn huffman_code_is_left_alone() {
        let bytes = vec![0x41, 0x83, 0x1c, 0x64, 0x5d];
        assert_eq!(followed(bytes.clone(), 0, 2), bytes);
    }

    #[test]
    fn an_endless_length_is_given_up() {
        let mut authority = Authority::new();
        authority.frame(HEADERS, 0, 100);
        authority.payload(&mut [&[0x41u8, 0x7f][..], &[0xff; 20]].concat());
        assert_eq!(authority.at, At::Lost);
    }
}
