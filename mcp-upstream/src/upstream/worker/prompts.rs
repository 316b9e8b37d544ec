//! `prompts/get`.

use std::sync::Arc;

use tooldock_workers::worker::Operation;

use super::{Named, UNKNOWN_NAME_MAX, WorkerUpstream};
use crate::jsonrpc::{Members, RequestError};
use crate::upstream::{CallContext, Prepared};

impl WorkerUpstream {
    /// Unknown prompts are told from the snapshot, before anything runs; their arguments the worker checks.
    pub(super) fn prompt_get(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<Prepared, RequestError> {
        let Named { name, arguments } = Named::read(members)?;
        let Some(prompt) = cx.namespace.prompt(&name) else {
            let name: String = name.chars().take(UNKNOWN_NAME_MAX).collect();
            return Err(RequestError::InvalidParams(
                format!("Unknown prompt: {name}").into(),
            ));
        };
        let operation = Operation::GetPrompt {
            prompt: Arc::clone(&prompt.name),
            arguments: cx.own_object(arguments),
        };
        self.function_call(cx, operation, members, prompt.context)
    }
}
