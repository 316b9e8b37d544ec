//! The methods a request may name, `initialize` apart: that one makes the conversation the others are part of.

use serde_json::value::RawValue;

use super::{Conversation, tools};
use crate::content;
use crate::envelope;
use crate::error::Failure;

/// The response to one request. `id` is raw JSON.
pub(super) async fn answer(
    conversation: &Conversation<'_>,
    id: &str,
    method: &str,
    params: Option<&RawValue>,
) -> Result<Vec<u8>, Failure> {
    match method {
        "ping" => ping(id, params),
        "tools/list" => tools::list(conversation, id, params).await,
        "tools/call" => tools::call(conversation, id, params).await,
        _ => Err(Failure::MethodNotFound(method.to_owned())),
    }
}

fn ping(id: &str, params: Option<&RawValue>) -> Result<Vec<u8>, Failure> {
    envelope::object(params, "params")?;
    let mut out = Vec::with_capacity(id.len() + 40);
    content::begin(&mut out, id);
    out.extend_from_slice(b"{}}");
    Ok(out)
}
