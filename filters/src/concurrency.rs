//! `limits.concurrency`: maximum number of concurrent requests per principal and per client address.
//!
//! A request holds a [`Permit`] until its response is written. Dropping the permit, for whatever reason, releases it. The
//! counts exist only for principals and addresses with running requests. Both limits are off by default; then nothing is
//! counted.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use http::header::RETRY_AFTER;

use crate::config::{AtOnce, ConcurrencyConfig};
use crate::network::network_of;
use crate::rejection::{Reason, Rejection};

/// `Retry-After` of a refused request, in seconds. A fixed value, since it is unknown when a running request will end.
const RETRY_SECONDS: u64 = 1;

/// The limits on concurrent requests, per principal and per client address.
#[derive(Debug)]
pub(crate) struct Concurrency {
    principals: Option<CountTable<Arc<str>>>,
    addresses: Option<CountTable<IpAddr>>,
}

/// Permit of a running request under the limits on concurrent requests. Dropping it decreases the counts.
#[derive(Debug)]
pub struct Permit {
    _principal: Option<CountedRequest<Arc<str>>>,
    _address: Option<CountedRequest<IpAddr>>,
}

/// A limit on concurrent requests, and the number of running requests of each key (a principal or an address).
struct CountTable<K> {
    max: u32,
    running: Arc<RunningCounts<K>>,
}

/// The number of running requests of each key (a principal or an address). Kept when the configured limit changes.
struct RunningCounts<K>(Mutex<HashMap<K, u32>>);

/// A running request, counted in one table. Dropping the value decreases the count of its key.
struct CountedRequest<K: Hash + Eq> {
    running: Arc<RunningCounts<K>>,
    key: K,
}

impl Concurrency {
    pub(crate) fn new(config: &ConcurrencyConfig) -> Self {
        Self {
            principals: CountTable::new(config.per_principal),
            addresses: CountTable::new(config.per_address),
        }
    }

    /// Takes over the running counts of the previous configuration, for each limit that both configurations contain.
    pub(crate) fn take_over(&mut self, before: &Self) {
        go_on(&mut self.principals, &before.principals);
        go_on(&mut self.addresses, &before.addresses);
    }

    /// Returns true if at least one limit on concurrent requests is on.
    pub(crate) fn is_on(&self) -> bool {
        self.principals.is_some() || self.addresses.is_some()
    }

    /// Counts a request, or refuses it with 429. Counts nothing if both limits are off.
    pub(crate) fn enter(
        &self,
        principal: &Arc<str>,
        client: IpAddr,
    ) -> Result<Option<Arc<Permit>>, Rejection> {
        if !self.is_on() {
            return Ok(None);
        }
        let address = self.addresses.as_ref().map(|table| {
            let held = table.enter(network_of(client));
            held.ok_or_else(|| refused(table.max, "at once per client address"))
        });
        let address = address.transpose()?;
        let principal = self.principals.as_ref().map(|table| {
            let held = table.enter(Arc::clone(principal));
            held.ok_or_else(|| refused(table.max, "at once per principal"))
        });
        Ok(Some(Arc::new(Permit {
            _principal: principal.transpose()?,
            _address: address,
        })))
    }
}

fn refused(max: u32, cause: &'static str) -> Rejection {
    let message = format!(
        "Too many requests: {max} {cause} are allowed, and as many are running. Retry in {RETRY_SECONDS} s, or ask the \
         operator to raise the limit."
    );
    Rejection::new(Reason::RateLimited, message)
        .with_header(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS))
        .because(cause)
}

fn go_on<K>(table: &mut Option<CountTable<K>>, before: &Option<CountTable<K>>) {
    if let (Some(table), Some(before)) = (table, before) {
        table.running = Arc::clone(&before.running);
    }
}

impl<K: Hash + Eq + Clone> CountTable<K> {
    fn new(max: AtOnce) -> Option<Self> {
        let AtOnce::AtMost(max) = max else {
            return None;
        };
        Some(Self {
            max: max.get(),
            running: Arc::new(RunningCounts(Mutex::default())),
        })
    }

    fn enter(&self, key: K) -> Option<CountedRequest<K>> {
        let mut table = self.running.lock();
        let running = table.entry(key.clone()).or_insert(0);
        if *running >= self.max {
            return None;
        }
        *running += 1;
        drop(table);
        Some(CountedRequest {
            running: Arc::clone(&self.running),
            key,
        })
    }
}

impl<K> RunningCounts<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Drop for CountedRequest<K> {
    fn drop(&mut self) {
        let mut table = self.running.lock();
        let Some(running) = table.get_mut(&self.key) else {
            return;
        };
        *running -= 1;
        if *running == 0 {
            table.remove(&self.key);
        }
    }
}

impl<K> fmt::Debug for CountTable<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountTable")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> fmt::Debug for CountedRequest<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedRequest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn concurrency(per_principal: u32, per_address: u32) -> Concurrency {
        let at_once = |max| NonZeroU32::new(max).map_or(AtOnce::Off, AtOnce::AtMost);
        Concurrency::new(&ConcurrencyConfig {
            per_principal: at_once(per_principal),
            per_address: at_once(per_address),
        })
    }

    fn enter(
        limits: &Concurrency,
        principal: &str,
        client: &str,
    ) -> Result<Arc<Permit>, Rejection> {
        let permit = limits.enter(&principal.into(), client.parse().unwrap())?;
        Ok(permit.expect("a limit is on"))
    }

    #[test]
    fn a_place_is_free_again_when_its_request_has_ended_however_it_did() {
        let limits = concurrency(2, 0);
        let first = enter(&limits, "ci", "192.0.2.1").unwrap();
        let _second = enter(&limits, "ci", "192.0.2.2").unwrap();
        let refused = enter(&limits, "ci", "192.0.2.3").unwrap_err();
        assert_eq!(refused.reason, Reason::RateLimited);
        assert_eq!(refused.cause, Some("at once per principal"));
        assert!(refused.headers.contains(&(RETRY_AFTER, 1_u64.into())));
        let _other = enter(&limits, "desk", "192.0.2.1").unwrap();

        drop(first);
        let third = enter(&limits, "ci", "192.0.2.1").unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = third;
            panic!("in a request");
        }));
        assert!(panicked.is_err());
        assert!(enter(&limits, "ci", "192.0.2.1").is_ok());
    }

    #[test]
    fn addresses_are_counted_as_everywhere_and_a_refused_request_holds_no_place() {
        let limits = concurrency(1, 2);
        let _first = enter(&limits, "a", "2001:db8::1").unwrap();
        for _ in 0..3 {
            // Refused for its principal: its address is not counted.
            assert!(enter(&limits, "a", "2001:db8::2").is_err());
        }
        let _second = enter(&limits, "b", "2001:db8::3").unwrap();
        let refused = enter(&limits, "c", "2001:db8::4").unwrap_err();
        assert_eq!(refused.cause, Some("at once per client address"));
        assert!(enter(&limits, "c", "2001:db8:0:1::1").is_ok());
    }

    #[test]
    fn nobody_who_runs_nothing_has_an_entry() {
        let limits = concurrency(1, 1);
        for number in 0..100_u8 {
            let client = format!("192.0.2.{number}");
            drop(enter(&limits, &client, &client).unwrap());
        }
        let principals = limits.principals.as_ref().unwrap();
        assert!(principals.running.lock().is_empty());
        let addresses = limits.addresses.as_ref().unwrap();
        assert!(addresses.running.lock().is_empty());
    }

    #[test]
    fn requests_that_run_while_the_limits_change_stay_counted() {
        let before = concurrency(3, 0);
        let running =
            ["192.0.2.1", "192.0.2.2"].map(|client| enter(&before, "ci", client).unwrap());
        let mut after = concurrency(2, 1);
        after.take_over(&before);
        assert!(enter(&after, "ci", "192.0.2.3").is_err());
        drop(running);
        assert!(enter(&after, "ci", "192.0.2.3").is_ok());
    }

    #[test]
    fn nothing_is_counted_where_both_are_off() {
        let limits = concurrency(0, 0);
        let entered = limits.enter(&"ci".into(), "192.0.2.1".parse().unwrap());
        assert!(entered.unwrap().is_none());
    }
}
