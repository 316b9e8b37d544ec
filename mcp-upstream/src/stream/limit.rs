//! How many streams one principal may hold open.

use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

/// Counts the open streams of every principal. Holds an entry only while there are some.
#[derive(Debug, Clone)]
pub struct StreamLimiter {
    open: Arc<DashMap<Arc<str>, usize>>,
    per_principal: usize,
}

/// A place for one stream; dropping it gives the place back.
pub struct StreamGuard {
    limiter: StreamLimiter,
    principal: Arc<str>,
}

/// The principal holds as many streams as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many open streams")]
pub struct Full;

impl StreamLimiter {
    /// A limiter that lets each principal hold so many streams.
    pub fn new(per_principal: usize) -> Self {
        Self {
            open: Arc::default(),
            per_principal,
        }
    }

    /// Takes a place for a stream of that principal. Callers without one share the empty name.
    ///
    /// # Errors
    ///
    /// [`Full`] when there is none; it says nothing about when there will be.
    pub fn enter(&self, principal: Option<&Arc<str>>) -> Result<StreamGuard, Full> {
        let principal = principal.map_or_else(|| Arc::from(""), Arc::clone);
        let mut open = self.open.entry(Arc::clone(&principal)).or_insert(0);
        if *open >= self.per_principal {
            let none = *open == 0;
            drop(open);
            if none {
                self.open.remove_if(&principal, |_, open| *open == 0);
            }
            return Err(Full);
        }
        *open += 1;
        drop(open);
        Ok(StreamGuard {
            limiter: self.clone(),
            principal,
        })
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.limiter.open.entry(Arc::clone(&self.principal)) {
            if *open.get() <= 1 {
                open.remove();
            } else {
                *open.get_mut() -= 1;
            }
        }
    }
}

impl fmt::Debug for StreamGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_holds_so_many_and_no_more_until_one_ends() {
        let limiter = StreamLimiter::new(2);
        let ada: Arc<str> = "ada".into();
        let bob: Arc<str> = "bob".into();
        let first = limiter.enter(Some(&ada)).expect("one of two");
        let second = limiter.enter(Some(&ada)).expect("two of two");
        assert_eq!(limiter.enter(Some(&ada)).expect_err("full"), Full);
        let other = limiter.enter(Some(&bob)).expect("its own count");
        let nobody = limiter.enter(None).expect("its own count");
        drop(first);
        let third = limiter.enter(Some(&ada)).expect("a place was given back");
        assert!(limiter.enter(Some(&ada)).is_err());
        drop((second, third, other, nobody));
        assert!(limiter.open.is_empty());
    }

    #[test]
    fn a_limit_of_nothing_admits_nothing_and_keeps_nothing() {
        let limiter = StreamLimiter::new(0);
        assert!(limiter.enter(None).is_err());
        assert!(limiter.open.is_empty());
    }
}
