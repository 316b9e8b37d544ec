//! Messages about a process that did not start or has ended: a sentence for clients, and one for operators.
//!
//! Both sentences state the cause. The sentence for operators also quotes the server's last output on standard error. That
//! output may contain anything, so it is not shown to clients; their sentence gives advice instead.

use std::time::Duration;

use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::Exit;

use crate::launch::{Instance, Launcher, Raw};
use crate::pool::state::ProcessFailure;

/// Maximum number of characters of a sentence that quotes the server, and of the server's last output.
const WORDS_MAX: usize = 300;

/// Advice for clients whose request failed because the server does not start.
pub(crate) const ADVICE: &str = "Try again later; if that does not help, ask whoever operates the gateway: its \
     log and GET /ready say more";

impl Raw {
    /// Removes secrets, so that the failure can be shown. The server may have repeated secrets that the gateway gave it.
    pub(super) fn of(self, server: &dyn Launcher) -> ProcessFailure {
        let Self { mut error, said } = self;
        let told = fit_for_others(server, &error.message);
        let what = without_server_name(&told, server.name().as_str());
        let reason = match said {
            Some(said) => {
                let said: String = said.chars().take(WORDS_MAX).collect();
                format!("{what}; it said last: {said}")
            }
            None => what.to_owned(),
        };
        error.message = format!("{}. {ADVICE}", told.trim_end_matches('.'));
        ProcessFailure {
            error,
            reason: reason.into(),
            elsewhere: false,
        }
    }

    /// Describes the end of a process that had accepted requests before.
    pub(super) async fn of_end(server: &dyn Launcher, child: &dyn Instance, what: &str) -> Self {
        let name = server.name();
        let message = format!("a process of the server of namespace {name} {what}");
        Self {
            error: CallError::new(CallErrorCode::WorkerUnavailable, message),
            said: child.last_words().await,
        }
    }
}

/// Waits for the exit of a process, at most for `limit`.
pub(super) async fn exit_within(child: &dyn Instance, limit: Duration) -> Option<Exit> {
    timeout(limit, child.exited()).await.ok()
}

/// Returns the message of an error without the name of the server with which it begins.
pub(crate) fn without_server_name<'a>(message: &'a str, namespace: &str) -> &'a str {
    let named = message.strip_prefix("the server of namespace ");
    let rest = named.and_then(|rest| rest.strip_prefix(namespace));
    let rest = rest.and_then(|rest| rest.strip_prefix(": ").or(rest.strip_prefix(' ')));
    rest.unwrap_or(message)
}

/// Prepares a text that quotes the server for clients. Secrets are removed first, so that no half of a secret remains after
/// cutting. Then the text is cut to [`WORDS_MAX`] characters and put on one line.
fn fit_for_others(server: &dyn Launcher, text: &str) -> String {
    let mut fit = String::new();
    for letter in server.without_secrets(text).chars().take(WORDS_MAX) {
        if letter.is_control() {
            fit.extend(letter.escape_default());
        } else {
            fit.push(letter);
        }
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_a_server_once() {
        for (message, why) in [
            (
                "the server of namespace ns: cannot start x",
                "cannot start x",
            ),
            (
                "the server of namespace ns exited with status 3",
                "exited with status 3",
            ),
            (
                "the server of namespace nsx ended",
                "the server of namespace nsx ended",
            ),
            (
                "the server refused initialize",
                "the server refused initialize",
            ),
        ] {
            assert_eq!(without_server_name(message, "ns"), why);
        }
    }
}
