//! One issuer: its rules, its keys as they were last fetched, and the tokens that were judged before.
//!
//! Nothing here fetches. The keys and the answers about opaque tokens are put in from outside; until they are there, a token
//! is pending.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tooldock_workers::grant::OfferedScope;
use tooldock_workers::scope::ScopeTable;

use super::claims::{ClaimRules, Refused};
use super::jwt::{Claims, Jwt, Signed};
use super::keys::KeySet;
use super::tokens::JudgedTokens;
use crate::bearer::Principal;
use crate::config::{Introspection, IntrospectionConfig, OauthConfig};
use crate::token::TokenDigest;

/// How long the answer of an introspection endpoint counts: so long a token that was revoked may go on.
const ANSWER_COUNTS: Duration = Duration::from_secs(60);

/// How long a token that an issuer does not know is refused without asking again.
const REFUSAL_COUNTS: Duration = Duration::from_secs(10);

/// Tokens of one issuer that are remembered, apart those that count and those that do not: whoever sends many wrong ones
/// must not push out the right ones.
const TOKENS_MAX: usize = 20_000;
const REFUSALS_MAX: usize = 4_000;

/// An issuer of tokens.
pub struct Issuer {
    config: OauthConfig,
    rules: ClaimRules,
    keys: Arc<IssuerKeys>,
    principals: JudgedTokens<Arc<Principal>>,
    refusals: JudgedTokens<Refused>,
}

/// The keys of an issuer. They outlast a configuration, so that an issuer that is down when the configuration is read again
/// keeps those it had.
#[derive(Default)]
pub struct IssuerKeys {
    /// Plain data.
    set: RwLock<Option<Arc<KeySet>>>,
    /// Counts the sets.
    version: AtomicU64,
    /// A token by a key that is not in the set was sent.
    wanted: AtomicBool,
}

/// What is known of a token at one issuer.
pub(super) enum Known {
    Principal(Arc<Principal>),
    /// The keys have to be fetched, or the issuer to be asked.
    Nothing,
    Refused(Refused),
}

impl Issuer {
    /// The error says which scope does not exist.
    pub(super) fn new(config: &OauthConfig, table: &ScopeTable) -> Result<Self, String> {
        Ok(Self {
            config: config.clone(),
            rules: ClaimRules::new(config, table)?,
            keys: Arc::default(),
            principals: JudgedTokens::new(TOKENS_MAX),
            refusals: JudgedTokens::new(REFUSALS_MAX),
        })
    }

    /// What the configuration says of the issuer.
    pub fn config(&self) -> &OauthConfig {
        &self.config
    }

    /// Its keys, for who fetches them.
    pub fn keys(&self) -> &Arc<IssuerKeys> {
        &self.keys
    }

    /// Its introspection endpoint.
    pub fn introspection(&self) -> Option<&IntrospectionConfig> {
        match &self.config.introspection {
            Introspection::Off => None,
            Introspection::At(at) => Some(at),
        }
    }

    pub(super) fn offered(&self) -> &[OfferedScope] {
        &self.rules.offered
    }

    /// Takes over the keys that were fetched for this issuer under the configuration of before.
    pub(super) fn go_on_from(&mut self, before: &Self) {
        let (one, other) = (&self.config, &before.config);
        let same = one.issuer == other.issuer
            && one.jwks == other.jwks
            && one.allow_private == other.allow_private;
        if same {
            self.keys = Arc::clone(&before.keys);
        }
    }

    /// What is known of a JWT of this issuer.
    pub(super) fn judge(&self, token: Jwt<'_>, digest: TokenDigest, now: SystemTime) -> Known {
        // Before the keys: what they judge is noted under a version that is at most too old.
        let version = self.keys.version.load(Ordering::Acquire);
        if let Some(principal) = self.principals.find(&digest, version, now) {
            return Known::Principal(principal);
        }
        let keys = self.keys.current();
        let claims = match token.signed(&self.config.algorithms, keys.as_deref()) {
            Signed::By(claims) => claims,
            Signed::Not(why) => return Known::Refused(why),
            Signed::Wrong => {
                self.keys.wanted.store(true, Ordering::Relaxed);
                return Known::Refused("the token's signature is wrong");
            }
            Signed::ByUnknownKey => {
                self.keys.wanted.store(true, Ordering::Relaxed);
                return Known::Nothing;
            }
        };
        match self.rules.principal(&claims, now) {
            Ok(principal) => {
                let until = principal.ends.unwrap_or(now);
                self.principals
                    .note(digest, Arc::clone(&principal), version, until);
                Known::Principal(principal)
            }
            Err(why) => Known::Refused(why),
        }
    }

    /// What is known of a token that is no JWT.
    pub(super) fn known(&self, digest: TokenDigest, now: SystemTime) -> Known {
        if let Some(principal) = self.principals.find(&digest, 0, now) {
            return Known::Principal(principal);
        }
        match self.refusals.find(&digest, 0, now) {
            Some(why) => Known::Refused(why),
            None => Known::Nothing,
        }
    }

    /// Takes what the introspection endpoint has said of a token: the body of a 200. False for what is no such answer.
    pub fn answered(&self, digest: TokenDigest, body: &[u8], now: SystemTime) -> bool {
        let Ok(claims) = serde_json::from_slice::<Claims>(body) else {
            return false;
        };
        if !claims
            .get("active")
            .is_some_and(serde_json::Value::is_boolean)
        {
            return false;
        }
        match self.rules.introspected(&claims, now) {
            Ok(principal) => {
                let answer_ends = now + ANSWER_COUNTS;
                let until = principal.ends.map_or(answer_ends, |it| it.min(answer_ends));
                self.principals.note(digest, principal, 0, until);
            }
            Err(why) => self.refusals.note(digest, why, 0, now + REFUSAL_COUNTS),
        }
        true
    }

    /// Notes that the introspection endpoint could not be asked, so that the next requests with the token do not wait again.
    pub fn not_answered(&self, digest: TokenDigest, now: SystemTime) {
        let pause = Duration::from_secs(2);
        let why = "the issuer's introspection endpoint gave no answer";
        self.refusals.note(digest, why, 0, now + pause);
    }
}

/// What newly fetched keys change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// They are those of before.
    Nothing,
    /// Further tokens count.
    SomeAreNew,
    /// Tokens that counted may count no more.
    SomeAreGone,
}

impl IssuerKeys {
    /// The keys that were fetched last.
    pub fn current(&self) -> Option<Arc<KeySet>> {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        set.clone()
    }

    /// Puts newly fetched keys in force. Tokens by keys that are gone count no longer.
    pub fn replace(&self, set: KeySet) -> Replaced {
        let mut current = self.set.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = match current.as_ref() {
            Some(before) if before.is_same(&set) => return Replaced::Nothing,
            Some(before) if set.lacks_some_of(before) => Replaced::SomeAreGone,
            _ => Replaced::SomeAreNew,
        };
        *current = Some(Arc::new(set));
        self.version.fetch_add(1, Ordering::Release);
        replaced
    }

    /// Whether a token by an unknown key, or with a wrong signature, was sent since this was last asked.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("issuer", &self.config.issuer)
            .field("keys", &self.keys.current())
            .finish_non_exhaustive()
    }
}
