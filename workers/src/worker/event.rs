//! What a worker sends while a call runs: progress, log messages, questions to the client, notices.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::CallError;

/// Questions that one call may have open at once. Those beyond are refused before a sink hears of them.
pub const OPEN_QUESTIONS_MAX: usize = 64;

/// Takes what a worker sends before its answer. Called on the worker's reader: it must not block.
pub trait CallSink: Send + Sync {
    /// Something happened in the call. Not called once the call has its answer; a call that is dropped this moment may
    /// still hear of one event.
    fn event(&self, event: CallEvent);
}

/// Something that happened in a call. JSON is the object the worker sent, verbatim.
#[derive(Debug)]
pub enum CallEvent {
    /// `{"progress": n, "total"?: n, "message"?: s}`.
    Progress(Bytes),
    /// A log message.
    Log {
        /// Its level, which is in `params` too.
        level: LogLevel,
        /// `{"level": s, "logger"?: s, "data": any}`.
        params: Bytes,
    },
    /// The function waits for answers of the client.
    Ask(Ask),
    /// The function says that something has changed.
    Notice(Notice),
    /// So many reports and log messages were left out by the worker, since they were not read in time.
    Dropped(u64),
}

/// How severe a log message is, in syslog's order, which is MCP's.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Detail for finding defects.
    Debug,
    /// What usually happens.
    Info,
    /// Usual, but worth noticing.
    Notice,
    /// Something may be wrong.
    Warning,
    /// Something failed.
    Error,
    /// A part is broken.
    Critical,
    /// Somebody must act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

/// A level nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the level must be one of debug, info, notice, warning, error, critical, alert, emergency")]
pub struct UnknownLogLevel;

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The list of tools.
    ToolsChanged,
    /// The list of prompts.
    PromptsChanged,
    /// The list of resources.
    ResourcesChanged,
    /// One resource's content.
    ResourceUpdated {
        /// Which one.
        uri: Arc<str>,
    },
}

/// Questions that a function waits for at the same time. Each is to be answered once.
#[derive(Debug)]
pub struct Ask {
    /// At least one.
    pub questions: Vec<Question>,
    /// Where the answers go.
    pub replier: Replier,
}

/// One question to the client.
#[derive(Debug, Clone)]
pub struct Question {
    /// Unique among the open questions of its call.
    pub key: Arc<str>,
    /// What is asked.
    pub method: AskMethod,
    /// The method's params, a JSON object.
    pub params: Bytes,
}

/// What a client can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskMethod {
    /// Its user fills in a form.
    Elicit,
    /// Its model completes a conversation.
    Sample,
    /// Its file system roots.
    Roots,
}

/// Takes answers to the questions of one call. Answering what is not open any more, or after the call's end, does
/// nothing.
#[derive(Clone)]
pub struct Replier(Arc<dyn Answers>);

/// Where a [`Replier`] hands answers on.
pub trait Answers: Send + Sync {
    /// Takes the answer to the question of that key. Must not block.
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

    /// The capability a client declares that can be asked it.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Elicit => "elicitation",
            Self::Sample => "sampling",
            Self::Roots => "roots",
        }
    }

    /// The method of that name, if clients can be asked it.
    pub fn from_method(text: &str) -> Option<Self> {
        [Self::Elicit, Self::Sample, Self::Roots]
            .into_iter()
            .find(|method| method.as_str() == text)
    }
}

impl Notice {
    /// The MCP notification that says it.
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
    /// A replier that hands answers to `answers`.
    pub fn new(answers: Arc<dyn Answers>) -> Self {
        Self(answers)
    }

    /// Answers the question of that key: with the client's result, one JSON object, or with why there is none.
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
