//! Cache of verdicts on tokens, by the tokens' digests. With it, a signature is verified once, and an issuer asked once, for
//! many requests.
//!
//! The cache is bounded in number and in bytes. It consists of two tables: when the young table is full, it replaces the old one.
//! Tokens in the old table that are used move to the young table; all others are dropped at the next replacement.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fingerprint::Fingerprints;
use crate::token::TokenDigest;

/// Time after which a token may be queued for renewal again, if its verdict has not been renewed.
const CLAIM_AGAIN: Duration = Duration::from_secs(5);

/// Maximum size of a cache of verdicts on tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    /// Maximum number of tokens.
    pub(super) tokens: usize,
    /// Maximum total memory for the verdicts, in bytes.
    pub(super) bytes: usize,
}

/// Cache of verdicts on tokens. Each verdict is used until it expires.
pub(super) struct JudgedTokens<T> {
    /// Maximum size of each of the two tables.
    capacity: Capacity,
    /// The young and the old table. The lock's poisoning is ignored, since a panic cannot damage the tables.
    tables: RwLock<Tables<T>>,
}

struct TokenTable<T> {
    judged: HashMap<TokenDigest, JudgedToken<T>, Fingerprints>,
    bytes: usize,
}

struct Tables<T> {
    young: TokenTable<T>,
    old: TokenTable<T>,
}

struct JudgedToken<T> {
    digest: TokenDigest,
    known: T,
    bytes: usize,
    /// Version of the issuer's keys that verified the token; 0 for an opaque token.
    keys: u64,
    until: SystemTime,
    /// Time at which a caller last claimed the renewal of the verdict, in seconds since 1970; 0 if none has.
    claimed: AtomicU64,
}

impl<T: Clone> JudgedTokens<T> {
    /// Creates an empty cache of this capacity, half of it for each table.
    pub(super) fn new(capacity: Capacity) -> Self {
        let empty = || TokenTable {
            judged: HashMap::default(),
            bytes: 0,
        };
        Self {
            capacity: Capacity {
                tokens: capacity.tokens / 2,
                bytes: capacity.bytes / 2,
            },
            tables: RwLock::new(Tables {
                young: empty(),
                old: empty(),
            }),
        }
    }

    /// Returns the verdict on a token and its expiry. Returns `None` if the verdict has expired at `now`, or if it was made with
    /// another version of the issuer's keys than `keys`.
    pub(super) fn find(
        &self,
        digest: &TokenDigest,
        keys: u64,
        now: SystemTime,
    ) -> Option<(T, SystemTime)> {
        let tables = self.read();
        let found = tables.young.judged.get(digest).map(|it| (it, false));
        let (judged, is_old) = found.or_else(|| Some((tables.old.judged.get(digest)?, true)))?;
        if judged.keys != keys || judged.until <= now || !judged.digest.matches(digest) {
            return None;
        }
        let (known, until, bytes) = (judged.known.clone(), judged.until, judged.bytes);
        drop(tables);
        if is_old {
            self.note(*digest, known.clone(), bytes, keys, until);
        }
        Some((known, until))
    }

    /// Returns true if the cache contains a verdict on the token, even an expired one.
    pub(super) fn remembers(&self, digest: &TokenDigest) -> bool {
        let tables = self.read();
        tables.young.judged.contains_key(digest) || tables.old.judged.contains_key(digest)
    }

    /// Returns true if the caller must renew the verdict on a token. Only one of several concurrent callers gets true.
    pub(super) fn claim_renewal(&self, digest: &TokenDigest, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tables = self.read();
        let (young, old) = (&tables.young.judged, &tables.old.judged);
        let Some(judged) = young.get(digest).or_else(|| old.get(digest)) else {
            return false;
        };
        let claimed = judged.claimed.load(Ordering::Relaxed);
        let free = claimed == 0 || now >= claimed.saturating_add(CLAIM_AGAIN.as_secs());
        let claim = || {
            judged
                .claimed
                .compare_exchange(claimed, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        free && claim().is_ok()
    }

    /// Stores the verdict on a token. `bytes` is the memory that it is counted with.
    pub(super) fn note(
        &self,
        digest: TokenDigest,
        known: T,
        bytes: usize,
        keys: u64,
        until: SystemTime,
    ) {
        let judged = JudgedToken {
            digest,
            known,
            bytes,
            keys,
            until,
            claimed: AtomicU64::new(0),
        };
        let mut tables = self.write();
        let young = &tables.young;
        let is_full = young.judged.len() >= self.capacity.tokens
            || young.bytes.saturating_add(bytes) > self.capacity.bytes;
        if is_full {
            let full = &mut tables.young;
            let turned = TokenTable {
                judged: std::mem::take(&mut full.judged),
                bytes: std::mem::take(&mut full.bytes),
            };
            tables.old = turned;
        }
        let young = &mut tables.young;
        young.bytes += bytes;
        if let Some(before) = young.judged.insert(digest, judged) {
            young.bytes -= before.bytes;
        }
    }

    /// Removes the verdict on a token from the cache.
    pub(super) fn forget(&self, digest: &TokenDigest) {
        let mut tables = self.write();
        let Tables { young, old } = &mut *tables;
        for table in [young, old] {
            if let Some(judged) = table.judged.remove(digest) {
                table.bytes -= judged.bytes;
            }
        }
    }

    /// Adds the tokens of another cache, and marks their verdicts as expired: each token counts as valid before, and must be
    /// validated again.
    pub(super) fn remember(&self, others: &Self) {
        let others = others.read();
        for table in [&others.old, &others.young] {
            for judged in table.judged.values() {
                let known = judged.known.clone();
                self.note(judged.digest, known, judged.bytes, judged.keys, UNIX_EPOCH);
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables<T>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables<T>> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u32) -> TokenDigest {
        TokenDigest::of(&number.to_le_bytes())
    }

    fn tokens<T: Clone>(tokens: usize, bytes: usize) -> JudgedTokens<T> {
        JudgedTokens::new(Capacity { tokens, bytes })
    }

    fn found<T: Clone>(
        tokens: &JudgedTokens<T>,
        number: u32,
        keys: u64,
        now: SystemTime,
    ) -> Option<T> {
        tokens.find(&digest(number), keys, now).map(|it| it.0)
    }

    #[test]
    fn a_token_is_known_until_its_time_and_by_the_keys_it_was_judged_by() {
        let tokens = tokens(10, 1000);
        let now = SystemTime::now();
        let later = now + Duration::from_secs(60);
        tokens.note(digest(1), "ada", 3, 7, later);
        assert_eq!(found(&tokens, 1, 7, now), Some("ada"));
        assert_eq!(found(&tokens, 1, 8, now), None);
        assert_eq!(found(&tokens, 1, 7, later), None);
        assert_eq!(found(&tokens, 2, 7, now), None);
        assert!(tokens.remembers(&digest(1)) && !tokens.remembers(&digest(2)));
        tokens.forget(&digest(1));
        assert!(!tokens.remembers(&digest(1)));
    }

    #[test]
    fn any_number_of_tokens_takes_bounded_room_and_used_tokens_stay() {
        for (capacity, bytes) in [((100, 1_000_000), 8), ((1_000_000, 800), 8)] {
            let tokens = tokens(capacity.0, capacity.1);
            let now = SystemTime::now();
            let later = now + Duration::from_secs(60);
            tokens.note(digest(0), 0, bytes, 1, later);
            for number in 1..10_000 {
                tokens.note(digest(number), number, bytes, 1, later);
                assert_eq!(found(&tokens, 0, 1, now), Some(0));
            }
            let tables = tokens.read();
            let kept = tables.young.judged.len() + tables.old.judged.len();
            assert!(kept <= 100, "{kept}");
            let counted = tables.young.bytes + tables.old.bytes;
            assert_eq!(counted, kept * bytes);
        }
    }

    #[test]
    fn the_renewal_of_a_token_is_claimed_by_one_caller_at_a_time() {
        let tokens = tokens(10, 1000);
        let now = SystemTime::now();
        let later = now + Duration::from_secs(60);
        tokens.note(digest(1), (), 0, 0, later);
        let claim = |seconds| tokens.claim_renewal(&digest(1), now + Duration::from_secs(seconds));
        assert_eq!([claim(0), claim(0), claim(1)], [true, false, false]);
        assert_eq!([claim(6), claim(6)], [true, false], "it came to nothing");
        tokens.note(digest(1), (), 0, 0, later);
        assert!(claim(6), "a renewed verdict is renewed again");
        assert!(!tokens.claim_renewal(&digest(2), now));
    }
}
