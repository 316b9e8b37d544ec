//! Requests that the gateway itself sends, to a URL that the operator has configured or that a configured server has named.
//! Each request has limits for its duration and for the size of its response.
//!
//! Redirects are not followed: the response must come from the requested URL. Names may resolve only to public addresses, unless
//! the operator allows others. These rules are those for remote servers ([`super::names`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;
use tooldock_upstream::http_client::BodyError;
use tooldock_workers::remote::{Backend, TlsSpec};

use super::coding;
use super::connect::{ConnectTarget, Connector};
use super::exchange::BYTE_ORDER_MARK;
use super::names::{Addresses, Names};
use super::response::{ReadError, Response};
use super::tls::Material;

/// Time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A GET request for a document, or a POST request with a form.
pub(crate) struct Fetch<'a> {
    /// The host, port and path to request. The host is never a Unix socket.
    pub(crate) from: &'a Backend,
    /// True if the name may resolve to addresses that are not public; false if such addresses are refused.
    pub(crate) allow_private: bool,
    /// The encoded form that is sent with POST; `None` for a GET request.
    pub(crate) form: Option<&'a str>,
    /// The value of the header `Authorization`; `None` to send no such header.
    pub(crate) authorization: Option<&'a str>,
    /// Maximum size of the response's body, in bytes.
    pub(crate) bytes_max: usize,
    /// Time limit for connecting, the request and the complete response.
    pub(crate) deadline: Duration,
}

/// Client that sends [`Fetch`] requests. Each request uses a new connection.
pub(crate) struct Fetcher {
    connector: Arc<Connector>,
    names: Arc<dyn Names>,
}

impl Fetcher {
    pub(crate) fn new(names: Arc<dyn Names>) -> Self {
        Self {
            connector: Arc::default(),
            names,
        }
    }

    /// Sends the request; returns the status and the body of the response.
    ///
    /// # Errors
    ///
    /// The cause as text for the log. It contains the request's address, but no other data of the request.
    pub(crate) async fn fetch(&self, fetch: Fetch<'_>) -> Result<(StatusCode, Bytes), String> {
        let all = timeout(fetch.deadline, self.exchange(&fetch)).await;
        all.unwrap_or_else(|_| {
            let id = fetch.from.id();
            let seconds = fetch.deadline.as_secs_f32();
            Err(format!("{id}: no whole response within {seconds} s"))
        })
    }

    async fn exchange(&self, fetch: &Fetch<'_>) -> Result<(StatusCode, Bytes), String> {
        let id = fetch.from.id();
        let host = fetch.from.host.clone();
        let addresses = Addresses::new(host, fetch.allow_private, Arc::clone(&self.names));
        let target = ConnectTarget {
            id: &id,
            backend: fetch.from,
            tls: &TlsSpec::default(),
            limit: CONNECT,
            addresses: &addresses,
            material: &Material::default(),
        };
        let connected = self.connector.connect_to(target).await;
        let (mut stream, _) = connected.map_err(|error| error.message)?;
        let head = head(fetch);
        let written = async {
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await
        };
        let broken = |_| format!("{id}: the connection ended while the request was written");
        written.await.map_err(broken)?;
        let unreadable = |error: ReadError| match error {
            ReadError::Closed => format!("{id}: the connection ended before the whole response"),
            ReadError::Malformed(what) => format!("{id}: the response is not HTTP/1.1: {what}"),
        };
        let mut response = Response::new(stream);
        let mut head = response.read_head().await.map_err(unreadable)?;
        let decoder = coding::decoder(&mut head.headers, std::iter::empty());
        let undecodable = |error: BodyError| format!("{id}: {error}");
        let mut decoder = decoder.map_err(undecodable)?;
        let mut body = Vec::new();
        let mut take = |piece: &[u8]| {
            if body.len() + piece.len() > fetch.bytes_max {
                let most = fetch.bytes_max;
                return Err(format!("{id}: the response is larger than {most} bytes"));
            }
            body.extend_from_slice(piece);
            Ok(())
        };
        while let Some(piece) = response.next().await.map_err(unreadable)? {
            let Some(decoder) = &mut decoder else {
                take(&piece)?;
                continue;
            };
            decoder.push(piece);
            while let Some(piece) = decoder.next().map_err(undecodable)? {
                take(&piece)?;
            }
        }
        if decoder.is_some_and(|it| !it.is_complete()) {
            return Err(unreadable(ReadError::Closed));
        }
        if body.starts_with(BYTE_ORDER_MARK) {
            body.drain(..BYTE_ORDER_MARK.len());
        }
        Ok((head.status, body.into()))
    }
}

/// The complete request as text. No line can be injected: URLs and credentials were already checked for line ends.
fn head(fetch: &Fetch<'_>) -> String {
    let method = if fetch.form.is_some() { "POST" } else { "GET" };
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nUser-Agent: tooldock/{}\r\nConnection: close\r\n",
        fetch.from.target,
        fetch.from.authority(),
        env!("CARGO_PKG_VERSION"),
    );
    if let Some(authorization) = fetch.authorization {
        head += &format!("Authorization: {authorization}\r\n");
    }
    match fetch.form {
        Some(form) => {
            let length = form.len();
            head += &format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
            );
        }
        None => head += "\r\n",
    }
    head
}
