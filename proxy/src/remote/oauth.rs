//! Access tokens for remote servers. They are fetched when needed and renewed before they expire. Only one task at a time fetches
//! a given token.
//!
//! ```text
//! request ─▶ RemoteTokens::authorization ─▶ TokenEntry: of a server ─┬─ fresh ───────────▶ used
//!                                                                    ├─ old, still valid ─▶ used; renewed meanwhile
//!                                                                    └─ none, expired ────▶ one fetches, the others wait
//! ```
//!
//! - A token counts as old after four fifths of its lifetime. A token that the server refuses is fetched again once.
//! - A failed fetch is an error for all waiting callers, and is not retried within [`PAUSE`].
//! - A token that the gateway gets in exchange for a caller's access token ([`exchange`]) is used only with that access token. If
//!   the caller comes with another access token, a new exchange is made.
//! - Tokens that the gateway gets in its own name ([`fetch`]) are in memory only, and are fetched again after a start. Tokens
//!   that a person authorized ([`kept`]) belong to one server, or to one principal at one server.
//! - A token is sent only to the backends for which it was fetched, and its refresh token only to the authorization server that
//!   issued it ([`binding`]). A configuration with another backend, issuer, client or scope requires new tokens.
//!
//! A person authorizes the gateway with `tooldock secrets` ([`authorize`]; `secrets_cli/authorize/visitors.rs` reads the
//! browser's request). `issuer.rs` reads metadata, `renewal.rs` renews tokens at the endpoint that issued them, and
//! `token_endpoint.rs` adapts to endpoints that deviate from the standard.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::HeaderValue;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;
use tooldock_credentials::personal::not_authorized;
use tooldock_credentials::secrets::{AuthorizationStore, Authorizer};
use tooldock_upstream::http_client::{SendError, SendErrorKind};
use tooldock_workers::remote::{BackendId, ClientAuth, Grant, Host, OAuthSpec, RemoteServer};

use super::client::RemoteClient;
use super::lock;
use super::metrics::RemoteMetrics;
use words::Reason;

pub(crate) mod authorize;
mod binding;
pub(crate) mod client_assertion;
mod endpoints;
mod exchange;
mod fetch;
mod http_client;
mod issuer;
mod kept;
mod renewal;
mod token_endpoint;
mod words;

/// Minimum time after a failed fetch before the next request to the authorization server.
const PAUSE: Duration = Duration::from_secs(1);
/// Assumed lifetime of a token whose lifetime the token endpoint does not state.
const UNSAID: Duration = Duration::from_secs(300);
/// Maximum lifetime of a token: ten years. The limit is needed because endpoints may state any number, and adding a large one to
/// the current time would overflow.
const LIFETIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Error text for a token that contains a character that is not allowed in a header.
const UNSENDABLE: &str = "the token has a character that no header can hold";

/// The OAuth access tokens for all remote servers.
pub(super) struct RemoteTokens {
    client: Weak<RemoteClient>,
    /// The runtime on which tokens are fetched. A fetch continues there even if its caller was dropped.
    control: Handle,
    /// The store of the authorizations that users gave; `None` if this process has no such store.
    authorizations: Option<Arc<AuthorizationStore>>,
    metrics: Arc<RemoteMetrics>,
    pub(super) client_auths: ClientAuths,
    /// The access tokens by server and principal.
    entries: Mutex<HashMap<TokenKey, Arc<TokenEntry>>>,
}

/// For each OAuth client at a server, the form in which its secret must be sent. An entry is added when a token endpoint refuses
/// one form and accepts the other.
#[derive(Default)]
pub(super) struct ClientAuths(Mutex<HashMap<(NamespaceName, String), ClientAuth>>);

/// Maximum number of OAuth clients for which the form of sending the secret is stored.
const CLIENT_AUTHS_MAX: usize = 1024;

impl ClientAuths {
    fn get(&self, server: &NamespaceName, client: &str) -> Option<ClientAuth> {
        let key = (server.clone(), client.to_owned());
        lock(&self.0).get(&key).copied()
    }

    fn note(&self, server: &NamespaceName, client: &str, form: ClientAuth) {
        let mut known = lock(&self.0);
        if known.len() >= CLIENT_AUTHS_MAX {
            known.clear();
        }
        known.insert((server.clone(), client.to_owned()), form);
    }
}

/// Key of an access token: the namespace of the remote server, and the owner of the token.
type TokenKey = (NamespaceName, TokenOwner);

/// The owner of an access token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TokenOwner {
    /// The gateway itself.
    Gateway,
    /// The principal or operator who authorized the gateway.
    Authorizer(Authorizer),
    /// The caller whose access token was exchanged. Contains the digest of that token.
    Caller([u8; 32]),
}

/// Maximum number of exchanged tokens in memory. To make room for a further token, the expired tokens are removed, or, if none
/// has expired, an arbitrary token.
const EXCHANGED_MAX: usize = 10_000;

/// The access token for a server, or for a principal at a server.
struct TokenEntry {
    /// The OAuth settings with which the token is fetched. If the settings change, a new entry replaces this one.
    spec: OAuthSpec,
    given: Option<AuthorizationId>,
    /// The caller's access token, which is exchanged for this token; `None` for other grants.
    subject: Option<Secret>,
    /// The hosts to which the token may be sent. The second value is true if connections to the host use TLS.
    hosts: Vec<(Host, bool)>,
    /// The current token and the results of the last fetches.
    state: Mutex<TokenState>,
    /// Semaphore with one permit, held during a fetch, so that the token is fetched by one task at a time.
    flight: Semaphore,
}

/// Identifies the authorization from which an access token was derived. A new authorization by the same person has another
/// value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AuthorizationId {
    authorizer: Authorizer,
    since: u64,
}

#[derive(Default)]
struct TokenState {
    token: Option<Token>,
    /// The `Authorization` value that the server has refused; `None` since the last successful fetch.
    refused: Option<HeaderValue>,
    /// The time of the last failed fetch, and its reason as text for clients.
    failed: Option<(Instant, String)>,
    /// The reason for the end of the authorization that was logged and counted most recently. A repeated reason is not logged
    /// again.
    ended: Option<End>,
}

/// Failure to get the access token for a request.
enum NoToken {
    /// A temporary failure to get an access token: the next attempt may succeed.
    Now(Reason),
    /// The authorization is no longer valid. An operator must authorize the gateway again.
    Ended(End, Reason),
}

/// Cause of an authorization's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The remote server now names another authorization server.
    Issuer,
    /// The configuration now names another server, issuer, client, resource or scope.
    Configuration,
    /// The stored authorization does not name its authorization server. Earlier versions stored such authorizations.
    Unbound,
    /// The authorization server refuses to renew the tokens.
    Refused,
}

impl End {
    const ALL: [Self; 4] = [
        Self::Issuer,
        Self::Configuration,
        Self::Unbound,
        Self::Refused,
    ];

    /// The label that names the reason in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Issuer => "issuer",
            Self::Configuration => "configuration",
            Self::Unbound => "unbound",
            Self::Refused => "refused",
        }
    }
}

/// An access token, as the value of the header `Authorization`.
#[derive(Clone)]
pub(super) struct Token {
    authorization: HeaderValue,
    /// The time from which the token counts as old and is renewed at its next use.
    old_at: Instant,
    expires_at: Instant,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token([redacted])")
    }
}

impl Token {
    /// Creates a bearer token that is valid for `lifetime` from now on. `None` if the token cannot be the value of a header.
    fn new(bearer: &str, lifetime: Option<Duration>) -> Option<Self> {
        Self::aged(bearer, lifetime.unwrap_or(UNSAID), Duration::ZERO)
    }

    /// Creates a bearer token that was issued `age` ago with the given lifetime. `None` if it cannot be the value of a header.
    fn aged(bearer: &str, lifetime: Duration, age: Duration) -> Option<Self> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {bearer}")).ok()?;
        authorization.set_sensitive(true);
        let lifetime = lifetime.min(LIFETIME_MAX);
        let now = Instant::now();
        // If the clock cannot represent the time, the token counts as expired and is fetched again.
        let after = |age_then: Duration| now.checked_add(age_then.saturating_sub(age));
        Some(Self {
            authorization,
            old_at: after(lifetime.mul_f64(0.8)).unwrap_or(now),
            expires_at: after(lifetime).unwrap_or(now),
        })
    }

    fn is_valid(&self) -> bool {
        Instant::now() < self.expires_at
    }

    fn is_old(&self) -> bool {
        self.old_at <= Instant::now()
    }
}

impl RemoteTokens {
    /// Creates a value without tokens. `client` is used to send requests to authorization servers.
    pub(super) fn new(
        client: Weak<RemoteClient>,
        control: Handle,
        authorizations: Option<Arc<AuthorizationStore>>,
        metrics: Arc<RemoteMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            control,
            authorizations,
            metrics,
            client_auths: ClientAuths::default(),
            entries: Mutex::default(),
        })
    }

    /// Drops the tokens and metrics of all namespaces for which `keep` returns false.
    pub(super) fn retain(&self, keep: impl Fn(&NamespaceName) -> bool) {
        lock(&self.entries).retain(|(name, _), _| {
            let keeps = keep(name);
            if !keeps {
                self.metrics.forget_ends(name, &End::ALL.map(End::label));
            }
            keeps
        });
    }

    /// Returns the header `Authorization` for a principal's request to a server; `None` if the server uses no OAuth. `caller`:
    /// the header `Authorization` of the client's request, whose token is exchanged if the server's grant is token exchange.
    /// `refused`: a value that the server has refused, which is not returned again.
    pub(super) async fn authorization(
        self: &Arc<Self>,
        server: &Arc<RemoteServer>,
        id: &BackendId,
        (principal, caller): (Option<&str>, Option<&HeaderValue>),
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, SendError> {
        let Some(spec) = &server.spec.oauth else {
            return Ok(None);
        };
        let refuse = |reason: String| {
            let what = format!("its token could not be fetched: {reason}");
            tracing::debug!(namespace = %server.name, backend = %id, "no request is sent: {what}");
            SendError {
                kind: SendErrorKind::Authorization,
                unsent: true,
                message: what,
            }
        };
        let given = self.given(server, principal).map_err(refuse)?;
        let subject = match spec.grant {
            Grant::TokenExchange | Grant::IdJag => Some(exchange::subject(caller).map_err(refuse)?),
            Grant::ClientCredentials | Grant::AuthorizationCode => None,
        };
        let entry = self.entry(server, spec, given, subject);
        if let Some(refused) = refused {
            entry.forget(refused);
        }
        let token = self.token(&entry, server).await;
        token.map(Some).map_err(refuse)
    }

    /// The stored authorization from which the tokens for a server are derived. `None` if no person needs to authorize the
    /// gateway.
    fn given(
        &self,
        server: &RemoteServer,
        principal: Option<&str>,
    ) -> Result<Option<AuthorizationId>, String> {
        let spec = &server.spec;
        if spec.oauth.as_ref().map(|it| it.grant) != Some(Grant::AuthorizationCode) {
            return Ok(None);
        }
        let authorizer = spec.personal.authorizer(&server.name, principal);
        let authorizer = authorizer.ok_or("nobody calls in whose name it could be")?;
        let store = self.authorizations.as_ref();
        let found = store.and_then(|it| it.get(&authorizer));
        match found {
            Some(found) => Ok(Some(AuthorizationId {
                authorizer,
                since: found.since,
            })),
            None => Err(not_authorized(authorizer).message),
        }
    }

    fn entry(
        &self,
        server: &RemoteServer,
        spec: &OAuthSpec,
        given: Option<AuthorizationId>,
        subject: Option<Secret>,
    ) -> Arc<TokenEntry> {
        let owner = match (&subject, &given) {
            (Some(subject), _) => TokenOwner::Caller(Sha256::digest(subject.expose()).into()),
            (None, Some(given)) => TokenOwner::Authorizer(given.authorizer.clone()),
            (None, None) => TokenOwner::Gateway,
        };
        let key = (server.name.clone(), owner);
        let mut entries = lock(&self.entries);
        let fits =
            |it: &&Arc<TokenEntry>| it.spec == *spec && it.given == given && it.covers(server);
        if let Some(entry) = entries.get(&key).filter(fits) {
            return Arc::clone(entry);
        }
        let backends = server.spec.backends.iter().map(|it| &it.backend);
        let entry = Arc::new(TokenEntry {
            spec: spec.clone(),
            given,
            subject,
            hosts: backends.map(|it| (it.host.clone(), it.tls)).collect(),
            state: Mutex::default(),
            flight: Semaphore::new(1),
        });
        if entry.subject.is_some() {
            make_room(&mut entries);
        }
        entries.insert(key, Arc::clone(&entry));
        entry
    }

    async fn token(
        self: &Arc<Self>,
        entry: &Arc<TokenEntry>,
        server: &Arc<RemoteServer>,
    ) -> Result<HeaderValue, String> {
        let began = Instant::now();
        if let Some(token) = entry.valid(began) {
            let renews = token.is_old() && !entry.rests(began);
            if renews && entry.flight.available_permits() > 0 {
                let (tokens, entry, server) =
                    (Arc::clone(self), Arc::clone(entry), Arc::clone(server));
                // At most one renewal of a token that is still valid runs per entry, and the time limit of a fetch bounds its
                // duration.
                self.control.spawn(async move {
                    let Ok(_flight) = entry.flight.try_acquire() else {
                        return;
                    };
                    let _ = tokens.fetch(&entry, &server).await;
                });
            }
            return Ok(token.authorization);
        }
        let (tokens, entry, server) = (Arc::clone(self), Arc::clone(entry), Arc::clone(server));
        // The fetch runs in a separate task, so that it is completed even if its caller is dropped.
        let fetching = self.control.spawn(async move {
            let Ok(_flight) = entry.flight.acquire().await else {
                return Err("the gateway is shutting down".to_owned());
            };
            if let Some(token) = entry.valid(Instant::now()) {
                return Ok(token.authorization);
            }
            if let Some(reason) = entry.failed_since(began) {
                return Err(reason);
            }
            tokens.fetch(&entry, &server).await
        });
        fetching
            .await
            .unwrap_or_else(|_| Err("the fetch was interrupted".to_owned()))
    }

    /// Fetches the token. The caller must hold the permit of `entry.flight`.
    async fn fetch(
        &self,
        entry: &TokenEntry,
        server: &Arc<RemoteServer>,
    ) -> Result<HeaderValue, String> {
        let Some(client) = self.client.upgrade() else {
            return Err("the gateway is shutting down".to_owned());
        };
        let timeouts = server.spec.timeouts;
        let limit = timeouts.connect + timeouts.head;
        let fetched = timeout(limit, self.fetched(&client, entry, server)).await;
        let fetched = fetched.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f32();
            Err(NoToken::Now(format!(
                "the authorization server did not answer within {seconds} s (timeouts.connect and timeouts.head)"
            ).into()))
        });
        let mut state = lock(&entry.state);
        match fetched {
            Ok(token) => {
                let authorization = token.authorization.clone();
                (state.token, state.failed, state.refused) = (Some(token), None, None);
                state.ended = None;
                Ok(authorization)
            }
            Err(failure) => {
                let (end, reason) = match failure {
                    NoToken::Now(reason) => (None, reason),
                    NoToken::Ended(end, reason) => (Some(end), reason),
                };
                let Reason { logged, told } = reason.map(|it| server.without_secrets(it));
                state.failed = Some((Instant::now(), told.clone()));
                if end.is_some() {
                    // The token is dropped even if its lifetime is not over: it was derived from an authorization that is no
                    // longer valid.
                    state.token = None;
                }
                let is_told = end.is_some() && state.ended == end;
                state.ended = end;
                drop(state);
                if !is_told {
                    self.tell(server, end, &logged);
                }
                Err(told)
            }
        }
    }
}

impl RemoteTokens {
    /// Logs the reason why there is no token. If an authorization ended, counts that in the metrics.
    fn tell(&self, server: &RemoteServer, end: Option<End>, reason: &str) {
        let name = &server.name;
        if let Some(end) = end {
            self.metrics.authorization_ended(name, end.label());
        }
        tracing::warn!(namespace = %name, "no token for the server of namespace {name}: {reason}");
    }

    async fn fetched(
        &self,
        client: &Arc<RemoteClient>,
        entry: &TokenEntry,
        server: &Arc<RemoteServer>,
    ) -> Result<Token, NoToken> {
        match (&entry.given, &self.authorizations) {
            (Some(given), Some(store)) => {
                let place = kept::AuthorizationSlot {
                    store,
                    authorizer: &given.authorizer,
                };
                let refused = lock(&entry.state).refused.clone();
                kept::token(client, server, &entry.spec, place, refused.as_ref()).await
            }
            _ if let Some(subject) = &entry.subject => {
                let before = entry.tokens();
                let token = exchange::token(client, server, &entry.spec, subject, before).await;
                token.map_err(NoToken::Now)
            }
            _ => {
                let before = entry.tokens();
                let token = fetch::token(client, server, &entry.spec, before).await;
                token.map_err(NoToken::Now)
            }
        }
    }
}

/// Makes room for a further exchanged token, if there are [`EXCHANGED_MAX`].
fn make_room(entries: &mut HashMap<TokenKey, Arc<TokenEntry>>) {
    let exchanged = |entries: &HashMap<TokenKey, Arc<TokenEntry>>| {
        let all = entries.values();
        all.filter(|it| it.subject.is_some()).count()
    };
    if entries.len() < EXCHANGED_MAX || exchanged(entries) < EXCHANGED_MAX {
        return;
    }
    let now = Instant::now();
    // This also removes entries whose tokens are being fetched. The waiting requests still get these tokens.
    entries.retain(|_, it| it.subject.is_none() || it.valid(now).is_some());
    if exchanged(entries) >= EXCHANGED_MAX {
        let any = entries.iter().find(|(_, it)| it.subject.is_some());
        if let Some(key) = any.map(|(key, _)| key.clone()) {
            entries.remove(&key);
        }
    }
}

impl TokenEntry {
    /// Returns true if the token may be sent to each backend of the server.
    fn covers(&self, server: &RemoteServer) -> bool {
        let mut backends = server.spec.backends.iter().map(|it| &it.backend);
        backends.all(|it| {
            let mut hosts = self.hosts.iter();
            hosts.any(|(host, tls)| *host == it.host && *tls == it.tls)
        })
    }

    /// The values of the current token and of the token that the server refused.
    fn tokens(&self) -> Vec<Secret> {
        let state = lock(&self.state);
        let current = state.token.as_ref().map(|it| &it.authorization);
        let values = current.into_iter().chain(&state.refused);
        let bearers = values.filter_map(|it| it.to_str().ok()?.strip_prefix("Bearer "));
        bearers.map(Secret::new).collect()
    }

    fn valid(&self, now: Instant) -> Option<Token> {
        let token = lock(&self.state).token.clone();
        token.filter(|it| now < it.expires_at)
    }

    /// Returns true if the last fetch failed less than [`PAUSE`] ago. No new fetch is started then.
    fn rests(&self, now: Instant) -> bool {
        let state = lock(&self.state);
        let failed = state.failed.as_ref();
        failed.is_some_and(|(at, _)| now.saturating_duration_since(*at) < PAUSE)
    }

    /// The reason of the last fetch if it failed after `began` (the time at which a caller began to wait) or less than
    /// [`PAUSE`] before `began`. `None` if there was no such failure.
    fn failed_since(&self, began: Instant) -> Option<String> {
        let state = lock(&self.state);
        let (at, reason) = state.failed.as_ref()?;
        (*at >= began || began.saturating_duration_since(*at) < PAUSE).then(|| reason.clone())
    }

    /// Drops the token that the server refused. A newer token is not dropped.
    fn forget(&self, refused: &HeaderValue) {
        let mut state = lock(&self.state);
        if state
            .token
            .as_ref()
            .is_some_and(|it| it.authorization == *refused)
        {
            state.token = None;
            state.refused = Some(refused.clone());
        }
    }
}
