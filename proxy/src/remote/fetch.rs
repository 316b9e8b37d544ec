//! Requests of the gateway itself, to a URL that the operator has configured, or that a configured server has named.
//! Connection, request and response have limits of time and size.
//!
//! Redirects are not followed: only the requested URL may answer. Names may resolve only to public addresses, unless the
//! operator allows others, by the rules of remote servers ([`super::names`]).

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

/// A request for a document, or to an endpoint that takes a form.
pub(crate) struct Fetch<'a> {
    /// The host, port and path; never a Unix socket.
    pub(crate) from: &'a Backend,
    /// True when the name may lead to addresses that are not public.
    pub(crate) allow_private: bool,
    /// The form that a POST sends; `None` for a GET.
    pub(crate) form: Option<&'a str>,
    /// The value of `Authorization`.
    pub(crate) authorization: Option<&'a str>,
    /// Maximum size of the response's body, in bytes.
    pub(crate) bytes_max: usize,
    /// Time limit for the complete exchange.
    pub(crate) deadline: Duration,
}

/// Client for [`Fetch`] requests. It keeps no connection.
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
    /// The cause, for the log. Of the request it contains only the address.
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

/// The complete request as text. URLs and credentials were checked to contain no character that would end a line.
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
