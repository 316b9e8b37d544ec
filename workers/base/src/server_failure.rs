//! Errors of MCP servers whose configuration cannot be used.

use crate::error::{CallError, CallErrorCode};
use crate::names::NamespaceName;

/// Code of the failure that a variable named in the server's configuration is not set.
pub const MISSING: &str = "missing_variable";

/// Code of a failure of a server's configuration other than an unset variable or a secret of another namespace.
pub const INVALID: &str = "invalid_config";

/// Code of the failure, and of the issue, that a stored secret belongs to another namespace that had the same name.
pub const FOREIGN: &str = "secret_of_another";

/// Reason why the configuration of a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct InvalidServer {
    /// The configuration key with the problem, relative to the server's entry.
    pub key: String,
    /// Description of the problem, without values of variables.
    pub message: String,
}

impl InvalidServer {
    /// Creates the error for a problem with a configuration key.
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
    /// Stable code of the failure, for reports.
    pub code: &'static str,
    /// The configuration key, and the problem with it.
    pub reason: Box<InvalidServer>,
    /// Error returned to calls of the server's namespace.
    pub error: CallError,
    /// True if a running server with the previous configuration may continue. False if a variable is no longer set or its secret
    /// belongs to another namespace, since the value may have been revoked.
    pub keeps_old: bool,
}

impl ExternalFailure {
    /// Creates the failure of a server. `cannot` is the predicate of the message, such as "cannot be started".
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
