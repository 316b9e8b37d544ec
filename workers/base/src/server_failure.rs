//! Failures of servers whose configuration cannot be used.

use crate::error::{CallError, CallErrorCode};
use crate::names::NamespaceName;

/// Code of a failure over a missing variable.
pub const MISSING: &str = "missing_variable";

/// Code of any other failure.
pub const INVALID: &str = "invalid_config";

/// Code of a failure, and of an issue, over a value that belongs to another namespace of the name.
pub const FOREIGN: &str = "secret_of_another";

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
    /// A problem with a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Reason why a server cannot be started.
#[derive(Debug)]
pub struct ExternalFailure {
    /// The stable code for reports.
    pub code: &'static str,
    /// The key, and the problem with it.
    pub reason: Box<InvalidServer>,
    /// Error that calls of the server's namespace get.
    pub error: CallError,
    /// True when the previously served server may continue. False when a variable is no longer set, since the value may have
    /// been revoked.
    pub keeps_old: bool,
}

impl ExternalFailure {
    /// The failure of a server that `cannot` be something, as in "cannot be started".
    pub fn new(
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
