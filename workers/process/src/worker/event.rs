//! Events of a worker while a call runs: progress, log messages, questions to the client, notices.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use tooldock_base::error::CallError;

/// Maximum number of open questions of one call. Further ones are refused before a sink receives them.
pub const OPEN_QUESTIONS_MAX: usize = 64;

/// Receives the messages of a worker before its answer. Called on the worker's reader: it must not block.
pub trait CallSink: Send + Sync {
    /// Receives an event of the call. Not called once the call has its response; a call that is being dropped may still receive
    /// one event.
    fn event(&self, event: CallEvent);
}

/// Event of a call. JSON is the object that the worker sent, verbatim.
#[derive(Debug)]
pub enum CallEvent {
    /// A progress report: `{"progress": n, "total"?: n, "message"?: s}`.
    Progress(Bytes),
    /// A log message.
    Log {
        /// Severity of the message, which is in `params` too.
        level: LogLevel,
        /// Params of the message: `{"level": s, "logger"?: s, "data": any}`.
        params: Bytes,
    },
    /// The function waits for answers of the client.
    Ask(Ask),
    /// The function reports a change.
    Notice(Notice),
    /// Number of reports and log messages that the worker dropped, since they were not read in time.
    Dropped(u64),
}

/// Severity of a log message, in syslog's order, which is MCP's.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Detail for finding defects.
    Debug,
    /// Normal operation.
    Info,
    /// Normal, but significant.
    Notice,
    /// Something may be wrong.
    Warning,
    /// An operation failed.
    Error,
    /// A component is broken.
    Critical,
    /// Immediate action is needed.
    Alert,
    /// The system is unusable.
    Emergency,
}

/// Error for an unknown level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the level must be one of debug, info, notice, warning, error, critical, alert, emergency")]
pub struct UnknownLogLevel;

/// A change that a function reports.
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
        /// URI of the resource.
        uri: Arc<str>,
    },
}

/// Questions for which a function waits at the same time. Each must be answered once.
#[derive(Debug)]
pub struct Ask {
    /// The questions; at least one.
    pub questions: Vec<Question>,
    /// Receiver of the answers to the questions.
    pub replier: Replier,
}

/// A question to the client.
#[derive(Debug, Clone)]
pub struct Question {
    /// Key of the question, unique among the open questions of its call.
    pub key: Arc<str>,
    /// Kind of question.
    pub method: AskMethod,
    /// The method's params, a JSON object.
    pub params: Bytes,
}

/// Kinds of questions to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskMethod {
    /// Asks the user to fill in a form.
    Elicit,
    /// Asks the client's model to complete a conversation.
    Sample,
    /// Asks for file system roots.
    Roots,
}

/// Receives answers to the questions of one call. Answers to questions that are no longer open, or after the call's end, are
/// ignored.
#[derive(Clone)]
pub struct Replier(Arc<dyn Answers>);

/// Receiver of the answers of a [`Replier`].
pub trait Answers: Send + Sync {
    /// Receives the answer to the question of that key. Must not block.
    fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>);
}

impl LogLevel {
    /// All levels, the least severe first.
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

    /// The level as MCP writes it.
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
    /// The MCP method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Elicit => "elicitation/create",
            Self::Sample => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }

    /// The capability that clients declare for such questions.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Elicit => "elicitation",
            Self::Sample => "sampling",
            Self::Roots => "roots",
        }
    }

    /// The method of that name, if it is a question to clients.
    pub fn from_method(text: &str) -> Option<Self> {
        [Self::Elicit, Self::Sample, Self::Roots]
            .into_iter()
            .find(|method| method.as_str() == text)
    }
}

impl Notice {
    /// The MCP notification of the change.
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

    /// Answers the question with that key: with the client's result, one JSON object, or with the reason why there is none.
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
