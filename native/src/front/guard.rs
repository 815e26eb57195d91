//! The byte stream under HTTP/2: counts bytes, remembers when the peer was heard, and closes connections that flood with control frames.
//!
//! The HTTP/2 library answers pings and settings by itself and reports neither. This layer therefore reads the frame headers that pass. It also
//! makes authorities that the library would refuse acceptable (`authority.rs`).

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::authority::Authority;
use super::shared::Shared;

const PREFACE_BYTES: u32 = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK_OR_END_STREAM: u8 = 1;
const ENHANCE_YOUR_CALM: u8 = 11;

/// A transport of bytes.
pub enum Io {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// A flood of frames that ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flood {
    pub reason: &'static str,
    pub words: &'static str,
    debug_data: &'static [u8],
}

const PINGS: Flood = Flood {
    reason: "pings",
    words: "it pinged too often",
    debug_data: b"too_many_pings",
};
const RESETS: Flood = Flood {
    reason: "resets",
    words: "it cancelled too many calls in a short time",
    debug_data: b"too_many_resets",
};
const SETTINGS_FLOOD: Flood = Flood {
    reason: "settings",
    words: "it sent too many SETTINGS frames in a short time",
    debug_data: b"too_many_settings",
};
const FRAMES: Flood = Flood {
    reason: "frames",
    words: "it sent too many frames without content in a short time",
    debug_data: b"too_many_frames",
};

/// A client may cancel as many calls as were open for a second. Others it may cancel in bursts of the first number and at the pace of the second:
/// opening and cancelling calls costs the server more than the client.
const FREE_RESETS: u32 = 1000;
const FREE_RESETS_PER_S: f64 = 400.0;

/// The most calls that a client may cancel in a burst.
pub fn most_resets(max_streams: u32) -> u32 {
    max_streams.saturating_add(FREE_RESETS)
}

/// What the connection reads of its byte stream.
pub struct Watch {
    pub heard: Cell<Instant>,
    /// The socket took fewer bytes than it was offered.
    pub blocked: Cell<bool>,
    /// Streams that the peer has reset since the connection looked last.
    pub resets: RefCell<Vec<u32>>,
    /// Bytes of answers that the socket has taken: of frames DATA, HEADERS and CONTINUATION.
    pub taken: Cell<u64>,
    /// Calls that are open.
    pub calls: Cell<usize>,
    pub flood: Cell<Option<Flood>>,
}

pub struct Guard {
    io: Io,
    shared: Arc<Shared>,
    watch: Rc<Watch>,
    incoming: Frames,
    outgoing: Frames,
    authority: Authority,
    counts: RefCell<Counts>,
}

/// What some bytes of the stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// The end of a frame's header: kind, flags and length of the payload.
    Header(u8, u8, u32),
    /// An unfinished header.
    Part,
    /// Payload of a frame of this kind. The preface counts as payload of DATA.
    Payload(u8),
}

/// Finds the frame headers in a stream of bytes.
struct Frames {
    header: [u8; 9],
    have: usize,
    skip: u32,
}

struct Counts {
    strikes: u32,
    last_ping: Option<Instant>,
    sent_since_ping: bool,
    /// Calls that the client may cancel because they were open for long.
    held: f64,
    resets: Bucket,
    settings: Bucket,
    empty: Bucket,
}

struct Bucket {
    tokens: f64,
    burst: f64,
    per_s: f64,
    at: Instant,
}

impl Frames {
    fn new(skip: u32) -> Self {
        Frames {
            header: [0; 9],
            have: 0,
            skip,
        }
    }

    fn between_frames(&self) -> bool {
        self.have == 0 && self.skip == 0
    }

    /// The stream that the last whole header names.
    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.header;
        u32::from_be_bytes([a & 0x7f, b, c, d])
    }

    /// What the first of these bytes are, and how many.
    fn next(&mut self, bytes: &[u8]) -> (usize, Found) {
        if self.skip > 0 {
            let taken = bytes.len().min(self.skip as usize);
            self.skip -= taken as u32;
            return (taken, Found::Payload(self.header[3]));
        }
        let taken = bytes.len().min(self.header.len() - self.have);
        self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
        self.have += taken;
        if self.have < self.header.len() {
            return (taken, Found::Part);
        }
        self.have = 0;
        self.skip = u32::from_be_bytes([0, self.header[0], self.header[1], self.header[2]]);
        (
            taken,
            Found::Header(self.header[3], self.header[4], self.skip),
        )
    }
}

impl Bucket {
    fn new(burst: f64, per_s: f64, at: Instant) -> Self {
        Bucket {
            tokens: burst,
            burst,
            per_s,
            at,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.tokens =
            (self.tokens + now.duration_since(self.at).as_secs_f64() * self.per_s).min(self.burst);
        self.at = now;
        self.tokens -= 1.0;
        self.tokens >= 0.0
    }
}

impl Counts {
    fn new(now: Instant) -> Self {
        Counts {
            strikes: 0,
            last_ping: None,
            sent_since_ping: true,
            held: 0.0,
            resets: Bucket::new(f64::from(FREE_RESETS), FREE_RESETS_PER_S, now),
            settings: Bucket::new(100.0, 5.0, now),
            empty: Bucket::new(2000.0, 200.0, now),
        }
    }

    /// Bytes arrive, `silence` after those before. Since then this many calls were open.
    fn heard(&mut self, silence: Duration, open: usize) {
        let open = open as f64;
        self.held = (self.held + silence.as_secs_f64() * open).min(open);
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        length: u32,
        now: Instant,
        min_ping: Duration,
        max_strikes: u32,
    ) -> Option<Flood> {
        let flagged = flags & ACK_OR_END_STREAM != 0;
        match kind {
            PING if !flagged => {
                let too_soon = self
                    .last_ping
                    .is_some_and(|last| now.duration_since(last) < min_ping);
                self.strikes = if too_soon && !self.sent_since_ping {
                    self.strikes + 1
                } else {
                    0
                };
                self.last_ping = Some(now);
                self.sent_since_ping = false;
                (max_strikes != 0 && self.strikes > max_strikes).then_some(PINGS)
            }
            RST_STREAM if self.held >= 1.0 => {
                self.held -= 1.0;
                None
            }
            RST_STREAM => (!self.resets.take(now)).then_some(RESETS),
            SETTINGS if !flagged => (!self.settings.take(now)).then_some(SETTINGS_FLOOD),
            DATA if length == 0 && !flagged => (!self.empty.take(now)).then_some(FRAMES),
            PRIORITY | CONTINUATION | 10.. => (!self.empty.take(now)).then_some(FRAMES),
            _ => None,
        }
    }
}

impl Guard {
    pub fn new(io: Io, shared: Arc<Shared>) -> (Self, Rc<Watch>) {
        let now = Instant::now();
        let watch = Rc::new(Watch {
            heard: Cell::new(now),
            blocked: Cell::new(false),
            resets: RefCell::default(),
            taken: Cell::new(0),
            calls: Cell::new(0),
            flood: Cell::new(None),
        });
        let counts = RefCell::new(Counts::new(now));
        let guard = Guard {
            io,
            shared,
            watch: watch.clone(),
            incoming: Frames::new(PREFACE_BYTES),
            outgoing: Frames::new(0),
            authority: Authority::new(),
            counts,
        };
        (guard, watch)
    }

    /// Note frames that the socket took.
    fn wrote(&mut self, bytes: &[u8]) {
        let counts = self.counts.get_mut();
        let mut at = 0;
        while at < bytes.len() {
            let (taken, found) = self.outgoing.next(&bytes[at..]);
            if matches!(found, Found::Header(DATA | HEADERS, _, _)) {
                counts.sent_since_ping = true;
                self.watch.taken.set(self.watch.taken.get() + 1);
            } else if matches!(found, Found::Payload(DATA | HEADERS | CONTINUATION)) {
                self.watch.taken.set(self.watch.taken.get() + taken as u64);
            }
            at += taken;
        }
    }

    fn polled(&mut self, offered: usize, written: &Poll<Result<usize>>) {
        match written {
            Poll::Ready(Ok(count)) => {
                self.watch.blocked.set(*count < offered);
                self.shared.stats.sent_bytes.fetch_add(*count, Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.watch.blocked.set(true),
        }
    }

    /// Tell the client why its connection ends, if that is possible without waiting: the HTTP/2 library cannot send a text with GOAWAY.
    fn say_goodbye(&mut self, cx: &mut Context<'_>, flood: Flood) {
        if !self.outgoing.between_frames() {
            return;
        }
        let mut frame = vec![
            0,
            0,
            8 + flood.debug_data.len() as u8,
            GOAWAY,
            0,
            0,
            0,
            0,
            0,
        ];
        frame.extend_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, ENHANCE_YOUR_CALM]);
        frame.extend_from_slice(flood.debug_data);
        if self.io.poll_write(cx, &frame).is_ready() {
            // The outcome does not matter: the connection is closed next.
            let _ = self.io.poll_flush(cx);
        }
    }
}

impl Io {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        match self {
            Io::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, into),
            Io::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match self {
            Io::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match self {
            Io::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Io::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Io::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Io::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Io::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        ready!(this.io.poll_read(cx, into))?;
        let read = &mut into.filled_mut()[before..];
        if read.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let now = Instant::now();
        let silence = now.duration_since(this.watch.heard.replace(now));
        this.shared
            .stats
            .received_bytes
            .fetch_add(read.len(), Relaxed);
        let (min_ping, strikes) = (
            this.shared.limits.min_ping_interval,
            this.shared.limits.max_ping_strikes,
        );
        let counts = this.counts.get_mut();
        counts.heard(silence, this.watch.calls.get());
        let mut flood = None;
        let mut at = 0;
        while at < read.len() {
            let (taken, found) = this.incoming.next(&read[at..]);
            match found {
                Found::Header(kind, flags, length) => {
                    flood = flood.or(counts.frame(kind, flags, length, now, min_ping, strikes));
                    if kind == RST_STREAM {
                        this.watch.resets.borrow_mut().push(this.incoming.stream());
                    }
                    if matches!(kind, HEADERS | CONTINUATION) {
                        this.authority.frame(kind, flags, length);
                    }
                }
                Found::Payload(HEADERS | CONTINUATION) => {
                    this.authority.payload(&mut read[at..at + taken]);
                }
                Found::Payload(_) | Found::Part => {}
            }
            at += taken;
        }
        if let Some(flood) = flood {
            this.watch.flood.set(Some(flood));
            this.say_goodbye(cx, flood);
            return Poll::Ready(Err(Error::new(ErrorKind::ConnectionAborted, flood.words)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = self.io.poll_write(cx, bytes);
        self.polled(bytes.len(), &written);
        if let Poll::Ready(Ok(count)) = written {
            self.wrote(&bytes[..count]);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.io.poll_write_vectored(cx, parts);
        self.polled(parts.iter().map(|part| part.len()).sum(), &written);
        if let Poll::Ready(Ok(mut count)) = written {
            for part in parts {
                let taken = count.min(part.len());
                self.wrote(&part[..taken]);
                count -= taken;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
            Io::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = self.io.poll_flush(cx);
        self.watch.blocked.set(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let shut = self.io.poll_shutdown(cx);
        self.watch.blocked.set(shut.is_pending());
        shut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_in_any_division() {
        let mut bytes = vec![b'x'; PREFACE_BYTES as usize];
        bytes.extend_from_slice(&[0, 0, 3, DATA, 1, 0, 0, 0, 1, 7, 7, 7]);
        bytes.extend_from_slice(&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]);
        for size in 1..=bytes.len() {
            let (mut frames, mut found) = (Frames::new(PREFACE_BYTES), Vec::new());
            for part in bytes.chunks(size) {
                let mut at = 0;
                while at < part.len() {
                    let (taken, what) = frames.next(&part[at..]);
                    if let Found::Header(kind, flags, length) = what {
                        found.push((kind, flags, length));
                    }
                    at += taken;
                }
            }
            assert_eq!(found, [(DATA, 1, 3), (SETTINGS, 1, 0)]);
            assert!(frames.between_frames());
        }
    }

    #[test]
    fn pings_are_counted_since_the_last_answer() {
        let now = Instant::now();
        let mut counts = Counts::new(now);
        let ping = |counts: &mut Counts| counts.frame(PING, 0, 8, now, Duration::from_secs(5), 2);
        assert_eq!([(); 3].map(|()| ping(&mut counts)), [None; 3]);
        counts.sent_since_ping = true;
        assert_eq!([(); 3].map(|()| ping(&mut counts)), [None; 3]);
        assert_eq!(ping(&mut counts), Some(PINGS));
    }

    #[test]
    fn only_calls_that_were_open_may_all_be_cancelled_at_once() {
        let now = Instant::now();
        let cancelled = |counts: &mut Counts| {
            let cancel =
                |counts: &mut Counts| counts.frame(RST_STREAM, 0, 4, now, Duration::ZERO, 0);
            (0..100_000)
                .take_while(|_| cancel(counts).is_none())
                .count()
        };
        let free = FREE_RESETS as usize;
        assert_eq!(cancelled(&mut Counts::new(now)), free);
        let mut counts = Counts::new(now);
        counts.heard(Duration::from_secs(3600), 0);
        counts.heard(Duration::from_millis(100), 5000);
        assert_eq!(cancelled(&mut counts), free + 500);
        let mut counts = Counts::new(now);
        counts.heard(Duration::from_secs(3600), 5000);
        assert_eq!(cancelled(&mut counts), free + 5000);
    }
}
