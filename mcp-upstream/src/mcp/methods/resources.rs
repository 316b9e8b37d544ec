//! `resources/read`, `resources/subscribe`, `resources/unsubscribe`.

use std::sync::Arc;

use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::Operation;

use super::{UpstreamCall, string_member, uri_template};
use crate::engine::Engine;
use crate::format::ResultWriter;
use crate::jsonrpc::{Key, Members, RequestError};
use crate::mcp::{CallContext, commit};
use crate::session::{Session, SessionPatch};

/// Any URI goes to the worker: which templates match is its to say.
pub(super) fn read(
    cx: &CallContext<'_>,
    members: &Members<'_>,
) -> Result<Box<UpstreamCall>, RequestError> {
    let uri = string_member(members.get(Key::Uri), "params.uri")?;
    let uri = match cx.namespace.resource(&uri) {
        Some(resource) => Arc::clone(&resource.uri),
        None => Arc::from(uri),
    };
    let operation = Operation::ReadResource { uri };
    let talks = Engine::talks(&cx.namespace, &operation);
    cx.upstream_call(operation, members, talks)
}

/// From now on the session hears when the resource is updated.
pub(super) async fn subscribe(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let (session, uri) = subject(cx, members)?;
    if !there_is(&cx.namespace, &uri) {
        return Err(RequestError::ResourceNotFound(uri));
    }
    commit(cx.core, session, SessionPatch::Subscribe(uri)).await?;
    Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
}

/// The session hears no more. A resource that is gone can still be left.
pub(super) async fn unsubscribe(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let (session, uri) = subject(cx, members)?;
    let left = SessionPatch::Unsubscribe(Arc::clone(&uri));
    if !commit(cx.core, session, left).await? && !there_is(&cx.namespace, &uri) {
        return Err(RequestError::ResourceNotFound(uri));
    }
    Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
}

fn subject<'a>(
    cx: &'a CallContext<'_>,
    members: &Members<'_>,
) -> Result<(&'a Arc<Session>, Arc<str>), RequestError> {
    let uri = string_member(members.get(Key::Uri), "params.uri")?;
    let session = cx.session().ok_or(RequestError::SessionRequired)?;
    Ok((session, uri.into()))
}

/// Whether the URI is listed, or a template could make it.
fn there_is(namespace: &Namespace, uri: &str) -> bool {
    let templates = || namespace.resource_templates.iter();
    namespace.resource(uri).is_some()
        || templates().any(|it| uri_template::could_match(&it.uri_template, uri))
}
