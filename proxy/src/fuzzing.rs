//! Root of the library `tooldock_fuzz`, which only `make fuzz` compiles: parsers of the binary, with the modules that they use.
//! Files are the binary's own, since no other crate can depend on a binary.

#![allow(
    dead_code,
    unused_imports,
    reason = "the binary uses the rest of these modules"
)]

mod config;
mod header_edits;
mod kept_file;
mod nearest;
mod scratch;

mod edge {
    pub(crate) mod head;
    pub(crate) mod proxy_protocol;

    use std::net::SocketAddr;

    /// Reads the header of the PROXY protocol at the beginning of `connection`. The error says why there is none.
    pub(crate) async fn proxy_header(connection: &mut &[u8]) -> Result<Option<SocketAddr>, String> {
        let read = proxy_protocol::read(connection).await;
        read.map_err(|error| error.to_string())
    }
}

mod cli {
    /// The half of the gateway that a process runs, as on its command line.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Role {
        All,
        Core,
        Manager,
    }
}

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};
use tooldock_base::yaml;
use tooldock_import_nginx::{GatewayRules, fuzzing::nginx_conf};

use edge::head::{HeadOutcome, gather};

/// Maximum length of a head in bytes, so that inputs are on both sides of it.
const HEAD_MAX: usize = 256;

/// A connection on which all bytes have arrived, in pieces of a fixed length.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(self.rest.len()).min(into.remaining());
        let (read, rest) = self.rest.split_at(length);
        into.put_slice(read);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Runs a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("all bytes are there, and something is waited for"),
    }
}

/// Reads the head of a request at once and in pieces. The first byte is the length of a piece.
pub fn request_head(input: &[u8]) {
    let Some((&piece, bytes)) = input.split_first() else {
        return;
    };
    let read = |piece: usize| {
        let mut connection = Pieces { rest: bytes, piece };
        match at_once(gather(&mut connection, HEAD_MAX, || {})) {
            HeadOutcome::Whole(head) => {
                let mut headers = [httparse::EMPTY_HEADER; 64];
                let mut request = httparse::Request::new(&mut headers);
                let parsed = request.parse(&head.bytes[..head.end]);
                // What a parser of HTTP reads of the head is its whole, and nothing behind it.
                if let Ok(status) = parsed {
                    assert_eq!(status, httparse::Status::Complete(head.end));
                    let coded = request
                        .headers
                        .iter()
                        .any(|field| field.name.eq_ignore_ascii_case("transfer-encoding"));
                    assert_eq!(head.coded, coded);
                }
                Ok((head.end, head.coded))
            }
            HeadOutcome::Closed => Err(None),
            HeadOutcome::Refused(refusal) => {
                let parts = refusal.parts();
                let _ = (parts.method.as_str(), parts.uri.path());
                Err(Some(refusal.rejection().code()))
            }
        }
    };
    let (whole, pieces) = (read(bytes.len().max(1)), read(usize::from(piece).max(1)));
    // A head that arrives at once may be above the limit that the same head in pieces has reached.
    if bytes.len() <= HEAD_MAX {
        assert_eq!(whole, pieces, "a head is read by where it is cut");
    }
}

/// Reads a header of the PROXY protocol, and checks that nothing behind it is read.
pub fn proxy_header(bytes: &[u8]) {
    let mut rest = bytes;
    let client = at_once(edge::proxy_header(&mut rest));
    let read = &bytes[..bytes.len() - rest.len()];
    if let Ok(client) = client {
        assert!(read.len() >= 15);
        if let Some(client) = client {
            assert!(!client.ip().to_canonical().is_unspecified());
        }
        let mut alone = read;
        assert_eq!(at_once(edge::proxy_header(&mut alone)), Ok(client));
        assert!(alone.is_empty());
    }
}

/// Checks a configuration. One that is accepted is written and read again.
pub fn configuration(text: &str) {
    if config::check_text(text).is_err() {
        return;
    }
    let tree: yaml::Value = yaml::from_str(text).expect("what is accepted is YAML");
    let written = yaml::to_string(&tree).expect("written");
    if let Err(error) = config::check_text(&written) {
        panic!("{error}\n{written}");
    }
}

/// Imports a configuration of nginx. What is written must be a configuration of the gateway.
pub fn imported_nginx(text: &str) {
    let gateway = GatewayRules {
        grace_max: config::GRACE_MAX,
        allows_address: |text| text.parse::<config::ListenAddress>().is_ok(),
        allows_alias: |path| {
            let routes = config::ProfileName::Core.spec().routes;
            config::refusal_of_alias(path, routes).is_none()
        },
        allows_response_header: |name, value| {
            let mut headers = config::HeadersConfig::default();
            headers
                .response
                .set
                .insert(name.to_owned(), value.to_owned());
            header_edits::HeaderEdits::of(&headers).is_ok()
        },
        allows_log_format: |text| text.parse::<config::LogPattern>().is_ok(),
    };
    if let Some(written) = nginx_conf(text, &gateway)
        && let Err(error) = config::check_text(&written)
    {
        panic!("{error}\n{written}");
    }
}
