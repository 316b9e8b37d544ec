//! Tokens that were judged before, by digest, so that a signature is checked and an issuer asked once for many requests.
//!
//! Bounded by turning over: a table that is full becomes the old one, and what nobody asks for in the next turn is forgotten.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use crate::fingerprint::Fingerprints;
use crate::token::TokenDigest;

/// What is known of tokens, each until its time.
pub(super) struct JudgedTokens<T> {
    /// Of each of the two tables.
    capacity: usize,
    /// Plain data: a thread that panicked has left nothing half written that matters.
    tables: RwLock<Tables<T>>,
}

type Table<T> = HashMap<TokenDigest, Judged<T>, Fingerprints>;

struct Tables<T> {
    young: Table<T>,
    old: Table<T>,
}

struct Judged<T> {
    digest: TokenDigest,
    known: T,
    /// The keys that it was judged by.
    keys: u64,
    until: SystemTime,
}

impl<T: Clone> JudgedTokens<T> {
    /// For at most so many tokens.
    pub(super) fn new(tokens_max: usize) -> Self {
        Self {
            capacity: tokens_max / 2,
            tables: RwLock::new(Tables {
                young: Table::default(),
                old: Table::default(),
            }),
        }
    }

    /// What is known of a token by these keys at that moment.
    pub(super) fn find(&self, digest: &TokenDigest, keys: u64, now: SystemTime) -> Option<T> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let found = tables.young.get(digest).map(|it| (it, false));
        let (judged, is_old) = found.or_else(|| Some((tables.old.get(digest)?, true)))?;
        if judged.keys != keys || judged.until <= now || !judged.digest.matches(digest) {
            return None;
        }
        let known = judged.known.clone();
        let until = judged.until;
        drop(tables);
        if is_old {
            self.note(*digest, known.clone(), keys, until);
        }
        Some(known)
    }

    /// Notes what a token was found to be.
    pub(super) fn note(&self, digest: TokenDigest, known: T, keys: u64, until: SystemTime) {
        let judged = Judged {
            digest,
            known,
            keys,
            until,
        };
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.young.len() >= self.capacity {
            tables.old = std::mem::take(&mut tables.young);
        }
        tables.young.insert(digest, judged);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn digest(number: u32) -> TokenDigest {
        TokenDigest::of(&number.to_le_bytes())
    }

    #[test]
    fn a_token_is_known_until_its_time_and_by_the_keys_it_was_judged_by() {
        let tokens = JudgedTokens::new(10);
        let now = SystemTime::now();
        let later = now + Duration::from_secs(60);
        tokens.note(digest(1), "ada", 7, later);
        assert_eq!(tokens.find(&digest(1), 7, now), Some("ada"));
        assert_eq!(tokens.find(&digest(1), 8, now), None);
        assert_eq!(tokens.find(&digest(1), 7, later), None);
        assert_eq!(tokens.find(&digest(2), 7, now), None);
    }

    #[test]
    fn any_number_of_tokens_takes_bounded_room_and_what_is_used_stays() {
        let tokens = JudgedTokens::new(100);
        let now = SystemTime::now();
        let later = now + Duration::from_secs(60);
        tokens.note(digest(0), 0, 1, later);
        for number in 1..10_000 {
            tokens.note(digest(number), number, 1, later);
            assert_eq!(tokens.find(&digest(0), 1, now), Some(0));
        }
        let tables = tokens.tables.read().unwrap();
        assert!(tables.young.len() + tables.old.len() <= 100);
    }
}
