//! A thread of the front: accepts connections, passes answers to them and events to Python.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::admission::Admitted;
use super::call::Answer;
use super::connection::Connection;
use super::guard::{most_resets, Guard, Io};
use super::shared::{lock, Event, Shared};
use super::tls::Peer;

const TLS_HANDSHAKE: u8 = 0x16;
const HTTP2_PREFACE: u8 = b'P';
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const FLUSH_AT: usize = 256;

pub enum Command {
    Answers(Vec<Answer>),
    Listen(Listening, Arc<ListenerState>),
    Connection(
        std::net::TcpStream,
        SocketAddr,
        Arc<ListenerState>,
        Duration,
    ),
    Drain(Instant),
}

pub enum Listening {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// The part of a listener that Python changes while it runs.
pub struct ListenerState {
    pub plain: bool,
    pub tls: RwLock<Option<Arc<ServerConfig>>>,
    pub closed: Flag,
}

impl ListenerState {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A flag that one task waits for.
#[derive(Default)]
pub struct Flag {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Flag {
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        *lock(&self.waker) = Some(cx.waker().clone());
        if self.raised.load(Ordering::SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Commands for a worker, from any thread.
#[derive(Default)]
pub struct Inbox {
    pub stop: Flag,
    commands: Mutex<(Vec<Command>, Option<Waker>)>,
}

impl Inbox {
    pub fn push(&self, command: Command) {
        let waker = {
            let mut commands = lock(&self.commands);
            commands.0.push(command);
            commands.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn take(&self, cx: &Context<'_>) -> Vec<Command> {
        let mut commands = lock(&self.commands);
        commands.1 = Some(cx.waker().clone());
        std::mem::take(&mut commands.0)
    }
}

/// The way to a connection's task.
#[derive(Default)]
pub struct Handle {
    pub answers: RefCell<Vec<Answer>>,
    pub waker: RefCell<Option<Waker>>,
}

impl Handle {
    pub fn register(&self, waker: &Waker) {
        let mut registered = self.waker.borrow_mut();
        if !registered
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            *registered = Some(waker.clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// What the tasks of one thread share.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub drain_until: Cell<Option<Instant>>,
    drained: Cell<bool>,
    inboxes: Arc<[Arc<Inbox>]>,
    index: usize,
    next_target: Cell<usize>,
    next_serial: Cell<u32>,
    connections: RefCell<HashMap<u32, Rc<Handle>>>,
    events: RefCell<Vec<Event>>,
    /// The dispatcher's task, which also hands the collected events to Python. Woken by the first event, it runs after the tasks that were
    /// ready before it, so that their events make one batch.
    dispatcher: RefCell<Option<Waker>>,
}

/// Which worker has the connection of a call.
pub fn worker_of(call: u64, workers: usize) -> usize {
    (call >> 32) as usize % workers
}

/// The body of a worker's thread.
pub fn run(
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox>]>,
    index: usize,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let mut builder = Builder::new_current_thread();
    let (report, reported) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("front-{index}"))
        .spawn(move || {
            let runtime = match builder.enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime,
                Err(error) => {
                    // The receiver waits below for exactly this message.
                    let _ = report.send(Err(error));
                    return;
                }
            };
            let _ = report.send(Ok(()));
            let inbox = inboxes[index].clone();
            let worker = Rc::new(Worker {
                shared,
                drain_until: Cell::new(None),
                drained: Cell::new(false),
                index,
                next_target: Cell::new(0),
                next_serial: Cell::new(index as u32),
                inboxes,
                connections: RefCell::default(),
                events: RefCell::default(),
                dispatcher: RefCell::default(),
            });
            runtime.spawn_local(poll_fn(move |cx| worker.dispatch(cx)));
            runtime.block_on(poll_fn(|cx| inbox.stop.poll(cx)));
        })?;
    reported
        .recv()
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread ended at its start")))?;
    Ok(thread)
}

impl Worker {
    /// Pass an event to Python at the end of this turn of the scheduler.
    pub fn emit(&self, event: Event) {
        let count = {
            let mut events = self.events.borrow_mut();
            events.push(event);
            events.len()
        };
        if count == 1 {
            if let Some(waker) = &*self.dispatcher.borrow() {
                waker.wake_by_ref();
            }
        } else if count >= FLUSH_AT {
            self.flush();
        }
    }

    fn flush(&self) {
        self.shared.push(&mut self.events.borrow_mut());
    }

    pub fn refuse(&self, reason: &'static str, address: &str, words: &str) {
        if let Some(event) = self.shared.refused(reason, address, words) {
            self.emit(event);
        }
    }

    fn dispatch(self: &Rc<Self>, cx: &Context<'_>) -> Poll<()> {
        if self.dispatcher.borrow().is_none() {
            *self.dispatcher.borrow_mut() = Some(cx.waker().clone());
        }
        for command in self.inboxes[self.index].take(cx) {
            match command {
                Command::Answers(answers) => self.distribute(answers),
                Command::Listen(listening, state) => self.listen(listening, state),
                Command::Connection(stream, address, state, wait) => {
                    match TcpStream::from_std(stream) {
                        Ok(stream) => self.begin_tcp(stream, address, state, wait),
                        Err(error) => {
                            lock(&self.shared.admission).left(Some(address.ip()));
                            self.refuse(
                                "busy",
                                &address.to_string(),
                                &format!("it could not be registered: {error}"),
                            );
                        }
                    }
                }
                Command::Drain(until) => self.drain(until),
            }
        }
        self.flush();
        Poll::Pending
    }

    fn distribute(&self, answers: Vec<Answer>) {
        let connections = self.connections.borrow();
        let mut last: Option<(u32, &Rc<Handle>)> = None;
        for answer in answers {
            let serial = (answer.call >> 32) as u32;
            let handle = match last {
                Some((known, handle)) if known == serial => handle,
                _ => match connections.get(&serial) {
                    Some(handle) => handle,
                    // The connection has ended, and Python has taken or will take CANCELLED.
                    None => continue,
                },
            };
            last = Some((serial, handle));
            let first = {
                let mut waiting = handle.answers.borrow_mut();
                waiting.push(answer);
                waiting.len() == 1
            };
            if first {
                handle.wake();
            }
        }
    }

    fn drain(&self, until: Instant) {
        self.drain_until.set(Some(until));
        for handle in self.connections.borrow().values() {
            handle.wake();
        }
        self.check_drained();
    }

    fn check_drained(&self) {
        if self.drain_until.get().is_none()
            || self.drained.get()
            || !self.connections.borrow().is_empty()
        {
            return;
        }
        self.drained.set(true);
        if self.shared.undrained_workers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.emit(Event::Drained);
        }
    }

    fn listen(self: &Rc<Self>, listening: Listening, state: Arc<ListenerState>) {
        let worker = self.clone();
        match listening {
            Listening::Tcp(listener) => match TcpListener::from_std(listener) {
                Ok(listener) => drop(spawn_local(worker.accept_tcp(listener, state))),
                Err(error) => self.refuse(
                    "busy",
                    "",
                    &format!("a port could not be registered: {error}"),
                ),
            },
            Listening::Unix(listener) => match UnixListener::from_std(listener) {
                Ok(listener) => drop(spawn_local(worker.accept_unix(listener, state))),
                Err(error) => self.refuse(
                    "busy",
                    "",
                    &format!("a port could not be registered: {error}"),
                ),
            },
        }
    }

    async fn accept_tcp(self: Rc<Self>, listener: TcpListener, state: Arc<ListenerState>) {
        loop {
            let accepted = poll_fn(|cx| match state.closed.poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => listener.poll_accept(cx).map(Some),
            });
            match accepted.await {
                None => return,
                Some(Ok((stream, address))) => self.admit(stream, address, &state),
                Some(Err(error)) => self.accept_failed(&error).await,
            }
        }
    }

    async fn accept_unix(self: Rc<Self>, listener: UnixListener, state: Arc<ListenerState>) {
        loop {
            let accepted = poll_fn(|cx| match state.closed.poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => listener.poll_accept(cx).map(Some),
            });
            match accepted.await {
                None => return,
                Some(Ok((stream, _))) => {
                    lock(&self.shared.admission).enter(None, Instant::now());
                    self.begin_unix(stream);
                }
                Some(Err(error)) => self.accept_failed(&error).await,
            }
        }
    }

    /// Out of descriptors, as a rule; the connection stays in the backlog.
    async fn accept_failed(&self, error: &std::io::Error) {
        self.refuse("busy", "", &format!("it could not be accepted: {error}"));
        sleep(ACCEPT_AGAIN).await;
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, state: &Arc<ListenerState>) {
        let admitted = lock(&self.shared.admission).enter(Some(address.ip()), Instant::now());
        let wait = match admitted {
            Admitted::Yes(wait) => wait,
            Admitted::No(reason, words) => {
                return self.refuse(reason, &address.to_string(), &words)
            }
        };
        let target = self
            .next_target
            .replace((self.next_target.get() + 1) % self.inboxes.len());
        if target == self.index {
            return self.begin_tcp(stream, address, state.clone(), wait);
        }
        match stream.into_std() {
            Ok(stream) => {
                self.inboxes[target].push(Command::Connection(stream, address, state.clone(), wait))
            }
            Err(error) => {
                lock(&self.shared.admission).left(Some(address.ip()));
                self.refuse(
                    "busy",
                    &address.to_string(),
                    &format!("it could not be passed on: {error}"),
                );
            }
        }
    }

    fn begin_tcp(
        self: &Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        state: Arc<ListenerState>,
        wait: Duration,
    ) {
        let open = self.open(Some(address.ip()));
        let worker = self.clone();
        spawn_local(async move {
            let peer = Peer::tcp(address);
            let name = peer.address.clone();
            let opening = Box::pin(async {
                if !wait.is_zero() {
                    // Its turn may be later than a handshake may take.
                    sleep(wait).await;
                }
                let opening = worker.open_tcp(stream, peer, &state);
                match timeout(worker.shared.limits.handshake, opening).await {
                    Ok(found) => found,
                    Err(_) => Err(("slow", "it did not begin to speak in time".to_owned())),
                }
            });
            worker.serve(open, opening, &name).await;
        });
    }

    fn begin_unix(self: &Rc<Self>, stream: UnixStream) {
        let open = self.open(None);
        let worker = self.clone();
        spawn_local(async move {
            let opening = Box::pin(async {
                let opening = worker.start(Io::Unix(stream), Peer::unix());
                match timeout(worker.shared.limits.handshake, opening).await {
                    Ok(found) => found,
                    Err(_) => Err(("slow", "it did not begin to speak in time".to_owned())),
                }
            });
            worker.serve(open, opening, "unix:").await;
        });
    }

    /// Serve a connection to its end, from its handshake on.
    async fn serve(
        self: &Rc<Self>,
        open: Open,
        mut opening: Pin<Box<impl Future<Output = Result<Opened, (&'static str, String)>>>>,
        name: &str,
    ) {
        let opened = poll_fn(|cx| {
            open.handle.register(cx.waker());
            if self.drain_until.get().is_some() {
                return Poll::Ready(None);
            }
            opening.as_mut().poll(cx).map(Some)
        })
        .await;
        // Its state is larger than that of an idle connection.
        drop(opening);
        match opened {
            None => {}
            Some(Ok(opened)) => {
                self.shared
                    .stats
                    .connections_total
                    .fetch_add(1, Ordering::Relaxed);
                let connection =
                    Connection::new(self.clone(), open.handle.clone(), open.serial, opened);
                Box::pin(connection).await;
            }
            Some(Err((reason, words))) => self.refuse(reason, name, &words),
        }
    }

    async fn open_tcp(
        &self,
        stream: TcpStream,
        peer: Peer,
        state: &ListenerState,
    ) -> Result<Opened, (&'static str, String)> {
        let failed = |error: std::io::Error| {
            (
                "garbage",
                format!("it was closed before it said anything: {error}"),
            )
        };
        stream.set_nodelay(true).map_err(failed)?;
        let mut first = [0u8];
        let within = self.shared.limits.first_byte;
        let heard = timeout(within, stream.peek(&mut first)).await;
        let heard = heard.map_err(|_| {
            let seconds = within.as_secs_f64();
            (
                "slow",
                format!("it sent no protocol preface within {seconds} s"),
            )
        })?;
        if heard.map_err(failed)? == 0 {
            return Err((
                "garbage",
                "it was closed before it said anything".to_owned(),
            ));
        }
        match (first[0], state.tls()) {
            (TLS_HANDSHAKE, Some(config)) => {
                let accepted = TlsAcceptor::from(config).accept(stream).await;
                let stream = accepted.map_err(|error| ("tls", format!("the TLS handshake failed: {error}")))?;
                let peer = peer
                    .authenticated(stream.get_ref().1)
                    .map_err(|why| ("tls", format!("its certificate cannot be read: {why}")))?;
                self.shared.stats.tls_connections_total.fetch_add(1, Ordering::Relaxed);
                self.start(Io::Tls(Box::new(stream)), peer).await
            }
            (TLS_HANDSHAKE, None) => Err((
                "tls-on-plaintext",
                "TLS handshake on a plaintext port: set tls on this node, or switch TLS off in the client".to_owned(),
            )),
            (HTTP2_PREFACE, _) if !state.plain => Err((
                "plaintext-on-tls",
                "plaintext on a TLS port: switch TLS on in the client, or set tls.mode to both".to_owned(),
            )),
            (HTTP2_PREFACE, _) => self.start(Io::Tcp(stream), peer).await,
            _ => Err((
                "garbage",
                "it is neither TLS nor HTTP/2: the client may have meant another program's port".to_owned(),
            )),
        }
    }

    async fn start(&self, io: Io, peer: Peer) -> Result<Opened, (&'static str, String)> {
        let limits = &self.shared.limits;
        let (guard, watch) = Guard::new(io, self.shared.clone());
        let http = h2::server::Builder::new()
            .initial_window_size(limits.stream_window)
            .initial_connection_window_size(limits.stream_window.saturating_mul(16).min(1 << 30))
            .max_concurrent_streams(limits.max_streams)
            .max_header_list_size(limits.max_header)
            .max_frame_size(64 << 10)
            .max_send_buffer_size(256 << 10)
            // The guard limits resets earlier, and by their pace.
            .max_pending_accept_reset_streams(2 * most_resets(limits.max_streams) as usize)
            .handshake(guard)
            .await
            .map_err(|error| ("garbage", format!("it is not HTTP/2: {error}")))?;
        Ok(Opened { http, watch, peer })
    }

    fn open(self: &Rc<Self>, address: Option<IpAddr>) -> Open {
        let workers = self.inboxes.len() as u32;
        let mut connections = self.connections.borrow_mut();
        // Calls are numbered by connection and stream; a serial number of 31 bits keeps them positive.
        let serial = loop {
            let serial = self.next_serial.get();
            let next = serial + workers;
            self.next_serial.set(if next <= i32::MAX as u32 {
                next
            } else {
                self.index as u32
            });
            if !connections.contains_key(&serial) {
                break serial;
            }
        };
        let handle = Rc::new(Handle::default());
        connections.insert(serial, handle.clone());
        Open {
            worker: self.clone(),
            handle,
            serial,
            address,
        }
    }
}

/// An established connection.
pub struct Opened {
    pub http: h2::server::Connection<Guard, bytes::Bytes>,
    pub watch: Rc<super::guard::Watch>,
    pub peer: Peer,
}

/// An accepted connection's entry in all tables; dropping it removes them.
struct Open {
    worker: Rc<Worker>,
    handle: Rc<Handle>,
    serial: u32,
    address: Option<IpAddr>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker
                .shared
                .stats
                .panics
                .fetch_add(1, Ordering::Relaxed);
        }
        self.worker.connections.borrow_mut().remove(&self.serial);
        lock(&self.worker.shared.admission).left(self.address);
        self.worker.check_drained();
    }
}
