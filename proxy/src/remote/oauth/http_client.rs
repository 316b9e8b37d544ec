//! The HTTP client for an authorization server. It uses the settings of the remote server for which a token is needed, so that
//! the same rules apply.
//!
//! Most addresses are discovered: the remote server or some metadata named them. A discovered address must be public and must
//! use TLS, unless the operator has written the same host in the configuration or allows private addresses.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};

use http::header::LOCATION;
use http::{Request, Response};
use oauth2::{AsyncHttpClient, HttpRequest, HttpResponse};
use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
};
use tooldock_base::address::is_public;
use tooldock_base::secret::Secret;
use tooldock_upstream::http_client::{BackendRequest, BodyError, SendError};
use tooldock_workers::remote::{Backend, Host, RemoteServer};

use super::words::{Reason, one_line};
use super::{client_assertion, token_endpoint};
use crate::remote::{RemoteClient, lock};

/// Maximum size of an authorization server's response, in bytes.
const ANSWER_MAX: usize = 256 * 1024;

/// Error text for a client's secret that contains a character that is not allowed in a header.
const UNSHOWABLE: &str = "the client's secret cannot be shown in a header";

/// Sends requests to authorization servers. Redirects are never followed, not even one that only adds a slash, because requests
/// contain secrets, which must be sent to the requested address only.
pub(super) struct Http {
    client: Weak<RemoteClient>,
    server: Arc<RemoteServer>,
    /// Secrets that are removed from all texts, in addition to the secrets in the server's configuration.
    hidden: Mutex<Vec<Secret>>,
    /// The cause of the last failure. It is stored here because the OAuth library does not include it in its error.
    failed: Mutex<Option<NoAnswer>>,
    /// Issuer of the authorization server; `None` if it is not known. Client assertions name it as their audience.
    issuer: Mutex<Option<String>>,
}

/// The reason why a request got no usable response.
#[derive(Debug, Clone)]
struct NoAnswer {
    /// The reason as text for the log.
    why: String,
    /// The reason as text for clients. `None` if clients may read `why`; `Some` if `why` contains an address they must not see.
    told: Option<String>,
}

impl From<String> for NoAnswer {
    fn from(why: String) -> Self {
        Self { why, told: None }
    }
}

impl From<&str> for NoAnswer {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl From<SendError> for NoAnswer {
    fn from(error: SendError) -> Self {
        let told = match error.unsent {
            true => "the authorization server cannot be reached",
            false => "the authorization server did not answer",
        };
        Self {
            why: error.message,
            told: Some(format!("{told}: {}", error.kind.description())),
        }
    }
}

impl Http {
    pub(super) fn new(client: &Arc<RemoteClient>, server: &Arc<RemoteServer>) -> Self {
        let http = Self {
            client: Arc::downgrade(client),
            server: Arc::clone(server),
            hidden: Mutex::default(),
            failed: Mutex::default(),
            issuer: Mutex::default(),
        };
        if let Some(spec) = &server.spec.oauth
            && let Some(secret) = &spec.client_secret
        {
            let id = spec.client_id.as_deref().unwrap_or_default();
            http.hide_client(id, secret.expose());
        }
        http
    }

    /// Stores the issuer of the authorization server to which later token requests are sent.
    pub(super) fn set_issuer(&self, issuer: Option<String>) {
        *lock(&self.issuer) = issuer;
    }

    /// Adds secrets to remove from all later texts. Their form-encoded spelling is removed, too.
    pub(super) fn hide(&self, values: impl IntoIterator<Item = Secret>) {
        let mut hidden = lock(&self.hidden);
        for value in values {
            let in_form = token_endpoint::encoded(value.expose());
            if in_form != value.expose() {
                hidden.push(Secret::new(in_form));
            }
            hidden.push(value);
        }
    }

    /// Adds a client's secret to remove from all later texts, both plain and as in the header `Authorization`.
    pub(super) fn hide_client(&self, id: &str, secret: &str) {
        let basic = token_endpoint::basic(id, secret);
        self.hide([Secret::new(secret), Secret::new(basic)]);
    }

    /// Reduces a text from another server to one line of bounded length, without secrets.
    pub(super) fn words(&self, text: &str) -> String {
        let hidden = lock(&self.hidden).clone();
        one_line(&self.server, &hidden, text)
    }

    /// Converts an error text of the OAuth library to a reason, and adds the cause of the last failed request.
    pub(super) fn reason(&self, error: &str) -> Reason {
        let failed = lock(&self.failed).clone();
        let Some(NoAnswer { why, told }) = failed else {
            return self.words(error).into();
        };
        let logged = match error.contains(&why) {
            true => self.words(error),
            false => self.words(&format!("{error} ({why})")),
        };
        match told {
            Some(told) => Reason { logged, told },
            None => logged.into(),
        }
    }

    /// Rewrites the response of a token endpoint in the form that the OAuth library can read.
    fn normalized(&self, answer: Response<Vec<u8>>) -> Result<Response<Vec<u8>>, NoAnswer> {
        let words = |text: &str, own: &[Secret]| {
            let mut hidden = lock(&self.hidden).clone();
            hidden.extend_from_slice(own);
            one_line(&self.server, &hidden, text)
        };
        Ok(token_endpoint::normalized(answer, &words)?)
    }

    /// Settings for connecting to the authorization server at `backend`. The rules for addresses, TLS and time limits are those
    /// of the remote server for which the token is needed.
    fn at(&self, backend: Backend) -> RemoteServer {
        let spec = &self.server.spec;
        // `Authorization` is the only header that is passed on, because the gateway may have to authenticate itself with it.
        let spec = spec.elsewhere(backend, "authorization");
        RemoteServer::new(self.server.name.member("oauth"), spec)
    }

    /// Refuses a discovered address that is private or does not use TLS, unless the configuration allows it.
    fn check(&self, backend: &Backend) -> Result<(), NoAnswer> {
        let spec = &self.server.spec;
        let oauth = spec.oauth.iter();
        let urls = oauth.flat_map(|it| {
            let others = [&it.issuer, &it.token_url, &it.authorization_url];
            others.into_iter().flatten().chain([&it.resource])
        });
        let mut written = urls.filter_map(|url| Backend::parse(url).ok());
        let is_written = |it: &Backend| it.host == backend.host && it.tls <= backend.tls;
        if spec.allow_private
            || spec.backends.iter().any(|it| is_written(&it.backend))
            || written.any(|it| is_written(&it))
        {
            return Ok(());
        }
        let id = backend.id();
        let refused = |what: &str| NoAnswer {
            why: format!("{id} {what}"),
            told: Some(format!("the address of the authorization server {what}")),
        };
        match &backend.host {
            Host::Unix(_) => Err("an authorization server is not at a Unix socket".into()),
            Host::Address(address, _) if !is_public(*address) => Err(refused(
                "is discovered and not public; allow_private would allow it",
            )),
            _ if !backend.tls => Err(refused("is discovered and not encrypted")),
            _ => Ok(()),
        }
    }

    /// Returns the request with a client assertion if the server's configuration has a client key.
    fn asserted(&self, request: &Request<Vec<u8>>) -> Result<Option<Request<Vec<u8>>>, NoAnswer> {
        let Some((id, key)) = self
            .server
            .spec
            .oauth
            .as_ref()
            .and_then(|it| it.client_id.as_ref().zip(it.client_key.as_ref()))
        else {
            return Ok(None);
        };
        let issuer = lock(&self.issuer).clone();
        let audience = issuer.unwrap_or_else(|| request.uri().to_string());
        let assertion = client_assertion::assertion(key, id, &audience)?;
        self.hide([assertion.clone()]);
        Ok(Some(client_assertion::with_assertion(
            request, id, &assertion,
        )))
    }

    /// Sends a token request. If the endpoint refuses the client, repeats the request once with the client's secret in the other
    /// form: header instead of body, or body instead of header.
    async fn token(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, NoAnswer> {
        if let Some(asserted) = self.asserted(&request)? {
            let answer = self.sent(asserted).await?;
            return self.normalized(answer);
        }
        let Some(client) = token_endpoint::TokenClient::of(&request) else {
            let answer = self.sent(request).await?;
            return self.normalized(answer);
        };
        let own = self
            .client
            .upgrade()
            .ok_or("the gateway is shutting down")?;
        let forced = self
            .server
            .spec
            .oauth
            .as_ref()
            .and_then(|it| it.client_auth);
        let form = forced.or_else(|| own.client_auths().get(&self.server.name, &client.id));
        let form = form.unwrap_or(client.shown);
        let shown = |form| match form == client.shown {
            true => Ok(request.clone()),
            false => client.show(&request, form).ok_or(UNSHOWABLE),
        };
        let answer = self.sent(shown(form)?).await?;
        if forced.is_some() || !token_endpoint::refuses_client(&answer) {
            return self.normalized(answer);
        }
        let other = token_endpoint::other(form);
        let again = self.sent(shown(other)?).await;
        match again {
            Ok(again) if !token_endpoint::refuses_client(&again) => {
                own.client_auths()
                    .note(&self.server.name, &client.id, other);
                self.normalized(again)
            }
            // Both forms failed. The first response is used because it is more informative.
            _ => self.normalized(answer),
        }
    }

    /// Sends a request, and stores the cause of a failure. The target of a redirect is removed from the response, so that the
    /// caller cannot follow it.
    ///
    /// # Errors
    ///
    /// When the address is not allowed, no response arrived, or the response is too long.
    pub(super) async fn send(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, OAuthHttpClientError> {
        let sent = match token_endpoint::is_token_request(&request) {
            true => self.token(request).await,
            false => self.sent(request).await,
        };
        *lock(&self.failed) = sent.as_ref().err().cloned();
        sent.map_err(|it| it.why.into())
    }

    async fn sent(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, NoAnswer> {
        let (parts, body) = request.into_parts();
        let backend = Backend::parse(&parts.uri.to_string())?;
        self.check(&backend)?;
        let client = self
            .client
            .upgrade()
            .ok_or("the gateway is shutting down")?;
        let pool = client.pool_of(&Arc::new(self.at(backend)));
        let backend = pool.members.first().ok_or("it is not reached")?;
        let request = BackendRequest::new(parts.method, parts.headers, body.into());
        let mut response = backend.ask_here(&request).await?;
        let mut read = Vec::new();
        let broken = |error: BodyError| format!("the authorization server's answer: {error}");
        while let Some(piece) = response.body.chunk().await.map_err(broken)? {
            if piece.len() > ANSWER_MAX - read.len() {
                return Err(format!("its answer is longer than {ANSWER_MAX} bytes").into());
            }
            read.extend_from_slice(&piece);
        }
        let mut answer = Response::new(read);
        *answer.status_mut() = response.status;
        *answer.headers_mut() = response.headers;
        if response.status.is_redirection() {
            answer.headers_mut().remove(LOCATION);
        }
        Ok(answer)
    }
}

impl OAuthHttpClient for Http {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(self.send(request.request))
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<HttpResponse>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async { self.send(request).await.map_err(io::Error::other) })
    }
}
