//! Headers of gRPC: metadata, timeouts, encodings and messages of a status.

use std::time::Duration;

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::Engine;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Encodes without padding; accepts both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const BINARY: &str = "-bin";

pub enum Value {
    Text(HeaderValue),
    Binary(Vec<u8>),
}

pub type Metadata = Vec<(HeaderName, Value)>;

/// Metadata as Python gave it: names and raw values.
pub type Given = Vec<(String, Vec<u8>)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

/// The caller's metadata, without the fields of the transport. Fails with a text for the client.
pub fn received(headers: HeaderMap) -> Result<Metadata, String> {
    let mut found = Vec::with_capacity(headers.len());
    let mut last = None;
    for (name, value) in headers {
        let name: HeaderName = match name {
            Some(name) => {
                last = Some(name.clone());
                name
            }
            None => last.clone().expect("a header map begins with a name"),
        };
        if is_of_transport(name.as_str()) {
            continue;
        }
        if name.as_str().ends_with(BINARY) {
            for part in value.as_bytes().split(|byte| *byte == b',') {
                let bytes = BASE64
                    .decode(part.trim_ascii())
                    .map_err(|_| format!("the metadata field {name} is not base64"))?;
                found.push((name.clone(), Value::Binary(bytes)));
            }
        } else if value.to_str().is_ok() {
            found.push((name, Value::Text(value)));
        } else {
            return Err(format!("the metadata field {name} is not ASCII"));
        }
    }
    Ok(found)
}

fn is_of_transport(name: &str) -> bool {
    matches!(
        name,
        "content-type"
            | "te"
            | "grpc-timeout"
            | "grpc-encoding"
            | "grpc-accept-encoding"
            | "host"
            | "content-length"
            | "accept-encoding"
    )
}

/// Add metadata of Python's to headers or trailers. Returns false if some of it cannot be sent.
pub fn add(headers: &mut HeaderMap, given: Given) -> bool {
    for (name, value) in given {
        let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else {
            return false;
        };
        let text = header.as_str();
        if text.starts_with("grpc-") && !text.ends_with(BINARY) || is_forbidden(text) {
            return false;
        }
        let value = if text.ends_with(BINARY) {
            HeaderValue::try_from(BASE64.encode(value)).expect("base64 is ASCII")
        } else if value.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
            HeaderValue::try_from(value).expect("these bytes are visible ASCII")
        } else {
            return false;
        };
        if headers.try_append(header, value).is_err() {
            return false;
        }
    }
    true
}

fn is_forbidden(name: &str) -> bool {
    is_of_transport(name)
        || matches!(
            name,
            "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
        )
}

/// The value of grpc-message for a text: percent-encoded UTF-8.
pub fn status_message(text: &str) -> HeaderValue {
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, 0x20..=0x7e) && byte != b'%' {
            encoded.push(byte);
        } else {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    HeaderValue::try_from(encoded).expect("percent-encoded text is ASCII")
}

/// A value of grpc-timeout: at most eight digits and a unit.
pub fn timeout(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

pub fn encoding(value: Option<&HeaderValue>) -> Option<Encoding> {
    Some(match value.map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Encoding::Identity,
        Some(b"gzip") => Encoding::Gzip,
        Some(b"deflate") => Encoding::Deflate,
        Some(_) => return None,
    })
}

/// Whether a content type is gRPC's: with an optional message format or parameters.
pub fn is_grpc(value: Option<&HeaderValue>) -> bool {
    let Some(rest) = value.and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"))
    else {
        return false;
    };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let of = |text: &'static str| timeout(&HeaderValue::from_static(text));
        assert_eq!(of("5S"), Some(Duration::from_secs(5)));
        assert_eq!(
            of("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        assert_eq!(of("1500m"), Some(Duration::from_millis(1500)));
        for bad in ["", "S", "5", "5s", "123456789S", "-1S", "+1S", " 1S"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn binary_values() {
        let mut headers = HeaderMap::new();
        headers.append("a-bin", HeaderValue::from_static("AAE=,AAE"));
        headers.append("a-bin", HeaderValue::from_static(""));
        let found = received(headers).unwrap();
        let values: Vec<_> = found
            .iter()
            .map(|(_, value)| match value {
                Value::Binary(bytes) => bytes.as_slice(),
                Value::Text(_) => panic!("text"),
            })
            .collect();
        assert_eq!(values, [&[0u8, 1][..], &[0, 1], &[]]);
        let mut bad = HeaderMap::new();
        bad.append("a-bin", HeaderValue::from_static("!"));
        assert!(received(bad).is_err());
    }

    #[test]
    fn answers() {
        assert_eq!(status_message("50% ü\n"), "50%25 %C3%BC%0A");
        let mut headers = HeaderMap::new();
        assert!(add(
            &mut headers,
            vec![
                ("X-A".into(), b"b".to_vec()),
                ("c-bin".into(), vec![0, 255])
            ]
        ));
        assert_eq!(headers["x-a"], "b");
        assert_eq!(headers["c-bin"], "AP8");
        for name in ["grpc-status", "te", ":path", "a b", "Connection"] {
            assert!(
                !add(&mut headers, vec![(name.into(), b"b".to_vec())]),
                "{name}"
            );
        }
        assert!(!add(&mut headers, vec![("a".into(), vec![0xe4])]));
    }
}
