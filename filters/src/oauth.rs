//! OAuth 2.1: the principal of an access token. The gateway is a resource server (RFC 9728); it runs no authorization
//! server.
//!
//! ```text
//! token ── JWT? ── yes ── issuer by `iss` ── keys ── signature ── claims ──▶ principal
//!            └──── no ─── each issuer with introspection: its stored answer about the token ──▶ principal
//! ```
//!
//! Pure like the other filters: the caller puts keys and answers of issuers into [`Issuer`]. A missing key or answer makes the
//! token [`TokenVerdict::Pending`]; the caller fetches the part that [`Pending`] names, and asks again.

mod claims;
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

/// Prefixes of API keys. API keys never come from an issuer, so no issuer receives them.
const KEY_PREFIXES: [&[u8]; 2] = [b"td_", b"oub_"];

/// All issuers of a configuration.
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
    /// The issuer must be asked first: for its keys, or about the token.
    Pending(Pending),
    /// The token comes from no issuer. The log has the cause.
    Refused(&'static str),
    /// The token comes from a configured issuer, and is not accepted, or no longer. The log has the cause.
    Over(&'static str),
    /// The token cannot be validated now: an issuer that may have made it was asked a moment ago and did not respond.
    Unjudged,
}

/// A fetch that is necessary before a token can be validated. Neither the token nor its digest shows in `Debug`.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The issuer that the request is sent to.
    pub issuer: Arc<Issuer>,
    /// The data to request from the issuer.
    pub needs: Needs,
    /// The token that waits for the data.
    pub token: Secret,
    /// The digest of the token, which identifies requests with the same token.
    pub digest: TokenDigest,
    /// True if the token was valid before: asking about it is not counted by the limit on unknown tokens.
    pub counted: bool,
}

/// The data of an issuer that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The issuer's current keys.
    Keys,
    /// The answer of the issuer's introspection endpoint about the token.
    Answer,
}

impl Oauth {
    /// Compiles the issuers. The error is a key below `admission` and its fault; [`AdmissionConfig::validate`] has found all
    /// other faults.
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

    /// Returns true if tokens of any issuer are accepted.
    pub(crate) fn is_on(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// The issuers, for the task that fetches their keys.
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        &self.issuers
    }

    /// Adopts the keys of issuers from the previous configuration.
    pub(crate) fn go_on_from(&mut self, before: &Self) {
        for issuer in &mut self.issuers {
            let name = &issuer.config().issuer;
            let known = before.issuers.iter().find(|it| it.config().issuer == *name);
            if let (Some(known), Some(issuer)) = (known.cloned(), Arc::get_mut(issuer)) {
                issuer.go_on_from(&known);
            }
        }
    }

    /// The verdict on a token, by the keys and answers of its issuer that are known at that moment.
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
            let counted = match issuer.known(token, digest, now) {
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
            // The issuer at which the token was valid before is asked first.
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

    /// The opaque token of a request, as a bearer token or as the password of a browser. For as long as a stream that the token
    /// admitted is open, the issuer must be asked again: it may revoke the token at any time.
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

    /// The metadata document (RFC 9728) at the path `rest` below `/.well-known/`; `None` if there is none.
    pub fn resource_metadata(&self, rest: &str, place: ResourcePlace<'_>) -> Option<Vec<u8>> {
        self.is_on()
            .then(|| self.resources.document(rest, place))
            .flatten()
    }

    /// The address of the metadata of the resource that a path belongs to. `None` if no tokens are accepted.
    pub fn metadata_url(&self, path: &str, place: ResourcePlace<'_>) -> Option<String> {
        self.is_on()
            .then(|| self.resources.metadata_url(path, place))
    }

    /// Replaces the challenge of a refusal by one with the URL of the resource's metadata, the accepted scopes, and an error if a
    /// token was sent.
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
        // Always a valid header: every text in it was checked when the configuration was read.
        let challenge = format!("Bearer {error}resource_metadata=\"{url}\"{scope}");
        if let Ok(challenge) = HeaderValue::try_from(challenge) {
            rejection
                .headers
                .retain(|(name, _)| name != WWW_AUTHENTICATE);
            rejection.headers.push((WWW_AUTHENTICATE, challenge));
        }
    }
}

/// Refuses a principal whose access token has none of the scopes that the issuer's entry maps to scopes of the gateway.
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

/// Returns true if a text can be an access token at all (RFC 6750, `b64token`).
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    text.bytes().all(fits)
}
