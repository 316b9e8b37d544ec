//! The core as the management server calls it: in the same process, or in another one at `CORE_URL`. Both are called through
//! the requests of the core's REST surface, so that there is a single implementation of reload and test.

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;

use super::Management;
use super::tool::refused;

/// A request to the core.
#[derive(Debug, Clone)]
pub enum CoreRequest {
    /// `GET /health`.
    Health,
    /// `GET /namespaces`.
    Namespaces,
    /// `POST /reload`.
    Reload,
    /// `POST /explain`, which explains the rights of a credential.
    Explain {
        /// The question as a JSON object.
        question: Bytes,
    },
    /// `POST /output`, which returns recent output of a namespace.
    Output {
        /// The namespace and the number of lines, as a JSON object.
        wanted: Bytes,
    },
    /// `POST /tools/{tool}`, which calls a tool.
    Call {
        /// The tool's namespace.
        namespace: NamespaceName,
        /// The tool's name.
        tool: String,
        /// The arguments as a JSON object.
        input: Bytes,
        /// The handle of a toolset, for a tool of an aggregate.
        toolset: Option<String>,
    },
}

/// The core's response to a [`CoreRequest`].
#[derive(Debug, Clone)]
pub struct CoreAnswer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The body of the response, which is JSON.
    pub body: Bytes,
}

/// The core gave no response, for this reason in one line.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub String);

/// A connection to the core. Every request is made with the manager's token.
#[async_trait]
pub trait CoreLink: Send + Sync {
    /// Sends a request to the core. Dropping the future cancels the request.
    ///
    /// # Errors
    ///
    /// When the core cannot be reached.
    async fn send(&self, request: CoreRequest) -> Result<CoreAnswer, Unreachable>;
}

/// The core's response to `GET /health`.
#[derive(Debug, Deserialize)]
pub(super) struct CoreHealth {
    pub(super) namespaces: usize,
    pub(super) tools: usize,
}

/// A namespace in the response to `GET /namespaces`.
#[derive(Debug, Deserialize)]
pub(super) struct CoreNamespace {
    pub(super) name: String,
    pub(super) tool_count: usize,
    pub(super) has_requirements: bool,
    pub(super) secrets_status: String,
}

impl Management {
    /// Sends a request to the core and reads the response.
    ///
    /// # Errors
    ///
    /// When the core cannot be reached, or refuses; the message advises what to do.
    pub(super) async fn ask_core<T: DeserializeOwned>(
        &self,
        request: CoreRequest,
    ) -> Result<T, CallError> {
        let answer = self.answer_of(request).await?;
        if !answer.status.is_success() {
            return Err(refused(format!(
                "The core refused: {}",
                words(answer.status, &answer.body)
            )));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            refused(format!(
                "The core's answer is not understood ({error}). Core and manager must be of the same version"
            ))
        })
    }

    /// Sends a request to the core and returns the response, whatever its status.
    ///
    /// # Errors
    ///
    /// When the core cannot be reached; the message advises what to do.
    pub(super) async fn answer_of(&self, request: CoreRequest) -> Result<CoreAnswer, CallError> {
        self.core.send(request).await.map_err(|error| {
            refused(format!(
                "The core cannot be reached: {error}. Files can still be managed; call health to see when the core is back, then try again"
            ))
        })
    }

    pub(super) fn core(&self) -> &dyn CoreLink {
        &*self.core
    }
}

/// The text of a refusal, for messages.
fn words(status: StatusCode, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["detail"].as_str() {
        Some(detail) => format!("{detail} ({status})"),
        None => status.to_string(),
    }
}
