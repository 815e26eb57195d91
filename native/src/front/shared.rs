//! What the threads of the front share with Python: the queue of events, the budget of buffered bytes, and the counters.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use rustix::event::{eventfd, EventfdFlags};

use super::admission::Admission;
use super::metadata::Metadata;
use super::tls::Peer;

const REPORT_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Limits {
    pub max_message: usize,
    pub max_header: u32,
    pub max_streams: u32,
    pub first_byte: Duration,
    pub handshake: Duration,
    pub keepalive: Duration,
    pub keepalive_timeout: Duration,
    pub min_ping_interval: Duration,
    pub max_ping_strikes: u32,
    pub stream_window: u32,
    pub stream_send: usize,
    pub unread_answer: Duration,
    pub max_buffered: usize,
    pub max_unsent: usize,
}

pub struct Method {
    pub path: Box<str>,
    pub python_path: PyOnceLock<Py<PyString>>,
    pub request_streaming: bool,
    pub response_streaming: bool,
}

/// Why a call ended without an answer of Python's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Reset,
    Deadline,
    Connection,
    Drained,
    TooLarge,
    Protocol,
    Buffers,
    Unread,
}

impl Ended {
    pub fn text(self) -> &'static str {
        match self {
            Ended::Reset => "reset",
            Ended::Deadline => "deadline",
            Ended::Connection => "connection",
            Ended::Drained => "drained",
            Ended::TooLarge => "too-large",
            Ended::Protocol => "protocol",
            Ended::Buffers => "buffers",
            Ended::Unread => "unread",
        }
    }
}

pub struct NewCall {
    pub id: u64,
    pub method: Arc<Method>,
    pub metadata: Metadata,
    pub deadline: Option<Instant>,
    pub peer: Arc<Peer>,
    pub message: Option<Message>,
    pub writer: Option<Arc<Writer>>,
}

/// Bytes of a request. Those of a stream are counted as buffered until Python has taken them; for a method with one request, the call has the
/// charge until Python has ended it.
pub struct Message {
    pub bytes: Bytes,
    pub charge: Option<Charge>,
}

pub enum Event {
    Call(Box<NewCall>),
    Message(u64, Message),
    HalfClosed(u64),
    Cancelled(u64, Ended),
    Writable(u64),
    Sent(u64),
    Refused(&'static str, String, String),
    Drained,
}

/// The unsent bytes of one response stream. `give` adds to them, and the connection subtracts what it passed on.
#[derive(Default)]
pub struct Writer {
    pub unsent: AtomicUsize,
    pub reported_full: AtomicBool,
}

#[derive(Default)]
pub struct Stats {
    pub connections_total: AtomicUsize,
    pub tls_connections_total: AtomicUsize,
    pub calls: AtomicUsize,
    pub calls_total: AtomicUsize,
    pub calls_unknown: AtomicUsize,
    pub received_bytes: AtomicUsize,
    pub sent_bytes: AtomicUsize,
    pub bad_answers: AtomicUsize,
    pub panics: AtomicUsize,
}

#[derive(Default)]
struct Refusals {
    count: u64,
    report_again: Option<Instant>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    wakeups: u64,
}

/// The bytes of one connection's answers, each from the moment when the connection has it until the socket has taken it. An answer that ended
/// without a message counts with what its call cost. Also what HTTP/2 holds is counted, because a charge lives as long as its memory.
#[derive(Default)]
pub struct Account {
    unsent: AtomicUsize,
}

impl Account {
    pub fn unsent(&self) -> usize {
        self.unsent.load(Relaxed)
    }
}

pub struct Shared {
    pub limits: Limits,
    pub stats: Stats,
    pub admission: Mutex<Admission>,
    pub methods: RwLock<HashMap<Box<str>, Arc<Method>>>,
    pub undrained_workers: AtomicUsize,
    pub eventfd: OwnedFd,
    buffered: AtomicUsize,
    unsent: AtomicUsize,
    queue: Mutex<Queue>,
    refused: Mutex<BTreeMap<&'static str, Refusals>>,
}

/// Lock, also after a panic of another holder: the data under these locks are valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(limits: Limits, admission: Admission, workers: usize) -> std::io::Result<Self> {
        Ok(Shared {
            limits,
            stats: Stats::default(),
            admission: Mutex::new(admission),
            methods: RwLock::default(),
            undrained_workers: AtomicUsize::new(workers),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            buffered: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            queue: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    pub fn method(&self, path: &str) -> Option<Arc<Method>> {
        self.methods
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path)
            .cloned()
    }

    /// Append events, and wake Python's event loop if there were none. The write happens under the lock, so that the descriptor is readable
    /// exactly while events are waiting.
    pub fn push(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut queue = lock(&self.queue);
        if queue.events.is_empty() {
            queue.wakeups += 1;
            // Fails only if the value would overflow, and then the descriptor is readable.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
        queue.events.extend(events.drain(..));
    }

    pub fn take(&self, max: usize) -> Vec<Event> {
        let mut queue = lock(&self.queue);
        if queue.events.is_empty() || max == 0 {
            return Vec::new();
        }
        let count = max.min(queue.events.len());
        let taken = queue.events.drain(..count).collect();
        if queue.events.is_empty() {
            // Fails only if Python has read the descriptor itself, and then it is as wanted.
            let _ = rustix::io::read(&self.eventfd, &mut [0u8; 8]);
        }
        taken
    }

    pub fn waiting(&self) -> (usize, u64) {
        let queue = lock(&self.queue);
        (queue.events.len(), queue.wakeups)
    }

    pub fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    pub fn unsent(&self) -> usize {
        self.unsent.load(Relaxed)
    }

    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        lock(&self.refused)
            .iter()
            .map(|(reason, refusals)| (*reason, refusals.count))
            .collect()
    }

    /// Count a refused connection; returns an event if it is time to report one of this reason.
    pub fn refused(&self, reason: &'static str, address: &str, words: &str) -> Option<Event> {
        let now = Instant::now();
        let mut refused = lock(&self.refused);
        let refusals = refused.entry(reason).or_default();
        refusals.count += 1;
        if refusals.report_again.is_some_and(|at| now < at) {
            return None;
        }
        refusals.report_again = Some(now + REPORT_EVERY);
        Some(Event::Refused(reason, address.to_owned(), words.to_owned()))
    }

    /// Count a refused call.
    pub fn refused_call(&self, reason: &'static str) {
        lock(&self.refused).entry(reason).or_default().count += 1;
    }
}

/// A part of the budget of buffered bytes; dropping it returns the bytes.
pub struct Charge {
    shared: Arc<Shared>,
    bytes: usize,
    /// The connection that has yet to send these bytes.
    account: Option<Arc<Account>>,
}

/// A message of an answer, charged until its memory is free: HTTP/2 keeps it until the socket has taken all of it.
pub struct Framed {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Framed {
    pub fn new(bytes: Vec<u8>, charge: Charge) -> Self {
        Framed { bytes, charge }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes to send on this account's connection.
    pub fn sent_by(mut self, account: &Arc<Account>) -> Bytes {
        self.charge.unsent_by(account);
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Framed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Charge {
    /// None if the budget does not allow it.
    pub fn new(shared: &Arc<Shared>, bytes: usize) -> Option<Charge> {
        let mut charge = Charge {
            shared: shared.clone(),
            bytes: 0,
            account: None,
        };
        charge.grow(bytes).then_some(charge)
    }

    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let shared = &self.shared;
        if shared.buffered.fetch_add(bytes, Relaxed) + bytes > shared.limits.max_buffered {
            shared.buffered.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// From now on these bytes wait to be sent.
    pub fn unsent_by(&mut self, account: &Arc<Account>) {
        account.unsent.fetch_add(self.bytes, Relaxed);
        self.shared.unsent.fetch_add(self.bytes, Relaxed);
        self.account = Some(account.clone());
    }

    /// Move a part of this charge into one of its own.
    pub fn split(&mut self, bytes: usize) -> Charge {
        debug_assert!(
            self.account.is_none(),
            "what waits to be sent is not divided"
        );
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Charge {
            shared: self.shared.clone(),
            bytes,
            account: None,
        }
    }

    pub fn shrink(&mut self, bytes: usize) {
        drop(self.split(bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shared.buffered.fetch_sub(self.bytes, Relaxed);
        if let Some(account) = &self.account {
            account.unsent.fetch_sub(self.bytes, Relaxed);
            self.shared.unsent.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(max_buffered: usize) -> Arc<Shared> {
        let second = Duration::from_secs(1);
        let limits = Limits {
            max_message: 1,
            max_header: 1,
            max_streams: 1,
            first_byte: second,
            handshake: second,
            keepalive: second,
            keepalive_timeout: second,
            min_ping_interval: second,
            max_ping_strikes: 0,
            stream_window: 1,
            stream_send: 1,
            unread_answer: second,
            max_buffered,
            max_unsent: 1,
        };
        Arc::new(Shared::new(limits, Admission::new(0, 0, 0.0), 1).unwrap())
    }

    #[test]
    fn a_message_is_charged_until_its_last_part_is_dropped() {
        let (shared, account) = (shared(1000), Arc::default());
        let charge = Charge::new(&shared, 600).unwrap();
        assert!(Charge::new(&shared, 401).is_none());
        let mut rest = Framed::new(vec![7; 600], charge).sent_by(&account);
        let first = rest.split_to(599);
        assert_eq!((account.unsent(), shared.unsent()), (600, 600));
        drop(first);
        assert_eq!((account.unsent(), shared.buffered()), (600, 600));
        drop(rest);
        assert_eq!(
            (account.unsent(), shared.unsent(), shared.buffered()),
            (0, 0, 0)
        );
    }
}
