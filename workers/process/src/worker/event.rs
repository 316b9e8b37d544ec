//! Events that a worker sends while a call runs: progress, log messages, questions to the client, changed lists.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use tooldock_base::error::CallError;

/// Maximum number of open questions of one call. Further questions are refused.
pub const OPEN_QUESTIONS_MAX: usize = 64;

/// Receives the messages that a worker sends before the answer to a call. Called by the task that reads the worker's
/// connection, so its methods must not block.
pub trait CallSink: Send + Sync {
    /// Receives an event of the call. Not called once the call has its response; a call that is being dropped may still receive
    /// one event.
    fn event(&self, event: CallEvent);
}

/// Event of a running call. Its JSON is the object that the worker sent, unchanged.
#[derive(Debug)]
pub enum CallEvent {
    /// Progress report of the function: `{"progress": n, "total"?: n, "message"?: s}`.
    Progress(Bytes),
    /// Log message of the function.
    Log {
        /// Severity of the log message. `params` contains it as well.
        level: LogLevel,
        /// Params of the log message: `{"level": s, "logger"?: s, "data": any}`.
        params: Bytes,
    },
    /// The function asks the client questions and waits for the answers.
    Ask(Ask),
    /// The function reports that a list or a resource changed.
    Notice(Notice),
    /// Number of progress reports and log messages that the worker dropped because the gateway did not read them in time.
    Dropped(u64),
}

/// Severity of a log message. The order is that of syslog, which MCP uses.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Severity of details for finding defects.
    Debug,
    /// Severity of normal operation.
    Info,
    /// Severity of a normal but significant event.
    Notice,
    /// Severity of an event that may be a problem.
    Warning,
    /// Severity of a failed operation.
    Error,
    /// Severity of a broken component.
    Critical,
    /// Severity of a failure that needs immediate action.
    Alert,
    /// Severity of a failure that makes the system unusable.
    Emergency,
}

/// Error for an unknown level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the level must be one of debug, info, notice, warning, error, critical, alert, emergency")]
pub struct UnknownLogLevel;

/// A change of a list or a resource that a function reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The list of tools changed.
    ToolsChanged,
    /// The list of prompts changed.
    PromptsChanged,
    /// The list of resources changed.
    ResourcesChanged,
    /// The content of a resource changed.
    ResourceUpdated {
        /// URI of the resource whose content changed.
        uri: Arc<str>,
    },
}

/// Questions to the client that a function asked together. Each must be answered once; until then the function waits.
#[derive(Debug)]
pub struct Ask {
    /// The questions that were asked together; at least one.
    pub questions: Vec<Question>,
    /// Receiver to which the answers to the questions are passed.
    pub replier: Replier,
}

/// A question to the client.
#[derive(Debug, Clone)]
pub struct Question {
    /// Key of the question, unique among the open questions of its call.
    pub key: Arc<str>,
    /// Kind of the question, which is one MCP method.
    pub method: AskMethod,
    /// Params of the question's MCP method, a JSON object.
    pub params: Bytes,
}

/// Kinds of questions to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskMethod {
    /// Asks the user to fill in a form.
    Elicit,
    /// Asks the client's model to complete a conversation.
    Sample,
    /// Asks for the client's file system roots.
    Roots,
}

/// Receives answers to the questions of one call. Answers to questions that are no longer open, or after the call's end, are
/// ignored.
#[derive(Clone)]
pub struct Replier(Arc<dyn Answers>);

/// Receiver of the answers of a [`Replier`].
pub trait Answers: Send + Sync {
    /// Receives the answer to the question with the key `key`. Must not block.
    fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>);
}

impl LogLevel {
    /// All levels, beginning with the least severe.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The level's name in MCP.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

impl FromStr for LogLevel {
    type Err = UnknownLogLevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|level| level.as_str() == text);
        known.ok_or(UnknownLogLevel)
    }
}

impl AskMethod {
    /// The MCP method that asks questions of this kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Elicit => "elicitation/create",
            Self::Sample => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }

    /// The capability that a client must declare to be asked questions of this kind.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Elicit => "elicitation",
            Self::Sample => "sampling",
            Self::Roots => "roots",
        }
    }

    /// Returns the kind of question that this MCP method asks; `None` for other methods.
    pub fn from_method(text: &str) -> Option<Self> {
        [Self::Elicit, Self::Sample, Self::Roots]
            .into_iter()
            .find(|method| method.as_str() == text)
    }
}

impl Notice {
    /// The MCP notification that announces the change.
    pub fn method(&self) -> &'static str {
        match self {
            Self::ToolsChanged => "notifications/tools/list_changed",
            Self::PromptsChanged => "notifications/prompts/list_changed",
            Self::ResourcesChanged => "notifications/resources/list_changed",
            Self::ResourceUpdated { .. } => "notifications/resources/updated",
        }
    }
}

impl Replier {
    /// Creates a replier that passes answers to `answers`.
    pub fn new(answers: Arc<dyn Answers>) -> Self {
        Self(answers)
    }

    /// Answers the question with the key `key`: with the client's result, which is a JSON object, or with an error.
    pub fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>) {
        self.0.answer(key, outcome);
    }
}

impl fmt::Debug for Replier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_by_severity_and_read_what_they_write() {
        assert!(LogLevel::ALL.is_sorted());
        for level in LogLevel::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
        }
        for text in ["", "INFO", "warn", "trace"] {
            assert_eq!(text.parse::<LogLevel>(), Err(UnknownLogLevel), "{text}");
        }
    }

    #[test]
    fn a_client_can_be_asked_three_things() {
        for method in [AskMethod::Elicit, AskMethod::Sample, AskMethod::Roots] {
            assert_eq!(AskMethod::from_method(method.as_str()), Some(method));
        }
        assert_eq!(AskMethod::from_method("tools/call"), None);
    }
}
