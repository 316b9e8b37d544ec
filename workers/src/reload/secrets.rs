//! The secrets of a run: the current ones, or those that were last read successfully.

use std::sync::Arc;

use tooldock_base::issue::Issue;
use tooldock_credentials::secrets::{Secrets, VALUES_FILE};

use super::{ReloadError, ReloadFailure, ReloadReport, Reloader, lock};

/// Code of the failure that secrets cannot be read.
const UNAVAILABLE: &str = "secrets_unavailable";

impl Reloader {
    /// Reads all secrets. If the store cannot be read, the report and `/ready` contain that failure, and the secrets that were
    /// last read successfully stay in force.
    pub(super) async fn secrets(
        self: &Arc<Self>,
        report: &mut ReloadReport,
    ) -> Result<Secrets, ReloadError> {
        let source = self.secrets.clone();
        let read =
            tokio::task::spawn_blocking(move || source.0.read().map_err(|error| error.to_string()));
        let message = match read.await.map_err(|_| ReloadError::Interrupted)? {
            Ok(secrets) => {
                self.registry.personal().install(&secrets);
                *lock(&self.last_secrets) = Some(secrets.clone());
                self.registry.set_secrets_problem(None);
                return Ok(secrets);
            }
            Err(message) => message,
        };
        tracing::error!(file = VALUES_FILE, "the secrets cannot be read: {message}");
        self.registry.set_secrets_problem(Some(Issue {
            code: UNAVAILABLE,
            subject: VALUES_FILE.into(),
            message: message.clone(),
        }));
        let last = lock(&self.last_secrets).clone();
        let last = last.ok_or_else(|| ReloadError::Secrets(message.clone()))?;
        report.failed.push(ReloadFailure {
            namespace: VALUES_FILE.into(),
            code: UNAVAILABLE,
            message: format!("{message}. The last secrets that could be read are still in use"),
        });
        Ok(last)
    }
}
