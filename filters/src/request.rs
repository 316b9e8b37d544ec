//! The input of the admission checks: a request's head, its connection, its listener's rules, and live state.

use std::sync::Arc;

use http::request::Parts;

use crate::certificate::PeerCertificate;
use crate::fields::Fields;
use crate::media::AcceptRule;
use crate::namespace::{Directory, NamespaceRule};
use crate::network::Peer;
use crate::origin::Openness;
use crate::route::{EndpointAliases, RouteGroups};

/// The settings of a listener that the admission checks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerRules {
    /// True if the listener is bound to a loopback address.
    pub loopback: bool,
    /// The groups of routes that the listener serves.
    pub routes: RouteGroups,
    /// The listener's rule for finding the namespace of a request.
    pub namespace: NamespaceRule,
    /// The listener's rule for the Accept header of `POST /mcp`.
    pub accept: AcceptRule,
    /// The listener's rule for credentials: required, optional or ignored.
    pub auth: Auth,
    /// The listener's name, if client certificates identify principals there; `None` if they do not. Entries of
    /// `admission.certificates` can be limited to certain listeners by name.
    pub certificates: Option<Arc<str>>,
    /// True if the listener serves MCP 2026-07-28. In that version, GET and DELETE on the MCP endpoint are refused.
    pub modern: bool,
    /// User name that browsers must send by HTTP Basic, with a token as the password; `None` if the listener does not accept
    /// Basic.
    pub basic: Option<Arc<str>>,
    /// Path prefix that a proxy in front of the gateway removes from requests to this listener; `None` if there is none.
    pub path_prefix: Option<Arc<str>>,
    /// Additional paths of the MCP endpoints of namespaces.
    pub aliases: EndpointAliases,
    /// True if health checks return details even without a credential.
    pub open_probes: bool,
}

impl ListenerRules {
    /// The rule for requests from pages that do not have a token. Depends on whether tools can be called without credentials, or
    /// with credentials that a browser adds automatically.
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

    /// Returns true if health checks without a credential get details, not just the status.
    pub(crate) fn tells_details_to_strangers(&self) -> bool {
        self.open_probes || self.auth != Auth::Required
    }
}

/// A listener's rule for credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// A credential is required on every path that is not public.
    Required,
    /// A credential is not required. If one is sent, it must be valid; otherwise the principal is
    /// [`ANONYMOUS`](crate::principal::ANONYMOUS).
    Optional,
    /// Credentials are ignored: the principal of every request is [`ANONYMOUS`](crate::principal::ANONYMOUS).
    None,
}

/// A request to be checked: its head, its connection, the rules of its listener, and live state.
#[derive(Clone, Copy)]
pub struct AdmissionRequest<'a> {
    /// Method, target, HTTP version and headers of the request.
    pub parts: &'a Parts,
    /// The known header fields of the request, already found.
    pub fields: &'a Fields<'a>,
    /// Size of the head as received, in bytes. If unknown, [`header_bytes`](crate::head::header_bytes) computes it.
    pub header_bytes: usize,
    /// The remote end of the connection: the client, or a proxy in front of the gateway.
    pub peer: Peer,
    /// The client certificate of the connection. Only used on listeners where certificates identify principals.
    pub certificate: PeerCertificate<'a>,
    /// The rules of the listener that received the request.
    pub listener: &'a ListenerRules,
    /// The current namespaces and sessions.
    pub directory: &'a dyn Directory,
    /// Number and results of earlier checks of the same request: it may have waited for its token's issuer or its namespace.
    pub asked: AdmissionAttempt,
    /// True if another replica of the gateway has forwarded the request. Limits then do not count it, since that replica did.
    pub forwarded: bool,
}

/// The state of a request that may be checked several times, since it can wait for an issuer or a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdmissionAttempt {
    /// The request is checked for the first time.
    #[default]
    First,
    /// The request was counted by the limits, and has waited for its token's issuer.
    Again,
    /// The newest keys of the token's issuer have been fetched, and the request must not wait again. A token that is signed by
    /// another key is refused.
    ByNewestKeys,
    /// The request must not wait again. If its token still cannot be validated, the request is refused.
    Last,
}
