//! What the holder of an access token is told whose scopes do not open a tool: which scopes would.

use tooldock_workers::error::{CallError, CallErrorCode};

use crate::caller::Caller;
use crate::jsonrpc::RequestError;

/// The scopes that a failed call needs, with spaces between them; None where the call failed otherwise, or the caller's
/// credential is no access token. `tool` is what was called, where that is known.
pub(crate) fn wanted(error: &CallError, caller: &Caller, tool: Option<&str>) -> Option<String> {
    let scopes = caller.grant.as_ref()?.token_scopes()?;
    if error.code != CallErrorCode::InsufficientScope {
        return None;
    }
    let wanted = tool.and_then(|tool| scopes.wanted_for(tool));
    Some(wanted.unwrap_or_else(|| {
        let names: Vec<&str> = scopes.offered.iter().map(|scope| &*scope.name).collect();
        names.join(" ")
    }))
}

/// The refusal of a message that calls a tool without the scope for it. API keys have no issuer to get another scope from:
/// for them the failure is a result as any other.
pub(crate) fn refusal(error: &CallError, caller: &Caller, tool: &str) -> Option<RequestError> {
    let wanted = wanted(error, caller, Some(tool))?;
    Some(RequestError::InsufficientScope {
        message: error.message.as_str().into(),
        wanted: wanted.into(),
    })
}
