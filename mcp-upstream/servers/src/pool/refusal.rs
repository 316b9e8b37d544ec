//! Errors for requests that get no process of their server.

use std::time::Duration;

use tooldock_base::error::{CallError, CallErrorCode};

use super::PoolShared;
use super::rules::{SLOT_WAIT, WAITERS_MAX};
use super::state::{LeaseRefusal, PoolLimit};
use crate::pool::process::failure::{self, ADVICE};

impl PoolShared {
    /// Counts a refusal of a process, and returns the error for the client.
    pub(super) fn refused(&self, refusal: LeaseRefusal) -> CallError {
        let (reason, error) = match refusal {
            LeaseRefusal::Overloaded(full) => (
                full.as_str(),
                CallError::new(CallErrorCode::Overloaded, self.overloaded(full))
                    .retry_after(Duration::from_secs(1)),
            ),
            LeaseRefusal::Unavailable { retry_after } => (
                "unavailable",
                self.failed_repeatedly(retry_after),
            ),
            LeaseRefusal::Dead => (
                "unavailable",
                self.unavailable(
                    "ended and is not restarted (restart: never). Ask whoever operates the gateway to start it again: \
                     POST /reload after a change does",
                    None,
                ),
            ),
            LeaseRefusal::StateLost => (
                "unavailable",
                self.unavailable(
                    "lost the state of this session with the backend that held it (stateful: true). Begin a new session",
                    None,
                ),
            ),
            LeaseRefusal::Failed(error) => ("failed", error),
            LeaseRefusal::SessionClosed => (
                "session",
                CallError::new(CallErrorCode::Cancelled, "the session is over"),
            ),
            LeaseRefusal::Retired => ("retired", self.unavailable("was replaced or stopped", None)),
        };
        self.metrics.refused(reason);
        error
    }

    /// Returns the error for requests while the circuit breaker is open, with the last failure and its cause.
    fn failed_repeatedly(&self, retry_after: Duration) -> CallError {
        let last = self
            .lock()
            .state
            .failure_reason()
            .map(|failure| failure.error.clone());
        let what = match &last {
            Some(last) => {
                let what = failure::without_server_name(&last.message, self.name().as_str());
                format!("failed repeatedly, the last time so: {what}")
            }
            None => format!("failed repeatedly. {ADVICE}"),
        };
        let mut error = self.unavailable(&what, Some(retry_after));
        error.cause = last.and_then(|last| last.cause);
        error
    }

    fn overloaded(&self, full: PoolLimit) -> String {
        let settings = self.settings();
        let limits = ServerLimits {
            name: self.name().as_str(),
            processes: settings.max_processes,
            principal: settings.max_per_principal,
        };
        limits.message(full)
    }

    pub(super) fn unavailable(&self, what: &str, retry_after: Option<Duration>) -> CallError {
        let name = self.name();
        let error = CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("the server of namespace {name} {what}"),
        );
        match retry_after {
            Some(time) => error.retry_after(time),
            None => error,
        }
    }
}

/// The limits of a server, from which the error messages for exceeded limits are written.
struct ServerLimits<'a> {
    name: &'a str,
    processes: usize,
    principal: usize,
}

impl ServerLimits<'_> {
    fn message(&self, full: PoolLimit) -> String {
        let name = self.name;
        let seconds = SLOT_WAIT.as_secs();
        match full {
            PoolLimit::Processes => format!(
                "namespace {name}: no process of its server became free within {seconds} s, and it may have no more than {} \
                 (configuration key max_processes)",
                self.processes
            ),
            PoolLimit::Principal => format!(
                "namespace {name}: no process became free within {seconds} s, and one principal may have no more than {} \
                 (configuration key max_per_principal)",
                self.principal
            ),
            PoolLimit::Waiters => format!(
                "namespace {name}: {WAITERS_MAX} requests wait for a process of its server already"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_its_namespace_and_its_key() {
        let server = ServerLimits {
            name: "git",
            processes: 7,
            principal: 3,
        };
        for (full, words) in [
            (PoolLimit::Processes, ["git", "7", "max_processes"]),
            (PoolLimit::Principal, ["git", "3", "max_per_principal"]),
            (PoolLimit::Waiters, ["git", "1000", "wait"]),
        ] {
            let message = server.message(full);
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
