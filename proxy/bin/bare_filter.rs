//! A reference program that measures the minimum cost of a refused request: Pingora with a `request_filter` that responds to
//! every request with the 401 response that the gateway sends for a wrong token.
//!
//! `bare_filter ADDRESS THREADS` is started by the load tests, which compare the gateway with it in the same run. It uses the
//! gateway's number of threads, buffers, allocator and response bytes, but checks, counts, logs and limits nothing.

#[path = "../src/allocator.rs"]
mod allocator;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora_core::apps::HttpServerOptions;
use pingora_core::listeners::{L4BufferSettings, ListenerConfig};
use pingora_core::modules::http::HttpModules;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{Fds, ListenFds, RunArgs, Server, ShutdownWatch};
use pingora_core::services::Service as PingoraService;
use pingora_core::services::listening::Service;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::{HttpProxy, ProxyHttp, Session};

/// The body of the gateway's 401 response.
const BODY: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32010,"message":"The bearer token is not valid.","data":{"code":"unauthorized"}}}"#;
/// The length of `BODY` in bytes, as text for a header.
const BODY_LENGTH: &str = "125";
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Request id with the length of the ids that the gateway generates.
const REQUEST_ID: &str = "0123abcd-4d2f1";
/// Number of headers of the response, including the two that Pingora adds (date and connection).
const HEADERS: usize = 7;
const KEEPALIVE_SECONDS: u64 = 60;
/// The gateway's buffer sizes, in bytes.
const READ_BUFFER: usize = 4 * 1024;
const WRITE_BUFFER: usize = 1460;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, threads] = &arguments[..] else {
        anyhow::bail!("usage: bare_filter ADDRESS THREADS");
    };
    let address: SocketAddr = address.parse().context("the address")?;
    let threads: usize = threads.parse().context("the number of threads")?;
    anyhow::ensure!((1..=1024).contains(&threads), "1 to 1024 threads");
    anyhow::ensure!(
        BODY_LENGTH.parse() == Ok(BODY.len()),
        "BODY_LENGTH is not the body's"
    );

    let socket = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    socket.set_nonblocking(true).context("the socket")?;
    let mut server = Server::new_with_opt_and_conf(
        None,
        ServerConf {
            threads,
            work_stealing: false,
            ..ServerConf::default()
        },
    );
    server.bootstrap();
    for _ in 0..threads {
        let mut proxy = pingora_proxy::http_proxy(&server.configuration, BareFilter);
        let mut options = HttpServerOptions::default();
        options.h2c = false;
        proxy.server_options = Some(options);
        let mut inner = Service::new("bare".to_owned(), proxy);
        inner.threads = Some(1);
        inner.add_listener(
            ListenerConfig::tcp(address.to_string())
                .l4_buffer(L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER)),
        );
        let mut sockets = Fds::new();
        let own = socket.try_clone().context("another handle of the socket")?;
        sockets.add(address.to_string(), own.into_raw_fd());
        server.add_service(OneThread {
            inner,
            sockets: Arc::new(sockets.into()),
        });
    }
    drop(socket);
    server.run(RunArgs::default());
    Ok(())
}

/// A service with its own runtime that accepts connections on the socket that all threads share, as the gateway's services do.
struct OneThread {
    inner: Service<HttpProxy<BareFilter>>,
    sockets: ListenFds,
}

#[async_trait]
impl PingoraService for OneThread {
    async fn start_service(
        &mut self,
        _: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
    ) {
        let sockets = Some(Arc::clone(&self.sockets));
        self.inner
            .start_service(sockets, shutdown, listeners_per_fd)
            .await;
    }

    fn name(&self) -> &str {
        PingoraService::name(&self.inner)
    }

    fn threads(&self) -> Option<usize> {
        PingoraService::threads(&self.inner)
    }
}

struct BareFilter;

#[async_trait]
impl ProxyHttp for BareFilter {
    type CTX = ();

    fn new_ctx(&self) {}

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, _: &mut ()) -> Result<bool> {
        session.set_keepalive(Some(KEEPALIVE_SECONDS));
        // The request's unread body is skipped, so that the connection stays open.
        session.set_close_on_response_before_downstream_finish(false);
        session
            .write_response_header(Box::new(head()), false)
            .await?;
        session
            .write_response_body(Some(Bytes::from_static(BODY.as_bytes())), true)
            .await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        Err(Error::explain(
            ErrorType::InternalError,
            "nothing gets past the filter",
        ))
    }
}

/// The response head, built as the gateway builds it. If Pingora built the head itself, it would keep a second map of the
/// headers' original names, which costs time; this head needs no copies.
fn head() -> ResponseHeader {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.append(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.append(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    headers.append(X_REQUEST_ID, HeaderValue::from_static(REQUEST_ID));
    headers.append(CONTENT_LENGTH, HeaderValue::from_static(BODY_LENGTH));
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = StatusCode::UNAUTHORIZED;
    parts.headers = headers;
    parts.into()
}
