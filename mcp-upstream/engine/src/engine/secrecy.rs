//! Removes secrets from all texts about a failure: errors, results with `isError`, progress and log messages (SCR-14). The result
//! of a successful call is not changed.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tooldock_base::heavy_work;
use tooldock_workers::hidden::HiddenValues;
use tooldock_workers::registry::{Namespace, Registry};

use super::{CallOutcome, UpstreamReply};

/// Size in bytes above which a reply is parsed outside the I/O threads, and above which a message is searched for secrets without
/// being parsed.
const LARGE: usize = 64 * 1024;

/// Secrets that the messages of a call may contain: those of its namespace and of its caller. They are looked up at the first
/// message or failure.
pub struct CallSecrets {
    registry: Arc<Registry>,
    namespace: Arc<Namespace>,
    principal: Option<Arc<str>>,
    values: OnceLock<Arc<HiddenValues>>,
}

impl CallSecrets {
    /// Collects the secrets that a call's texts must not show.
    pub fn new(
        registry: &Arc<Registry>,
        namespace: &Arc<Namespace>,
        principal: Option<&Arc<str>>,
    ) -> Self {
        Self {
            registry: Arc::clone(registry),
            namespace: Arc::clone(namespace),
            principal: principal.cloned(),
            values: OnceLock::new(),
        }
    }

    fn values(&self) -> &Arc<HiddenValues> {
        self.values.get_or_init(|| {
            let principal = self.principal.as_deref();
            Arc::new(
                self.registry
                    .hidden_values_of_call(&self.namespace, principal),
            )
        })
    }

    /// Returns true if there are no secrets to hide.
    pub fn are_none(&self) -> bool {
        self.values().is_empty()
    }

    /// Removes the secrets from a message of a call. The message is JSON.
    pub fn hide_in(&self, message: Bytes) -> Bytes {
        let hidden = match message.len() > LARGE {
            true => self.values().hide_in_large_json(&message),
            false => self.values().hide_in_json(&message),
        };
        match hidden {
            Some(hidden) => hidden.into(),
            None => message,
        }
    }

    /// Hides secrets in a failure: an error, or a reply that reports one.
    ///
    /// # Errors
    ///
    /// The failure itself; `overloaded` if a large reply cannot be parsed now.
    pub(super) async fn hide_in_failure(&self, outcome: CallOutcome) -> CallOutcome {
        let values = self.values();
        if values.is_empty() {
            return outcome;
        }
        match outcome {
            Err(error) => Err(values.hide_in_error(error)),
            Ok(UpstreamReply::Response(response)) => match self.hidden(response.payload()).await? {
                Some(hidden) => Ok(UpstreamReply::Response(response.with_payload(hidden))),
                None => Ok(UpstreamReply::Response(response)),
            },
            Ok(UpstreamReply::Result(result)) => {
                let hidden = self.hidden(&result).await?;
                Ok(UpstreamReply::Result(hidden.unwrap_or(result)))
            }
            Ok(reply @ UpstreamReply::Value(_)) => Ok(reply),
        }
    }

    async fn hidden(&self, json: &[u8]) -> Result<Option<Bytes>, super::CallError> {
        let values = self.values();
        let hidden = match json.len() > LARGE {
            false => values.hide_in_json(json),
            true => {
                let (values, json) = (Arc::clone(values), json.to_vec());
                heavy_work::run(&self.principal, move || values.hide_in_json(&json)).await?
            }
        };
        Ok(hidden.map(Bytes::from))
    }
}
