//! One call: a stream of HTTP/2 with gRPC's messages, deadline and status.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE};
use http::{Response, StatusCode};

use super::guard::Watch;
use super::metadata::{self, Encoding, Given, Metadata};
use super::shared::{
    Account, Charge, Ended, Event, Framed, Message, Method, NewCall, Shared, Writer,
};
use super::taken::{self, Taking};
use super::tls::Peer;
use super::worker::Worker;

pub const DEADLINE_EXCEEDED: u32 = 4;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;
pub const BUFFERS_FULL: &str = "the buffers of this server are full";
const PREFIX: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// An answer of Python's.
pub struct Answer {
    pub call: u64,
    pub body: Body,
}

pub enum Body {
    Finish {
        status: u32,
        details: String,
        trailing: Given,
        message: Option<Framed>,
        /// Python wants to know whether the socket took the whole answer.
        tell: bool,
        /// Python wants to know whether the client took it, which is more (`taken.rs`). Then `tell` is set, too.
        taken: bool,
    },
    Initial(Given),
    /// A message with its prefix.
    Send(Framed),
    Read(usize),
    /// The answer did not fit into the budget of buffered bytes. Whether Python has ended the call with it.
    TooMuch {
        finished: bool,
    },
}

/// What the calls of a connection share.
pub struct Common {
    pub shared: Arc<Shared>,
    pub worker: Rc<Worker>,
    pub peer: Arc<Peer>,
    pub watch: Rc<Watch>,
    pub serial: u32,
    pub timers: BTreeSet<(Instant, u32)>,
    /// How many bytes may be passed to HTTP/2 before it is flushed next. Together with `Watch::blocked` it bounds what the HTTP/2 library
    /// buffers for a client that does not read its socket.
    pub allowance: usize,
    /// Calls with output that wait for the allowance or the socket.
    pub stalled: Vec<u32>,
    /// Calls whose answers HTTP/2 has, and of which Python wants to know whether the socket took them.
    pub handed_over: Vec<u32>,
    pub taking: Taking,
    pub account: Arc<Account>,
    /// Other workers of the node, which come over Unix sockets, bring the calls of many clients and have no limit.
    pub max_unsent: usize,
    /// What calls that have ended still cost, until the socket has taken all that HTTP/2 had: up to then it keeps their streams.
    pub ended: Vec<Charge>,
    /// Calls of which Python is not told before the client has taken enough of the answers to others.
    pub held: VecDeque<u32>,
}

impl Common {
    /// What an ended call costs until the socket has taken its answer.
    pub fn keep_until_sent(&mut self, mut overhead: Charge) {
        overhead.unsent_by(&self.account);
        self.ended.push(overhead);
    }

    /// Whether the client must take answers before it gets others.
    fn is_full(&self) -> bool {
        self.account.unsent() > self.max_unsent
    }

    /// A held call that Python may be told of now. Half of the answers must be taken before, so that a client is not let in by single calls.
    pub fn next_held(&mut self) -> Option<u32> {
        if self.account.unsent() > self.max_unsent / 2 {
            return None;
        }
        self.held.pop_front()
    }
}

/// Why a call is over.
enum End {
    /// HTTP/2 has everything of Python's answer, and the socket or the client too if Python wants to know.
    Answered,
    Lost(Ended),
    /// The front answers with this status.
    Refused(u32, String, Ended),
    /// Python has finished, but its answer cannot be delivered.
    Undelivered(Ended),
}

type Step = Result<(), End>;

struct Finish {
    status: u32,
    details: String,
    trailing: Given,
}

pub struct Call {
    stream: u32,
    id: u64,
    method: Arc<Method>,
    waker: Waker,
    timer: Option<Instant>,
    encoding: Encoding,
    overhead: Option<Charge>,
    /// What Python is told with CALL; None once it was told.
    news: Option<Metadata>,
    deadline: Option<Instant>,
    // -- requests
    body: RecvStream,
    input: BytesMut,
    input_charge: Charge,
    unreleased: usize,
    credit: usize,
    all_received: bool,
    half_closed: bool,
    held_request: Option<Message>,
    /// The request of a method with one request, until Python has ended the call.
    request_charge: Option<Charge>,
    // -- responses
    respond: SendResponse<Bytes>,
    sending: Option<SendStream<Bytes>>,
    output: VecDeque<Bytes>,
    within_message: bool,
    is_stalled: bool,
    initial: Option<Given>,
    /// Python has ended the call.
    finished: bool,
    /// The end that Python gave, until HTTP/2 has it.
    finish: Option<Finish>,
    /// Python wants to know whether the socket took the whole answer.
    tell: bool,
    /// The bytes of all messages of the answer.
    answer_bytes: usize,
    /// Python wants to know whether the client took the whole answer, and keeps it until then: it counts as buffered for as long.
    kept: Option<Charge>,
    /// Why the call is over when its timer ends and Python has finished.
    overdue: Ended,
    writer: Option<Arc<Writer>>,
}

/// The head of a call that passed all checks.
pub struct Head {
    pub method: Arc<Method>,
    pub metadata: Metadata,
    pub deadline: Option<Instant>,
    pub encoding: Encoding,
    pub overhead: Charge,
}

impl Call {
    pub fn new(
        common: &mut Common,
        head: Head,
        waker: Waker,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> Call {
        let stream = respond.stream_id().as_u32();
        if let Some(deadline) = head.deadline {
            common.timers.insert((deadline, stream));
        }
        common.shared.stats.calls.fetch_add(1, Relaxed);
        common.shared.stats.calls_total.fetch_add(1, Relaxed);
        let mut overhead = head.overhead;
        let input_charge = overhead.split(0);
        let mut call = Call {
            stream,
            id: u64::from(common.serial) << 32 | u64::from(stream),
            waker,
            timer: head.deadline,
            encoding: head.encoding,
            overhead: Some(overhead),
            news: Some(head.metadata),
            deadline: head.deadline,
            body,
            input: BytesMut::new(),
            input_charge,
            unreleased: 0,
            credit: 0,
            all_received: false,
            half_closed: false,
            held_request: None,
            request_charge: None,
            respond,
            sending: None,
            output: VecDeque::new(),
            within_message: false,
            is_stalled: false,
            initial: None,
            finished: false,
            finish: None,
            tell: false,
            answer_bytes: 0,
            kept: None,
            overdue: Ended::Unread,
            writer: head.method.response_streaming.then(Arc::default),
            method: head.method,
        };
        if call.method.request_streaming {
            call.announce(common, None);
        }
        call
    }

    /// Advance the call as far as possible. Returns whether it is over.
    #[must_use]
    pub fn poll(&mut self, common: &mut Common) -> bool {
        let step = self.advance(common);
        self.ended(common, step)
    }

    /// Apply an answer. Returns whether the call is over.
    #[must_use]
    pub fn apply(&mut self, common: &mut Common, body: Body) -> bool {
        let step = self.applied(common, body);
        self.ended(common, step)
    }

    /// The time for which the call has a timer has come. The call is over.
    pub fn timed_out(&mut self, common: &mut Common) {
        let end = if self.finished {
            if self.overdue == Ended::Unread {
                common.shared.refused_call("unread");
            }
            End::Undelivered(self.overdue)
        } else {
            End::Refused(
                DEADLINE_EXCEEDED,
                "Deadline Exceeded".to_owned(),
                Ended::Deadline,
            )
        };
        let _over = self.ended(common, Err(end));
    }

    /// End the call because its connection ends.
    pub fn abandon(&mut self, common: &mut Common, reason: Ended) {
        let end = if self.finished {
            End::Undelivered(reason)
        } else if reason == Ended::Drained {
            End::Refused(
                UNAVAILABLE,
                "the server is shutting down".to_owned(),
                reason,
            )
        } else {
            End::Lost(reason)
        };
        let _over = self.ended(common, Err(end));
    }

    /// The socket has everything that HTTP/2 had: the answer was delivered, unless the client has cancelled the call. Returns whether the call
    /// is over.
    #[must_use]
    pub fn flushed(&mut self, common: &mut Common) -> bool {
        let step = self.advance(common);
        if step.is_ok() && self.kept.is_some() {
            common.taking.sent(self.stream);
            return false;
        }
        self.ended(common, step.and(Err(End::Answered)))
    }

    /// The client has acknowledged a ping behind the answer. In time it has taken the answer. The call is over.
    pub fn taken(&mut self, common: &mut Common) {
        if self.timer.is_some_and(|timer| timer <= Instant::now()) {
            return self.timed_out(common);
        }
        let _over = self.ended(common, Err(End::Answered));
    }

    /// The client has reset the stream. HTTP/2 reports no reset of a stream that both sides have ended, although the client may have given up
    /// before the end reached it. Returns whether the call is over.
    #[must_use]
    pub fn was_reset(&mut self, common: &mut Common) -> bool {
        let waits = self.kept.is_some();
        waits && self.ended(common, Err(End::Lost(Ended::Reset)))
    }

    /// Stop waiting for the allowance: `Common::stalled` no longer has this call.
    pub fn unstalled(&mut self) {
        self.is_stalled = false;
    }

    fn ended(&mut self, common: &mut Common, step: Step) -> bool {
        let Err(end) = step else {
            return false;
        };
        let told = match end {
            End::Answered => {
                if self.tell {
                    common.worker.emit(Event::Sent(self.id));
                }
                None
            }
            End::Lost(reason) => Some(reason),
            End::Undelivered(reason) => {
                self.reset(Reason::CANCEL);
                Some(reason)
            }
            End::Refused(status, text, reason) => {
                self.answer_refusal(status, text);
                Some(reason)
            }
        };
        if let Some(reason) = told {
            if self.news.is_none() && (self.tell || !self.finished) {
                common.worker.emit(Event::Cancelled(self.id, reason));
            }
        }
        if let Some(timer) = self.timer.take() {
            common.timers.remove(&(timer, self.stream));
        }
        common.shared.stats.calls.fetch_sub(1, Relaxed);
        if let Some(overhead) = self.overhead.take() {
            common.keep_until_sent(overhead);
        }
        true
    }

    fn advance(&mut self, common: &mut Common) -> Step {
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        self.receive(common, &mut cx)?;
        self.deliver(common)?;
        self.send(common, &mut cx)?;
        let reset = match &mut self.sending {
            Some(sending) => sending.poll_reset(&mut cx),
            None => self.respond.poll_reset(&mut cx),
        };
        match reset {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(_)) => Err(End::Lost(Ended::Reset)),
            Poll::Ready(Err(_)) => Err(End::Lost(Ended::Connection)),
        }
    }

    // -- requests

    fn receive(&mut self, common: &Common, cx: &mut Context<'_>) -> Step {
        while !self.all_received {
            match self.body.poll_data(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.all_received = true,
                Poll::Ready(Some(Ok(chunk))) => {
                    if !self.input_charge.grow(chunk.len()) {
                        return Err(buffers_full(common));
                    }
                    self.input.extend_from_slice(&chunk);
                    self.unreleased += chunk.len();
                    self.check_size(common)?;
                    if !self.method.request_streaming {
                        self.check_unary()?;
                        self.release(usize::MAX);
                    }
                    // Spares a poll: the last frame says that it is the last.
                    self.all_received = self.body.is_end_stream();
                }
                Poll::Ready(Some(Err(error))) => {
                    let connection = error.is_io() || error.is_go_away();
                    return Err(End::Lost(if connection {
                        Ended::Connection
                    } else {
                        Ended::Reset
                    }));
                }
            }
        }
        Ok(())
    }

    /// Let the client send as much again as it has sent, at most `bytes`.
    fn release(&mut self, bytes: usize) {
        let released = bytes.min(self.unreleased);
        self.unreleased -= released;
        if released > 0 {
            // Fails only after a stream error, which the next poll reports.
            let _ = self.body.flow_control().release_capacity(released);
        }
    }

    /// The length of the message at the front of the input, if its prefix is there.
    fn announced_length(&self) -> Option<usize> {
        let prefix = self.input.first_chunk::<PREFIX>()?;
        Some(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize)
    }

    fn check_size(&self, common: &Common) -> Step {
        match self.announced_length() {
            Some(length) if length > common.shared.limits.max_message => {
                Err(too_large(common, &length.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A method with one request takes no byte behind it: whoever sends more must not fill the buffers with it.
    fn check_unary(&self) -> Step {
        match self.announced_length() {
            Some(length) if self.input.len() > PREFIX + length => {
                Err(malformed("the method takes one request"))
            }
            _ => Ok(()),
        }
    }

    /// Pass on what has arrived whole, as far as Python asked for it.
    fn deliver(&mut self, common: &mut Common) -> Step {
        if !self.method.request_streaming {
            return self.deliver_unary(common);
        }
        while self.credit > 0 {
            self.check_size(common)?;
            match self.announced_length() {
                Some(length) if self.input.len() >= PREFIX + length => {
                    let message = self.next_message(common, length)?;
                    self.release(PREFIX + length);
                    self.credit -= 1;
                    common.worker.emit(Event::Message(self.id, message));
                }
                _ => {
                    // The rest of the message that Python waits for must be able to arrive.
                    self.release(usize::MAX);
                    break;
                }
            }
        }
        if self.all_received && !self.half_closed {
            if self.input.is_empty() {
                self.half_closed = true;
                common.worker.emit(Event::HalfClosed(self.id));
            } else if self
                .announced_length()
                .is_none_or(|length| self.input.len() < PREFIX + length)
            {
                return Err(malformed("the last request of the stream is incomplete"));
            }
        }
        Ok(())
    }

    fn deliver_unary(&mut self, common: &mut Common) -> Step {
        if !self.all_received || self.half_closed {
            return Ok(());
        }
        let Some(length) = self.announced_length() else {
            return Err(malformed("the client ended the call without a request"));
        };
        if self.input.len() < PREFIX + length {
            return Err(malformed("the request is incomplete"));
        }
        let mut message = self.next_message(common, length)?;
        self.request_charge = message.charge.take();
        self.half_closed = true;
        self.announce(common, Some(message));
        Ok(())
    }

    fn next_message(&mut self, common: &Common, length: usize) -> Result<Message, End> {
        let compressed = self.input[0];
        self.input.advance(PREFIX);
        let bytes = self.input.split_to(length).freeze();
        self.input_charge.shrink(PREFIX);
        let mut charge = self.input_charge.split(length);
        match compressed {
            0 => Ok(Message {
                bytes,
                charge: Some(charge),
            }),
            1 => {
                let limit = common.shared.limits.max_message;
                let mut plain = Vec::new();
                let read =
                    match self.encoding {
                        Encoding::Identity => return Err(malformed(
                            "a request is marked as compressed, but the call has no grpc-encoding",
                        )),
                        Encoding::Gzip => MultiGzDecoder::new(&bytes[..])
                            .take(limit as u64 + 1)
                            .read_to_end(&mut plain),
                        Encoding::Deflate => ZlibDecoder::new(&bytes[..])
                            .take(limit as u64 + 1)
                            .read_to_end(&mut plain),
                    };
                if read.is_err() {
                    return Err(malformed("a request cannot be decompressed"));
                }
                if plain.len() > limit {
                    return Err(too_large(common, "more"));
                }
                if !charge.grow(plain.len().saturating_sub(length)) {
                    return Err(buffers_full(common));
                }
                Ok(Message {
                    bytes: plain.into(),
                    charge: Some(charge),
                })
            }
            _ => Err(malformed("the prefix of a request has an unknown flag")),
        }
    }

    /// Tell Python of the call, now or when the client has taken more of its answers.
    fn announce(&mut self, common: &mut Common, message: Option<Message>) {
        if common.is_full() {
            self.held_request = message;
            common.held.push_back(self.stream);
        } else {
            self.emit_call(common, message);
        }
    }

    /// Tell Python of a call that was held.
    pub fn let_in(&mut self, common: &Common) {
        let message = self.held_request.take();
        self.emit_call(common, message);
    }

    fn emit_call(&mut self, common: &Common, message: Option<Message>) {
        if let Some(metadata) = self.news.take() {
            common.worker.emit(Event::Call(Box::new(NewCall {
                id: self.id,
                method: self.method.clone(),
                metadata,
                deadline: self.deadline,
                peer: common.peer.clone(),
                message,
                writer: self.writer.clone(),
            })));
        }
    }

    // -- responses

    fn applied(&mut self, common: &mut Common, body: Body) -> Step {
        if self.finished {
            return Ok(());
        }
        match body {
            Body::Finish {
                status,
                details,
                trailing,
                message,
                tell,
                taken,
            } => {
                self.finished = true;
                self.request_charge = None;
                self.tell = tell;
                if taken {
                    self.kept = Charge::new(&common.shared, self.answer_bytes);
                    if self.kept.is_none() {
                        return Err(buffers_full(common));
                    }
                }
                if let Some(message) = message {
                    self.output.push_back(message.sent_by(&common.account));
                }
                self.finish = Some(Finish {
                    status,
                    details,
                    trailing,
                });
            }
            Body::Initial(given) => {
                if self.sending.is_none() {
                    self.initial = Some(given);
                    self.send_headers(common)?;
                }
            }
            Body::Send(message) => {
                self.answer_bytes += message.len();
                self.output.push_back(message.sent_by(&common.account));
            }
            Body::Read(count) => {
                self.credit = self.credit.saturating_add(count);
                // Everything else that an answer can change happens in `advance`, too; most answers end the call and do not need it.
                return self.advance(common);
            }
            Body::TooMuch { finished } => {
                self.finished = finished;
                return Err(buffers_full(common));
            }
        }
        let waker = self.waker.clone();
        self.send(common, &mut Context::from_waker(&waker))?;
        if self.finished {
            self.time_unread_answer(common);
        }
        Ok(())
    }

    /// From now on the timer is about the client's reading of the answer.
    fn time_unread_answer(&mut self, common: &mut Common) {
        if let Some(timer) = self.timer.take() {
            common.timers.remove(&(timer, self.stream));
        }
        let now = Instant::now();
        let mut timer = now + common.shared.limits.unread_answer;
        if let (Some(_), Some(deadline)) = (&self.kept, self.deadline) {
            let last = taken::latest(now, deadline);
            if last < timer {
                (timer, self.overdue) = (last, Ended::Deadline);
            }
        }
        common.timers.insert((timer, self.stream));
        self.timer = Some(timer);
    }

    fn send(&mut self, common: &mut Common, cx: &mut Context<'_>) -> Step {
        while let Some(chunk) = self.output.front_mut() {
            if common.allowance == 0 || common.watch.blocked.get() {
                if !self.is_stalled {
                    self.is_stalled = true;
                    common.stalled.push(self.stream);
                }
                return Ok(());
            }
            let Some(sending) = &mut self.sending else {
                self.send_headers(common)?;
                continue;
            };
            sending.reserve_capacity(chunk.len());
            let mut capacity = sending.capacity();
            if capacity == 0 {
                capacity = match sending.poll_capacity(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(Ok(capacity))) => capacity,
                    Poll::Ready(Some(Err(_)) | None) => return Err(End::Lost(Ended::Reset)),
                };
            }
            let size = chunk.len().min(capacity).min(common.allowance);
            if sending.send_data(chunk.split_to(size), false).is_err() {
                return Err(End::Lost(Ended::Reset));
            }
            common.allowance -= size;
            self.within_message = !chunk.is_empty();
            if chunk.is_empty() {
                self.output.pop_front();
            }
            self.sent(common, size);
        }
        match self.finish.take() {
            None => Ok(()),
            Some(finish) => {
                self.send_finish(common, finish);
                if !self.tell {
                    return Err(End::Answered);
                }
                common.handed_over.push(self.stream);
                Ok(())
            }
        }
    }

    fn sent(&self, common: &Common, size: usize) {
        let Some(writer) = &self.writer else {
            return;
        };
        let unsent = writer.unsent.fetch_sub(size, Relaxed) - size;
        if unsent <= common.shared.limits.stream_send / 2
            && writer.reported_full.swap(false, Relaxed)
            && !self.finished
        {
            common.worker.emit(Event::Writable(self.id));
        }
    }

    fn send_headers(&mut self, common: &Common) -> Step {
        let mut response = Response::new(());
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        if let Some(given) = self.initial.take() {
            if !metadata::add(response.headers_mut(), given) {
                return Err(self.bad_answer(common));
            }
        }
        match self.respond.send_response(response, false) {
            Ok(sending) => {
                self.sending = Some(sending);
                Ok(())
            }
            Err(_) => Err(End::Lost(Ended::Reset)),
        }
    }

    fn bad_answer(&mut self, common: &Common) -> End {
        common.shared.stats.bad_answers.fetch_add(1, Relaxed);
        End::Refused(
            INTERNAL,
            "the metadata of the answer cannot be sent".to_owned(),
            Ended::Protocol,
        )
    }

    fn send_finish(&mut self, common: &Common, finish: Finish) {
        let mut trailers = status_headers(finish.status, &finish.details);
        if !metadata::add(&mut trailers, finish.trailing) {
            common.shared.stats.bad_answers.fetch_add(1, Relaxed);
            trailers = status_headers(INTERNAL, "the metadata of the answer cannot be sent");
        }
        // An error means that the client has reset the stream meanwhile. If Python waits for that news, the next poll has it.
        match &mut self.sending {
            Some(sending) => drop(sending.send_trailers(trailers)),
            None => drop(self.respond.send_response(trailers_only(trailers), true)),
        }
    }

    /// Answer with a status of the front's own. A message that was sent in part cannot be followed by one.
    fn answer_refusal(&mut self, status: u32, text: String) {
        if self.within_message {
            return self.reset(Reason::CANCEL);
        }
        let trailers = status_headers(status, &text);
        match &mut self.sending {
            Some(sending) => drop(sending.send_trailers(trailers)),
            None => drop(self.respond.send_response(trailers_only(trailers), true)),
        }
    }

    fn reset(&mut self, reason: Reason) {
        match &mut self.sending {
            Some(sending) => sending.send_reset(reason),
            None => self.respond.send_reset(reason),
        }
    }
}

fn malformed(text: &str) -> End {
    End::Refused(INTERNAL, text.to_owned(), Ended::Protocol)
}

fn buffers_full(common: &Common) -> End {
    common.shared.refused_call("buffers");
    End::Refused(RESOURCE_EXHAUSTED, BUFFERS_FULL.to_owned(), Ended::Buffers)
}

fn too_large(common: &Common, length: &str) -> End {
    common.shared.refused_call("too-large");
    let limit = common.shared.limits.max_message;
    let text = format!("Received message larger than max ({length} vs. {limit})");
    End::Refused(RESOURCE_EXHAUSTED, text, Ended::TooLarge)
}

fn status_headers(status: u32, details: &str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(GRPC_STATUS, HeaderValue::from(status));
    if !details.is_empty() {
        headers.insert(GRPC_MESSAGE, metadata::status_message(details));
    }
    headers
}

fn trailers_only(mut headers: HeaderMap) -> Response<()> {
    headers.insert(CONTENT_TYPE, GRPC);
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}

/// Answer a call that was never opened.
pub fn refuse(respond: &mut SendResponse<Bytes>, status: u32, text: &str) {
    let mut response = trailers_only(status_headers(status, text));
    if status == UNIMPLEMENTED {
        let accepted = HeaderValue::from_static("identity, deflate, gzip");
        response
            .headers_mut()
            .insert(HeaderName::from_static("grpc-accept-encoding"), accepted);
    }
    // Fails only if the client has reset the stream meanwhile.
    let _ = respond.send_response(response, true);
}

/// Answer a request that is not gRPC.
pub fn refuse_http(respond: &mut SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    let _ = respond.send_response(response, true);
}
