//! `prompts/get`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_workers::worker::Operation;

use super::{UpstreamCall, string_member};
use crate::envelope;
use crate::error::Failure;
use crate::mcp::Conversation;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, deserialize_with = "envelope::present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "envelope::present")]
    arguments: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        deserialize_with = "envelope::present",
        rename = "_meta"
    )]
    meta: Option<&'a RawValue>,
}

/// Unknown prompts are told from the snapshot, before anything runs; their arguments the worker checks.
pub(super) fn get(
    conversation: &Conversation<'_>,
    params: Option<&RawValue>,
) -> Result<Box<UpstreamCall>, Failure> {
    let fields: Params<'_> = envelope::fields(params, "params")?;
    let name = string_member(fields.name, "params.name")?;
    envelope::object(fields.arguments, "params.arguments")?;
    let Some(prompt) = conversation.namespace.prompt(&name) else {
        let name: String = name.chars().take(super::UNKNOWN_NAME_MAX).collect();
        return Err(Failure::InvalidParams(
            format!("Unknown prompt: {name}").into(),
        ));
    };
    let operation = Operation::GetPrompt {
        prompt: Arc::clone(&prompt.name),
        arguments: conversation.own_object(fields.arguments),
    };
    conversation.upstream_call(operation, fields.meta, prompt.context)
}
