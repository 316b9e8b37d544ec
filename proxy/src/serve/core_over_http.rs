//! Client for a core in another process. It is used by commands, and by a manager in a separate process. Each request uses a new
//! connection, over TCP with or without TLS or over a Unix socket, and contains the bearer token and the manager's token.
//!
//! A request is never sent twice. The management tools parse the response.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tooldock_base::secret::Secret;
use tooldock_upstream::management::core::{CoreAnswer, CoreLink, CoreRequest, Unreachable};

use super::core_trust::CoreTrust;
use crate::config::{self, CoreUrl, Effective};

/// Time limit for connecting to the core.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for requests that the core answers without long work.
const QUICK: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes: a tool's result with its head.
const ANSWER_MAX: u64 = 64 * 1024 * 1024;

/// The address of a core, with the settings for connecting to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CoreAddress {
    pub(crate) url: CoreUrl,
    /// The host name to expect in the core's certificate; `None` for the host in the URL.
    pub(crate) tls_name: Option<String>,
    /// The header `Host` to send; `None` for the host in the URL.
    pub(crate) host: Option<String>,
    pub(crate) trust: CoreTrust,
}

impl From<CoreUrl> for CoreAddress {
    fn from(url: CoreUrl) -> Self {
        Self {
            url,
            ..Self::default()
        }
    }
}

/// HTTP client for the core.
pub(crate) struct CoreOverHttp {
    at: CoreAddress,
    /// The source of the address, as text that follows the address in errors.
    named: &'static str,
    bearer: Option<Secret>,
    manager: Secret,
}

impl CoreOverHttp {
    /// Creates a client for the core at the address in `CORE_URL`.
    pub(super) fn new(effective: &Effective) -> Self {
        Self::at(effective, effective.core_url.clone().into(), " (CORE_URL)")
    }

    /// Creates a client for the core at the given address. `named` follows the address in errors.
    pub(crate) fn at(effective: &Effective, at: CoreAddress, named: &'static str) -> Self {
        Self {
            at,
            named,
            bearer: effective.bearer.clone(),
            manager: effective.manager_token.clone(),
        }
    }

    fn text(&self, request: &CoreRequest) -> Vec<u8> {
        let (method, path) = match request {
            CoreRequest::Health => ("GET", "/health".to_owned()),
            CoreRequest::Namespaces => ("GET", "/namespaces".to_owned()),
            CoreRequest::Reload => ("POST", "/reload".to_owned()),
            CoreRequest::Explain { .. } => ("POST", "/explain".to_owned()),
            CoreRequest::Output { .. } => ("POST", "/output".to_owned()),
            // The names need no URL encoding: names of tools and toolsets contain no characters that would require it.
            CoreRequest::Call { tool, toolset, .. } => {
                let query = toolset.as_ref().map(|it| format!("?toolset={it}"));
                (
                    "POST",
                    format!("/tools/{tool}{}", query.unwrap_or_default()),
                )
            }
        };
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nX-Manager-Token: {}\r\nAccept: application/json\r\n\
             Connection: close\r\n",
            self.at
                .host
                .clone()
                .unwrap_or_else(|| self.at.url.authority()),
            self.manager.expose()
        );
        if let Some(bearer) = &self.bearer {
            text += &format!("Authorization: Bearer {}\r\n", bearer.expose());
        }
        let body = match request {
            CoreRequest::Call {
                namespace, input, ..
            } => {
                text += &format!("X-Namespace: {namespace}\r\nContent-Type: application/json\r\n");
                &input[..]
            }
            CoreRequest::Explain { question: body } | CoreRequest::Output { wanted: body } => {
                text += "Content-Type: application/json\r\n";
                &body[..]
            }
            _ => &[],
        };
        if method == "POST" {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut text = (text + "\r\n").into_bytes();
        text.extend_from_slice(body);
        text
    }

    async fn exchange(&self, request: &CoreRequest) -> io::Result<Vec<u8>> {
        let connected = timeout(CONNECT, self.connect()).await;
        let mut stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.write_all(&self.text(request)).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        match stream.take(ANSWER_MAX).read_to_end(&mut answer).await {
            // A TLS connection that ended without `close_notify` is accepted: the length in the response shows whether it is
            // complete.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => drop(read?),
        }
        Ok(answer)
    }

    async fn connect(&self) -> io::Result<Box<dyn CoreStream>> {
        let (host, port, tls) = match &self.at.url {
            CoreUrl::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            CoreUrl::Tcp { host, port, tls } => (config::bare_host(host), *port, *tls),
        };
        let stream = TcpStream::connect((host, port)).await?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let name = self.at.tls_name.clone().unwrap_or_else(|| host.to_owned());
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let client = self.at.trust.client().map_err(io::Error::other)?;
        let connected = TlsConnector::from(Arc::new(client))
            .connect(name, stream)
            .await;
        let stream = connected.map_err(|error| io::Error::other(format!("TLS: {error}")))?;
        Ok(Box::new(stream))
    }
}

/// A connection to the core: over TCP, TLS or a Unix socket.
trait CoreStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<C: AsyncRead + AsyncWrite + Unpin + Send> CoreStream for C {}

#[async_trait]
impl CoreLink for CoreOverHttp {
    async fn send(&self, request: CoreRequest) -> Result<CoreAnswer, Unreachable> {
        let unreachable =
            |why: String| Unreachable(format!("{}{}: {why}", self.at.url, self.named));
        let exchange = self.exchange(&request);
        let answer = match request {
            CoreRequest::Health
            | CoreRequest::Namespaces
            | CoreRequest::Explain { .. }
            | CoreRequest::Output { .. } => timeout(QUICK, exchange)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            // No time limit is needed here: the management tool that sends this request has one.
            CoreRequest::Reload | CoreRequest::Call { .. } => exchange.await,
        };
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        read(answer).ok_or_else(|| unreachable("the answer is no HTTP, or was cut off".to_owned()))
    }
}

/// Parses the status and body of a response. `None` if it is incomplete or not HTTP.
fn read(answer: Vec<u8>) -> Option<CoreAnswer> {
    let end = memchr::memmem::find(&answer, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    let status = StatusCode::from_bytes(status.as_bytes()).ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())
            .flatten()
    })?;
    let body = Bytes::from(answer).slice(end + 4..);
    (body.len() == length).then_some(())?;
    Some(CoreAnswer { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_is_one() {
        let text = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}";
        let answer = read(text.into()).expect("whole");
        assert_eq!(
            (answer.status.as_u16(), &answer.body[..]),
            (403, &b"{}"[..])
        );
        for broken in [
            "",
            "HTTP/1.1 200",
            "x\r\n\r\n",
            &text[..text.len() - 1],
            &text.replace("length: 2", "length: x"),
        ] {
            assert!(read(broken.into()).is_none(), "{broken}");
        }
    }
}
