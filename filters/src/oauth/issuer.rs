//! An issuer of access tokens: its rules, its most recently fetched keys, and cached verdicts on tokens.
//!
//! This module makes no requests. The caller supplies the keys and the answers about opaque tokens; until then, the verdict on a
//! token is pending.

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

/// Maximum time for which a positive answer of an introspection endpoint is used. A revoked token may be accepted for that long.
const ANSWER_COUNTS: Duration = Duration::from_secs(60);

/// Time for which an unknown token is refused without asking the issuer again.
const REFUSAL_COUNTS: Duration = Duration::from_secs(10);

/// Answers about tokens in use are renewed this long before they expire.
const RENEWED_AHEAD: Duration = Duration::from_secs(20);

/// Time for which the issuer is not asked again about a token after the introspection endpoint did not respond.
const SILENCE: Duration = Duration::from_secs(2);

/// Capacity of an issuer's cache for valid tokens. Invalid tokens have a separate cache, so that a client with many wrong tokens
/// cannot evict valid ones.
const TOKENS: Capacity = Capacity {
    tokens: 20_000,
    bytes: 64 * 1024 * 1024,
};
const REFUSALS: Capacity = Capacity {
    tokens: 4_000,
    bytes: usize::MAX,
};

/// An issuer of access tokens, with its keys and cached verdicts.
pub struct Issuer {
    config: OauthConfig,
    rules: ClaimRules,
    keys: Arc<IssuerKeys>,
    principals: Arc<JudgedTokens<Arc<Principal>>>,
    refusals: Arc<JudgedTokens<TokenRefusal>>,
    renewals: Renewals,
}

/// The reason why a token of this issuer was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRefusal {
    /// The issuer answered that the token is not valid, and the gateway has never accepted the token before.
    Unknown(RefusalReason),
    /// The issuer has issued the token, but the gateway does not accept it, or not any more.
    Over(RefusalReason),
    /// The issuer did not respond when it was asked about the token.
    Silence,
}

/// The public keys of an issuer. They are kept when the configuration is reloaded, so that they stay available if the issuer is
/// down at that moment.
#[derive(Default)]
pub struct IssuerKeys {
    /// The current keys. The lock's poisoning is ignored, since a panic cannot leave the keys half written.
    set: RwLock<Option<Arc<KeySet>>>,
    /// Counter of key sets, increased with each new set. Verdicts by an older set are not used.
    version: AtomicU64,
    /// True if a token arrived whose signing key is not in the set, so that the keys should be fetched again.
    wanted: AtomicBool,
}

/// The currently known verdict of one issuer on a token.
pub(super) enum IssuerVerdict {
    Principal(Arc<Principal>),
    /// There is no verdict yet: the issuer's keys, or its answer about the token, must be fetched first.
    Nothing,
    /// The verdict on a token that was valid has expired: the issuer must be asked again.
    Lapsed,
    /// There is no verdict, since the issuer was asked a moment ago and did not respond.
    Silence,
    /// The token was not issued by this issuer.
    Refused(RefusalReason),
    /// The token was issued by this issuer, but the gateway does not or no longer accept it.
    Over(RefusalReason),
}

impl Issuer {
    /// Creates an issuer without keys. The error names a gateway scope that does not exist.
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

    /// The issuer's keys. Used by the task that fetches them.
    pub fn keys(&self) -> &Arc<IssuerKeys> {
        &self.keys
    }

    /// The issuer's introspection endpoint; `None` if it is switched off.
    pub fn introspection(&self) -> Option<&IntrospectionConfig> {
        match &self.config.introspection {
            Introspection::Off => None,
            Introspection::At(at) => Some(at),
        }
    }

    pub(super) fn offered(&self) -> &[OfferedScope] {
        &self.rules.offered
    }

    /// Takes over state from the previous configuration: the keys that were fetched for this issuer, and the cached verdicts. If
    /// the rules have changed, only the cached tokens are kept, as tokens that were valid before, and each is validated again.
    pub(super) fn take_over(&mut self, before: &Self) {
        let (one, other) = (&self.config, &before.config);
        let same = one.issuer == other.issuer
            && one.jwks == other.jwks
            && one.allow_private == other.allow_private;
        if same {
            self.keys = Arc::clone(&before.keys);
        }
        if self.rules.are_same_rules(&before.rules) {
            self.principals = Arc::clone(&before.principals);
            self.refusals = Arc::clone(&before.refusals);
        } else if one.issuer == other.issuer && one.introspection == other.introspection {
            self.principals.remember(&before.principals);
        }
    }

    /// Validates a JWT of this issuer, unless keys must be fetched first.
    pub(super) fn judge(
        &self,
        token: Jwt<'_>,
        digest: TokenDigest,
        now: SystemTime,
    ) -> IssuerVerdict {
        // The version must be loaded before the keys. If the keys are replaced in between, the verdict is stored under the older
        // version and so is not used again.
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

    /// Returns the stored verdict on an opaque token. If the verdict on a token in use expires soon, the token is queued for
    /// renewal.
    pub(super) fn stored_verdict(
        &self,
        token: &str,
        digest: TokenDigest,
        now: SystemTime,
    ) -> IssuerVerdict {
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

    /// Takes all tokens that are queued for renewal, since their verdicts expire soon.
    pub fn take_renewals(&self) -> Vec<Renewal> {
        self.renewals.take()
    }

    /// Stores the answer of the introspection endpoint about a token: the body of a response with status 200. Returns false if
    /// the body is not a valid introspection answer.
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
                // The refusal is stored before the acceptance is removed, so that a concurrent request always finds a verdict.
                self.refusals
                    .note(digest, refusal, 0, 0, now + REFUSAL_COUNTS);
                self.principals.forget(&digest);
            }
        }
        true
    }

    /// Records that the introspection endpoint did not respond. For a short time, requests with this token then do not ask it
    /// again. A stored answer that has not expired stays valid.
    pub fn not_answered(&self, digest: TokenDigest, now: SystemTime) {
        self.refusals
            .note(digest, TokenRefusal::Silence, 0, 0, now + SILENCE);
    }
}

/// Difference between newly fetched keys and the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySetChange {
    /// The keys are unchanged.
    Nothing,
    /// Keys were added, and none was removed: all tokens that were valid remain valid.
    SomeAreNew,
    /// Keys were removed, so tokens that were valid may have become invalid.
    SomeAreGone,
}

impl IssuerKeys {
    /// The most recently fetched keys; `None` before the first fetch.
    pub fn current(&self) -> Option<Arc<KeySet>> {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        set.clone()
    }

    /// Replaces the keys by newly fetched ones. Tokens that are signed by removed keys are refused from then on.
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

    /// Returns true if the keys should be fetched again: since the previous call, a token with an unknown signing key or a wrong
    /// signature has arrived.
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
