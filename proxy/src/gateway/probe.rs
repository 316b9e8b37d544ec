//! Responds to probes of `tooldock doctor`, which examine the servers in front of the gateway. The response contains the names of
//! the received headers and the addresses that the gateway sees, but no header values except those of `Host` and
//! `X-Forwarded-For`.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST};
use http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use pingora_proxy::Session;
use serde_json::json;
use tooldock_filters::{AdmittedHead, Fields, Reason, Rejection, network};
use tooldock_upstream::probe_events;
use tooldock_upstream::reply::{Head, Reply};

use super::admit::tls_of;
use super::{Gateway, RequestContext};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

impl Gateway {
    /// Responds to a probe with a valid nonce. For any other nonce the response is that of an unknown path, and the body is not
    /// read.
    pub(super) async fn probed(
        &self,
        session: &mut Session,
        passage: &RequestContext,
        admitted: &AdmittedHead,
    ) -> Result<Reply, Rejection> {
        let nonce = admitted.rest.as_deref().unwrap_or_default();
        if !self.service.probes().take(nonce) {
            return Err(Rejection::new(
                Reason::NotFound,
                "Nothing is served at this path.",
            ));
        }
        let body = match admitted.route.takes_body(&session.req_header().method) {
            true => self.body(session, passage).await?.bytes.len(),
            false => 0,
        };
        let header = session.req_header();
        let accept = header.headers.get(ACCEPT).map(HeaderValue::as_bytes);
        if header.method == Method::GET && accept == Some(b"text/event-stream") {
            return Ok(probe_events::events(silence(header.uri.query())));
        }
        Ok(self.facts(session, passage, admitted, body))
    }

    fn facts(
        &self,
        session: &Session,
        passage: &RequestContext,
        admitted: &AdmittedHead,
        body: usize,
    ) -> Reply {
        let header = session.req_header();
        let names: BTreeSet<_> = header.headers.keys().map(HeaderName::as_str).collect();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let hops = header.headers.get_all(X_FORWARDED_FOR).iter();
        let hops = hops.map(text).collect::<Vec<_>>().join(",");
        let hops: Vec<_> = hops.split(',').map(str::trim).collect();
        let rules = &passage.rules;
        let peer = passage.peer(session);
        let fields = Fields::of(&header.headers);
        let replicas = self.service.replicas().state();
        let listener = passage.listener(session).ok();
        let facts = json!({
            "probe": true,
            "method": header.method.as_str(),
            "http": match header.version {
                Version::HTTP_10 => "1.0",
                Version::HTTP_2 => "2",
                _ => "1.1",
            },
            "host": header.headers.get(HOST).map(text).or_else(|| header.uri.authority().map(ToString::to_string)),
            "headers": names,
            "forwarded_for": hops.into_iter().filter(|hop| !hop.is_empty()).collect::<Vec<_>>(),
            "peer": network::address_text(peer.address),
            "peer_is_trusted": rules.admission.trusts_proxy(peer.address),
            "client": network::address_text(rules.admission.client_address(peer, &fields)),
            "client_is_internal": rules.admission.is_internal(admitted.client),
            "address": session.server_addr().map(ToString::to_string),
            "listener": listener.map(|it| it.name.to_string()),
            "proxy_protocol": listener.is_some_and(|it| it.proxy_protocol) && !peer.names_no_client,
            "tls": tls_of(session).is_some(),
            "replica": replicas.map(|it| it.name),
            "body": body,
            "body_max": rules.bodies.bytes,
        });
        Reply::Full {
            // The probe checks whether proxies in front of the gateway remove this response header.
            head: Head::json(StatusCode::OK).with(SESSION, HeaderValue::from_static("probe")),
            body: Bytes::from(facts.to_string()),
        }
    }
}

/// Returns the time without events that the query requests for a stream: `silence=SECONDS`.
fn silence(query: Option<&str>) -> Option<Duration> {
    let seconds = query?.strip_prefix("silence=")?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
