//! Bearer tokens as credentials. A token is looked up by its SHA-256 digest.
//!
//! The presented token is always hashed first, so that neither its length nor the length of a correct prefix changes the code
//! path (SEC-03). The look-up takes the same time for any number of tokens. Its timing reveals nothing useful about stored
//! digests, since no client can choose the digest of its token. Digests are compared in constant time.
//!
//! Tokens that are not in the configuration and have the prefix of API keys are looked up in the current table of API keys
//! ([`tooldock_credentials::keys`]). All wrong keys get the same response; the cause is only logged. Any other token may be an
//! access token of an issuer ([`crate::oauth`]).

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

/// Message of the response to every API key that is not accepted. It does not reveal the cause.
const INVALID_KEY: &str = "invalid or expired API key";

/// Message of the response to every refused bearer token that has no more specific message.
const INVALID_TOKEN: &str = "The bearer token is not valid.";

/// All accepted credentials of the Authorization header: configured tokens by their digests, the current API keys, and the
/// issuers of access tokens.
#[derive(Debug)]
pub(crate) struct BearerTokens {
    by_digest: HashMap<TokenDigest, Arc<Principal>, Fingerprints>,
    anonymous: Arc<Principal>,
    keys: KeyTables,
    pub(crate) oauth: Oauth,
}

/// The reason why no principal was found for the credentials of a request.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The credentials are missing, or are no longer valid: the response is 401.
    Refused(Rejection),
    /// The credentials are wrong and were never valid: the response is 401, and the failure is counted for the client.
    Wrong(Rejection),
    /// The token's issuer must be asked before the token can be accepted or refused.
    Pending(Pending),
    /// The credentials cannot be validated now: the response is 503.
    Unjudged,
}

impl From<Rejection> for Unknown {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// The reason why no principal was found for a token.
enum NoPrincipal {
    /// The token is unknown. The text is the cause for the log, if there is one.
    Token(Option<&'static str>),
    /// The token comes from a configured issuer, but is not or no longer accepted. The text is the cause for the log.
    Over(&'static str),
    /// The token has the prefix of an API key, but is not a valid API key.
    Key(KeyRefusal),
    /// The token's issuer must be asked before the token can be accepted or refused.
    Pending(Pending),
    /// The token cannot be validated now, since its issuer does not respond.
    Unjudged,
}

impl NoPrincipal {
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

    /// Builds the refusal: 401 with this message, and with the cause for the log. `Pending` and `Unjudged` are no refusals and
    /// are returned unchanged.
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
    /// Indexes the configured tokens by their digests; `bearer` is `BEARER_TOKEN`. Returns an error if a namespace pattern of a
    /// token is not valid. All other checks are made by [`AdmissionConfig::validate`].
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
        // `BEARER_TOKEN` is added last: if `tokens` contains the same token, it stays unrestricted nevertheless.
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

    /// Finds the principal of a configured token by its name. [`BEARER`] is the name of the unrestricted `BEARER_TOKEN`.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Principal>> {
        self.by_digest.values().find(|it| &*it.name == name)
    }

    /// The principal of all requests to listeners that require no credentials.
    pub(crate) fn anonymous(&self) -> &Arc<Principal> {
        &self.anonymous
    }

    /// Finds the principal of the request's bearer token. The error is usually 401 with a challenge.
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
                NoPrincipal::Key(_) => INVALID_KEY,
                _ => INVALID_TOKEN,
            };
            nobody.refuse(message)
        })
    }

    /// Finds the principal of a request on a listener that also accepts `Basic` from browsers: with the user name `user`, and a
    /// token as password. Any other scheme is handled by [`BearerTokens::authenticate`].
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

    /// Finds the principal of a token, an API key or an access token.
    fn owner(&self, token: &[u8], client: IpAddr) -> Result<Arc<Principal>, NoPrincipal> {
        let digest = TokenDigest::of(token);
        match self.by_digest.get_key_value(&digest) {
            Some((stored, principal)) if stored.matches(&digest) => Ok(Arc::clone(principal)),
            _ if keys::looks_like_key(token) => {
                self.key_owner(token, client).map_err(NoPrincipal::Key)
            }
            _ if !self.oauth.is_on() => Err(NoPrincipal::Token(None)),
            _ => match self.oauth.judge(token, SystemTime::now()) {
                TokenVerdict::Principal(principal) => Ok(principal),
                TokenVerdict::Pending(pending) => Err(NoPrincipal::Pending(pending)),
                TokenVerdict::Refused(cause) => Err(NoPrincipal::Token(Some(cause))),
                TokenVerdict::Over(cause) => Err(NoPrincipal::Over(cause)),
                TokenVerdict::Unjudged => Err(NoPrincipal::Unjudged),
            },
        }
    }

    /// Finds the principal of an API key. The key's client networks and its expiry are checked at each request.
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
