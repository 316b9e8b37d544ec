//! A request as admission judges it: its head, its connection, its listener, and the live state.

use std::sync::Arc;

use http::request::Parts;

use crate::certificate::PeerCertificate;
use crate::fields::Fields;
use crate::media::AcceptRule;
use crate::namespace::{Directory, NamespaceRule};
use crate::network::Peer;
use crate::origin::Openness;
use crate::route::{EndpointAliases, RouteGroups};

/// The part of a listener's profile that admission needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerRules {
    /// True when the listener is bound to a loopback address.
    pub loopback: bool,
    /// The groups of paths that the listener serves.
    pub routes: RouteGroups,
    /// The source of the namespace of requests.
    pub namespace: NamespaceRule,
    /// The rule for Accept on `POST /mcp`.
    pub accept: AcceptRule,
    /// The rule for credentials.
    pub auth: Auth,
    /// The listener's name if client certificates identify principals: entries of `admission.certificates` may be limited to
    /// it.
    pub certificates: Option<Arc<str>>,
    /// True when MCP 2026-07-28, which has no streams by GET, is served.
    pub modern: bool,
    /// The user name that browsers send by `Basic`, where the listener takes it. The password is a token.
    pub basic: Option<Arc<str>>,
    /// The path prefix of the listener that a proxy in front of the gateway removes.
    pub path_prefix: Option<Arc<str>>,
    /// Further paths of the MCP endpoints of namespaces.
    pub aliases: EndpointAliases,
    /// True when health checks show their details without a credential.
    pub open_probes: bool,
}

impl ListenerRules {
    /// How far the listener is open to pages that have no credentials themselves: tools can be called without any credentials,
    /// or with a client certificate, which a browser sends automatically.
    pub(crate) fn openness(&self) -> Openness {
        if self.basic.is_some() {
            Openness::ToCertificates
        } else if !self.routes.call_tools() {
            Openness::Closed
        } else if self.certificates.is_some() {
            Openness::ToCertificates
        } else if self.auth == Auth::Required {
            Openness::Closed
        } else {
            Openness::ToEverybody
        }
    }

    /// Returns true if a health check without a credential gets more than the status.
    pub(crate) fn tells_details_to_strangers(&self) -> bool {
        self.open_probes || self.auth != Auth::Required
    }
}

/// The rule for credentials at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// A bearer token on every path that is not public.
    Required,
    /// A token that is sent must be right; without one the principal is
    /// [`ANONYMOUS`](crate::principal::ANONYMOUS).
    Optional,
    /// No credentials; every request is the principal
    /// [`ANONYMOUS`](crate::principal::ANONYMOUS).
    None,
}

/// The head of a request, with its connection, its listener and the live state.
#[derive(Clone, Copy)]
pub struct AdmissionRequest<'a> {
    /// Method, target, version, headers.
    pub parts: &'a Parts,
    /// The header fields of the head.
    pub fields: &'a Fields<'a>,
    /// The size of the head on the wire; [`header_bytes`](crate::head::header_bytes) if the size is not known.
    pub header_bytes: usize,
    /// The other end of the connection, a proxy perhaps.
    pub peer: Peer,
    /// The client certificate of the connection, used if the listener's certificates identify principals.
    pub certificate: PeerCertificate<'a>,
    /// The rules of the listener that took the request.
    pub listener: &'a ListenerRules,
    /// The namespaces and sessions at present.
    pub directory: &'a dyn Directory,
    /// How often the request was judged before: it may have waited for its token's issuer or its namespace.
    pub asked: AdmissionAttempt,
    /// True if another replica has forwarded the request: limits have counted it there.
    pub forwarded: bool,
}

/// How often a request was judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdmissionAttempt {
    /// The request was not judged before.
    #[default]
    First,
    /// The request was counted, and has waited for an issuer.
    Again,
    /// The request no longer waits, and the newest keys of its token's issuer were fetched: a token signed by another key is
    /// refused.
    ByNewestKeys,
    /// The request no longer waits: a token without a verdict cannot be judged now.
    Last,
}
