//! Methods that change a session's subscriptions and log level: `resources/subscribe`, `resources/unsubscribe`,
//! `logging/setLevel`.

use std::sync::Arc;

use tooldock_process::worker::LogLevel;
use tooldock_protocol::format::ResultWriter;
use tooldock_protocol::jsonrpc::{Key, Members, RequestError};
use tooldock_sessions::session::{Session, SessionPatch};
use tooldock_workers::registry::Namespace;

use super::{WorkerUpstream, string_member, uri_template};
use crate::upstream::CallContext;

impl WorkerUpstream {
    /// Subscribes the session to updates of a resource.
    pub(super) async fn subscribe(
        &self,
        cx: &CallContext<'_>,
        id: &str,
        members: &Members<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        let (session, uri) = subject(cx, members)?;
        if !there_is(&cx.namespace, &uri) {
            return Err(RequestError::ResourceNotFound(uri));
        }
        let wanted = SessionPatch::Subscribe(uri);
        self.changes.commit(session, wanted).await?;
        Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
    }

    /// Ends a subscription to a resource, even if the resource no longer exists.
    pub(super) async fn unsubscribe(
        &self,
        cx: &CallContext<'_>,
        id: &str,
        members: &Members<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        let (session, uri) = subject(cx, members)?;
        let left = SessionPatch::Unsubscribe(Arc::clone(&uri));
        let was_there = self.changes.commit(session, left).await?;
        if !was_there && !there_is(&cx.namespace, &uri) {
            return Err(RequestError::ResourceNotFound(uri));
        }
        Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
    }

    /// Sets the lowest severity of the session's log messages. Without a session the level cannot be stored; the request
    /// succeeds nevertheless, since it is valid.
    pub(super) async fn set_level(
        &self,
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
            let wanted = SessionPatch::LogLevel(level);
            self.changes.commit(session, wanted).await?;
        }
        Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
    }
}

fn subject<'a>(
    cx: &'a CallContext<'_>,
    members: &Members<'_>,
) -> Result<(&'a Arc<Session>, Arc<str>), RequestError> {
    let uri = string_member(members.get(Key::Uri), "params.uri")?;
    let session = cx.session().ok_or(RequestError::SessionRequired)?;
    Ok((session, uri.into()))
}

/// Maximum work of a request for comparing a URI with templates: bytes of the templates times bytes of the URI.
const COMPARED_MAX: usize = 8 * 1024 * 1024;

/// Returns true if the URI is listed, or may match a template. Also returns true if the comparison would exceed its maximum work:
/// the worker then decides.
fn there_is(namespace: &Namespace, uri: &str) -> bool {
    let mut left = COMPARED_MAX;
    let mut could_match = |template: &str| {
        let Some(rest) = left.checked_sub(template.len() * uri.len()) else {
            return true;
        };
        left = rest;
        uri_template::could_match(template, uri)
    };
    let mut templates = namespace.resource_templates.iter();
    namespace.resource(uri).is_some()
        || (uri.len() <= uri_template::URI_MAX && templates.any(|it| could_match(&it.uri_template)))
}
