//! Calls of a worker, and their successful answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::trace::PassedTrace;

/// Operation of a call. JSON is sent to the worker verbatim.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Runs a tool.
    CallTool {
        /// The tool's name.
        tool: Arc<str>,
        /// The tool's arguments, a JSON object; empty bytes mean `{}`.
        arguments: Bytes,
    },
    /// Read a resource, listed or matched by a template.
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
    /// Complete an argument of a prompt or a resource template.
    Complete {
        /// The params of `completion/complete`: `{"ref": …, "argument": …, "context"?: …}`.
        params: Bytes,
    },
}

/// A call to a worker.
#[derive(Debug, Clone)]
pub struct WorkerCall {
    /// The operation to run.
    pub operation: Operation,
    /// The caller and the questions that it supports, as a JSON object; needed only by functions that take a context.
    pub caller: Option<Bytes>,
    /// The maker of API keys that the caller asks for. Not sent to workers.
    pub maker: KeyMaker,
    /// The id of the request, which identifies the function's output in the log.
    pub request: Arc<str>,
    /// Maximum size of the result, in bytes of JSON.
    pub max_result: u64,
    /// The time limit of the caller, who drops the call then. A call that blocks others of its process for longer ends the
    /// process. `None`: no limit.
    pub time_limit: Option<Duration>,
    /// Account that counts the answer's bytes; `None` for calls that the gateway makes for itself.
    pub answers: Option<AnswerAccount>,
    /// The trace that the call belongs to; `None` if none is exported.
    pub trace: Option<Arc<PassedTrace>>,
}

/// A successful response. The JSON is a view of the received frame.
#[derive(Debug, Clone)]
pub struct ToolReply {
    /// The tool's value as JSON text; for other operations the result object.
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
        }
    }
}

impl WorkerCall {
    /// Number of bytes of the call's variable parts. The call's frame is longer by the names around them.
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
        };
        subject + json + self.request.len() + self.caller.as_ref().map_or(0, Bytes::len)
    }
}
