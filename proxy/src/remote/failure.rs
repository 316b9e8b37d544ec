//! Creates the errors of requests to remote servers.

use std::time::Duration;

use pingora_core::{Error, ErrorType};
use tooldock_upstream::http_client::{SendError, SendErrorKind};
use tooldock_workers::remote::BackendId;

use super::names::NoAddress;

/// Creates an error about a backend. `unsent` is true if the backend has received no request.
pub(crate) fn failed(id: &BackendId, kind: SendErrorKind, unsent: bool, what: &str) -> SendError {
    SendError {
        kind,
        unsent,
        message: format!("{id}: {what}"),
    }
}

/// Creates the error for a backend without a usable address.
pub(crate) fn no_address(id: &BackendId, reason: &NoAddress) -> SendError {
    let what = match reason {
        NoAddress::NotFound(what) => what.clone(),
        NoAddress::NotPublic(name, address) => format!(
            "{name} leads to {}, which is not public; the server's allow_private would allow it",
            address.ip()
        ),
        NoAddress::Timeout(name) => format!("{name} was not looked up in time"),
    };
    failed(id, SendErrorKind::Resolve, true, &what)
}

/// Creates the error for a failed connection.
pub(crate) fn not_connected(id: &BackendId, error: &Error) -> SendError {
    let (kind, what) = match error.etype() {
        ErrorType::ConnectRefused => (
            SendErrorKind::Connect,
            "the connection was refused".to_owned(),
        ),
        ErrorType::ConnectNoRoute => (SendErrorKind::Connect, "there is no route to it".to_owned()),
        ErrorType::ConnectTimedout => return late(id),
        ErrorType::TLSHandshakeFailure
        | ErrorType::TLSHandshakeTimedout
        | ErrorType::InvalidCert
        | ErrorType::HandshakeError => (SendErrorKind::Tls, format!("TLS: {}", cause(error))),
        _ => (
            SendErrorKind::Connect,
            format!("no connection: {}", cause(error)),
        ),
    };
    failed(id, kind, true, &what)
}

/// Creates the error for a connection that could not be opened within its time limit.
pub(crate) fn late(id: &BackendId) -> SendError {
    let what = "no connection came about in time (timeouts.connect)";
    failed(id, SendErrorKind::ConnectTimeout, true, what)
}

/// Creates the error for a response whose head did not arrive in time.
pub(crate) fn no_head(id: &BackendId, limit: Duration) -> SendError {
    let what = format!(
        "no response came within {} s (timeouts.head)",
        limit.as_secs_f32()
    );
    failed(id, SendErrorKind::HeadTimeout, false, &what)
}

/// Pingora's text about the cause of an error, or else about the error itself. The text may contain addresses and facts about
/// certificates, but no data of the request.
fn cause(error: &Error) -> String {
    match (&error.context, &error.cause) {
        (Some(context), _) => context.as_str().to_owned(),
        (None, Some(cause)) => cause.to_string(),
        (None, None) => error.etype().as_str().to_owned(),
    }
}
