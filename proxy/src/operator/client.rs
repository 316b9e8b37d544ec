//! HTTP client for the commands that query a running gateway. It sends all requests of a command, with the token, over TCP,
//! TLS or a Unix socket. It ignores the environment's proxies and follows no redirects, so that only the gateway gets the token.

use std::error::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{Response, Url};
use serde_json::Value;
use sse_stream::SseStream;

use super::gateway::RunningGateway;
use super::{CommandFailure, Outcome};
use crate::config::{self, CoreUrl};
use crate::serve::CoreTrust;

/// Time limit for connecting to the gateway.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for requests that the gateway answers without long work.
const QUICK: Duration = Duration::from_secs(15);
/// Maximum size of an answer of the gateway, in bytes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// HTTP client for a running gateway. It sends the user's token with each request.
pub(crate) struct GatewayClient {
    http: reqwest::Client,
    /// The gateway's base URL, without a slash at its end.
    base: String,
    gateway: RunningGateway,
}

/// Name and data of a server-sent event.
pub(super) type NamedEvent = (String, Value);

impl GatewayClient {
    /// Creates a client of the gateway. It connects at the first request.
    pub(crate) fn new(gateway: RunningGateway) -> Outcome<Self> {
        let unusable = |why: String| CommandFailure::Usage(format!("{gateway}: {why}"));
        let at = &gateway.address;
        let mut headers = HeaderMap::new();
        let host = at.host.clone().unwrap_or_else(|| at.url.authority());
        let host = HeaderValue::from_str(&host).map_err(|error| unusable(error.to_string()))?;
        headers.insert(HOST, host);
        if let Some(token) = &gateway.token {
            let value = format!("Bearer {}", token.secret.expose());
            let mut value =
                HeaderValue::from_str(&value).map_err(|error| unusable(error.to_string()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .http1_only()
            .connect_timeout(CONNECT)
            .default_headers(headers);
        let (base, tls) = match &at.url {
            CoreUrl::Unix(path) => {
                builder = builder.unix_socket(path.as_path());
                ("http://localhost".to_owned(), false)
            }
            CoreUrl::Tcp { host, port, tls } => match tls_name(&gateway) {
                // The certificate is for a name, but the listener is reached by its address. So the name is resolved to that
                // address.
                Some(name) if *tls => {
                    let address = address(host, *port).map_err(unusable)?;
                    builder = builder.resolve(&name, address);
                    (format!("https://{name}:{port}"), true)
                }
                _ => (at.url.to_string(), *tls),
            },
        };
        // Without TLS the file of trusted certificates is not needed and therefore not read, so it may be missing.
        let trust = if tls { &at.trust } else { &CoreTrust::Any };
        let http = builder
            .tls_backend_preconfigured(trust.client().map_err(unusable)?)
            .build()
            .map_err(|error| unusable(cause(&error)))?;
        Ok(Self {
            http,
            base,
            gateway,
        })
    }

    /// The underlying HTTP client. It adds the token to each request.
    pub(super) fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The URL of a namespace's MCP endpoint.
    pub(super) fn mcp_url(&self, namespace: &str) -> Outcome<String> {
        Ok(self.url(&["mcp", namespace], &[])?.into())
    }

    /// The gateway that the client queries, for use in messages.
    pub(crate) fn gateway(&self) -> &RunningGateway {
        &self.gateway
    }

    /// Sends a request and returns the JSON answer. Segments of the path are encoded here. POST requests have no time limit,
    /// because a reload may install packages.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Outcome<Value> {
        let (status, text) = self.send_request(method, path, query).await?;
        self.value(status, &text)
    }

    /// Requests JSON with GET. Returns `None` if the gateway answers with an error of the given code.
    pub(super) async fn json_unless(
        &self,
        code: &str,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Outcome<Option<Value>> {
        let (status, text) = self.send_request(Method::GET, path, query).await?;
        let body: Value = serde_json::from_slice(&text).unwrap_or_default();
        match !status.is_success() && body["error"]["code"] == code {
            true => Ok(None),
            false => self.value(status, &text).map(Some),
        }
    }

    async fn send_request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Outcome<(StatusCode, Vec<u8>)> {
        let is_quick = method != Method::POST;
        let mut request = self.http.request(method, self.url(path, query)?);
        if is_quick {
            request = request.timeout(QUICK);
        }
        let response = self.answered(request.send().await)?;
        self.body(response).await
    }

    fn value(&self, status: StatusCode, text: &[u8]) -> Outcome<Value> {
        if !status.is_success() {
            return Err(self.refused(status, text));
        }
        serde_json::from_slice(text).map_err(|error| {
            let gateway = &self.gateway;
            CommandFailure::Refused(format!(
                "the answer of {gateway} is not understood: {error}"
            ))
        })
    }

    /// Opens a stream of server-sent events.
    pub(super) async fn events(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Outcome<EventSource<'_>> {
        let request = self.http.get(self.url(path, query)?);
        let request = request.header(http::header::ACCEPT, "text/event-stream");
        let response = self.answered(request.send().await)?;
        let status = response.status();
        if !status.is_success() {
            let (status, text) = self.body(response).await?;
            return Err(self.refused(status, &text));
        }
        let stream = SseStream::from_bytes_stream(response.bytes_stream());
        Ok(EventSource {
            client: self,
            stream: Box::pin(futures_util::StreamExt::filter_map(
                stream,
                async |event| match event {
                    Ok(event) => {
                        let data = serde_json::from_str(&event.data?).ok()?;
                        Some(Ok((event.event.unwrap_or_default(), data)))
                    }
                    Err(error) => Some(Err(error.to_string())),
                },
            )),
        })
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Outcome<Url> {
        let wrong = |why: String| CommandFailure::Usage(format!("{}: {why}", self.gateway));
        let mut url: Url = self
            .base
            .parse()
            .map_err(|error| wrong(format!("{error}")))?;
        url.path_segments_mut()
            .map_err(|()| wrong("is no address of a server".to_owned()))?
            .clear()
            .extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn answered(&self, answer: reqwest::Result<Response>) -> Outcome<Response> {
        answer.map_err(|error| self.unreachable(&error))
    }

    /// Creates the failure that a command reports when its request got no answer.
    fn unreachable(&self, error: &reqwest::Error) -> CommandFailure {
        let why = match error.is_timeout() {
            true => "no answer in time".to_owned(),
            false => cause(error),
        };
        self.gone(&why)
    }

    /// Creates the failure that a command reports when the gateway cannot be reached or no longer responds. The text proposes a
    /// remedy.
    pub(super) fn gone(&self, why: &str) -> CommandFailure {
        let gateway = &self.gateway;
        let remedy = if why.contains("not valid for name") {
            "name it as its certificate does, with --url https://NAME:PORT, or, on this machine, take any with --insecure"
        } else if why.contains("invalid peer certificate") {
            "name the certificates that vouch for it with --ca, or, on this machine, take any with --insecure"
        } else {
            "start one with `tooldock serve`, or name the address of one with --url"
        };
        CommandFailure::Unreachable(format!(
            "no gateway is reached at {gateway}: {why}; {remedy}"
        ))
    }

    async fn body(&self, mut response: Response) -> Outcome<(StatusCode, Vec<u8>)> {
        let mut body = Vec::new();
        while let Some(piece) = match response.chunk().await {
            Ok(piece) => piece,
            Err(error) => return Err(self.unreachable(&error)),
        } {
            body.extend_from_slice(&piece);
            if body.len() > ANSWER_MAX {
                let reason = format!("the answer of {} is too large", self.gateway);
                return Err(CommandFailure::Refused(reason));
            }
        }
        Ok((response.status(), body))
    }

    /// Creates the failure that a command reports when the gateway answered with an error. The text proposes a remedy.
    fn refused(&self, status: StatusCode, body: &[u8]) -> CommandFailure {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &body["error"];
        let code = error["code"].as_str().unwrap_or_default();
        let detail = body["detail"].as_str().or(error["message"].as_str());
        let Some(detail) = detail else {
            let gateway = &self.gateway;
            return CommandFailure::Refused(format!(
                "{gateway} answers {status}, without a reason: is it a gateway's listener of the profile core?"
            ));
        };
        let hint = match (status, code) {
            (StatusCode::UNAUTHORIZED, _) => match &self.gateway.token {
                Some(token) => format!(" The token came from {}.", token.source),
                None => {
                    " No token was sent: set TOOLDOCK_TOKEN or BEARER_TOKEN, or name a file with --token-file."
                        .to_owned()
                }
            },
            (StatusCode::FORBIDDEN, "forbidden")
                if matches!(self.gateway.address.url, CoreUrl::Unix(_)) =>
            {
                " Clients of a Unix socket are admitted where admission.internal_cidrs names unix."
                    .to_owned()
            }
            (StatusCode::NOT_FOUND, "not_found") => {
                " The gateway is of another version, or its listener is not of the profile core.".to_owned()
            }
            _ => String::new(),
        };
        let detail = detail.trim_end_matches('.');
        CommandFailure::Refused(format!("{detail} ({status}).{hint}"))
    }
}

/// A stream of server-sent events from the gateway.
pub(super) struct EventSource<'a> {
    client: &'a GatewayClient,
    stream: std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<NamedEvent, String>> + 'a>>,
}

impl EventSource<'_> {
    /// Waits for the next event. Returns `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Outcome<Option<NamedEvent>> {
        let event = futures_util::StreamExt::next(&mut self.stream).await;
        event.transpose().map_err(|why| self.client.gone(&why))
    }
}

/// The host name to expect in the gateway's certificate. `None` if no such name is set, or the set name is an IP address.
fn tls_name(gateway: &RunningGateway) -> Option<String> {
    let name = gateway.address.tls_name.clone()?;
    name.parse::<IpAddr>().is_err().then_some(name)
}

fn address(host: &str, port: u16) -> Result<SocketAddr, String> {
    let found = (config::bare_host(host), port).to_socket_addrs();
    let mut found = found.map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| format!("{host} has no address"))
}

/// The innermost cause of an error. The errors around it are omitted because they repeat it in more general terms.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
