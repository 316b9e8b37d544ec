//! The flood guard: a limit on the rate of requests per client address that applies before credentials are checked.
//!
//! It is off by default. An IPv6 client can usually use all addresses of a /64, so a /64 counts as one client.

use std::net::IpAddr;

use governor::clock::{Clock, MonotonicClock};

use crate::config::{Flood, RateConfig};
use crate::network::network_of;
use crate::rate::KeyedLimiter;
use crate::rejection::Rejection;

/// Rate limiter per client address, which applies before credentials are checked; `None` if it is off.
#[derive(Debug)]
pub(crate) struct FloodGuard<C: Clock = MonotonicClock>(Option<KeyedLimiter<C>>);

impl<C: Clock> FloodGuard<C> {
    pub(crate) fn new(config: &Flood, clock: C) -> Self {
        Self(match config {
            Flood::Off => None,
            // The flood limit is not shared by replicas: each replica counts only its own requests.
            Flood::On(RateConfig { rate, burst }) => {
                Some(KeyedLimiter::new(*rate, *burst, clock, None))
            }
        })
    }

    /// Counts one request of the client. Refuses it if the client has exceeded its rate.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), Rejection> {
        let Some(limiter) = &self.0 else {
            return Ok(());
        };
        limiter
            .check(network_of(client))
            .map(|_| ())
            .map_err(|wait| {
                Rejection::rate_limited(wait, "client address").because("per client address")
            })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn an_ipv6_client_is_its_64_and_an_ipv4_client_its_address() {
        let one = NonZeroU32::MIN;
        let guard = FloodGuard::new(
            &Flood::On(RateConfig {
                rate: one,
                burst: one,
            }),
            FakeRelativeClock::default(),
        );
        let admitted = |address: &str| guard.check(address.parse().unwrap()).is_ok();
        assert!(admitted("2001:db8:0:1::1"));
        assert!(!admitted("2001:db8:0:1:ffff::2"));
        assert!(admitted("2001:db8:0:2::1"));
        assert!(admitted("192.0.2.1"));
        assert!(admitted("192.0.2.2"));
        assert!(!admitted("::ffff:192.0.2.1"));
    }

    #[test]
    fn off_means_no_limit() {
        let guard = FloodGuard::new(&Flood::Off, FakeRelativeClock::default());
        assert!((0..1000).all(|_| guard.check("192.0.2.1".parse().unwrap()).is_ok()));
    }
}
