//! One established connection: its calls, its timers and its end. A single task does everything, so nothing here is locked.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::request::Parts;
use http::{Method, Request, StatusCode};
use tokio::time::Sleep;

use super::call::{
    refuse, refuse_http, Call, Common, Head, BUFFERS_FULL, INTERNAL, RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
};
use super::guard::Guard;
use super::metadata;
use super::shared::{lock, Charge, Ended};
use super::taken::Taking;
use super::worker::{Handle, Opened, Worker};

/// How often one poll of the task repeats its work before other tasks have their turn.
const ROUNDS: usize = 4;
/// How much output one round passes to HTTP/2 before it is flushed.
const ROUND_BYTES: usize = 256 << 10;
/// What an open call costs besides its metadata.
const CALL_BYTES: usize = 1024;
const LONGEST_SLEEP: Duration = Duration::from_secs(86_400);

/// Which parts of the connection are to be polled. The wakers of all calls and of HTTP/2 note their part here and wake the task, unless
/// the task runs: then it looks here before it ends its turn.
#[derive(Default)]
struct Ready {
    calls: Mutex<Vec<u32>>,
    http: AtomicBool,
    running: AtomicBool,
    task: Mutex<Option<Waker>>,
}

struct CallWaker {
    ready: Arc<Ready>,
    stream: u32,
    noted: AtomicBool,
}

struct HttpWaker(Arc<Ready>);

impl Ready {
    fn wake_task(&self) {
        if !self.running.load(Relaxed) {
            if let Some(task) = &*lock(&self.task) {
                task.wake_by_ref();
            }
        }
    }

    fn begin(&self, waker: &Waker) {
        self.running.store(true, Relaxed);
        let mut task = lock(&self.task);
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    fn any(&self) -> bool {
        self.http.load(Relaxed) || !lock(&self.calls).is_empty()
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.noted.swap(true, Relaxed) {
            lock(&self.ready.calls).push(self.stream);
            self.ready.wake_task();
        }
    }
}

impl Wake for HttpWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.0.http.swap(true, Relaxed) {
            self.0.wake_task();
        }
    }
}

pub struct Connection {
    http: h2::server::Connection<Guard, Bytes>,
    handle: Rc<Handle>,
    common: Common,
    calls: HashMap<u32, (Call, Arc<CallWaker>)>,
    ready: Arc<Ready>,
    http_waker: Waker,
    ping_sent: Option<Instant>,
    drain_begun: bool,
    reading: Reading,
    sleep: Pin<Box<Sleep>>,
}

/// Whether the client takes its answers.
#[derive(Default)]
struct Reading {
    taken: u64,
    /// Since when answers wait of which the client has taken nothing.
    since: Option<Instant>,
}

impl Reading {
    /// When to look again, if something waits; fails if the client took nothing for so long. `taken`: see `Watch`.
    fn look(
        &mut self,
        now: Instant,
        unsent: usize,
        taken: u64,
        patience: Duration,
    ) -> Result<Option<Instant>, ()> {
        if unsent == 0 {
            self.since = None;
            return Ok(None);
        }
        if self.since.is_none() || taken != self.taken {
            self.taken = taken;
            self.since = Some(now);
        }
        let until = self.since.map_or(now, |since| since + patience);
        if now >= until {
            Err(())
        } else {
            Ok(Some(until))
        }
    }
}

/// The answer to a call that does not begin.
enum Refusal {
    Http(StatusCode),
    Grpc(u32, String),
}

/// Why the connection ends, if the reason is to be counted.
type Over = Option<(&'static str, String)>;

impl Connection {
    pub fn new(worker: Rc<Worker>, handle: Rc<Handle>, serial: u32, opened: Opened) -> Self {
        let Opened {
            mut http,
            watch,
            peer,
        } = opened;
        let ready = Arc::new(Ready::default());
        let taking = Taking::new(http.ping_pong());
        Connection {
            http,
            handle,
            common: Common {
                shared: worker.shared.clone(),
                max_unsent: if peer.is_unix() {
                    usize::MAX
                } else {
                    worker.shared.limits.max_unsent
                },
                worker,
                peer: Arc::new(peer),
                watch,
                serial,
                timers: BTreeSet::new(),
                allowance: 0,
                stalled: Vec::new(),
                handed_over: Vec::new(),
                taking,
                account: Arc::default(),
                ended: Vec::new(),
                held: VecDeque::new(),
            },
            calls: HashMap::new(),
            http_waker: Arc::new(HttpWaker(ready.clone())).into(),
            ready,
            ping_sent: None,
            drain_begun: false,
            reading: Reading::default(),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn rounds(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        for _ in 0..ROUNDS {
            self.common.allowance = ROUND_BYTES;
            self.apply_answers();
            self.poll_calls();
            let now = Instant::now();
            let next = match self.expire(now) {
                Ok(next) => next,
                Err(over) => return Poll::Ready(Some(over)),
            };
            if let Poll::Ready(over) = self.poll_http() {
                return Poll::Ready(over);
            }
            self.let_in();
            let unblocked = !self.common.stalled.is_empty() && !self.common.watch.blocked.get();
            if !unblocked && !self.ready.any() && self.handle.answers.borrow().is_empty() {
                self.sleep_until(next, now, cx);
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn apply_answers(&mut self) {
        for answer in self.handle.answers.take() {
            let stream = answer.call as u32;
            // An answer may cross the end of its call.
            if let Some((call, _)) = self.calls.get_mut(&stream) {
                if call.apply(&mut self.common, answer.body) {
                    self.calls.remove(&stream);
                }
            }
        }
    }

    fn poll_calls(&mut self) {
        if !self.common.watch.blocked.get() {
            for stream in std::mem::take(&mut self.common.stalled) {
                if let Some((call, _)) = self.calls.get_mut(&stream) {
                    call.unstalled();
                }
                self.poll_call(stream);
            }
        }
        let woken = std::mem::take(&mut *lock(&self.ready.calls));
        for stream in woken {
            if let Some((_, waker)) = self.calls.get(&stream) {
                waker.noted.store(false, Relaxed);
            }
            self.poll_call(stream);
        }
    }

    fn poll_call(&mut self, stream: u32) {
        if let Some((call, _)) = self.calls.get_mut(&stream) {
            if call.poll(&mut self.common) {
                self.calls.remove(&stream);
            }
        }
    }

    /// Read and write frames until there is nothing more to do.
    fn poll_http(&mut self) -> Poll<Over> {
        let polled = self.poll_frames();
        self.settle_taken();
        polled
    }

    fn poll_frames(&mut self) -> Poll<Over> {
        let waker = self.http_waker.clone();
        let mut cx = Context::from_waker(&waker);
        self.ready.http.store(false, Relaxed);
        loop {
            match self.http.poll_accept(&mut cx) {
                Poll::Pending => {
                    self.settle();
                    return Poll::Pending;
                }
                // While a call is here, this comes only if the client has closed the connection. HTTP/2 has dropped what it still had to send.
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Ok((request, respond)))) => {
                    if let Err(over) = self.accept(request, respond) {
                        return Poll::Ready(Some(over));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let over = match self.common.watch.flood.get() {
                        Some(flood) => Some((flood.reason, flood.words.to_owned())),
                        // The socket failed, or the client said goodbye.
                        None if error.is_io() || error.is_remote() => None,
                        None => Some(("protocol", format!("HTTP/2: {error}"))),
                    };
                    return Poll::Ready(over);
                }
            }
        }
    }

    /// End the calls whose answers the socket has taken.
    fn settle(&mut self) {
        if self.common.watch.blocked.get() {
            return;
        }
        self.common.ended.clear();
        for stream in std::mem::take(&mut self.common.handed_over) {
            if let Some((call, _)) = self.calls.get_mut(&stream) {
                if call.flushed(&mut self.common) {
                    self.calls.remove(&stream);
                }
            }
        }
    }

    /// End the calls whose answers the client has taken, after those that it reset before.
    fn settle_taken(&mut self) {
        for stream in self.common.watch.resets.take() {
            if let Some((call, _)) = self.calls.get_mut(&stream) {
                if call.was_reset(&mut self.common) {
                    self.calls.remove(&stream);
                }
            }
        }
        for stream in self.common.taking.poll() {
            if let Some((mut call, _)) = self.calls.remove(&stream) {
                call.taken(&mut self.common);
            }
        }
        let open = |stream: &u32| self.calls.contains_key(stream);
        self.common.taking.forget_ended(self.calls.len(), open);
    }

    /// Tell Python of held calls, if the client has taken enough.
    fn let_in(&mut self) {
        if self.common.account.unsent() == 0 {
            self.reading.since = None;
        }
        while let Some(stream) = self.common.next_held() {
            if let Some((call, _)) = self.calls.get_mut(&stream) {
                call.let_in(&self.common);
            }
        }
    }

    /// Begin a call. Fails if the connection is over: the budget is full, and the client does not even take a refusal.
    fn accept(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<(), (&'static str, String)> {
        let (head, body) = request.into_parts();
        let size: usize = head
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        let Some(overhead) = Charge::new(&self.common.shared, CALL_BYTES + size) else {
            self.common.shared.refused_call("buffers");
            if self.common.watch.blocked.get() {
                return Err((
                    "stalled",
                    format!("{BUFFERS_FULL}, and it takes no answers"),
                ));
            }
            refuse(&mut respond, RESOURCE_EXHAUSTED, BUFFERS_FULL);
            return Ok(());
        };
        match self.checked(head, overhead) {
            Ok(head) => self.begin(head, body, respond),
            Err((refusal, overhead)) => {
                self.common.keep_until_sent(overhead);
                match refusal {
                    Refusal::Http(status) => refuse_http(&mut respond, status),
                    Refusal::Grpc(status, text) => refuse(&mut respond, status, &text),
                }
            }
        }
        Ok(())
    }

    /// The head of a call, or why it is refused.
    fn checked(&self, head: Parts, overhead: Charge) -> Result<Head, (Refusal, Charge)> {
        let refused = |status, text: &str| Refusal::Grpc(status, text.to_owned());
        if head.method != Method::POST {
            return Err((Refusal::Http(StatusCode::METHOD_NOT_ALLOWED), overhead));
        }
        if !metadata::is_grpc(head.headers.get(http::header::CONTENT_TYPE)) {
            return Err((Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE), overhead));
        }
        let shared = &self.common.shared;
        let Some(method) = shared.method(head.uri.path()) else {
            shared.stats.calls_unknown.fetch_add(1, Relaxed);
            return Err((refused(UNIMPLEMENTED, "Method not found!"), overhead));
        };
        let deadline = match head.headers.get("grpc-timeout").map(metadata::timeout) {
            None => None,
            Some(Some(left)) => Instant::now().checked_add(left),
            Some(None) => return Err((refused(INTERNAL, "grpc-timeout cannot be read"), overhead)),
        };
        let Some(encoding) = metadata::encoding(head.headers.get("grpc-encoding")) else {
            let text = "the encoding of the requests is not supported";
            return Err((refused(UNIMPLEMENTED, text), overhead));
        };
        match metadata::received(head.headers) {
            Err(text) => Err((Refusal::Grpc(INTERNAL, text), overhead)),
            Ok(metadata) => Ok(Head {
                method,
                metadata,
                deadline,
                encoding,
                overhead,
            }),
        }
    }

    fn begin(&mut self, head: Head, body: RecvStream, respond: SendResponse<Bytes>) {
        let stream = respond.stream_id().as_u32();
        let waker = Arc::new(CallWaker {
            ready: self.ready.clone(),
            stream,
            noted: AtomicBool::new(false),
        });
        let mut call = Call::new(&mut self.common, head, waker.clone().into(), body, respond);
        if !call.poll(&mut self.common) {
            self.calls.insert(stream, (call, waker));
        }
    }

    /// End what is due. Returns the next time of the connection itself; those of its calls are in the timers. Fails if the connection is over.
    fn expire(&mut self, now: Instant) -> Result<Instant, (&'static str, String)> {
        while let Some(&(at, stream)) = self.common.timers.first() {
            if at > now {
                break;
            }
            self.common.timers.pop_first();
            if let Some((mut call, _)) = self.calls.remove(&stream) {
                call.timed_out(&mut self.common);
            }
        }
        // A call that ended is reset first: the connection ends if not even that helps.
        let patience = self.common.shared.limits.unread_answer;
        let (unsent, taken) = (self.common.account.unsent(), self.common.watch.taken.get());
        let Ok(read_by) = self.reading.look(now, unsent, taken, patience) else {
            let words = format!(
                "it took nothing of its answers for {} s",
                patience.as_secs()
            );
            return Err(("stalled", words));
        };
        let Ok(next) = self.keep_alive(now) else {
            return Err(("keepalive", "it did not answer a ping".to_owned()));
        };
        let next = read_by.map_or(next, |read_by| next.min(read_by));
        let Some(until) = self.common.worker.drain_until.get() else {
            return Ok(next);
        };
        if !self.drain_begun {
            self.drain_begun = true;
            self.http.graceful_shutdown();
        }
        if now >= until {
            self.cut();
            return Err((
                "drained",
                "it was still open at the end of the shutdown".to_owned(),
            ));
        }
        Ok(next.min(until))
    }

    /// Wake the task at this time, or at that of the first timer. A sleep that ends too early is kept: setting it again costs more.
    fn sleep_until(&mut self, mut next: Instant, now: Instant, cx: &mut Context<'_>) {
        if let Some(&(at, _)) = self.common.timers.first() {
            next = next.min(at);
        }
        let armed = self.sleep.deadline().into_std();
        if next < armed || armed <= now {
            self.sleep.as_mut().reset(next.into());
            if self.sleep.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }

    /// Ping a silent client. Returns when to look again; fails if the client did not answer.
    fn keep_alive(&mut self, now: Instant) -> Result<Instant, ()> {
        let limits = &self.common.shared.limits;
        if limits.keepalive.is_zero() {
            return Ok(now + LONGEST_SLEEP);
        }
        let heard = self.common.watch.heard.get();
        if self.ping_sent.is_some_and(|sent| heard > sent) {
            self.ping_sent = None;
        }
        if let Some(sent) = self.ping_sent {
            let until = sent + limits.keepalive_timeout;
            return if now >= until {
                Err(())
            } else {
                // Its answer wakes nothing, and the next ping may be due sooner.
                Ok(until.min(now + limits.keepalive))
            };
        }
        if now < heard + limits.keepalive {
            return Ok(heard + limits.keepalive);
        }
        self.common.taking.ping();
        self.ping_sent = Some(now);
        Ok(now + limits.keepalive_timeout.min(limits.keepalive))
    }

    /// End all calls, and send what can be sent without waiting.
    fn cut(&mut self) {
        for (_, (mut call, _)) in self.calls.drain() {
            call.abandon(&mut self.common, Ended::Drained);
        }
        let mut cx = Context::from_waker(&self.http_waker);
        while let Poll::Ready(Some(Ok((_, mut respond)))) = self.http.poll_accept(&mut cx) {
            refuse(
                &mut respond,
                super::call::UNAVAILABLE,
                "the server is shutting down",
            );
        }
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.handle.register(cx.waker());
        this.ready.begin(cx.waker());
        let polled = this.rounds(cx);
        this.common.watch.calls.set(this.calls.len());
        this.ready.running.store(false, Relaxed);
        polled.map(|over| {
            if let Some((reason, words)) = over {
                this.common
                    .worker
                    .refuse(reason, &this.common.peer.address, &words);
            }
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for (_, (mut call, _)) in self.calls.drain() {
            call.abandon(&mut self.common, Ended::Connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_ends_a_minute_after_the_last_byte_that_it_took() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut reading = Reading::default();
        assert_eq!(reading.look(at(0), 10, 0, MINUTE), Ok(Some(at(60))));
        assert_eq!(reading.look(at(59), 10, 1, MINUTE), Ok(Some(at(119))));
        assert_eq!(reading.look(at(118), 500, 1, MINUTE), Ok(Some(at(119))));
        assert_eq!(reading.look(at(119), 500, 1, MINUTE), Err(()));
    }

    #[test]
    fn an_idle_connection_does_not_end() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut reading = Reading::default();
        assert_eq!(reading.look(at(0), 10, 5, MINUTE), Ok(Some(at(60))));
        assert_eq!(reading.look(at(1), 0, 5, MINUTE), Ok(None));
        assert_eq!(reading.look(at(3600), 0, 5, MINUTE), Ok(None));
        // The minute begins with the answer that waits, not with the last one that was taken.
        assert_eq!(reading.look(at(3600), 10, 5, MINUTE), Ok(Some(at(3660))));
    }
}
