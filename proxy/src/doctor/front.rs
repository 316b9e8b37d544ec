//! Probes the servers in front of the gateway through its public URL: a reverse proxy, a load balancer or a tunnel, called the
//! front.
//!
//! Each probe is a request with a nonce that the gateway has issued. The gateway responds with the names of the received headers
//! and with the addresses that it sees. Differences from the sent request are due to the front. No credentials are sent: the
//! value of `Authorization` is not a credential.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION, ORIGIN};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, Url};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tooldock_upstream::probe_events::PAUSE;

use super::certificates::ending;
use super::{Finding, IssuedNonces, KnownReplicas};
use crate::operator::client::cause;
use crate::serve::CoreTrust;
use crate::tls::CertificateEnd;

/// Time limit of a probe, except of those that read a stream.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a response's body that are read.
const ANSWER_MAX: usize = 64 * 1024;
/// Size of the body that proxies in front of the gateway should forward, in bytes, unless the gateway's own limit is lower. It is
/// above nginx's default limit.
const BODY: usize = 1_500_000;
/// Number of requests that are sent to find out whether a proxy in front of the gateway distributes a session's requests over
/// several gateways.
const SPREAD: usize = 8;
/// Number of streams that are read. A proxy in front of the gateway counts as buffering only if the events of all streams arrive
/// together: on a busy machine, this may happen to a single stream by chance.
const STREAMS: usize = 3;
/// An address of the range for documentation (RFC 5737), which no real client has.
const NO_CLIENT: &str = "192.0.2.77";
const MIB: usize = 1024 * 1024;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// Headers that clients send: name, value in a probe, true if clients cannot work without it, and the clients that need it.
const HEADERS: [(&str, &str, bool, &str); 6] = [
    (
        "authorization",
        "Bearer probe",
        true,
        "credentials of clients",
    ),
    ("mcp-session-id", "probe", true, "sessions"),
    (
        "mcp-protocol-version",
        "2025-11-25",
        true,
        "the version of the protocol",
    ),
    ("last-event-id", "probe", true, "resumed streams"),
    (
        "x-namespace",
        "probe",
        false,
        "namespaces of clients that name none in the path",
    ),
    (
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        false,
        "traces",
    ),
];

/// The URL by which clients reach the gateway: an origin, and an optional path prefix.
#[derive(Debug, Clone)]
pub(super) struct PublicAddress {
    /// The complete URL, without a slash at its end.
    base: String,
    host: String,
    port: u16,
    tls: bool,
    /// Host and port, as they stand in a `Host` header.
    authority: String,
}

impl fmt::Display for PublicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

impl PublicAddress {
    /// Parses a public URL.
    ///
    /// # Errors
    ///
    /// The reason why the URL cannot be used. The message omits a user name and password in the URL.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        const WANTED: &str = "expected https://HOST, perhaps with a port and the prefix of a path";
        let url: Url = text.parse().map_err(|_| WANTED.to_owned())?;
        let is_plain = matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        let (Some(host), Some(port), true) =
            (url.host_str(), url.port_or_known_default(), is_plain)
        else {
            return Err(WANTED.to_owned());
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let path = url.path().trim_end_matches('/');
        Ok(Self {
            base: format!("{}://{authority}{path}", url.scheme()),
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            tls: url.scheme() == "https",
            authority,
        })
    }

    /// Returns the origin: the URL without the path prefix.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

/// The gateway's response to a probe.
#[derive(Debug, Deserialize)]
struct Facts {
    http: String,
    host: Option<String>,
    headers: BTreeSet<String>,
    forwarded_for: Vec<String>,
    peer: String,
    peer_is_trusted: bool,
    client: String,
    client_is_internal: bool,
    /// True if a PROXY protocol header named the client's address to the gateway.
    proxy_protocol: bool,
    address: Option<String>,
    replica: Option<String>,
    body_max: usize,
    /// The address to which the probe connected.
    #[serde(skip)]
    connected: Option<SocketAddr>,
    /// True if the response contained the header `mcp-session-id`.
    #[serde(skip)]
    names_session: bool,
}

impl Facts {
    /// Returns true if the probe connected to the gateway itself, and not to a proxy in front of it.
    fn is_direct(&self) -> bool {
        let connected = self.connected.map(|it| it.to_string());
        connected.is_some() && connected == self.address
    }
}

/// The reason why the gateway did not answer a probe.
enum Failure {
    /// A program other than the gateway responded, or the gateway refused the request.
    Answered {
        status: StatusCode,
        /// The error code in the response, if it is an error of a gateway.
        code: Option<String>,
        message: String,
        location: Option<String>,
    },
    /// No response arrived; the text is the reason.
    Silent(String),
}

/// The probes of a public URL.
pub(super) struct Front<'a> {
    public: &'a PublicAddress,
    nonces: Mutex<Vec<String>>,
    replicas: Option<KnownReplicas>,
    trust: CoreTrust,
}

impl<'a> Front<'a> {
    /// Prepares the probes with the nonces that the gateway has issued. `ca` is a file with the certificates that verify the
    /// certificate of the proxy in front of the gateway, in place of the system's.
    ///
    /// # Errors
    ///
    /// If the file `ca` cannot be used; the message is one line.
    pub(super) fn new(
        public: &'a PublicAddress,
        issued: IssuedNonces,
        ca: Option<&Path>,
    ) -> Result<Self, String> {
        let trust = match ca {
            Some(file) => CoreTrust::of_file(file).map_err(|why| format!("--ca: {why}"))?,
            None => CoreTrust::System,
        };
        Ok(Self {
            public,
            nonces: Mutex::new(issued.nonces),
            replicas: issued.replicas,
            trust,
        })
    }

    /// Runs all probes. `slow` is the time for which a stream without events should stay open; `None` omits this probe.
    pub(super) async fn check(&self, slow: Option<Duration>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let trust = match self.connected(&mut findings).await {
            Some(trust) => trust,
            None => return findings,
        };
        let client = match client(&trust) {
            Ok(client) => client,
            Err(why) => {
                findings.push(Finding::skipped("front", format!("not probed: {why}")));
                return findings;
            }
        };
        let probes = Probes {
            front: self,
            client,
        };
        let facts = match probes.first().await {
            Ok(facts) => facts,
            Err(failure) => {
                findings.push(self.unreached(failure));
                return findings;
            }
        };
        let way = match facts.is_direct() {
            true => "without a server in front",
            false => "through a server in front",
        };
        let said = format!("{} reaches this gateway, {way}", self.public);
        findings.push(Finding::ok("front", said));
        findings.extend(self.headers(&facts));
        let slow = async {
            match slow {
                Some(silence) => probes.silent(silence).await,
                None => Vec::new(),
            }
        };
        let (clients, streams, body, delete, origin, spread, slow) = tokio::join!(
            probes.clients(&facts),
            probes.streams(),
            probes.body(facts.body_max),
            probes.delete(),
            probes.origin(),
            probes.spread(),
            slow,
        );
        for found in [clients, streams, body, delete, origin, spread, slow] {
            findings.extend(found);
        }
        findings
    }

    /// Connects to the public address once, and adds findings about its certificate. Returns the authorities that the other
    /// probes trust; `None` if the address cannot be reached.
    async fn connected(&self, findings: &mut Vec<Finding>) -> Option<CoreTrust> {
        let PublicAddress {
            host, port, tls, ..
        } = self.public;
        let looked_up = tokio::net::lookup_host((host.as_str(), *port));
        let addresses: Vec<_> = match timeout(PROBE_LIMIT, looked_up).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => {
                let said = format!("{host} has no address: {error}");
                findings.push(Finding::problem(
                    "front",
                    said,
                    format!("getent ahosts {host}"),
                ));
                return None;
            }
            Err(_) => {
                let said = format!("the look-up of {host} takes too long");
                findings.push(Finding::problem("front", said, "cat /etc/resolv.conf"));
                return None;
            }
        };
        let stream = match timeout(PROBE_LIMIT, TcpStream::connect(&addresses[..])).await {
            Ok(Ok(stream)) => stream,
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "no answer in time".to_owned(),
                };
                let said = format!("nothing answers at {}: {why}", self.public);
                findings.push(Finding::problem(
                    "front",
                    said,
                    format!("curl -v {}/health", self.public),
                ));
                return None;
            }
        };
        if !tls {
            return Some(CoreTrust::Any);
        }
        match timeout(PROBE_LIMIT, certificate(stream, host, &self.trust)).await {
            Ok(Ok(Some(end))) => {
                let subject = format!("the certificate of {host}");
                findings.push(ending("front", &subject, &end));
                Some(self.trust.clone())
            }
            Ok(Ok(None)) => Some(self.trust.clone()),
            failed => {
                let why = match failed {
                    Ok(Err(why)) => why,
                    _ => "no answer in time".to_owned(),
                };
                let lower = why.to_lowercase();
                let remedy = if lower.contains("unknownissuer") || lower.contains("unknown issuer")
                {
                    "nginx: ssl_certificate FULL_CHAIN.pem;   # or, for an authority of your own: tooldock doctor --ca FILE"
                } else if lower.contains("expired") {
                    "sudo certbot renew && sudo nginx -s reload"
                } else {
                    "nginx: ssl_certificate FILE;   # a certificate for this name"
                };
                let said = format!("clients refuse the certificate of {host}: {why}");
                findings.push(Finding::problem("front", said, remedy));
                // The other probes continue without verifying the certificate, since they send no secret.
                Some(CoreTrust::Any)
            }
        }
    }

    /// Returns the finding for a first probe that the gateway did not answer.
    fn unreached(&self, failure: Failure) -> Finding {
        let public = self.public;
        let (status, code, message, location) = match failure {
            Failure::Silent(why) => {
                let said = format!("{public} gives no answer: {why}");
                return Finding::problem("front", said, format!("curl -v {public}/health"));
            }
            Failure::Answered {
                status,
                code,
                message,
                location,
            } => (status, code, message, location),
        };
        let pass = "nginx: location / { proxy_pass http://ADDRESS OF THE GATEWAY; }";
        let problem = |said, remedy: &str| Finding::problem("front", said, remedy);
        match (status, code.as_deref()) {
            (_, Some("host_not_allowed" | "misdirected_request")) => problem(
                format!("the gateway refuses what the front sends as Host: {message}"),
                "nginx: proxy_set_header Host $host;",
            ),
            (_, Some("not_found")) => problem(
                format!(
                    "{public} leads to another gateway, or to a replica with another SESSION_KEY"
                ),
                pass,
            ),
            (_, Some(code)) => problem(
                format!(
                    "the gateway refuses the requests of the front ({status}, {code}): {message}"
                ),
                "tooldock check",
            ),
            (
                StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT,
                None,
            ) => problem(
                format!("the front does not reach the gateway: it answers {status}"),
                pass,
            ),
            (
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                None,
            ) => problem(
                format!("the front lets requests to {public}/mcp not pass: it answers {status}"),
                "nginx: auth_basic off;",
            ),
            (status, None) if status.is_redirection() => {
                let to = location.unwrap_or_default();
                problem(
                    format!("{public} redirects to {to}, which clients do not follow"),
                    "admission: { public_url: THE URL THAT DOES NOT REDIRECT }",
                )
            }
            (status, None) => problem(
                format!("{public} leads to another server, which answers {status}"),
                pass,
            ),
        }
    }

    /// Returns findings about headers that the proxy in front of the gateway removes, and about the HTTP version that it uses.
    fn headers(&self, facts: &Facts) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, _, is_needed, reason) in HEADERS {
            if facts.headers.contains(name) {
                continue;
            }
            let said = format!("the front removes the header {name}, which {reason} need");
            let variable = name.replace('-', "_");
            let line = format!("nginx: proxy_set_header {name} $http_{variable};");
            findings.push(match is_needed {
                true => Finding::problem("front", said, line),
                false => Finding::warning("front", said, line),
            });
        }
        if findings.is_empty() {
            findings.push(Finding::ok("front", "the headers of clients arrive"));
        }
        if !facts.names_session {
            findings.push(Finding::problem(
                "front",
                "the front removes the header mcp-session-id from answers, so that clients get no session",
                "nginx: proxy_pass_header Mcp-Session-Id;",
            ));
        }
        let host = facts.host.as_deref().unwrap_or_default();
        let sent = &self.public.host;
        if !bare(host).eq_ignore_ascii_case(sent) {
            findings.push(Finding::warning(
                "front",
                format!("the gateway gets the Host {host}, and not {sent}"),
                "nginx: proxy_set_header Host $host;",
            ));
        }
        if facts.http == "1.0" {
            findings.push(Finding::warning(
                "front",
                "the front speaks HTTP/1.0 to the gateway: a connection for each request",
                "nginx: proxy_http_version 1.1; proxy_set_header Connection \"\";",
            ));
        }
        findings
    }

    fn nonce(&self) -> Option<String> {
        let mut nonces = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        nonces.pop()
    }
}

/// The probes after the first connection, which share an HTTP client.
struct Probes<'a> {
    front: &'a Front<'a>,
    client: reqwest::Client,
}

impl Probes<'_> {
    /// Creates a request with a nonce; `None` if all nonces are used.
    fn request(&self, method: Method, query: &str) -> Option<RequestBuilder> {
        let nonce = self.front.nonce()?;
        let url = format!("{}/mcp/_probe/{nonce}{query}", self.front.public);
        Some(self.client.request(method, url))
    }

    /// Sends a probe, and returns the gateway's response.
    async fn facts(&self, request: Option<RequestBuilder>) -> Result<Facts, Failure> {
        let request = request.ok_or_else(|| Failure::Silent("no nonce is left".to_owned()))?;
        let answered = async {
            let response = request
                .send()
                .await
                .map_err(|error| Failure::Silent(cause(&error)))?;
            read(response).await
        };
        let answered = timeout(PROBE_LIMIT, answered).await;
        answered.unwrap_or_else(|_| Err(Failure::Silent("no answer in time".to_owned())))
    }

    /// Sends a probe with the headers that clients send, to check that the gateway is reached.
    async fn first(&self) -> Result<Facts, Failure> {
        let request = self.request(Method::GET, "").map(|mut request| {
            for (name, value, ..) in HEADERS {
                request = request.header(name, value);
            }
            request.header(ACCEPT, "application/json, text/event-stream")
        });
        self.facts(request).await
    }

    /// Checks which address the gateway regards as the client's.
    async fn clients(&self, facts: &Facts) -> Vec<Finding> {
        if facts.is_direct() {
            return Vec::new();
        }
        let Facts { peer, client, .. } = facts;
        let internal = match facts.client_is_internal {
            true => {
                ", which is one of admission.internal_cidrs: all of them count as operators' machines"
            }
            false => ": limits and logs know no clients",
        };
        let trust = match peer.as_str() {
            "unix" => "unix".to_owned(),
            address if address.contains(':') => format!("{address}/128"),
            address => format!("{address}/32"),
        };
        let trust = format!("admission: {{ trusted_proxies: [\"{trust}\"] }}");
        let weighed = |said: String, remedy: String| match facts.client_is_internal {
            true => Finding::problem("front", said, remedy),
            false => Finding::warning("front", said, remedy),
        };
        if facts.peer_is_trusted {
            let request = self.request(Method::GET, "");
            let request = request.map(|request| request.header("x-forwarded-for", NO_CLIENT));
            let lied = self.facts(request).await;
            let last = lied.ok().and_then(|it| it.forwarded_for.last().cloned());
            if last.as_deref() == Some(NO_CLIENT) {
                return vec![Finding::problem(
                    "front",
                    "the front passes on X-Forwarded-For as clients send it: each client can choose its address",
                    "nginx: proxy_set_header X-Forwarded-For $remote_addr;",
                )];
            }
        }
        if facts.proxy_protocol && facts.forwarded_for.is_empty() {
            let said =
                format!("the gateway knows clients by the PROXY protocol: this one is {client}");
            return vec![Finding::ok("front", said)];
        }
        if facts.forwarded_for.is_empty() {
            let said = format!("all clients of the front have the address {peer}{internal}");
            let line = "nginx: proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";
            return vec![weighed(said, line.to_owned())];
        }
        if !facts.peer_is_trusted {
            let said = format!(
                "X-Forwarded-For does not count, so all clients of the front have its address {peer}{internal}"
            );
            return vec![weighed(said, trust)];
        }
        let said = format!("the gateway knows clients by X-Forwarded-For: this one is {client}");
        vec![Finding::ok("front", said)]
    }

    /// Checks whether a proxy in front of the gateway delays the events of streams until the stream ends.
    async fn streams(&self) -> Vec<Finding> {
        for _ in 0..STREAMS {
            let times = match self.events("", PROBE_LIMIT).await {
                Ok(times) => times,
                Err(why) => {
                    return vec![Finding::problem(
                        "front",
                        format!("streams of events break off: {why}"),
                        "nginx: proxy_buffering off; proxy_read_timeout 1h;",
                    )];
                }
            };
            let (Some(first), Some(last)) = (times.first(), times.last()) else {
                continue;
            };
            if *last - *first >= PAUSE {
                return vec![Finding::ok("front", "streams arrive event by event")];
            }
        }
        vec![Finding::problem(
            "front",
            "the front buffers: the events of a stream arrive all at once, at its end",
            "nginx: proxy_buffering off; gzip off;",
        )]
    }

    /// Checks whether a stream without events for some time stays open.
    async fn silent(&self, silence: Duration) -> Vec<Finding> {
        let began = Instant::now();
        let query = format!("?silence={}", silence.as_secs());
        let heard = self.events(&query, silence + PROBE_LIMIT).await;
        let seconds = silence.as_secs();
        match heard {
            Ok(times) if times.len() == 2 => {
                let said = format!("a stream that is silent for {seconds} s stays open");
                vec![Finding::ok("front", said)]
            }
            _ => {
                let after = began.elapsed().as_secs();
                vec![Finding::warning(
                    "front",
                    format!(
                        "the front ends a stream that is silent for {seconds} s after {after} s: answers of slow calls are lost"
                    ),
                    "nginx: proxy_read_timeout 1h;",
                )]
            }
        }
    }

    /// Reads the events of a stream. Returns the time from the request to the arrival of each.
    async fn events(&self, query: &str, limit: Duration) -> Result<Vec<Duration>, String> {
        let request = self.request(Method::GET, query);
        let request = request.ok_or("no nonce is left")?;
        let request = request.header(ACCEPT, "text/event-stream");
        let began = Instant::now();
        let mut times = Vec::new();
        let read = async {
            let mut response = request.send().await.map_err(|error| cause(&error))?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(format!("the answer is {status}"));
            }
            let mut bytes = 0;
            while let Some(piece) = response.chunk().await.map_err(|error| cause(&error))? {
                bytes += piece.len();
                if bytes > ANSWER_MAX {
                    return Err("more than was sent arrives".to_owned());
                }
                let events = String::from_utf8_lossy(&piece).matches("data:").count();
                times.extend(std::iter::repeat_n(began.elapsed(), events));
            }
            Ok(())
        };
        match timeout(limit, read).await {
            Ok(Ok(())) => Ok(times),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("it does not end in time".to_owned()),
        }
    }

    /// Checks that a request body of [`BODY`] bytes, or of `max` bytes if that is less, reaches the gateway.
    async fn body(&self, max: usize) -> Vec<Finding> {
        let size = BODY.min(max);
        let request = self.request(Method::POST, "");
        let request = request.map(|request| {
            let body = vec![b' '; size];
            request.header(CONTENT_TYPE, "application/json").body(body)
        });
        let why = match self.facts(request).await {
            Ok(_) => {
                let said = format!("bodies of {size} bytes pass");
                return vec![Finding::ok("front", said)];
            }
            Err(Failure::Answered { status, .. }) => format!("the answer is {status}"),
            // A missing response counts as a refusal, too: a server that refuses a body may close the connection before its
            // response can be read.
            Err(Failure::Silent(why)) => why,
        };
        vec![Finding::problem(
            "front",
            format!(
                "a body of {size} bytes does not pass the front ({why}), and the gateway takes {max}"
            ),
            format!("nginx: client_max_body_size {}m;", max.div_ceil(MIB)),
        )]
    }

    /// Checks that `DELETE` requests, with which clients end sessions, reach the gateway.
    async fn delete(&self) -> Vec<Finding> {
        match self.facts(self.request(Method::DELETE, "")).await {
            Ok(_) => Vec::new(),
            Err(failure) => {
                let why = match failure {
                    Failure::Answered { status, .. } => format!("it answers {status}"),
                    Failure::Silent(why) => why,
                };
                vec![Finding::problem(
                    "front",
                    format!(
                        "DELETE does not pass the front, so that clients cannot end sessions: {why}"
                    ),
                    "nginx: limit_except GET POST DELETE OPTIONS { deny all; }",
                )]
            }
        }
    }

    /// Checks that the header `Origin`, by which the gateway refuses web pages, reaches the gateway.
    async fn origin(&self) -> Vec<Finding> {
        let origin = self.front.public.origin();
        let request = self.request(Method::GET, "");
        let request = request.map(|request| request.header(ORIGIN, origin));
        match self.facts(request).await {
            // The gateway treats a request without `Origin` as one that no web page has sent.
            Ok(facts) if !facts.headers.contains("origin") => vec![Finding::problem(
                "front",
                "the front removes the header origin, by which the gateway refuses pages of others",
                "nginx: proxy_set_header Origin $http_origin;",
            )],
            _ => Vec::new(),
        }
    }

    /// Checks whether all requests of one session reach the same gateway, with a separate connection for each request.
    async fn spread(&self) -> Vec<Finding> {
        let asked = (0..SPREAD).map(|_| {
            let request = self.request(Method::GET, "");
            self.facts(request.map(|it| it.header(SESSION, "probe")))
        });
        let answers = join_all(asked).await;
        let strangers = answers.iter().filter(|it| it.is_err()).count();
        let mut replicas: BTreeMap<String, usize> = BTreeMap::new();
        for facts in answers.into_iter().flatten() {
            *replicas
                .entry(facts.replica.unwrap_or_default())
                .or_default() += 1;
        }
        let mut findings = Vec::new();
        if strangers > 0 {
            findings.push(Finding::problem(
                "front",
                format!(
                    "{strangers} of {SPREAD} requests did not reach this gateway or a replica of it: another server, or one \
                     with another SESSION_KEY, stands behind the front as well"
                ),
                "nginx: upstream gateways { server ADDRESS OF EACH REPLICA; }",
            ));
        }
        let others = self.front.replicas.as_ref().map(|it| &it.others);
        let names: Vec<_> = replicas.keys().map(String::as_str).collect();
        let names = names.join(", ");
        match others {
            Some(others) if !others.is_empty() && replicas.len() > 1 => {
                let unreachable = others.iter().find_map(|it| it.problem.as_deref());
                findings.push(match unreachable {
                    None => Finding::ok(
                        "front",
                        format!("requests of a session go to {names}, which forward them to the session's replica"),
                    ),
                    Some(why) => Finding::problem(
                        "front",
                        format!("requests of a session go to {names}, and a replica cannot be reached by the others: {why}"),
                        "nginx: hash $http_mcp_session_id consistent;",
                    ),
                });
            }
            Some(others) if !others.is_empty() => {
                let said = format!("requests of a session go to one replica, {names}");
                findings.push(Finding::ok("front", said));
            }
            _ => {}
        }
        findings
    }
}

/// Creates the HTTP client of the probes. It opens a new connection for each request, ignores proxies of the environment, and
/// follows no redirects.
fn client(trust: &CoreTrust) -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .http1_only()
        .pool_max_idle_per_host(0)
        .connect_timeout(PROBE_LIMIT)
        .tls_backend_preconfigured(trust.client()?)
        .build()
        .map_err(|error| cause(&error))
}

/// Performs a TLS handshake. Returns the expiry of the certificate, if the certificate can be parsed.
async fn certificate(
    stream: TcpStream,
    host: &str,
    trust: &CoreTrust,
) -> Result<Option<CertificateEnd>, String> {
    let connector = TlsConnector::from(Arc::new(trust.client()?));
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connected = connector.connect(name, stream).await;
    let connected = connected.map_err(|error| error.to_string())?;
    let shown = connected.get_ref().1.peer_certificates();
    Ok(shown
        .and_then(<[_]>::first)
        .and_then(|der| CertificateEnd::of(der)))
}

/// Reads the response to a probe.
async fn read(mut response: Response) -> Result<Facts, Failure> {
    let status = response.status();
    let text = |name: HeaderName| {
        let value = response.headers().get(name);
        value.and_then(|it: &HeaderValue| it.to_str().ok().map(str::to_owned))
    };
    let location = text(LOCATION);
    let names_session = text(SESSION).is_some();
    let connected = response.remote_addr();
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => break,
            Err(error) => return Err(Failure::Silent(cause(&error))),
        }
        if body.len() > ANSWER_MAX {
            break;
        }
    }
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status == StatusCode::OK
        && value["probe"] == true
        && let Ok(facts) = serde_json::from_value::<Facts>(value.clone())
    {
        return Ok(Facts {
            connected,
            names_session,
            ..facts
        });
    }
    let error = &value["error"];
    let told = |text: &Value| text.as_str().map(str::to_owned);
    Err(Failure::Answered {
        status,
        code: told(&error["code"]).or_else(|| told(&error["data"]["code"])),
        message: told(&error["message"])
            .or(told(&value["detail"]))
            .unwrap_or_default(),
        location,
    })
}

/// Returns the value of a `Host` header without its port.
fn bare(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => {
            name.trim_matches(['[', ']'])
        }
        _ => host.trim_matches(['[', ']']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_is_an_origin_with_a_prefix_and_no_login() {
        let read = |text: &str| PublicAddress::read(text).map(|it| (it.to_string(), it.port));
        for (text, base, port) in [
            ("https://gw.example", "https://gw.example", 443),
            ("https://GW.example:8443/", "https://gw.example:8443", 8443),
            ("http://gw.example/tools/", "http://gw.example/tools", 80),
            ("http://[::1]:8000", "http://[::1]:8000", 8000),
        ] {
            assert_eq!(read(text), Ok((base.to_owned(), port)), "{text}");
        }
        for wrong in [
            "gw.example",
            "ftp://gw.example",
            "https://user:hunter2@gw.example",
            "https://gw.example?a=b",
        ] {
            let error = read(wrong).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_port_of_a_host_does_not_count() {
        for (host, name) in [
            ("gw.example", "gw.example"),
            ("gw.example:8000", "gw.example"),
            ("[::1]:8000", "::1"),
            ("[::1]", "::1"),
        ] {
            assert_eq!(bare(host), name);
        }
    }
}
