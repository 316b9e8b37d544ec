//! Determines the scopes that would open a tool, for callers whose access token lacks these scopes.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;

use crate::jsonrpc::RequestError;

/// Returns the scopes that a failed call needs, separated by spaces. `None` if the call did not fail for lack of a scope, or if
/// the caller's credential is not an access token. `tool`: the called tool, if known.
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

/// Returns the error for a call of a tool without the required scope. `None` for API keys: they have no issuer that could grant
/// another scope, so the failure is sent as an ordinary result.
pub(crate) fn refusal(error: &CallError, caller: &Caller, tool: &str) -> Option<RequestError> {
    let wanted = wanted(error, caller, Some(tool))?;
    Some(RequestError::InsufficientScope {
        message: error.message.as_str().into(),
        wanted: wanted.into(),
    })
}
