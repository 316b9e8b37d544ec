//! Root of the library `tooldock_fuzz`, which only `make fuzz` compiles: parsers of the gateway's binary, with the modules that
//! they use. The modules are the binary's own files, since no other crate can depend on a binary.

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

    /// Reads the header of the PROXY protocol at the beginning of `connection`. The error says why there is no header.
    pub(crate) async fn proxy_header(connection: &mut &[u8]) -> Result<Option<SocketAddr>, String> {
        let read = proxy_protocol::read(connection).await;
        read.map_err(|error| error.to_string())
    }
}

mod cli {
    /// Half of the gateway that a process runs, as in the module `cli` of the binary.
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

/// Maximum length of a head in bytes, small enough that inputs have shorter and longer heads.
const HEAD_MAX: usize = 256;

/// Connection whose bytes have all arrived, read in pieces of a fixed length.
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

/// Runs a future that never waits. Returns its result.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("all bytes are there, and something is waited for"),
    }
}

/// Reads the head of a request at once and in pieces, and compares the results. The first byte is the length of a piece.
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
                // An HTTP parser that accepts the head must find its end at the same byte.
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
    // Beyond the size limit, a head that arrives at once and the same head in pieces may have different results.
    if bytes.len() <= HEAD_MAX {
        assert_eq!(whole, pieces, "a head is read by where it is cut");
    }
}

/// Reads a header of the PROXY protocol, and checks that no byte after the header is read.
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

/// Checks a configuration. An accepted configuration is written, and must then be accepted again.
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

/// Imports an nginx configuration. The result must be a valid configuration of the gateway.
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
