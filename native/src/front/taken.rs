//! Which answers the client has taken: those in front of a PING that it acknowledged while their calls could still use them.
//!
//! That a socket took an answer proves nothing about its client: a broken connection loses what is on its way, and the client's kernel accepts
//! bytes while the client stands still, who drops them if its deadline has passed when it goes on. The acknowledgement of a PING that was
//! written behind the answer proves that the client's HTTP/2 has read every byte of it. One ping at a time is in flight, for all answers that
//! the socket had when it was sent.

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use h2::{Ping, PingPong};

/// A client's deadline passes before the server's by the time that its request was on its way. An acknowledgement that comes within this time
/// before the deadline, or in the second half of what was left when the answer was given, counts as too late.
const MARGIN: Duration = Duration::from_millis(500);

/// How many calls may have ended while they waited for a ping, beside as many as are open, before they are forgotten.
const SLACK: usize = 1000;

/// When an acknowledgement is too late for an answer that is given now.
pub fn latest(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    now + left - MARGIN.min(left / 2)
}

/// The answers of a connection that Python keeps until the client has taken them, and the pings of the connection.
pub struct Taking {
    pings: Option<PingPong>,
    in_flight: bool,
    /// The calls whose answers the socket had when the ping in flight was sent.
    covered: Vec<u32>,
    /// The calls whose answers the socket has taken since.
    waiting: Vec<u32>,
}

impl Taking {
    pub fn new(pings: Option<PingPong>) -> Self {
        Taking {
            pings,
            in_flight: false,
            covered: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The socket has the whole answer of this call.
    pub fn sent(&mut self, stream: u32) {
        self.waiting.push(stream);
    }

    /// The calls in front of the acknowledged ping. Sends the next ping if answers wait for it.
    pub fn poll(&mut self) -> Vec<u32> {
        let taken = if self.acknowledged() {
            std::mem::take(&mut self.covered)
        } else {
            Vec::new()
        };
        if !self.waiting.is_empty() {
            self.ping();
        }
        taken
    }

    /// Forget calls that have ended: a client that acknowledges no ping must not make the list grow with every call.
    pub fn forget_ended(&mut self, open: usize, is_open: impl Fn(&u32) -> bool) {
        if self.waiting.len() > open + SLACK {
            self.waiting.retain(is_open);
        }
    }

    /// Send a ping, unless one is in flight. HTTP/2 writes it later, behind everything that the socket has now.
    pub fn ping(&mut self) {
        let Some(pings) = &mut self.pings else {
            return;
        };
        // Fails only if the connection has ended.
        if !self.in_flight && pings.send_ping(Ping::opaque()).is_ok() {
            self.in_flight = true;
            std::mem::swap(&mut self.covered, &mut self.waiting);
        }
    }

    fn acknowledged(&mut self) -> bool {
        let Some(pings) = &mut self.pings else {
            return false;
        };
        // The frame arrives while the connection polls HTTP/2, and it looks here after each poll: nothing is to be woken.
        let acknowledged = self.in_flight
            && matches!(
                pings.poll_pong(&mut Context::from_waker(Waker::noop())),
                std::task::Poll::Ready(Ok(_))
            );
        self.in_flight &= !acknowledged;
        acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_calls_are_forgotten() {
        let mut taking = Taking::new(None);
        for stream in 0..10 * SLACK as u32 {
            taking.sent(stream);
            taking.forget_ended(1, |open| *open == 1);
            assert!(
                taking.waiting.len() <= SLACK + 1 && taking.waiting.contains(&1) == (stream > 0)
            );
        }
    }

    #[test]
    fn an_acknowledgement_is_in_time_well_before_the_deadline() {
        let now = Instant::now();
        let after = |left: u64| latest(now, now + Duration::from_millis(left)) - now;
        assert_eq!(after(20_000), Duration::from_millis(19_500));
        assert_eq!(after(1000), Duration::from_millis(500));
        assert_eq!(after(100), Duration::from_millis(50));
        assert_eq!(latest(now + MARGIN, now), now + MARGIN);
    }
}
