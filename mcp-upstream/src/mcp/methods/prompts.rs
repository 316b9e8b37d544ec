//! `prompts/get`.

use std::sync::Arc;

use tooldock_workers::worker::Operation;

use super::{Named, UpstreamCall};
use crate::jsonrpc::{Members, RequestError};
use crate::mcp::CallContext;

/// Unknown prompts are told from the snapshot, before anything runs; their arguments the worker checks.
pub(super) fn get(
    cx: &CallContext<'_>,
    members: &Members<'_>,
) -> Result<Box<UpstreamCall>, RequestError> {
    let Named { name, arguments } = Named::read(members)?;
    let Some(prompt) = cx.namespace.prompt(&name) else {
        let name: String = name.chars().take(super::UNKNOWN_NAME_MAX).collect();
        return Err(RequestError::InvalidParams(
            format!("Unknown prompt: {name}").into(),
        ));
    };
    let operation = Operation::GetPrompt {
        prompt: Arc::clone(&prompt.name),
        arguments: cx.own_object(arguments),
    };
    cx.upstream_call(operation, members, prompt.context)
}
