//! Quotas of connections and the pace of new ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const TURN_WITHIN: Duration = Duration::from_secs(15);

/// For every limit, 0 means no limit.
pub struct Admission {
    max: usize,
    max_per_address: usize,
    per_s: f64,
    open: usize,
    /// Connections without an address, which no limit concerns.
    local: usize,
    addresses: HashMap<IpAddr, usize>,
    /// When the next connection may begin, if the pace is limited.
    next_turn: Instant,
}

pub enum Admitted {
    /// After this wait.
    Yes(Duration),
    No(&'static str, String),
}

impl Admission {
    pub fn new(max: usize, max_per_address: usize, per_s: f64) -> Self {
        Admission {
            max,
            max_per_address,
            per_s,
            open: 0,
            local: 0,
            addresses: HashMap::new(),
            next_turn: Instant::now(),
        }
    }

    pub fn open(&self) -> usize {
        self.open + self.local
    }

    /// Count a connection, which must be reported to `left` at its end; or refuse it, and then it is not counted. Connections without an
    /// address (Unix sockets) have no quotas.
    pub fn enter(&mut self, address: Option<IpAddr>, now: Instant) -> Admitted {
        let Some(address) = address else {
            self.local += 1;
            return Admitted::Yes(Duration::ZERO);
        };
        if self.max != 0 && self.open >= self.max {
            return Admitted::No(
                "connections",
                format!(
                    "this node has reached its limit of {} connections",
                    self.max
                ),
            );
        }
        let of_address = self.addresses.get(&address).copied().unwrap_or(0);
        if self.max_per_address != 0 && of_address >= self.max_per_address {
            return Admitted::No(
                "address",
                format!(
                    "that address has reached its limit of {} connections",
                    self.max_per_address
                ),
            );
        }
        let wait = self.turn(now);
        if wait > TURN_WITHIN {
            return Admitted::No(
                "crowd",
                format!(
                    "too many arrive at once: its turn would come in more than {} s",
                    TURN_WITHIN.as_secs()
                ),
            );
        }
        if self.per_s > 0.0 {
            self.next_turn += Duration::from_secs_f64(1.0 / self.per_s);
        }
        self.open += 1;
        *self.addresses.entry(address).or_default() += 1;
        Admitted::Yes(wait)
    }

    pub fn left(&mut self, address: Option<IpAddr>) {
        let Some(address) = address else {
            self.local -= 1;
            return;
        };
        self.open -= 1;
        if let Some(count) = self.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
    }

    /// The wait of the next connection. An idle port saves up a burst of a tenth of a second's worth, at least one connection.
    fn turn(&mut self, now: Instant) -> Duration {
        if self.per_s <= 0.0 {
            return Duration::ZERO;
        }
        let burst = Duration::from_secs_f64((0.1 - 1.0 / self.per_s).max(0.0));
        if let Some(earliest) = now.checked_sub(burst) {
            self.next_turn = self.next_turn.max(earliest);
        }
        self.next_turn.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_and_quotas() {
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let mut admission = Admission::new(0, 2, 10.0);
        let now = admission.next_turn + Duration::from_secs(60);
        assert!(matches!(
            admission.enter(address, now),
            Admitted::Yes(Duration::ZERO)
        ));
        assert!(
            matches!(admission.enter(address, now), Admitted::Yes(wait) if wait == Duration::from_millis(100))
        );
        assert!(matches!(
            admission.enter(address, now),
            Admitted::No("address", _)
        ));
        admission.left(address);
        assert!(
            matches!(admission.enter(address, now), Admitted::Yes(wait) if wait == Duration::from_millis(200))
        );
        for host in 0..148 {
            admission.enter(Some(IpAddr::from([198, 51, 100, host])), now);
        }
        assert!(matches!(
            admission.enter(Some(IpAddr::from([203, 0, 113, 1])), now),
            Admitted::No("crowd", _)
        ));
    }
}
