//! Errors of calls, with the codes that workers also use (WRK-12). The modules for HTTP and MCP map each code to a status.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::value::RawValue;

/// The code of a failed call. Its text is part of the public contract and does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallErrorCode {
    /// The namespace has no such tool, or the policy does not allow it.
    ToolNotFound,
    /// The scopes of the caller's credential do not open the tool.
    InsufficientScope,
    /// The namespace has no such resource.
    ResourceNotFound,
    /// The namespace has no such prompt.
    PromptNotFound,
    /// The arguments violate the tool's schema; the tool did not run.
    InvalidArguments,
    /// A package that the tool or its namespace needs cannot be imported or installed.
    DependencyError,
    /// The call's time limit expired, and the call was cancelled.
    ExecutionTimeout,
    /// The tool raised an exception, or its worker sent an invalid response.
    InternalError,
    /// The tool returned a value that violates its output schema.
    OutputType,
    /// The tool raised `ToolError`. Its author wrote the message for the model.
    ToolError,
    /// The worker process is down: it ended during the call, or was not restarted in time.
    WorkerUnavailable,
    /// The namespace is still starting.
    Starting,
    /// The namespace's queue of waiting calls is full.
    Overloaded,
    /// A rate limit on tool calls was reached.
    RateLimited,
    /// The call's result is larger than the namespace allows.
    ResultTooLarge,
    /// The caller cancelled the call.
    Cancelled,
    /// The function asked its client for a capability that the client does not have. `details` names it as
    /// `requiredCapabilities`.
    MissingCapability,
    /// The namespace needs a personal credential of the caller, which is not set. `details` names it as `slots`, with the
    /// `command` that sets it.
    MissingCredential,
    /// A server refused the gateway's request, or its response is not MCP.
    UpstreamError,
    /// A hook refused the call or the list. The message is the hook's reason.
    HookRefused,
    /// A hook that must see the call or the list gave no usable answer.
    HookFailed,
    /// A question to the client got no usable answer: it failed, took too long, or exceeded the maximum number of questions.
    AskFailed,
}

impl CallErrorCode {
    /// The error code as it is sent to clients.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ToolNotFound => "tool_not_found",
            Self::InsufficientScope => "insufficient_scope",
            Self::ResourceNotFound => "resource_not_found",
            Self::PromptNotFound => "prompt_not_found",
            Self::InvalidArguments => "invalid_arguments",
            Self::DependencyError => "dependency_error",
            Self::ExecutionTimeout => "execution_timeout",
            Self::InternalError => "internal_error",
            Self::OutputType => "output_type",
            Self::ToolError => "tool_error",
            Self::WorkerUnavailable => "worker_unavailable",
            Self::Starting => "starting",
            Self::Overloaded => "overloaded",
            Self::RateLimited => "rate_limited",
            Self::ResultTooLarge => "result_too_large",
            Self::Cancelled => "cancelled",
            Self::MissingCapability => "missing_capability",
            Self::AskFailed => "ask_failed",
            Self::MissingCredential => "missing_credential",
            Self::UpstreamError => "upstream_error",
            Self::HookRefused => "hook_refused",
            Self::HookFailed => "hook_failed",
        }
    }

    /// Reads a code that a worker sent. An unknown code becomes `InternalError`, because workers cannot add codes to the
    /// contract.
    pub fn from_worker(text: &str) -> Self {
        match text {
            "tool_not_found" => Self::ToolNotFound,
            "resource_not_found" => Self::ResourceNotFound,
            "prompt_not_found" => Self::PromptNotFound,
            "invalid_arguments" => Self::InvalidArguments,
            "dependency_error" => Self::DependencyError,
            "execution_timeout" => Self::ExecutionTimeout,
            "output_type" => Self::OutputType,
            "tool_error" => Self::ToolError,
            "result_too_large" => Self::ResultTooLarge,
            "cancelled" => Self::Cancelled,
            "missing_capability" => Self::MissingCapability,
            "ask_failed" => Self::AskFailed,
            _ => Self::InternalError,
        }
    }
}

/// A failed call: code, message for the client, and optional details as JSON (a traceback, the schema's errors).
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct CallError {
    /// The code of the error.
    pub code: CallErrorCode,
    /// Message of the error, which clients may read.
    pub message: String,
    /// A JSON object with details. Its `traceback` is shown only to callers that may see it (REQUIREMENTS Q-45).
    pub details: Option<Box<RawValue>>,
    /// Time after which a retry may succeed; `None` if that is unknown.
    pub retry_after: Option<Duration>,
    /// The complete reason, for operators; `None` if the message already contains it.
    pub cause: Option<Box<FailureCause>>,
}

/// The reason of a failure, for logs. It is never sent to clients, and contains no secrets of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCause {
    /// The kind of failure, as a short code for logs.
    pub code: Cow<'static, str>,
    /// The cause of the failure as text for logs.
    pub detail: String,
}

impl CallError {
    /// Creates an error of a call with a code and a message.
    pub fn new(code: CallErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
            retry_after: None,
            cause: None,
        }
    }

    /// Adds the reason that is logged in place of the message.
    #[must_use]
    pub fn caused_by(
        mut self,
        code: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> Self {
        self.cause = Some(Box::new(FailureCause {
            code: code.into(),
            detail: detail.into(),
        }));
        self
    }

    /// Adds to the error the time after which a retry may succeed.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}
