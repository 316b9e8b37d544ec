//! `logging/setLevel`: from which severity on a session wants log messages.

use tooldock_workers::worker::LogLevel;

use super::string_member;
use crate::format::ResultWriter;
use crate::jsonrpc::{Key, Members, RequestError};
use crate::session::SessionPatch;
use crate::upstream::{CallContext, SessionChanges};

/// Without a session there is nothing to remember the level in; the answer is the same, since it is no fault.
pub(super) async fn set_level(
    changes: &SessionChanges,
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let level = string_member(members.get(Key::LogLevel), "params.level")?;
    let level: LogLevel = level.parse().map_err(|_| {
        let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
    })?;
    if let Some(session) = cx.session() {
        changes
            .commit(session, SessionPatch::LogLevel(level))
            .await?;
    }
    Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
}
