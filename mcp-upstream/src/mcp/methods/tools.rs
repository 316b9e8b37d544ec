//! `tools/call`.

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

/// Wrong parameters are an error; whatever happens to the call itself, an unknown tool included, is a result.
pub(super) fn call(
    conversation: &Conversation<'_>,
    params: Option<&RawValue>,
) -> Result<Box<UpstreamCall>, Failure> {
    let fields: Params<'_> = envelope::fields(params, "params")?;
    let name = string_member(fields.name, "params.name")?;
    envelope::object(fields.arguments, "params.arguments")?;
    let mut tools = conversation.namespace.tools.iter();
    let declared = tools.find(|tool| *tool.name == *name);
    let operation = Operation::CallTool {
        // The tool's own name where there is one: a shared string instead of a new one.
        tool: declared.map_or_else(|| name.into(), |tool| Arc::clone(&tool.name)),
        arguments: conversation.own_object(fields.arguments),
    };
    let talks = declared.is_some_and(|tool| tool.context);
    conversation.upstream_call(operation, fields.meta, talks)
}
