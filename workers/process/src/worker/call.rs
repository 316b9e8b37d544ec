//! Calls to a worker, and their successful responses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::trace::PassedTrace;

/// Operation of a call. Its JSON is sent to the worker unchanged.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Runs a tool.
    CallTool {
        /// The tool's name.
        tool: Arc<str>,
        /// The tool's arguments, a JSON object; empty bytes mean `{}`.
        arguments: Bytes,
    },
    /// Reads a resource that is listed, or that a template matches.
    ReadResource {
        /// The resource's URI.
        uri: Arc<str>,
    },
    /// Renders a prompt.
    GetPrompt {
        /// The prompt's name.
        prompt: Arc<str>,
        /// The prompt's arguments, a JSON object; empty bytes mean `{}`.
        arguments: Bytes,
    },
    /// Completes an argument of a prompt or a resource template.
    Complete {
        /// The params of MCP's `completion/complete`: `{"ref": …, "argument": …, "context"?: …}`.
        params: Bytes,
    },
    /// Describes skills, with their front matters as text and the digests of their files.
    ListSkills {
        /// URI of the one skill to describe; `None` for all.
        uri: Option<Arc<str>>,
    },
}

/// A call to a worker.
#[derive(Debug, Clone)]
pub struct WorkerCall {
    /// The operation to run.
    pub operation: Operation,
    /// The caller and the kinds of questions that its client supports, as a JSON object; needed only by functions with a context.
    pub caller: Option<Bytes>,
    /// The credential of the caller, as the maker of API keys that the call creates. It is not sent to workers.
    pub maker: KeyMaker,
    /// The id of the request, which identifies the function's output in the log.
    pub request: Arc<str>,
    /// Maximum size of the result, in bytes of JSON.
    pub max_result: u64,
    /// Time after which the caller drops the call. If the call blocks the event loop of its process for longer than this, the
    /// process is ended. `None`: no limit.
    pub time_limit: Option<Duration>,
    /// The caller's account of memory, to which the answer's bytes are added; `None` for calls that the gateway makes for itself.
    pub answers: Option<AnswerAccount>,
    /// The trace that the call belongs to; `None` if no trace is exported.
    pub trace: Option<Arc<PassedTrace>>,
}

/// A successful response of a worker. Its JSON shares the memory of the received line.
#[derive(Debug, Clone)]
pub struct ToolReply {
    /// The tool's return value as JSON text; for other operations the result object.
    pub value: Bytes,
    /// MCP content blocks as a JSON array, when the value is not plain JSON (images, bytes, resource links).
    pub content: Option<Bytes>,
    /// The function's additions to the result's `_meta`, as a JSON object.
    pub meta: Option<Bytes>,
}

impl ToolReply {
    /// Size of the answer, in bytes of JSON.
    pub fn size(&self) -> usize {
        let of = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
        self.value.len() + of(&self.content) + of(&self.meta)
    }
}

impl Operation {
    /// Subject of the call: the tool's name, the URI, the prompt's name, or the name of the method.
    pub fn subject(&self) -> &str {
        match self {
            Self::CallTool { tool, .. } => tool,
            Self::ReadResource { uri } => uri,
            Self::GetPrompt { prompt, .. } => prompt,
            Self::Complete { .. } => "completion/complete",
            Self::ListSkills { uri } => uri.as_deref().unwrap_or("skills/list"),
        }
    }
}

impl WorkerCall {
    /// Number of bytes of the call's subject and JSON. The line that is sent also contains the names of JSON fields around them.
    pub(super) fn size(&self) -> usize {
        let (subject, json) = match &self.operation {
            Operation::CallTool {
                tool: subject,
                arguments: json,
            }
            | Operation::GetPrompt {
                prompt: subject,
                arguments: json,
            } => (subject.len(), json.len()),
            Operation::ReadResource { uri } => (uri.len(), 0),
            Operation::Complete { params } => (0, params.len()),
            Operation::ListSkills { uri } => (uri.as_ref().map_or(0, |uri| uri.len()), 0),
        };
        subject + json + self.request.len() + self.caller.as_ref().map_or(0, Bytes::len)
    }
}
