//! `resources/read`, `resources/subscribe`, `resources/unsubscribe`.

use std::sync::Arc;

use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::Operation;

use super::{WorkerUpstream, string_member, uri_template};
use crate::format::ResultWriter;
use crate::jsonrpc::{Key, Members, RequestError};
use crate::session::{Session, SessionPatch};
use crate::upstream::{CallContext, Prepared};

impl WorkerUpstream {
    /// Any URI goes to the worker: which templates match is its to say. Here it is enough that one of them might take a
    /// context.
    pub(super) fn resource_read(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<Prepared, RequestError> {
        let uri = string_member(members.get(Key::Uri), "params.uri")?;
        let namespace = &cx.namespace;
        let (uri, talks) = match namespace.resource(&uri) {
            Some(resource) => (Arc::clone(&resource.uri), resource.context),
            None => {
                let mut templates = namespace.resource_templates.iter();
                (Arc::from(uri), templates.any(|it| it.context))
            }
        };
        let operation = Operation::ReadResource { uri };
        self.function_call(cx, operation, members, talks)
    }

    /// From now on the session hears when the resource is updated.
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

    /// The session hears no more. A resource that is gone can still be left.
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
