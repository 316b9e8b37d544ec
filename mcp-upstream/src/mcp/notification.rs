//! Messages without an answer: the handshake's confirmation and cancellation. Others go to a server that speaks MCP
//! itself, or are accepted and ignored, among them `notifications/roots/list_changed`: a client's roots are asked for
//! each time a function wants them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CallContext, forward};
use crate::jsonrpc::{self, RequestError};

#[derive(Deserialize)]
struct Cancelled<'a> {
    #[serde(
        borrow,
        default,
        rename = "requestId",
        deserialize_with = "jsonrpc::present"
    )]
    request_id: Option<&'a RawValue>,
}

/// Acts on a notification; `message` is all of it.
///
/// A refused one is a refused POST: there is no response to put the error into.
pub(crate) fn take(
    cx: &CallContext<'_>,
    message: &str,
    method: &str,
    params: Option<&RawValue>,
) -> Result<(), RequestError> {
    if jsonrpc::object(params, "params").is_err() {
        return Err(RequestError::Shape("params must be an object".into()));
    }
    if cx.core.external.serves(&cx.namespace) {
        // Those acted on here go on to the server in their own words, too.
        forward::ambiguous_keys::check_unanswered(message)?;
    }
    let session = cx.session();
    match method {
        "initialize" => Err(RequestError::Shape("initialize needs an id".into())),
        // The second spelling is what older clients send (MCP-09).
        "notifications/initialized" | "initialized" => {
            if let Some(session) = session {
                session.confirm();
            }
            Ok(())
        }
        "notifications/cancelled" => {
            let params: Cancelled<'_> = jsonrpc::fields(params, "params")
                .map_err(|_| RequestError::Shape("params has a key twice".into()))?;
            if let (Some(session), Some(id)) = (session, params.request_id) {
                session.in_flight().cancel(id.get(), message);
            }
            Ok(())
        }
        _ => {
            forward::notify(cx, message, method);
            Ok(())
        }
    }
}
