//! The gateway as an OAuth protected resource (RFC 9728): serves its metadata, and names the metadata's URL to clients whose
//! tokens lack a scope. The crate `filters` creates the documents.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use pingora_proxy::Session;
use tooldock_filters::oauth::ResourcePlace;
use tooldock_filters::{AdmittedHead, RouteId};
use tooldock_upstream::reply::{Head, Reply};

use super::RequestContext;

/// Returns the OAuth metadata if the request is for it; `None` for every other request, and if no access tokens are accepted.
pub(super) fn metadata(
    session: &Session,
    passage: &RequestContext,
    admitted: &AdmittedHead,
) -> Option<Reply> {
    if admitted.route.id != RouteId::WellKnown {
        return None;
    }
    let rest = admitted.rest.as_deref()?;
    let rules = &passage.rules;
    let place = place(session, passage)?;
    let document = rules.admission.oauth().resource_metadata(rest, place)?;
    let json = HeaderValue::from_static("application/json");
    Some(Reply::Full {
        head: Head::new(StatusCode::OK).with(CONTENT_TYPE, json),
        body: Bytes::from(document),
    })
}

/// Adds the metadata's URL to the challenge of a response that refuses a call because of a missing scope. The service cannot add
/// it, as it does not know the gateway's public address.
pub(super) fn with_metadata_url(
    session: &Session,
    passage: &RequestContext,
    mut reply: Reply,
) -> Reply {
    let Reply::Full { head, .. } = &mut reply else {
        return reply;
    };
    if head.status != StatusCode::FORBIDDEN {
        return reply;
    }
    let path = session.req_header().uri.path();
    let oauth = passage.rules.admission.oauth();
    let url = place(session, passage).and_then(|place| oauth.metadata_url(path, place));
    let mut headers = head.headers.iter_mut();
    let challenge = headers.find(|(name, _)| name == WWW_AUTHENTICATE);
    if let (Some(url), Some((_, challenge))) = (url, challenge)
        && let Ok(begun) = challenge.to_str()
        && let Ok(whole) = format!("{begun}, resource_metadata=\"{url}\"").parse()
    {
        *challenge = whole;
    }
    reply
}

/// Returns the paths that the request's listener serves.
fn place<'a>(session: &Session, passage: &'a RequestContext) -> Option<ResourcePlace<'a>> {
    let listener = passage.listener(session).ok()?;
    Some(ResourcePlace::of(&listener.rules))
}
