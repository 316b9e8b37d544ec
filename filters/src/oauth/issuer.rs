//! An issuer of access tokens: its rules, its keys as they were last fetched, and cached verdicts on tokens.
//!
//! This module fetches nothing. The keys and the answers about opaque tokens are supplied by the caller; until then, a token is
//! pending.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tooldock_base::grant::OfferedScope;
use tooldock_base::scope::ScopeTable;

use super::claims::{ClaimRules, RefusalReason};
use super::jwt::{Claims, Jwt, SignatureVerdict};
use super::keys::KeySet;
use super::renewals::{Renewal, Renewals};
use super::tokens::{Capacity, JudgedTokens};
use crate::config::{Introspection, IntrospectionConfig, OauthConfig};
use crate::principal::Principal;
use crate::token::TokenDigest;

/// How long an answer of an introspection endpoint is used. A revoked token is accepted for up to that time.
const ANSWER_COUNTS: Duration = Duration::from_secs(60);

/// Time for which a token that an issuer does not know is refused without another request.
const REFUSAL_COUNTS: Duration = Duration::from_secs(10);

/// Time before the end of the answer about a token in use at which the answer is renewed.
const RENEWED_AHEAD: Duration = Duration::from_secs(20);

/// Time for which a token is not asked about again after the endpoint did not respond.
const SILENCE: Duration = Duration::from_secs(2);

/// Capacity of the cache for tokens of one issuer. Valid and invalid tokens are counted separately, so that a client with many
/// wrong tokens cannot evict valid ones.
const TOKENS: Capacity = Capacity {
    tokens: 20_000,
    bytes: 64 * 1024 * 1024,
};
const REFUSALS: Capacity = Capacity {
    tokens: 4_000,
    bytes: usize::MAX,
};

/// An issuer of access tokens.
pub struct Issuer {
    config: OauthConfig,
    rules: ClaimRules,
    keys: Arc<IssuerKeys>,
    principals: Arc<JudgedTokens<Arc<Principal>>>,
    refusals: Arc<JudgedTokens<TokenRefusal>>,
    renewals: Renewals,
}

/// The reason why a token has no principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRefusal {
    /// The issuer does not know the token.
    Unknown(RefusalReason),
    /// The issuer knows the token or has known it, but the gateway does not accept it.
    Over(RefusalReason),
    /// The issuer did not respond.
    Silence,
}

/// The keys of an issuer. They are kept across configurations, so that an issuer that is down during a reload keeps its known
/// keys.
#[derive(Default)]
pub struct IssuerKeys {
    /// The current keys. A panic cannot leave them half written.
    set: RwLock<Option<Arc<KeySet>>>,
    /// Number of key sets so far. Verdicts by an older set are not used.
    version: AtomicU64,
    /// True if a token arrived that is signed by a key which is not in the set.
    wanted: AtomicBool,
}

/// The known verdict on a token at one issuer.
pub(super) enum IssuerVerdict {
    Principal(Arc<Principal>),
    /// No verdict yet: the issuer's keys must be fetched, or the issuer asked about the token.
    Nothing,
    /// The verdict has expired: the issuer must be asked about a token that was valid before.
    Lapsed,
    /// The issuer was asked a moment ago, and did not respond.
    Silence,
    /// The issuer did not issue the token.
    Refused(RefusalReason),
    /// The issuer issued the token, and the gateway does not accept it, or no longer.
    Over(RefusalReason),
}

impl Issuer {
    /// Creates an issuer without keys. The error names a scope that does not exist.
    pub(super) fn new(config: &OauthConfig, table: &ScopeTable) -> Result<Self, String> {
        Ok(Self {
            config: config.clone(),
            rules: ClaimRules::new(config, table)?,
            keys: Arc::default(),
            principals: Arc::new(JudgedTokens::new(TOKENS)),
            refusals: Arc::new(JudgedTokens::new(REFUSALS)),
            renewals: Renewals::default(),
        })
    }

    /// The issuer's entry in the configuration.
    pub fn config(&self) -> &OauthConfig {
        &self.config
    }

    /// The issuer's keys, for the task that fetches them.
    pub fn keys(&self) -> &Arc<IssuerKeys> {
        &self.keys
    }

    /// The issuer's introspection endpoint.
    pub fn introspection(&self) -> Option<&IntrospectionConfig> {
        match &self.config.introspection {
            Introspection::Off => None,
            Introspection::At(at) => Some(at),
        }
    }

    pub(super) fn offered(&self) -> &[OfferedScope] {
        &self.rules.offered
    }

    /// Adopts the keys that were fetched for this issuer under the previous configuration, and the cached tokens: with their
    /// verdicts if the rules are equal, else as tokens that were valid before.
    pub(super) fn go_on_from(&mut self, before: &Self) {
        let (one, other) = (&self.config, &before.config);
        let same = one.issuer == other.issuer
            && one.jwks == other.jwks
            && one.allow_private == other.allow_private;
        if same {
            self.keys = Arc::clone(&before.keys);
        }
        if self.rules.are_those_of(&before.rules) {
            self.principals = Arc::clone(&before.principals);
            self.refusals = Arc::clone(&before.refusals);
        } else if one.issuer == other.issuer && one.introspection == other.introspection {
            self.principals.remember(&before.principals);
        }
    }

    /// The verdict on a JWT of this issuer, if it is known.
    pub(super) fn judge(
        &self,
        token: Jwt<'_>,
        digest: TokenDigest,
        now: SystemTime,
    ) -> IssuerVerdict {
        // Loaded before the keys: verdicts by these keys are recorded under a version that is at most too old.
        let version = self.keys.version.load(Ordering::Acquire);
        if let Some((principal, _)) = self.principals.find(&digest, version, now) {
            return IssuerVerdict::Principal(principal);
        }
        let bytes = token.bytes();
        let keys = self.keys.current();
        let claims = match token.signed(&self.config.algorithms, keys.as_deref()) {
            SignatureVerdict::By(claims) => claims,
            SignatureVerdict::Not(why) => return IssuerVerdict::Refused(why),
            SignatureVerdict::Wrong => {
                self.keys.wanted.store(true, Ordering::Relaxed);
                return IssuerVerdict::Refused("the token's signature is wrong");
            }
            SignatureVerdict::ByUnknownKey => {
                self.keys.wanted.store(true, Ordering::Relaxed);
                return IssuerVerdict::Nothing;
            }
        };
        match self.rules.principal(&claims, now) {
            Ok(principal) => {
                let until = principal.ends.unwrap_or(now);
                self.principals
                    .note(digest, Arc::clone(&principal), bytes, version, until);
                IssuerVerdict::Principal(principal)
            }
            Err(why) => IssuerVerdict::Over(why),
        }
    }

    /// The verdict on a token that is no JWT. A token in use whose answer ends soon is recorded for renewal.
    pub(super) fn known(&self, token: &str, digest: TokenDigest, now: SystemTime) -> IssuerVerdict {
        if let Some((principal, until)) = self.principals.find(&digest, 0, now) {
            let own_end = principal.ends.is_some_and(|ends| ends <= until);
            if !own_end
                && until <= now + RENEWED_AHEAD
                && self.principals.claim_renewal(&digest, now)
            {
                self.renewals.note(digest, token);
            }
            return IssuerVerdict::Principal(principal);
        }
        match self.refusals.find(&digest, 0, now) {
            Some((TokenRefusal::Unknown(why), _)) => IssuerVerdict::Refused(why),
            Some((TokenRefusal::Over(why), _)) => IssuerVerdict::Over(why),
            Some((TokenRefusal::Silence, _)) => IssuerVerdict::Silence,
            None if self.principals.remembers(&digest) => IssuerVerdict::Lapsed,
            None => IssuerVerdict::Nothing,
        }
    }

    /// The tokens in use whose answers end soon, for renewal. Each is returned once.
    pub fn take_renewals(&self) -> Vec<Renewal> {
        self.renewals.take()
    }

    /// Stores the answer of the introspection endpoint about a token: the body of a response with status 200. Returns false if
    /// the body is no introspection answer.
    pub fn answered(&self, digest: TokenDigest, body: &[u8], now: SystemTime) -> bool {
        let Ok(claims) = serde_json::from_slice::<Claims>(body) else {
            return false;
        };
        let Some(active) = claims.get("active").and_then(serde_json::Value::as_bool) else {
            return false;
        };
        match self.rules.introspected(&claims, now) {
            Ok(principal) => {
                let answer_ends = now + ANSWER_COUNTS;
                let until = principal.ends.map_or(answer_ends, |it| it.min(answer_ends));
                self.principals
                    .note(digest, principal, body.len(), 0, until);
            }
            Err(why) => {
                let refusal = match active || self.principals.remembers(&digest) {
                    true => TokenRefusal::Over(why),
                    false => TokenRefusal::Unknown(why),
                };
                // Recorded first, so that every request finds one of the two verdicts.
                self.refusals
                    .note(digest, refusal, 0, 0, now + REFUSAL_COUNTS);
                self.principals.forget(&digest);
            }
        }
        true
    }

    /// Records that the introspection endpoint did not respond, so that the next requests with the token do not wait again. An
    /// earlier answer that is still in force remains valid.
    pub fn not_answered(&self, digest: TokenDigest, now: SystemTime) {
        self.refusals
            .note(digest, TokenRefusal::Silence, 0, 0, now + SILENCE);
    }
}

/// The effect of newly fetched keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySetChange {
    /// The keys are unchanged.
    Nothing,
    /// No key was removed: all tokens that were valid still are, and more may be.
    SomeAreNew,
    /// Tokens that were valid may have become invalid.
    SomeAreGone,
}

impl IssuerKeys {
    /// The keys that were fetched last.
    pub fn current(&self) -> Option<Arc<KeySet>> {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        set.clone()
    }

    /// Replaces the keys. Tokens signed by removed keys are not accepted any more.
    pub fn replace(&self, set: KeySet) -> KeySetChange {
        let mut current = self.set.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = match current.as_ref() {
            Some(before) if before.is_same(&set) => return KeySetChange::Nothing,
            Some(before) if set.lacks_some_of(before) => KeySetChange::SomeAreGone,
            _ => KeySetChange::SomeAreNew,
        };
        *current = Some(Arc::new(set));
        self.version.fetch_add(1, Ordering::Release);
        replaced
    }

    /// Returns true if a token signed by an unknown key, or with a wrong signature, was sent since the last call.
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
