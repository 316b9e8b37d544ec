//! Determines the scopes that would open a tool, for holders of access tokens without these scopes.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;

use crate::jsonrpc::RequestError;

/// The scopes that a failed call needs, separated by spaces; `None` if the call failed for another reason, or if the caller's
/// credential is not an access token. `tool` is the called tool, if known.
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

/// The error for a message that calls a tool without its scope; `None` for API keys, which have no issuer that could grant
/// another scope: for them the failure is an ordinary result.
pub(crate) fn refusal(error: &CallError, caller: &Caller, tool: &str) -> Option<RequestError> {
    let wanted = wanted(error, caller, Some(tool))?;
    Some(RequestError::InsufficientScope {
        message: error.message.as_str().into(),
        wanted: wanted.into(),
    })
}
