//! Bounds on the open streams of one principal: their number and their memory.

use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use super::HeldByStream;

/// Counts the open streams of each principal, and their memory that depends on clients. Contains only principals with open
/// streams.
#[derive(Debug, Clone)]
pub struct StreamLimiter {
    open: Arc<DashMap<Arc<str>, StreamUsage>>,
    per_principal: StreamUsage,
}

/// Number of streams of a principal, and their memory without their events, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct StreamUsage {
    streams: usize,
    bytes: usize,
}

/// Permit for one open stream of a principal; dropping it returns the permit.
pub struct StreamPermit {
    limiter: StreamLimiter,
    principal: Arc<str>,
    bytes: usize,
}

/// Error: the principal has the maximum number of streams, or its streams use the maximum memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many open streams")]
pub struct Full;

impl StreamLimiter {
    /// Creates a limiter with these maxima per principal: number of streams, and bytes of their memory.
    pub fn new(per_principal: usize, bytes_per_principal: usize) -> Self {
        Self {
            open: Arc::default(),
            per_principal: StreamUsage {
                streams: per_principal,
                bytes: bytes_per_principal,
            },
        }
    }

    /// Acquires a permit for a stream of this principal. `bytes` is the memory of the stream without its events. All callers
    /// without a principal count as one principal.
    ///
    /// # Errors
    ///
    /// [`Full`], if the principal is at a bound; the error does not state when a permit will be free.
    pub fn enter(&self, principal: Option<&Arc<str>>, bytes: usize) -> Result<StreamPermit, Full> {
        let principal = principal.map_or_else(|| Arc::from(""), Arc::clone);
        let mut open = self.open.entry(Arc::clone(&principal)).or_default();
        let most = self.per_principal;
        if open.streams >= most.streams || open.bytes + bytes > most.bytes {
            let none = open.streams == 0;
            drop(open);
            if none {
                self.open.remove_if(&principal, |_, open| open.streams == 0);
            }
            return Err(Full);
        }
        open.streams += 1;
        open.bytes += bytes;
        drop(open);
        Ok(StreamPermit {
            limiter: self.clone(),
            principal,
            bytes,
        })
    }
}

impl HeldByStream for StreamPermit {}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.limiter.open.entry(Arc::clone(&self.principal)) {
            if open.get().streams <= 1 {
                open.remove();
            } else {
                open.get_mut().streams -= 1;
                open.get_mut().bytes -= self.bytes;
            }
        }
    }
}

impl fmt::Debug for StreamPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamPermit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_holds_so_many_and_no_more_until_one_ends() {
        let limiter = StreamLimiter::new(2, 100);
        let ada: Arc<str> = "ada".into();
        let bob: Arc<str> = "bob".into();
        let first = limiter.enter(Some(&ada), 0).expect("one of two");
        let second = limiter.enter(Some(&ada), 0).expect("two of two");
        assert_eq!(limiter.enter(Some(&ada), 0).expect_err("full"), Full);
        let other = limiter.enter(Some(&bob), 0).expect("its own count");
        let nobody = limiter.enter(None, 0).expect("its own count");
        drop(first);
        let third = limiter.enter(Some(&ada), 0);
        let third = third.expect("a place was given back");
        assert!(limiter.enter(Some(&ada), 0).is_err());
        drop((second, third, other, nobody));
        assert!(limiter.open.is_empty());
    }

    #[test]
    fn a_principal_holds_so_much_in_its_streams_and_no_more() {
        let limiter = StreamLimiter::new(10, 100);
        assert_eq!(limiter.enter(None, 101).expect_err("too much"), Full);
        assert!(limiter.open.is_empty());
        let first = limiter.enter(None, 60).expect("within");
        let second = limiter.enter(None, 40).expect("just so");
        assert_eq!(limiter.enter(None, 1).expect_err("full"), Full);
        let small = limiter.enter(None, 0).expect("it holds nothing");
        drop(first);
        let third = limiter.enter(None, 60).expect("room was given back");
        assert_eq!(limiter.enter(None, 1).expect_err("full"), Full);
        drop((second, small, third));
        assert!(limiter.open.is_empty());
    }

    #[test]
    fn a_limit_of_nothing_admits_nothing_and_keeps_nothing() {
        let limiter = StreamLimiter::new(0, 100);
        assert!(limiter.enter(None, 0).is_err());
        assert!(limiter.open.is_empty());
    }
}
