//! HTTP/2 and gRPC on threads of their own. Python takes batches of events and gives batches of answers (`front.pyi` describes both).
//!
//! Each thread runs one scheduler; a connection is one task of it. Python never waits for these threads, and they never call Python.

mod admission;
mod authority;
mod call;
mod connection;
mod guard;
mod metadata;
mod shared;
mod taken;
mod tls;
mod worker;

use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use socket2::{Domain, Protocol, Socket, Type};

use admission::Admission;
use call::{Answer, Body};
use metadata::{Given, Value};
use shared::{lock, Charge, Event, Framed, Limits, Method, NewCall, Shared, Writer};
use tls::TlsConfig;
use worker::{worker_of, Command, Flag, Inbox, ListenerState, Listening};

const CALL: u8 = 0;
const MESSAGE: u8 = 1;
const HALF_CLOSED: u8 = 2;
const CANCELLED: u8 = 3;
const WRITABLE: u8 = 4;
const REFUSED: u8 = 5;
const DRAINED: u8 = 6;
const SENT: u8 = 7;
const FINISH: u8 = 0;
const INITIAL: u8 = 1;
const SEND: u8 = 2;
const READ: u8 = 3;
const END: u8 = 4;
const END_TAKEN: u8 = 5;
const UNIX: &str = "unix:";
const MOST_NAMES: usize = 256;

#[pyclass(frozen, module = "ledgermq_native.front")]
struct Listener {
    port: u16,
    states: Vec<Arc<ListenerState>>,
}

#[pymethods]
impl Listener {
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    fn reload_tls(&self, tls: &TlsConfig) -> PyResult<()> {
        for state in &self.states {
            let mut config = state.tls.write().unwrap_or_else(PoisonError::into_inner);
            if config.is_none() {
                return Err(PyValueError::new_err("this listener has no TLS"));
            }
            *config = Some(tls.server.clone());
        }
        Ok(())
    }

    fn close(&self) {
        for state in &self.states {
            state.closed.raise();
        }
    }
}

#[pyclass(frozen, module = "ledgermq_native.front")]
struct Front {
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox>]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    listeners: Mutex<Vec<Arc<ListenerState>>>,
    /// The response streams that Python has taken and not ended. No lock of this struct is held while Python's allocator may run other code.
    writers: Mutex<HashMap<u64, Arc<Writer>>>,
    /// Names of metadata, which are the same for most calls.
    names: Mutex<HashMap<http::HeaderName, Py<PyString>>>,
}

#[pymethods]
impl Front {
    #[new]
    #[pyo3(signature = (*, threads=1, max_message_bytes=4 << 20, max_header_bytes=16384, max_streams_per_connection=1000, max_connections=0,
        max_connections_per_address=0, new_connections_per_s=0.0, first_byte_s=5.0, handshake_s=10.0, keepalive_s=30.0,
        keepalive_timeout_s=20.0, min_ping_interval_s=5.0, max_ping_strikes=20, stream_window_bytes=512 << 10,
        stream_send_bytes=1 << 20, unread_answer_s=60.0, max_buffered_bytes=512 << 20, max_unsent_bytes=64 << 20))]
    #[allow(clippy::too_many_arguments)] // They are the keywords of the Python class.
    fn new(
        threads: usize,
        max_message_bytes: u32,
        max_header_bytes: u32,
        max_streams_per_connection: u32,
        max_connections: usize,
        max_connections_per_address: usize,
        new_connections_per_s: f64,
        first_byte_s: f64,
        handshake_s: f64,
        keepalive_s: f64,
        keepalive_timeout_s: f64,
        min_ping_interval_s: f64,
        max_ping_strikes: u32,
        stream_window_bytes: u32,
        stream_send_bytes: usize,
        unread_answer_s: f64,
        max_buffered_bytes: usize,
        max_unsent_bytes: usize,
    ) -> PyResult<Self> {
        if !(1..=64).contains(&threads) {
            return Err(PyValueError::new_err("threads must be between 1 and 64"));
        }
        if !(65_535..=1 << 26).contains(&stream_window_bytes) {
            return Err(PyValueError::new_err(
                "stream_window_bytes must be between 65535 and 64 MiB",
            ));
        }
        if max_streams_per_connection == 0 {
            return Err(PyValueError::new_err(
                "max_streams_per_connection must be at least 1",
            ));
        }
        if !(0.0..=1e9).contains(&new_connections_per_s) {
            return Err(PyValueError::new_err(
                "new_connections_per_s must be between 0 and 1e9",
            ));
        }
        let limits = Limits {
            max_message: max_message_bytes as usize,
            max_header: max_header_bytes,
            max_streams: max_streams_per_connection,
            first_byte: seconds(first_byte_s)?,
            handshake: seconds(handshake_s)?,
            keepalive: seconds(keepalive_s)?,
            keepalive_timeout: seconds(keepalive_timeout_s)?,
            min_ping_interval: seconds(min_ping_interval_s)?,
            max_ping_strikes,
            stream_window: stream_window_bytes,
            stream_send: stream_send_bytes,
            unread_answer: seconds(unread_answer_s)?,
            max_buffered: max_buffered_bytes,
            max_unsent: max_unsent_bytes,
        };
        let admission = Admission::new(
            max_connections,
            max_connections_per_address,
            new_connections_per_s,
        );
        let front = Front {
            shared: Arc::new(Shared::new(limits, admission, threads)?),
            inboxes: (0..threads).map(|_| Arc::default()).collect(),
            threads: Mutex::default(),
            listeners: Mutex::default(),
            writers: Mutex::default(),
            names: Mutex::default(),
        };
        for index in 0..threads {
            // If this fails, dropping the front ends the threads that have begun.
            let thread = worker::run(front.shared.clone(), front.inboxes.clone(), index)?;
            lock(&front.threads).push(thread);
        }
        Ok(front)
    }

    #[pyo3(signature = (path, *, request_streaming, response_streaming))]
    fn register(&self, path: &str, request_streaming: bool, response_streaming: bool) {
        let method = Method {
            path: path.into(),
            python_path: PyOnceLock::new(),
            request_streaming,
            response_streaming,
        };
        let mut methods = self
            .shared
            .methods
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        methods.insert(path.into(), Arc::new(method));
    }

    #[pyo3(signature = (host, port=0, *, fd=None, reuse_port=false, plain=true, tls=None, backlog=4096))]
    #[allow(clippy::too_many_arguments)] // They are the keywords of the Python method.
    fn listen(
        &self,
        host: &str,
        port: u16,
        fd: Option<i32>,
        reuse_port: bool,
        plain: bool,
        tls: Option<&TlsConfig>,
        backlog: i32,
    ) -> PyResult<Listener> {
        if !plain && tls.is_none() {
            return Err(PyValueError::new_err("a listener needs plain, tls or both"));
        }
        let mut port = port;
        let sockets = match (fd, host.strip_prefix(UNIX)) {
            (Some(fd), _) => {
                // SAFETY: the caller owns the descriptor and keeps it open during this call, as the interface demands; the borrow ends with it.
                let given = unsafe { BorrowedFd::borrow_raw(fd) };
                let socket = Socket::from(given.try_clone_to_owned()?);
                socket.listen(backlog)?;
                port = socket
                    .local_addr()?
                    .as_socket()
                    .map_or(0, |address| address.port());
                vec![nonblocking(Listening::Tcp(socket.into()))?]
            }
            (None, Some(path)) => {
                port = 0;
                vec![nonblocking(Listening::Unix(
                    std::os::unix::net::UnixListener::bind(path)?,
                ))?]
            }
            (None, None) => {
                let mut sockets = Vec::new();
                for mut address in (host, port).to_socket_addrs()? {
                    address.set_port(port);
                    let socket = bind(address, reuse_port, backlog)?;
                    port = socket
                        .local_addr()?
                        .as_socket()
                        .map_or(port, |bound| bound.port());
                    sockets.push(nonblocking(Listening::Tcp(socket.into()))?);
                }
                sockets
            }
        };
        let mut states = Vec::new();
        for socket in sockets {
            let state = Arc::new(ListenerState {
                plain,
                tls: RwLock::new(tls.map(|tls| tls.server.clone())),
                closed: Flag::default(),
            });
            lock(&self.listeners).push(state.clone());
            self.inboxes[0].push(Command::Listen(socket, state.clone()));
            states.push(state);
        }
        Ok(Listener { port, states })
    }

    fn fileno(&self) -> i32 {
        self.shared.eventfd.as_raw_fd()
    }

    #[pyo3(signature = (max_events=1024))]
    fn take<'py>(&self, py: Python<'py>, max_events: usize) -> PyResult<Bound<'py, PyList>> {
        let events = self.shared.take(max_events);
        let found = PyList::empty(py);
        if events.is_empty() {
            return Ok(found);
        }
        let now = Instant::now();
        for event in events {
            found.append(self.event(py, event, now)?)?;
        }
        Ok(found)
    }

    fn give<'py>(
        &self,
        py: Python<'py>,
        answers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut batches: Vec<Vec<Answer>> = self.inboxes.iter().map(|_| Vec::new()).collect();
        let mut streams: Vec<(u64, Option<usize>)> = Vec::new();
        for answer in answers.try_iter()? {
            let (answer, stream) = self.answer(answer?.cast::<PyTuple>()?)?;
            streams.extend(stream.map(|sent| (answer.call, sent)));
            batches[worker_of(answer.call, self.inboxes.len())].push(answer);
        }
        let full = self.count_sent(&streams);
        for (inbox, batch) in self.inboxes.iter().zip(batches) {
            if !batch.is_empty() {
                inbox.push(Command::Answers(batch));
            }
        }
        PyList::new(py, full)
    }

    fn drain(&self, seconds: f64) -> PyResult<()> {
        let until = Instant::now() + self::seconds(seconds)?;
        self.close_listeners();
        for inbox in self.inboxes.iter() {
            inbox.push(Command::Drain(until));
        }
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stop());
        self.shared.take(usize::MAX);
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = &self.shared.stats;
        let found = PyDict::new(py);
        found.set_item("connections", lock(&self.shared.admission).open())?;
        for (name, value) in [
            ("connections_total", &stats.connections_total),
            ("tls_connections_total", &stats.tls_connections_total),
            ("calls", &stats.calls),
            ("calls_total", &stats.calls_total),
            ("calls_unknown", &stats.calls_unknown),
            ("received_bytes", &stats.received_bytes),
            ("sent_bytes", &stats.sent_bytes),
            ("bad_answers", &stats.bad_answers),
            ("panics", &stats.panics),
        ] {
            found.set_item(name, value.load(Relaxed))?;
        }
        let (waiting, wakeups) = self.shared.waiting();
        found.set_item("waiting_events", waiting)?;
        found.set_item("wakeups", wakeups)?;
        found.set_item("buffered_bytes", self.shared.buffered())?;
        found.set_item("unsent_bytes", self.shared.unsent())?;
        let refused = PyDict::new(py);
        for (reason, count) in self.shared.refusals() {
            refused.set_item(reason, count)?;
        }
        found.set_item("refused", refused)?;
        Ok(found)
    }
}

impl Front {
    /// Count messages of response streams as unsent: Some(bytes) for a message, None for the end. Returns the streams that are full.
    fn count_sent(&self, streams: &[(u64, Option<usize>)]) -> Vec<u64> {
        let mut full = Vec::new();
        let mut writers = lock(&self.writers);
        for (call, sent) in streams {
            let Some(size) = sent else {
                writers.remove(call);
                continue;
            };
            if let Some(writer) = writers.get(call) {
                // The connection subtracts these bytes later than they are added, so it also sees this mark when it has sent them.
                let unsent = writer.unsent.fetch_add(*size, Relaxed) + size;
                if unsent > self.shared.limits.stream_send
                    && !writer.reported_full.swap(true, Relaxed)
                {
                    full.push(*call);
                }
            }
        }
        full
    }

    fn close_listeners(&self) {
        for state in lock(&self.listeners).drain(..) {
            state.closed.raise();
        }
    }

    fn stop(&self) {
        self.close_listeners();
        for inbox in self.inboxes.iter() {
            inbox.stop.raise();
        }
        for thread in lock(&self.threads).drain(..) {
            // A panic of the scheduler itself was reported by the panic hook, and the thread is gone either way.
            let _ = thread.join();
        }
    }

    /// Read one answer. The second part is for response streams: Some(bytes) for a message, None for the end.
    fn answer(&self, given: &Bound<'_, PyTuple>) -> PyResult<(Answer, Option<Option<usize>>)> {
        if given.is_empty() {
            return Err(PyTypeError::new_err("an answer is empty"));
        }
        let kind: u8 = given.get_item(0)?.extract()?;
        let expected = if kind == FINISH { 6 } else { 3 };
        if given.len() != expected {
            return Err(PyTypeError::new_err(format!(
                "an answer of kind {kind} has {expected} items, not {}",
                given.len()
            )));
        }
        let call: u64 = given.get_item(1)?.extract()?;
        let (body, stream) = match kind {
            FINISH => {
                let message = given.get_item(5)?;
                let message = if message.is_none() {
                    None
                } else {
                    Some(self.framed(&message)?)
                };
                let body = match message {
                    Some(Err(())) => Body::TooMuch { finished: true },
                    message => Body::Finish {
                        status: given.get_item(2)?.extract()?,
                        details: text_of(&given.get_item(3)?)?,
                        trailing: metadata_of(&given.get_item(4)?)?,
                        message: message.and_then(Result::ok),
                        tell: false,
                        taken: false,
                    },
                };
                (body, Some(None))
            }
            INITIAL => (Body::Initial(metadata_of(&given.get_item(2)?)?), None),
            SEND => match self.framed(&given.get_item(2)?)? {
                Ok(message) => {
                    let size = message.len();
                    (Body::Send(message), Some(Some(size)))
                }
                Err(()) => (Body::TooMuch { finished: false }, None),
            },
            READ => (Body::Read(given.get_item(2)?.extract()?), None),
            END | END_TAKEN => {
                let body = Body::Finish {
                    status: 0,
                    details: String::new(),
                    trailing: metadata_of(&given.get_item(2)?)?,
                    message: None,
                    tell: true,
                    taken: kind == END_TAKEN,
                };
                (body, Some(None))
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "{kind} is not a kind of answer"
                )))
            }
        };
        Ok((Answer { call, body }, stream))
    }

    /// A message with its prefix; Err(()) if the buffers are full.
    fn framed(&self, message: &Bound<'_, PyAny>) -> PyResult<Result<Framed, ()>> {
        let message: &[u8] = message.cast::<PyBytes>()?.as_bytes();
        let Ok(length) = u32::try_from(message.len()) else {
            return Err(PyValueError::new_err(
                "a message of 4 GiB or more cannot be sent",
            ));
        };
        let Some(charge) = Charge::new(&self.shared, message.len() + 5) else {
            return Ok(Err(()));
        };
        let mut framed = Vec::with_capacity(message.len() + 5);
        framed.push(0);
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(message);
        Ok(Ok(Framed::new(framed, charge)))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Front {
    fn event<'py>(
        &self,
        py: Python<'py>,
        event: Event,
        now: Instant,
    ) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            Event::Call(call) => self.call(py, *call, now),
            Event::Message(call, message) => {
                (MESSAGE, call, PyBytes::new(py, &message.bytes)).into_pyobject(py)
            }
            Event::HalfClosed(call) => (HALF_CLOSED, call).into_pyobject(py),
            Event::Cancelled(call, reason) => {
                lock(&self.writers).remove(&call);
                (CANCELLED, call, reason.text()).into_pyobject(py)
            }
            Event::Writable(call) => (WRITABLE, call).into_pyobject(py),
            Event::Refused(reason, address, words) => {
                (REFUSED, reason, address, words).into_pyobject(py)
            }
            Event::Drained => (DRAINED,).into_pyobject(py),
            Event::Sent(call) => (SENT, call).into_pyobject(py),
        }
    }

    fn call<'py>(
        &self,
        py: Python<'py>,
        call: NewCall,
        now: Instant,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(writer) = call.writer {
            lock(&self.writers).insert(call.id, writer);
        }
        let metadata = PyList::empty(py);
        for (name, value) in call.metadata {
            let name = self.name(py, name);
            match value {
                // Checked to be ASCII when it arrived.
                Value::Text(text) => {
                    metadata.append((name, PyString::new(py, text.to_str().unwrap_or_default())))?
                }
                Value::Binary(bytes) => metadata.append((name, PyBytes::new(py, &bytes)))?,
            }
        }
        let path = call
            .method
            .python_path
            .get_or_init(py, || PyString::new(py, &call.method.path).unbind())
            .clone_ref(py);
        let left = call
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now).as_secs_f64());
        let (peer, auth) = call.peer.in_python(py)?;
        let message = call.message.map(|message| PyBytes::new(py, &message.bytes));
        (CALL, call.id, path, metadata, left, peer, auth, message).into_pyobject(py)
    }

    fn name(&self, py: Python<'_>, name: http::HeaderName) -> Py<PyString> {
        if let Some(known) = lock(&self.names).get(&name) {
            return known.clone_ref(py);
        }
        let text = PyString::new(py, name.as_str()).unbind();
        let mut names = lock(&self.names);
        if names.len() < MOST_NAMES {
            names.insert(name, text.clone_ref(py));
        }
        text
    }
}

/// A text in UTF-8. Surrogates, which it cannot express, become replacement characters: texts may come from callers.
fn text_of(given: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(given.cast::<PyString>()?.to_string_lossy().into_owned())
}

fn metadata_of(given: &Bound<'_, PyAny>) -> PyResult<Given> {
    let mut found = Given::new();
    for pair in given.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = pair?.extract()?;
        let value = match value.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes().to_vec(),
            Err(_) => text_of(&value)?.into_bytes(),
        };
        found.push((name, value));
    }
    Ok(found)
}

fn seconds(value: f64) -> PyResult<Duration> {
    if (0.0..=1e9).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(PyValueError::new_err(format!(
            "{value} is not a time between 0 and 1e9 seconds"
        )))
    }
}

fn bind(address: SocketAddr, reuse_port: bool, backlog: i32) -> std::io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket)
}

fn nonblocking(listening: Listening) -> std::io::Result<Listening> {
    match &listening {
        Listening::Tcp(listener) => listener.set_nonblocking(true)?,
        Listening::Unix(listener) => listener.set_nonblocking(true)?,
    }
    Ok(listening)
}

pub fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "front")?;
    module.add_class::<Front>()?;
    module.add_class::<Listener>()?;
    module.add_class::<TlsConfig>()?;
    for (name, value) in [
        ("CALL", CALL),
        ("MESSAGE", MESSAGE),
        ("HALF_CLOSED", HALF_CLOSED),
        ("CANCELLED", CANCELLED),
        ("WRITABLE", WRITABLE),
        ("REFUSED", REFUSED),
        ("DRAINED", DRAINED),
        ("SENT", SENT),
        ("FINISH", FINISH),
        ("INITIAL", INITIAL),
        ("SEND", SEND),
        ("READ", READ),
        ("END", END),
        ("END_TAKEN", END_TAKEN),
    ] {
        module.add(name, value)?;
    }
    Ok(module)
}
