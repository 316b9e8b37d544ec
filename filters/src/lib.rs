//! Admission: decides whether a request is admitted at the edge, and builds the response to a refused request.
//!
//! All decisions are pure functions of a request's head, the client's address and a clock. There is no I/O, no asynchronous code
//! and no server framework: the caller reads the head, calls [`Admission::admit`], and writes the response. The body is not read.
//!
//! The checks in order. The first check that fails decides the response:
//!
//! | check | file | refusals |
//! |---|---|---|
//! | limits on the head; ambiguous paths | [`head`], `path` | 431, 414, 400 |
//! | client networks | [`network`] | 403 |
//! | `/health` and `/ready`, with any well-formed Host: no further checks | [`route`] | 400 |
//! | Host | [`host`] | 400, 403 |
//! | rate limit per address (flood guard) | `flood` | 429 |
//! | Origin; preflights are answered here | [`origin`] | 403, 400 |
//! | public paths: no further checks | [`route`] | 405 |
//! | credentials: token, API key, access token, client certificate | [`bearer`], [`oauth`], `basic`, [`certificate`] | 401, 503 |
//! | number of wrong credentials of one address or user name | `failures` | 429 |
//! | path and method | [`route`] | 404, 405 |
//! | where browsers add credentials: the listener's own page sent the request | `csrf` | 403 |
//! | an access token has at least one scope that the gateway maps | [`oauth`] | 403 |
//! | rate limits per principal and address; concurrent requests | `limits`, `concurrency` | 429 |
//! | namespace: named, existing, allowed for the principal | [`namespace`] | 400, 404, 403 |
//! | rate limits per namespace | `limits` | 429 |
//! | `/reload`: source network, then the manager's token | `manager` | 403 |
//! | Content-Type | [`media`] | 415 |
//! | Accept | [`media`] | 406, 400 |
//! | announced body size | [`media`] | 413, 400 |
//!
//! The flood guard and limits do not count requests that another replica has forwarded, since that replica counted them. Limits
//! may be shared by replicas: `limits/shared.rs`.
//!
//! [`rejection`] assigns a refusal's status, stable code, JSON-RPC code, headers and body.
//!
//! This crate does not depend on Pingora, `mcp-upstream` or connections. [`bearer`] also decides which principals may use the
//! management tools (`NamespaceScope`), and [`namespace`] does so for the listener that serves them.
//!
//! Start reading with [`admission`], which runs the checks above. The checks use these modules:
//!
//! | module | contents |
//! |---|---|
//! | [`request`], [`fields`], `path`, `version` | the request; header fields; the path, decoded once; the protocol version |
//! | [`route`], `route/aliases.rs` | the table of all paths; further paths of MCP endpoints, from the configuration |
//! | [`principal`], [`token`], `makers` | owners of credentials; tokens as digests; credentials that may create API keys |
//! | [`rate`], [`budget`], `fingerprint` | a bounded limiter; `RateLimit` header fields; a hasher for keys that are hashes |
//! | [`algorithm`] | signature algorithms of tokens |
//! | [`config`] | the keys below `admission:` |
//!
//! `oauth.rs` validates access tokens:
//!
//! | file | contents |
//! |---|---|
//! | `oauth/jwt.rs`, `oauth/keys.rs`, `oauth/signature.rs` | header and signature of a token |
//! | `oauth/claims.rs` | conversion of a token's claims to a principal |
//! | `oauth/issuer.rs`, `oauth/tokens.rs`, `oauth/renewals.rs` | an issuer; tokens validated before; tokens to validate again |
//! | `oauth/resource.rs` | metadata and challenges for clients |
//!
//! If the keys or an answer of an issuer must be fetched first, the verdict is `Pending`: `proxy/issuers.rs` fetches them, and
//! then the request is checked again.

pub mod admission;
pub mod algorithm;
mod basic;
pub mod bearer;
pub mod budget;
pub mod certificate;
mod concurrency;
pub mod config;
mod csrf;
mod failures;
pub mod fields;
mod fingerprint;
mod flood;
pub mod head;
pub mod host;
mod limits;
mod makers;
mod manager;
pub mod media;
pub mod namespace;
pub mod network;
pub mod oauth;
pub mod origin;
mod path;
pub mod principal;
pub mod rate;
pub mod rejection;
pub mod request;
pub mod route;
pub mod token;
mod version;

pub use admission::{Admission, AdmittedHead, Verdict};
pub use certificate::{ClientCertificate, PeerCertificate};
pub use concurrency::Permit;
pub use config::{AdmissionConfig, CertificateName, ConfigError};
pub use fields::Fields;
pub use limits::{CountedBy, LimitExceeded, LimitUse, Subject};
pub use media::{AcceptFlags, AcceptRule, lists_any_type};
pub use namespace::{Access, Directory, NamespaceRule};
pub use network::Peer;
pub use oauth::Oauth;
pub use origin::{Answer, CorsHeaders};
pub use principal::{ANONYMOUS, BEARER, Principal};
pub use rate::RetryAfter;
pub use rejection::{CredentialFailure, ErrorShape, Reason, Rejection};
pub use request::{AdmissionAttempt, AdmissionRequest, Auth, ListenerRules};
pub use route::{EndpointAliases, RouteGroup, RouteGroups, RouteSpec};
pub use token::{InvalidToken, SecretToken};
pub use tooldock_base::route::RouteId;

pub use governor::clock;

/// Functions that the fuzz targets call. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::oauth::fuzzing::access_token;
}
