//! Failures of servers whose configuration cannot be used.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;

use crate::secrets::FOREIGN;

/// Code of a failure over a missing variable.
pub(crate) const MISSING: &str = "missing_variable";

/// Code of any other failure.
pub(crate) const INVALID: &str = "invalid_config";

/// Reason why the keys of a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct InvalidServer {
    /// The key, relative to the server's entry.
    pub key: String,
    /// Description of the problem. Holds no value of a variable.
    pub message: String,
}

impl InvalidServer {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Reason why a server cannot be started.
#[derive(Debug)]
pub(crate) struct ExternalFailure {
    /// The stable code for reports.
    pub(crate) code: &'static str,
    /// The key, and the problem with it.
    pub(crate) reason: Box<InvalidServer>,
    /// Error that calls of the server's namespace get.
    pub(crate) error: CallError,
    /// True when the previously served server may stay in service. False when a variable is no longer set: it may have been
    /// revoked.
    pub(crate) keeps_old: bool,
}

impl ExternalFailure {
    /// The failure of a server that `cannot` be something, as in "cannot be started".
    pub(crate) fn new(
        name: &NamespaceName,
        cannot: &str,
        code: &'static str,
        reason: InvalidServer,
    ) -> Self {
        Self {
            code,
            error: CallError::new(
                CallErrorCode::WorkerUnavailable,
                format!("the server of namespace {name} {cannot}: {reason}"),
            ),
            reason: Box::new(reason),
            keeps_old: code != MISSING && code != FOREIGN,
        }
    }
}
