//! OAuth 2.1: finds the principal of an access token. The gateway is a resource server (RFC 9728); it runs no authorization
//! server.
//!
//! ```text
//! token ── JWT? ── yes ── issuer by `iss` ── keys ── signature ── claims ──▶ principal
//!            └──── no ─── each issuer with introspection: its stored answer about the token ──▶ principal
//! ```
//!
//! This module makes no requests: the caller stores the keys and answers of issuers in [`Issuer`]. If a key or answer is
//! missing, the verdict is [`TokenVerdict::Pending`]. The caller then fetches the data that [`Pending`] names, and validates the
//! token again.

mod claims;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod issuer;
mod jwt;
mod keys;
mod renewals;
mod resource;
mod signature;
mod tokens;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderValue;
use http::header::WWW_AUTHENTICATE;
use tooldock_base::scope::ScopeTable;
use tooldock_base::secret::Secret;

use self::issuer::IssuerVerdict;
pub use self::issuer::{Issuer, IssuerKeys, KeySetChange};
use self::jwt::{Jwt, TOKEN_BYTES_MAX};
pub use self::keys::{InvalidKeys, KeySet};
pub use self::renewals::Renewal;
pub use self::resource::ResourcePlace;
use self::resource::Resources;
use crate::basic;
use crate::config::AdmissionConfig;
use crate::fields::{Field, Fields};
use crate::principal::Principal;
use crate::rejection::{Reason, Rejection};
use crate::request::AdmissionRequest;
use crate::token::{TokenDigest, bearer_token};

/// Prefixes of API keys. A token with such a prefix is never sent to an issuer.
const KEY_PREFIXES: [&[u8]; 2] = [b"td_", b"oub_"];

/// All issuers of access tokens in a configuration.
#[derive(Debug, Default)]
pub struct Oauth {
    issuers: Vec<Arc<Issuer>>,
    resources: Resources,
}

/// The verdict on an access token.
#[derive(Debug)]
pub enum TokenVerdict {
    /// The token identifies a principal.
    Principal(Arc<Principal>),
    /// The issuer's keys, or its answer about the token, must be fetched first.
    Pending(Pending),
    /// The token was not issued by any configured issuer, or is malformed. The text is the cause for the log.
    Refused(&'static str),
    /// The token was issued by a configured issuer, but is not or no longer accepted. The text is the cause for the log.
    Over(&'static str),
    /// The token cannot be validated now: an issuer that may have issued it was asked a moment ago and did not respond.
    Unjudged,
}

/// A fetch that is necessary before a token can be validated. `Debug` shows neither the token nor its digest.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The issuer from which data must be fetched.
    pub issuer: Arc<Issuer>,
    /// The data to fetch from the issuer.
    pub needs: Needs,
    /// The token that cannot be validated without the data.
    pub token: Secret,
    /// The digest of the token. Requests with the same digest wait for the same fetch.
    pub digest: TokenDigest,
    /// True if the issuer accepted the token before; such a fetch is exempt from the limit on unknown tokens. False if the token
    /// is new.
    pub counted: bool,
}

/// The data that must be fetched from an issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The issuer's current keys.
    Keys,
    /// The answer of the issuer's introspection endpoint about the token.
    Answer,
}

impl Oauth {
    /// Compiles the configured issuers. The error is a key below `admission` and its fault: a scope that does not exist.
    /// [`AdmissionConfig::validate`] has found all other faults before.
    pub(crate) fn new(
        config: &AdmissionConfig,
        table: &ScopeTable,
    ) -> Result<Self, (String, String)> {
        let issuers = config.oauth.iter().enumerate().map(|(index, issuer)| {
            let issuer = Issuer::new(issuer, table);
            issuer
                .map(Arc::new)
                .map_err(|message| (format!("oauth[{index}].scopes"), message))
        });
        let issuers = issuers.collect::<Result<Vec<_>, _>>()?;
        let names = issuers.iter().map(|it| it.config().issuer.as_str());
        let scopes = issuers.iter().flat_map(|it| it.offered());
        let origin = config.public_url.origin().unwrap_or_default();
        let resources = Resources::new(origin, names, scopes.map(|it| &*it.name));
        Ok(Self { issuers, resources })
    }

    /// Returns true if at least one issuer is configured.
    pub(crate) fn is_on(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// All configured issuers. Used by the task that fetches their keys.
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        &self.issuers
    }

    /// Takes over keys and verdicts of the issuers that the previous configuration also contained.
    pub(crate) fn take_over(&mut self, before: &Self) {
        for issuer in &mut self.issuers {
            let name = &issuer.config().issuer;
            let known = before.issuers.iter().find(|it| it.config().issuer == *name);
            if let (Some(known), Some(issuer)) = (known.cloned(), Arc::get_mut(issuer)) {
                issuer.take_over(&known);
            }
        }
    }

    /// Validates a token with the keys and answers of issuers that are known now.
    pub fn judge(&self, token: &[u8], now: SystemTime) -> TokenVerdict {
        const NOBODYS: TokenVerdict = TokenVerdict::Refused("the token is no issuer's");
        if !self.is_on() || KEY_PREFIXES.iter().any(|it| token.starts_with(it)) {
            return NOBODYS;
        }
        if token.len() > TOKEN_BYTES_MAX {
            return TokenVerdict::Refused("the token is longer than 16 KiB");
        }
        let Some(text) = std::str::from_utf8(token).ok().filter(|it| is_token(it)) else {
            return NOBODYS;
        };
        let digest = TokenDigest::of(token);
        match Jwt::of(text) {
            Some(jwt) => self.judge_jwt(text, jwt, digest, now),
            None => self.judge_opaque(text, digest, now),
        }
    }

    fn judge_jwt(
        &self,
        token: &str,
        jwt: Jwt<'_>,
        digest: TokenDigest,
        now: SystemTime,
    ) -> TokenVerdict {
        let named = jwt.issuer();
        let mut issuers = self.issuers.iter();
        let Some(issuer) = issuers.find(|it| Some(&it.config().issuer) == named.as_ref()) else {
            return TokenVerdict::Refused("the token's issuer is none of admission.oauth");
        };
        match issuer.judge(jwt, digest, now) {
            IssuerVerdict::Principal(principal) => TokenVerdict::Principal(principal),
            IssuerVerdict::Refused(why) => TokenVerdict::Refused(why),
            IssuerVerdict::Over(why) => TokenVerdict::Over(why),
            IssuerVerdict::Nothing | IssuerVerdict::Lapsed | IssuerVerdict::Silence => {
                TokenVerdict::Pending(Pending {
                    issuer: Arc::clone(issuer),
                    needs: Needs::Keys,
                    token: Secret::new(token),
                    digest,
                    counted: false,
                })
            }
        }
    }

    fn judge_opaque(&self, token: &str, digest: TokenDigest, now: SystemTime) -> TokenVerdict {
        let mut pending: Option<Pending> = None;
        let mut silence = false;
        let none = "the token is no JWT, and no issuer has an introspection endpoint";
        let mut refused = TokenVerdict::Refused(none);
        let issuers = self.issuers.iter();
        for issuer in issuers.filter(|it| it.introspection().is_some()) {
            let counted = match issuer.stored_verdict(token, digest, now) {
                IssuerVerdict::Principal(principal) => return TokenVerdict::Principal(principal),
                IssuerVerdict::Over(why) => {
                    refused = TokenVerdict::Over(why);
                    continue;
                }
                IssuerVerdict::Refused(why) => {
                    if let TokenVerdict::Refused(before) = &mut refused {
                        *before = why;
                    }
                    continue;
                }
                IssuerVerdict::Silence => {
                    silence = true;
                    continue;
                }
                IssuerVerdict::Nothing => false,
                IssuerVerdict::Lapsed => true,
            };
            // An issuer that accepted the token before is asked before all others.
            if pending.as_ref().is_none_or(|it| counted && !it.counted) {
                pending = Some(Pending {
                    issuer: Arc::clone(issuer),
                    needs: Needs::Answer,
                    token: Secret::new(token),
                    digest,
                    counted,
                });
            }
        }
        match (pending, silence) {
            (Some(pending), _) => TokenVerdict::Pending(pending),
            (None, true) => TokenVerdict::Unjudged,
            (None, false) => refused,
        }
    }

    /// Returns the request's opaque token, sent as a bearer token or as a browser's password; `None` for JWTs. While a stream
    /// that was admitted by an opaque token is open, the issuer must be asked again, since it may revoke the token at any time.
    pub fn revocable(&self, fields: &Fields<'_>) -> Option<Secret> {
        self.issuers
            .iter()
            .find(|it| it.introspection().is_some())?;
        let Field::Once(value) = fields.authorization else {
            return None;
        };
        let value = value.as_bytes();
        let token = match bearer_token(value) {
            Some(token) => token.to_vec(),
            None => basic::credentials(value)??.token,
        };
        let text = String::from_utf8(token).ok()?;
        Jwt::of(&text).is_none().then(|| Secret::new(text))
    }

    /// Builds the protected resource metadata (RFC 9728) for the path `rest` below `/.well-known/`; `None` if there is none
    /// there.
    pub fn resource_metadata(&self, rest: &str, place: ResourcePlace<'_>) -> Option<Vec<u8>> {
        self.is_on()
            .then(|| self.resources.document(rest, place))
            .flatten()
    }

    /// URL of the protected resource metadata for a request's path; `None` if no access tokens are accepted.
    pub fn metadata_url(&self, path: &str, place: ResourcePlace<'_>) -> Option<String> {
        self.is_on()
            .then(|| self.resources.metadata_url(path, place))
    }

    /// Replaces the challenge in a refusal by one for OAuth clients: with the URL of the resource's metadata, the accepted
    /// scopes, and an error if a token was sent.
    pub(crate) fn challenge(&self, request: &AdmissionRequest<'_>, rejection: &mut Rejection) {
        let place = ResourcePlace::of(request.listener);
        let Some(url) = self.metadata_url(request.parts.uri.path(), place) else {
            return;
        };
        let token_sent = !request.fields.authorization.is_absent();
        let error = match (rejection.reason, token_sent) {
            (Reason::InsufficientScope, _) => "error=\"insufficient_scope\", ",
            (_, true) => "error=\"invalid_token\", ",
            (_, false) => "",
        };
        let scopes = self.resources.scopes();
        let scope = match scopes.is_empty() {
            true => String::new(),
            false => format!(", scope=\"{scopes}\""),
        };
        // The challenge is always a valid header value: all texts in it were checked when the configuration was read.
        let challenge = format!("Bearer {error}resource_metadata=\"{url}\"{scope}");
        if let Ok(challenge) = HeaderValue::try_from(challenge) {
            rejection
                .headers
                .retain(|(name, _)| name != WWW_AUTHENTICATE);
            rejection.headers.push((WWW_AUTHENTICATE, challenge));
        }
    }
}

/// Refuses a principal whose access token contains no scope that the configuration maps to a scope of the gateway.
pub(crate) fn check_scopes(principal: &Principal) -> Result<(), Rejection> {
    let scopes = principal.grant().and_then(|grant| grant.token_scopes());
    match scopes.is_some_and(|scopes| scopes.held.is_empty()) {
        false => Ok(()),
        true => Err(Rejection::new(
            Reason::InsufficientScope,
            "The access token has no scope that allows anything here. Ask for one of those in the challenge.",
        )),
    }
}

/// Returns true if a text consists only of characters that an access token may contain (RFC 6750, `b64token`).
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    text.bytes().all(fits)
}
