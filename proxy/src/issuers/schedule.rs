//! The schedule of fetching one issuer's keys: regularly, sooner after a failure, and soon after a token by an unknown key or
//! with a wrong signature, but never twice at once and never in a row for clients that make up key ids.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_filters::config::{JwksSource, OauthConfig};
use tooldock_filters::oauth::{Issuer, IssuerKeys};

use super::Flight;

/// Interval of regular fetches: over the network, and from a file.
const REFRESH: Duration = Duration::from_secs(300);
const REFRESH_FILE: Duration = Duration::from_secs(15);

/// Time for which fetched keys count as the newest: a token by another key is refused without a fetch. Two fetches are
/// at least this far apart, even if clients make up key ids; a new key is in use after at most this time and that of
/// one fetch.
const NEWEST: Duration = Duration::from_secs(5);

/// Pause before the next attempt after a failure: the first pause, and the longest.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The schedule of one issuer's keys, with the running fetch.
pub(super) struct Schedule {
    keys: Arc<IssuerKeys>,
    flight: Option<Flight>,
    /// Time of the next regular fetch.
    next: Instant,
    /// Earliest time of a fetch for an unknown key.
    unknown_from: Instant,
    /// True when a token by an unknown key waits for the next fetch.
    unknown: bool,
    failures: u32,
    /// The moment at which the keys were fetched last.
    fetched: Option<Instant>,
    /// The end of the time in which the keys fetched last are the newest ones.
    newest_until: Option<Instant>,
    /// The moment at which the running flight, or the last one, began.
    departed: Instant,
    /// The URL of the keys in the issuer's metadata.
    endpoint: Option<String>,
}

impl Schedule {
    /// A schedule whose first fetch is due at once.
    pub(super) fn new(issuer: &Issuer) -> Self {
        let now = Instant::now();
        Self {
            keys: Arc::clone(issuer.keys()),
            flight: None,
            next: now,
            unknown_from: now,
            unknown: false,
            failures: 0,
            fetched: None,
            newest_until: None,
            departed: now,
            endpoint: None,
        }
    }

    /// Returns true if the schedule is for the keys of `issuer`.
    pub(super) fn is_of(&self, issuer: &Issuer) -> bool {
        Arc::ptr_eq(&self.keys, issuer.keys())
    }

    /// The running fetch, if any.
    pub(super) fn flight(&self) -> Option<Flight> {
        self.flight.clone()
    }

    /// The time since the keys were fetched last; `None` before the first fetch.
    pub(super) fn age(&self) -> Option<Duration> {
        self.fetched.map(|at| at.elapsed())
    }

    /// The end of the time in which the known keys are the newest ones, if that lasts now.
    pub(super) fn newest_until(&self, now: Instant) -> Option<Instant> {
        self.newest_until.filter(|until| now < *until)
    }

    /// Returns true if a fetch is due now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.unknown |= self.keys.take_wanted();
        let unknown = self.unknown && now >= self.unknown_from;
        self.flight.is_none() && (now >= self.next || unknown)
    }

    /// Notes a fetch that begins. Returns the URL of the keys if the metadata need not be read again: only regular
    /// fetches read them.
    pub(super) fn take_off(&mut self, flight: Flight, now: Instant) -> Option<String> {
        self.flight = Some(flight);
        self.unknown = false;
        self.unknown_from = now + NEWEST;
        self.departed = now;
        let regular = now >= self.next;
        self.endpoint.clone().filter(|_| !regular)
    }

    /// Notes the end of a fetch. `endpoint` is the URL of the keys, or `None` after a failure.
    pub(super) fn land(&mut self, endpoint: Option<String>, config: &OauthConfig, now: Instant) {
        self.flight = None;
        let pause = match endpoint {
            Some(endpoint) => {
                self.endpoint = Some(endpoint);
                self.fetched = Some(now);
                self.newest_until = Some(self.departed + NEWEST);
                self.failures = 0;
                match config.jwks {
                    JwksSource::File(_) => REFRESH_FILE,
                    _ => REFRESH,
                }
            }
            None => {
                self.failures += 1;
                let doublings = self.failures.saturating_sub(1).min(8);
                (RETRY * 2_u32.pow(doublings)).min(RETRY_MAX)
            }
        };
        // So that replicas that started together soon fetch at different times.
        self.next = now + pause.mul_f64(0.9 + 0.1 * fastrand::f64());
    }
}
