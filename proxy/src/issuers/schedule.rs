//! The schedule of fetching an issuer's keys: at regular times, earlier after a failure, and soon after a token with an unknown
//! key or a wrong signature. Fetches never overlap, and there is a minimum time between them, since clients can invent key ids.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_filters::config::{JwksSource, OauthConfig};
use tooldock_filters::oauth::{Issuer, IssuerKeys};

use super::Flight;

/// Time between regular fetches of keys: over the network, and from a file.
const REFRESH: Duration = Duration::from_secs(300);
const REFRESH_FILE: Duration = Duration::from_secs(15);

/// Minimum time between two fetches of an issuer's keys, even if clients invent key ids. For this time after a fetch, a token
/// with an unknown key is refused without another fetch. So a new key of the issuer is accepted after at most this time and the
/// time of one fetch.
const NEWEST: Duration = Duration::from_secs(5);

/// Pause before the next attempt after a failed fetch: the first pause, and the maximum.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The schedule of fetching an issuer's keys.
pub(super) struct Schedule {
    keys: Arc<IssuerKeys>,
    flight: Option<Flight>,
    /// Time of the next regular fetch.
    next: Instant,
    /// Earliest time of a fetch that is caused by an unknown key.
    unknown_from: Instant,
    /// True if a token with an unknown key has requested a fetch that has not begun.
    unknown: bool,
    failures: u32,
    /// Time of the last successful fetch; `None` before the first.
    fetched: Option<Instant>,
    /// Time until which the keys of the last fetch count as the newest; until then, tokens with an unknown key are refused
    /// without a fetch. `None` before the first fetch.
    newest_until: Option<Instant>,
    /// Time at which the last fetch began.
    departed: Instant,
    /// The URL of the keys in the issuer's metadata; `None` before the first fetch.
    endpoint: Option<String>,
}

impl Schedule {
    /// Creates a schedule whose first fetch is due immediately.
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

    /// Returns true if the schedule belongs to the keys of `issuer`.
    pub(super) fn is_of(&self, issuer: &Issuer) -> bool {
        Arc::ptr_eq(&self.keys, issuer.keys())
    }

    /// Returns the running fetch; `None` if there is none.
    pub(super) fn flight(&self) -> Option<Flight> {
        self.flight.clone()
    }

    /// Returns the time since the last successful fetch; `None` before the first.
    pub(super) fn age(&self) -> Option<Duration> {
        self.fetched.map(|at| at.elapsed())
    }

    /// Returns the time until which the known keys count as the newest; `None` if that time is over.
    pub(super) fn newest_until(&self, now: Instant) -> Option<Instant> {
        self.newest_until.filter(|until| now < *until)
    }

    /// Returns true if a fetch is due now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.unknown |= self.keys.take_wanted();
        let unknown = self.unknown && now >= self.unknown_from;
        self.flight.is_none() && (now >= self.next || unknown)
    }

    /// Records the begin of a fetch. Returns the URL of the keys, or `None` if the fetch has to read the URL from the issuer's
    /// metadata first. Only regular fetches read the metadata again.
    pub(super) fn take_off(&mut self, flight: Flight, now: Instant) -> Option<String> {
        self.flight = Some(flight);
        self.unknown = false;
        self.unknown_from = now + NEWEST;
        self.departed = now;
        let regular = now >= self.next;
        self.endpoint.clone().filter(|_| !regular)
    }

    /// Records the end of a fetch, and sets the time of the next. `endpoint` is the URL of the keys, or `None` after a failure.
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
        // The time varies at random, so that replicas which started together do not fetch at the same times.
        self.next = now + pause.mul_f64(0.9 + 0.1 * fastrand::f64());
    }
}
