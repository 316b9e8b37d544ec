//! The way to an authorization server: that of the remote server whose token is wanted, so that the same rules hold.
//!
//! Most addresses that are asked are discovered: the remote server, or metadata, have named them. These lead to the public
//! Internet and are encrypted, unless the operator has written the same host or allows private addresses.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use http::header::LOCATION;
use http::{Request, Response};
use oauth2::{AsyncHttpClient, HttpRequest, HttpResponse};
use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
};
use tooldock_upstream::http_client::{BackendRequest, HttpClient as _};
use tooldock_workers::address::is_public;
use tooldock_workers::remote::{
    Backend, BackendSpec, HeaderRules, Host, RemoteServer, RemoteSpec, TlsSpec,
};

use super::token_endpoint;
use crate::remote::{RemoteClient, lock};

/// The longest answer of an authorization server, in bytes.
const ANSWER_MAX: usize = 256 * 1024;

/// The error for a client's secret that no header can hold.
const UNSHOWABLE: &str = "the client's secret cannot be shown in a header";

/// Sends requests to authorization servers. Redirects are never followed.
pub(super) struct Http {
    client: Weak<RemoteClient>,
    server: Arc<RemoteServer>,
    /// Why the last request failed: the libraries above do not pass that on.
    failed: Mutex<Option<String>>,
}

impl Http {
    pub(super) fn new(client: &Arc<RemoteClient>, server: &Arc<RemoteServer>) -> Self {
        Self {
            client: Arc::downgrade(client),
            server: Arc::clone(server),
            failed: Mutex::default(),
        }
    }

    /// Why the last request failed, if it did.
    pub(super) fn failed(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    /// An authorization server, to be connected to by the rules (addresses, TLS, time limits) of the remote server that the
    /// token is for.
    fn at(&self, backend: Backend) -> RemoteServer {
        let spec = &self.server.spec;
        let at = BackendSpec {
            id: backend.id(),
            backend,
            weight: 1,
            backup: false,
        };
        let spec = RemoteSpec {
            backends: vec![at],
            headers: HeaderRules {
                // A client may have to say who it is there.
                pass: vec!["authorization".into()],
                ..HeaderRules::default()
            },
            credentials: None,
            personal: Default::default(),
            oauth: None,
            keepalive: 0,
            tls: TlsSpec {
                // Those of the server itself.
                identity: None,
                server_name: None,
                ..spec.tls.clone()
            },
            ..spec.clone()
        };
        RemoteServer::new(self.server.name.member("oauth"), spec)
    }

    /// Refuses an address that the operator has not written, if it is none to be asked by itself.
    fn check(&self, backend: &Backend) -> Result<(), String> {
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
        match &backend.host {
            Host::Unix(_) => Err("an authorization server is not at a Unix socket".to_owned()),
            Host::Address(address, _) if !is_public(*address) => Err(format!(
                "{id} is discovered and not public; allow_private would allow it"
            )),
            _ if !backend.tls => Err(format!("{id} is discovered and not encrypted")),
            _ => Ok(()),
        }
    }

    /// Sends a request for a token, and repeats it once with the secret in the other form if the endpoint refuses the
    /// client.
    async fn token(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, OAuthHttpClientError> {
        let Some(client) = token_endpoint::TokenClient::of(&request) else {
            let answer = self.sent(request).await?;
            return Ok(token_endpoint::normalized(answer)?);
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
            return Ok(token_endpoint::normalized(answer)?);
        }
        let other = token_endpoint::other(form);
        let again = self.sent(shown(other)?).await;
        match again {
            Ok(again) if !token_endpoint::refuses_client(&again) => {
                own.client_auths()
                    .note(&self.server.name, &client.id, other);
                Ok(token_endpoint::normalized(again)?)
            }
            // The answer to the first form is the more useful one for the error.
            _ => Ok(token_endpoint::normalized(answer)?),
        }
    }

    /// Sends a request, and keeps in mind why it failed. A redirect comes without its address, so that it cannot be followed.
    ///
    /// # Errors
    ///
    /// The address may not be asked, or gave no answer of bounded length.
    pub(super) async fn send(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, OAuthHttpClientError> {
        let sent = match token_endpoint::is_token_request(&request) {
            true => self.token(request).await,
            false => self.sent(request).await,
        };
        *lock(&self.failed) = sent.as_ref().err().map(ToString::to_string);
        sent
    }

    async fn sent(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, OAuthHttpClientError> {
        let (parts, body) = request.into_parts();
        let backend = Backend::parse(&parts.uri.to_string())?;
        self.check(&backend)?;
        let client = self
            .client
            .upgrade()
            .ok_or("the gateway is shutting down")?;
        let backends = client.backends(&Arc::new(self.at(backend)));
        let backend = backends.pick(&[], 0).ok_or("it is not reached")?;
        let mut response = backend
            .send(BackendRequest {
                method: parts.method,
                target: None,
                headers: parts.headers.into(),
                body: Bytes::from(body),
                streams: false,
                departure: None,
                on_behalf_of: None,
            })
            .await?;
        let mut read = Vec::new();
        while let Some(piece) = response.body.chunk().await? {
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
