//! Credentials: a bearer token, looked up by its digest.
//!
//! The presented token is always hashed first, so that neither its length nor the length of a correct prefix changes the code
//! path (SEC-03). The digest is looked up in one step, independent of the number of tokens; no client can choose a digest, so
//! the timing of that step reveals nothing useful about stored digests. A constant-time comparison decides.
//!
//! Tokens that are not in the configuration and have the prefix of API keys are looked up among the API keys
//! ([`tooldock_credentials::keys`]), in their current table. All wrong keys get the same response; the log has the cause. Any
//! other token may be an access token of an issuer ([`crate::oauth`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tooldock_base::key_maker::KeyMaker;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_credentials::keys::{self, KeyRefusal, KeyTables};

use crate::basic;
use crate::config::TokenConfig;
use crate::fields::{Field, Fields};
use crate::fingerprint::Fingerprints;
use crate::makers;
use crate::oauth::{Oauth, Pending, TokenVerdict};
use crate::principal::{ANONYMOUS, BEARER, Principal};
use crate::rejection::Rejection;
use crate::token::{SecretToken, TokenDigest, bearer_token};

/// Message for every API key that is not accepted, whatever the cause.
const INVALID_KEY: &str = "invalid or expired API key";

/// Message for all refused bearer tokens that have no specific message.
const INVALID_TOKEN: &str = "The bearer token is not valid.";

/// All tokens, by digest, the API keys of the moment, and the issuers of access tokens.
#[derive(Debug)]
pub(crate) struct BearerTokens {
    by_digest: HashMap<TokenDigest, Arc<Principal>, Fingerprints>,
    anonymous: Arc<Principal>,
    keys: KeyTables,
    pub(crate) oauth: Oauth,
}

/// The reason why the credentials of a request give no principal.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The credentials are missing, or were valid before: 401.
    Refused(Rejection),
    /// The credentials are wrong and were never valid: 401, and a failure of their sender.
    Wrong(Rejection),
    /// The verdict requires a request to the token's issuer.
    Pending(Pending),
    /// The credentials cannot be validated now: 503.
    Unjudged,
}

impl From<Rejection> for Unknown {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// The reason why a token has no principal.
enum Nobody {
    /// The token is unknown. The log may hold a cause.
    Token(Option<&'static str>),
    /// The token comes from a configured issuer, and is not accepted, or no longer.
    Over(&'static str),
    /// The token begins as an API key and is not a valid one.
    Key(KeyRefusal),
    /// The verdict requires a request to the token's issuer.
    Pending(Pending),
    /// The token's issuer does not respond.
    Unjudged,
}

impl Nobody {
    /// Returns true if the token was never valid.
    fn is_wrong(&self) -> bool {
        match self {
            Self::Token(_) => true,
            Self::Key(refusal) => match refusal {
                KeyRefusal::Malformed | KeyRefusal::Unknown | KeyRefusal::WrongSecret => true,
                KeyRefusal::Revoked | KeyRefusal::Expired | KeyRefusal::Network => false,
            },
            Self::Over(_) | Self::Pending(_) | Self::Unjudged => false,
        }
    }

    /// The response if no issuer can be asked: a refusal with that message, and the cause for the log.
    fn refuse(self, message: &'static str) -> Unknown {
        let wrong = self.is_wrong();
        let cause = match self {
            Self::Pending(pending) => return Unknown::Pending(pending),
            Self::Unjudged => return Unknown::Unjudged,
            Self::Token(cause) => cause,
            Self::Over(cause) => Some(cause),
            Self::Key(refusal) => Some(refusal.cause()),
        };
        let mut rejection = Rejection::unauthorized(message);
        rejection.cause = cause;
        match wrong {
            true => Unknown::Wrong(rejection),
            false => Unknown::Refused(rejection),
        }
    }
}

impl BearerTokens {
    /// Indexes tokens by their digests; `bearer` is `BEARER_TOKEN`. The error names a namespace pattern that is not valid, with
    /// its token; see [`AdmissionConfig::validate`] for the other checks.
    ///
    /// [`AdmissionConfig::validate`]: crate::config::AdmissionConfig::validate
    pub(crate) fn new(
        tokens: &[TokenConfig],
        bearer: Option<&SecretToken>,
    ) -> Result<Self, String> {
        let mut by_digest =
            HashMap::with_capacity_and_hasher(tokens.len() + 1, Fingerprints::default());
        for token in tokens {
            let namespaces = NamespaceScope::new(&token.namespaces)?;
            let principal = Principal::unlimited(&token.name, namespaces);
            let principal = principal.making(makers::of_token(token));
            by_digest.insert(token.sha256, Arc::new(principal));
        }
        // Added last, so that the unrestricted token stays unrestricted even if `tokens` contains it, too.
        if let Some(bearer) = bearer {
            let unrestricted = Principal::unlimited(BEARER, NamespaceScope::UNRESTRICTED);
            let unrestricted = unrestricted.making(KeyMaker::Operator);
            by_digest.insert(bearer.digest(), Arc::new(unrestricted));
        }
        Ok(Self {
            by_digest,
            anonymous: Arc::new(Principal::unlimited(ANONYMOUS, NamespaceScope::ANYBODY)),
            keys: KeyTables::default(),
            oauth: Oauth::default(),
        })
    }

    /// Sets the tables in which API keys are looked up.
    pub(crate) fn set_keys(&mut self, keys: KeyTables) {
        self.keys = keys;
    }

    /// The principal of a configured token, by name. [`BEARER`] is reserved for the unrestricted token.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Principal>> {
        self.by_digest.values().find(|it| &*it.name == name)
    }

    /// The principal of requests to listeners without credentials.
    pub(crate) fn anonymous(&self) -> &Arc<Principal> {
        &self.anonymous
    }

    /// The principal of the request, or 401 with the challenge.
    pub(crate) fn authenticate(
        &self,
        fields: &Fields<'_>,
        client: IpAddr,
    ) -> Result<Arc<Principal>, Unknown> {
        let value = match fields.authorization {
            Field::Once(value) => value.as_bytes(),
            Field::Absent => {
                let none = "No credentials: send `Authorization: Bearer <token>`.";
                return Err(Rejection::unauthorized(none).into());
            }
            Field::Several => {
                let several = "Several Authorization headers: send exactly one.";
                return Err(Rejection::unauthorized(several).into());
            }
        };
        let Some(token) = bearer_token(value) else {
            let other = "Unsupported credentials: send `Authorization: Bearer <token>`.";
            return Err(Unknown::Wrong(Rejection::unauthorized(other)));
        };
        self.owner(token, client).map_err(|nobody| {
            let message = match nobody {
                Nobody::Key(_) => INVALID_KEY,
                _ => INVALID_TOKEN,
            };
            nobody.refuse(message)
        })
    }

    /// As [`BearerTokens::authenticate`], for listeners that also accept `Basic` from browsers: with the user name `user`, and
    /// a token as password.
    pub(crate) fn authenticate_browser(
        &self,
        user: &str,
        fields: &Fields<'_>,
        client: IpAddr,
    ) -> Result<Arc<Principal>, Unknown> {
        let Field::Once(value) = fields.authorization else {
            return self.authenticate(fields, client);
        };
        let Some(credentials) = basic::credentials(value.as_bytes()) else {
            return self.authenticate(fields, client);
        };
        const INVALID: &str = "The user name or the token is not valid: send ADMIN_USERNAME and, as the password, a token.";
        let wrong = || Unknown::Wrong(Rejection::unauthorized(INVALID));
        let credentials = credentials.ok_or_else(wrong)?;
        let owner = self.owner(&credentials.token, client);
        match credentials.user == user {
            true => owner.map_err(|nobody| nobody.refuse(INVALID)),
            false => Err(wrong()),
        }
    }

    /// The principal of a token or API key.
    fn owner(&self, token: &[u8], client: IpAddr) -> Result<Arc<Principal>, Nobody> {
        let digest = TokenDigest::of(token);
        match self.by_digest.get_key_value(&digest) {
            Some((stored, principal)) if stored.matches(&digest) => Ok(Arc::clone(principal)),
            _ if keys::looks_like_key(token) => self.key_owner(token, client).map_err(Nobody::Key),
            _ if !self.oauth.is_on() => Err(Nobody::Token(None)),
            _ => match self.oauth.judge(token, SystemTime::now()) {
                TokenVerdict::Principal(principal) => Ok(principal),
                TokenVerdict::Pending(pending) => Err(Nobody::Pending(pending)),
                TokenVerdict::Refused(cause) => Err(Nobody::Token(Some(cause))),
                TokenVerdict::Over(cause) => Err(Nobody::Over(cause)),
                TokenVerdict::Unjudged => Err(Nobody::Unjudged),
            },
        }
    }

    /// The principal of an API key. Networks and time are checked at each request.
    fn key_owner(&self, text: &[u8], client: IpAddr) -> Result<Arc<Principal>, KeyRefusal> {
        let key = self.keys.verify(text, client, SystemTime::now())?;
        Ok(Arc::new(Principal {
            name: Arc::clone(key.principal()),
            namespaces: Arc::clone(key.namespaces()),
            grant: Some(Arc::clone(key.grant())),
            ends: key.record().expires,
            limits: Arc::clone(key.limits()),
            maker: KeyMaker::Key(key.record().id),
        }))
    }
}

#[cfg(test)]
mod tests;
