//! Determines the namespace of a request, and checks that its principal may use it.
//!
//! The name comes from the path, the `X-Namespace` header or, for the OpenAPI document, the query; on `/messages` also from the
//! session that the query names. A request may repeat the name, but different names are refused: choosing one of them could
//! show one tenant the tools of another. The live registry decides whether a namespace exists. The registry contains only valid
//! names, so an invalid name, including `_system`, is always unknown.

use std::borrow::Cow;

use http::request::Parts;
use tooldock_base::names::NamespaceName;

use crate::fields::{Field, Fields};
use crate::path;
use crate::principal::Principal;
use crate::rejection::{Reason, Rejection, quoted};
use crate::route::{MatchedRoute, RouteNamespace};

/// A listener's rule for finding the namespace of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceRule {
    /// The namespace comes from `X-Namespace`, or from the path: of `/mcp/{namespace}` and of everything below
    /// `/namespaces/{namespace}`. A request with neither is refused.
    Header,
    /// The namespace comes from the path alone. `X-Namespace` may repeat it, but not replace it.
    Path,
    /// The namespace comes from `X-Namespace` or the path, as with [`NamespaceRule::Header`]. A request with neither is for all
    /// namespaces.
    Global,
    /// All requests are for this namespace. A request may repeat its name; a request that names another one is refused.
    Fixed(NamespaceName),
    /// All requests are for the namespace of the management tools. `X-Namespace` is ignored.
    System,
}

/// Live information about namespaces and sessions that the admission checks need.
pub trait Directory {
    /// Looks up a namespace by name, and checks whether its own policy admits the principal.
    fn namespace(&self, name: &str, principal: &str) -> Access;

    /// Returns true if [`Directory::namespace`] can return [`Access::Starting`], because namespaces are still starting.
    fn is_starting(&self) -> bool {
        false
    }

    /// Returns true if the tools directory contains a folder of this name. Called only for names that [`Directory::namespace`]
    /// does not know, and only if the principal's credential allows that name.
    fn has_folder(&self, name: &NamespaceName) -> bool;

    /// The negotiated protocol version of a session, spelled as in `MCP-Protocol-Version`; `None` if the principal has no such
    /// session.
    fn session_version(&self, session_id: &str, principal: &str) -> Option<&'static str>;

    /// The namespace that a session belongs to. Used for `/messages`, whose query contains the session's id.
    fn session_namespace(&self, session_id: &str) -> Option<NamespaceName>;

    /// Returns true if any upstream server is configured to receive this client header. The name is in lower case. Used only to
    /// answer preflights.
    fn passes_header(&self, _name: &str) -> bool {
        false
    }
}

/// Result of looking up a namespace for a principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// The namespace exists, and its own policy admits the principal.
    Granted(NamespaceName),
    /// The namespace is still starting, so the principals that its policy admits are not known yet.
    Starting(NamespaceName),
    /// No namespace has this name.
    Unknown,
    /// The namespace exists, but its own policy does not admit the principal.
    Forbidden,
}

/// The namespace of an admitted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestNamespace {
    /// The namespace is served, and the principal may use it.
    Served(NamespaceName),
    /// The namespace is still starting, and the principal's credential allows its use.
    Starting(NamespaceName),
}

/// Determines the namespace of a request. Refuses the request if the namespace does not exist or the principal may not use it.
pub(crate) fn admitted(
    rule: &NamespaceRule,
    parts: &Parts,
    fields: &Fields<'_>,
    found: &MatchedRoute<'_>,
    principal: &Principal,
    directory: &dyn Directory,
) -> Result<RequestNamespace, Rejection> {
    if *rule == NamespaceRule::System || found.spec.namespace == RouteNamespace::Management {
        return system(found, principal).map(RequestNamespace::Served);
    }
    let Some(name) = named(rule, parts, fields, found, directory)? else {
        if *rule == NamespaceRule::Global {
            return Ok(RequestNamespace::Served(NamespaceName::global()));
        }
        return Err(Rejection::new(
            Reason::NamespaceRequired,
            format!(
                "The request names no namespace: {}.",
                found.spec.ways_to_name_a_namespace()
            ),
        ));
    };
    // A session for all namespaces gives this name to its requests on `/messages`.
    let global = NamespaceName::global();
    if *rule == NamespaceRule::Global && name == global.as_str() {
        return Ok(RequestNamespace::Served(global));
    }
    match directory.namespace(&name, &principal.name) {
        Access::Granted(namespace) if principal.namespaces.contains(namespace.as_str()) => {
            Ok(RequestNamespace::Served(namespace))
        }
        Access::Starting(namespace) if principal.namespaces.contains(namespace.as_str()) => {
            Ok(RequestNamespace::Starting(namespace))
        }
        Access::Granted(_) | Access::Starting(_) => {
            Err(forbidden(&name, "namespaces of the token"))
        }
        Access::Forbidden => Err(forbidden(&name, "principals of the namespace")),
        Access::Unknown => {
            let ways = found.spec.ways_to_name_a_namespace();
            let ways = match found.way_to_list_namespaces() {
                Some(list) => format!("{list}; {ways}"),
                None => format!("To name another one, {ways}"),
            };
            let is_in_tools = name.parse().is_ok_and(|it: NamespaceName| {
                principal.namespaces.contains(it.as_str()) && directory.has_folder(&it)
            });
            let unloaded = match is_in_tools {
                true => {
                    " Its folder exists in the tools directory and is not loaded: call reload_core or POST /reload."
                }
                false => "",
            };
            Err(Rejection::new(
                Reason::NamespaceNotFound,
                format!("Unknown namespace: {}.{unloaded} {ways}.", quoted(&name)),
            ))
        }
    }
}

/// Returns the namespace of the management tools, or refuses a principal that may not use it. The registry is not consulted:
/// every process that has a listener for these tools also has the tools.
fn system(found: &MatchedRoute<'_>, principal: &Principal) -> Result<NamespaceName, Rejection> {
    let system = NamespaceName::system();
    if let Some(name) = found.namespace()?
        && name != system.as_str()
    {
        return Err(Rejection::new(
            Reason::NamespaceNotFound,
            "This listener serves the management tools alone: use the path /mcp. The tools of namespaces are served by the core's listener.",
        ));
    }
    match principal.opens(&system) {
        true => Ok(system),
        false => Err(Rejection::new(
            Reason::NamespaceForbidden,
            "Your token may not use the management tools. Use BEARER_TOKEN, or a token whose list of namespaces has \"_system\" in it.",
        )
        .because("namespaces of the token")),
    }
}

fn forbidden(name: &str, cause: &'static str) -> Rejection {
    Rejection::new(
        Reason::NamespaceForbidden,
        format!("Your token may not use the namespace {}.", quoted(name)),
    )
    .because(cause)
}

/// Reads the namespace's name from the path, `X-Namespace`, the query and the session of a request. Refuses different names.
fn named<'a>(
    rule: &'a NamespaceRule,
    parts: &'a Parts,
    fields: &Fields<'a>,
    found: &MatchedRoute<'a>,
    directory: &dyn Directory,
) -> Result<Option<Cow<'a, str>>, Rejection> {
    let mut name: Option<Cow<'a, str>> = found.namespace()?;
    if *rule == NamespaceRule::Path && name.is_none() {
        return Ok(None);
    }
    let mut fixed = false;
    if let NamespaceRule::Fixed(namespace) = rule {
        agree(&mut name, namespace.as_str().into())?;
        fixed = true;
    }
    match fields.namespace {
        Field::Absent => {}
        // At a listener with a fixed namespace, an empty header is ignored: a client may have filled it from an unset variable.
        Field::Once(value) if fixed && value.is_empty() => {}
        Field::Once(value) => {
            // The value is copied only if it contains bytes other than visible ASCII.
            let text = value.to_str().map(Cow::Borrowed);
            agree(
                &mut name,
                text.unwrap_or_else(|_| String::from_utf8_lossy(value.as_bytes())),
            )?;
        }
        Field::Several => {
            return Err(ambiguous(
                "The request has several X-Namespace headers; send one.",
            ));
        }
    }
    if found.spec.namespace == RouteNamespace::OrQuery {
        for value in path::query_values(parts.uri.query(), "namespace") {
            let value = value?;
            if !(fixed && value.is_empty()) {
                agree(&mut name, value)?;
            }
        }
    }
    if found.spec.namespace == RouteNamespace::OrSession
        && let Some(session) = session_id(parts)?
    {
        let said = name.as_ref().is_some_and(|name| !name.is_empty());
        match directory.session_namespace(&session) {
            Some(namespace) if said => agree(&mut name, namespace.to_string().into())?,
            Some(namespace) => name = Some(namespace.to_string().into()),
            // The session is unknown, but the request names a namespace: the service handles it, since it can distinguish
            // a session of another principal from an ended one.
            None if said => {}
            None => {
                return Err(Rejection::new(
                    Reason::SessionNotFound,
                    "There is no such session, or it has ended; open a new one with GET /sse.",
                ));
            }
        }
    }
    // An empty header or parameter is ignored: a client may have filled it from an unset variable.
    Ok(name.filter(|name| !name.is_empty()))
}

/// Reads the session's id from a request to `/messages`: the query's parameter `session_id`.
///
/// # Errors
///
/// The parameter is repeated, or its percent-encoding is not valid. Admission refuses such requests.
pub fn session_id(parts: &Parts) -> Result<Option<Cow<'_, str>>, Rejection> {
    let mut values = path::query_values(parts.uri.query(), "session_id");
    match (values.next(), values.next()) {
        (Some(_), Some(_)) => Err(Rejection::new(
            Reason::BadRequest,
            "The query names session_id several times; name it once.",
        )),
        (Some(id), None) => Ok(Some(id?)),
        (None, _) => Ok(None),
    }
}

fn agree<'a>(name: &mut Option<Cow<'a, str>>, other: Cow<'a, str>) -> Result<(), Rejection> {
    match name {
        Some(name) if *name != other => Err(ambiguous(
            "The listener, the path, the X-Namespace header and the query name different namespaces; name one.",
        )),
        _ => {
            *name = Some(other);
            Ok(())
        }
    }
}

fn ambiguous(message: &'static str) -> Rejection {
    Rejection::new(Reason::NamespaceAmbiguous, message)
}

#[cfg(test)]
mod tests {
    use tooldock_base::namespace_scope::NamespaceScope;

    use super::*;
    use crate::route::ALL;

    /// Serves `github` and `shared` to all principals and `vault` to none. There is a folder `git-new`, which is not
    /// loaded.
    struct ServedNamespaces;

    impl Directory for ServedNamespaces {
        fn namespace(&self, name: &str, _principal: &str) -> Access {
            match name {
                "github" | "shared" => Access::Granted(name.parse().unwrap()),
                "vault" => Access::Forbidden,
                "coming" => Access::Starting(name.parse().unwrap()),
                _ => Access::Unknown,
            }
        }

        fn has_folder(&self, name: &NamespaceName) -> bool {
            name.as_str() == "git-new"
        }

        fn session_version(&self, _session_id: &str, _principal: &str) -> Option<&'static str> {
            None
        }

        fn session_namespace(&self, session_id: &str) -> Option<NamespaceName> {
            (session_id == "live").then(|| "github".parse().unwrap())
        }
    }

    fn outcome(uri: &str, headers: &[&[u8]], scope: &[&str]) -> Result<String, Reason> {
        outcome_under(&NamespaceRule::Header, uri, headers, scope)
    }

    fn outcome_under(
        rule: &NamespaceRule,
        uri: &str,
        headers: &[&[u8]],
        scope: &[&str],
    ) -> Result<String, Reason> {
        judged(rule, uri, headers, scope).map_err(|rejection| rejection.reason)
    }

    fn judged(
        rule: &NamespaceRule,
        uri: &str,
        headers: &[&[u8]],
        scope: &[&str],
    ) -> Result<String, Rejection> {
        let mut request = http::Request::get(uri);
        for value in headers {
            request = request.header("x-namespace", *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let found = ALL.find(parts.uri.path()).unwrap();
        let scope: Vec<String> = scope.iter().map(|&name| name.into()).collect();
        let namespaces = NamespaceScope::new(&scope).unwrap();
        let principal = Principal::unlimited("ci", namespaces);
        admitted(
            rule,
            &parts,
            &Fields::of(&parts.headers),
            &found,
            &principal,
            &ServedNamespaces,
        )
        .map(|namespace| match namespace {
            RequestNamespace::Served(name) => name.to_string(),
            RequestNamespace::Starting(name) => format!("{name} starts"),
        })
    }

    #[test]
    fn a_namespace_on_its_way_up_is_no_unknown_one_and_is_told_to_those_whose_token_opens_it() {
        for (uri, headers) in [
            ("/mcp/coming", &[][..]),
            ("/mcp", &[&b"coming"[..]][..]),
            ("/sse", &[b"coming"]),
            ("/tools", &[b"coming"]),
            ("/tools/x", &[b"coming"]),
            ("/namespaces/coming/tools", &[]),
            ("/openapi.json?namespace=coming", &[]),
        ] {
            let started = outcome(uri, headers, &["com*"]);
            assert_eq!(started.as_deref(), Ok("coming starts"), "{uri}");
            let closed = outcome(uri, headers, &["shared"]);
            assert_eq!(closed, Err(Reason::NamespaceForbidden), "{uri}");
        }
    }

    #[test]
    fn header_path_and_query_each_name_it() {
        for (uri, headers) in [
            ("/mcp", &[&b"github"[..]][..]),
            ("/mcp/github", &[]),
            ("/mcp/github", &[b"github"]),
            ("/openapi.json?namespace=github", &[]),
            ("/openapi.json?namespace=github", &[b"github"]),
        ] {
            assert_eq!(
                outcome(uri, headers, &["*"]).as_deref(),
                Ok("github"),
                "{uri}"
            );
        }
    }

    #[test]
    fn a_listener_with_a_namespace_of_its_own_takes_no_other() {
        let fixed = NamespaceRule::Fixed("github".parse().unwrap());
        for (uri, headers, expected) in [
            ("/mcp", &[][..], Ok("github")),
            ("/mcp", &[&b"github"[..]][..], Ok("github")),
            ("/mcp/github", &[], Ok("github")),
            ("/mcp", &[b""], Ok("github")),
            ("/messages?session_id=live", &[b""], Ok("github")),
            ("/openapi.json?namespace=", &[], Ok("github")),
            ("/sse", &[], Ok("github")),
            ("/messages?session_id=live", &[], Ok("github")),
            ("/tools", &[], Ok("github")),
            ("/namespaces/github/tools", &[], Ok("github")),
            ("/openapi.json", &[], Ok("github")),
            ("/mcp", &[b"shared"], Err(Reason::NamespaceAmbiguous)),
            ("/mcp/shared", &[], Err(Reason::NamespaceAmbiguous)),
            (
                "/openapi.json?namespace=shared",
                &[],
                Err(Reason::NamespaceAmbiguous),
            ),
            (
                "/namespaces/nope/tools",
                &[],
                Err(Reason::NamespaceAmbiguous),
            ),
        ] {
            let outcome = outcome_under(&fixed, uri, headers, &["*"]);
            assert_eq!(outcome.as_deref(), expected.as_ref().copied(), "{uri}");
        }
        let shared = NamespaceRule::Fixed("shared".parse().unwrap());
        assert_eq!(
            outcome_under(&shared, "/messages?session_id=live", &[], &["*"]),
            Err(Reason::NamespaceAmbiguous)
        );
        assert_eq!(
            outcome_under(&fixed, "/mcp", &[], &["shared"]),
            Err(Reason::NamespaceForbidden)
        );
    }

    #[test]
    fn the_management_tools_are_for_tokens_that_list_them_by_name() {
        let outcome = |uri, headers: &[&[u8]], scope| {
            outcome_under(&NamespaceRule::System, uri, headers, scope)
        };
        for scope in [&["_system"][..], &["github", "_system"], &["*", "_system"]] {
            assert_eq!(outcome("/mcp", &[], scope).as_deref(), Ok("_system"));
        }
        for scope in [&["*"][..], &["github"], &["_*"], &["*system"], &["_syste?"]] {
            let refused = outcome("/mcp", &[], scope);
            assert_eq!(refused, Err(Reason::NamespaceForbidden), "{scope:?}");
        }
        // `X-Namespace` is not read, and the path may name no other.
        let headers = [&b"github"[..], b"shared"];
        assert!(outcome("/mcp", &headers, &["_system"]).is_ok());
        assert!(outcome("/mcp/_system", &[], &["_system"]).is_ok());
        assert_eq!(
            outcome("/mcp/github", &[], &["_system"]),
            Err(Reason::NamespaceNotFound)
        );
    }

    #[test]
    fn different_names_are_ambiguous() {
        for (uri, headers) in [
            ("/mcp/github", &[&b"shared"[..]][..]),
            ("/mcp/github", &[b""]),
            ("/mcp", &[b"github", b"github"]),
            ("/openapi.json?namespace=github", &[b"shared"]),
            ("/openapi.json?namespace=github&namespace=shared", &[]),
        ] {
            assert_eq!(
                outcome(uri, headers, &["*"]),
                Err(Reason::NamespaceAmbiguous),
                "{uri}"
            );
        }
    }

    #[test]
    fn messages_take_the_namespace_of_their_session() {
        for (uri, headers, expected) in [
            ("/messages?session_id=live", &[][..], Ok("github")),
            ("/messages?session_id=live", &[&b""[..]], Ok("github")),
            ("/messages?session_id=live", &[b"github"], Ok("github")),
            ("/messages?session_id=l%69ve", &[], Ok("github")),
            (
                "/messages?session_id=live",
                &[b"shared"],
                Err(Reason::NamespaceAmbiguous),
            ),
            (
                "/messages?session_id=gone",
                &[],
                Err(Reason::SessionNotFound),
            ),
            ("/messages?session_id=gone", &[b"shared"], Ok("shared")),
            ("/messages", &[b"shared"], Ok("shared")),
            ("/messages", &[], Err(Reason::NamespaceRequired)),
            (
                "/messages?session_id=live&session_id=live",
                &[],
                Err(Reason::BadRequest),
            ),
            ("/sse?session_id=live", &[], Err(Reason::NamespaceRequired)),
        ] {
            let outcome = outcome(uri, headers, &["*"]);
            assert_eq!(outcome.as_deref(), expected.as_ref().copied(), "{uri}");
        }
    }

    #[test]
    fn no_name_is_required_and_the_query_counts_for_openapi_only() {
        for (uri, headers) in [
            ("/mcp", &[][..]),
            ("/mcp", &[&b""[..]][..]),
            ("/tools?namespace=github", &[]),
            ("/openapi.json?namespace=", &[]),
        ] {
            assert_eq!(
                outcome(uri, headers, &["*"]),
                Err(Reason::NamespaceRequired),
                "{uri}"
            );
        }
    }

    #[test]
    fn unknown_reserved_and_malformed_names_are_not_found() {
        for name in [
            &b"nope"[..],
            b"_system",
            b"GitHub",
            b"github ..",
            b"../github",
            b"\xff",
            b"github,shared",
        ] {
            assert_eq!(
                outcome("/tools", &[name], &["*"]),
                Err(Reason::NamespaceNotFound)
            );
        }
        assert_eq!(
            outcome("/mcp/_system", &[], &["*"]),
            Err(Reason::NamespaceNotFound)
        );
    }

    #[test]
    fn a_folder_that_is_not_loaded_is_told_to_tokens_that_open_its_name() {
        let message = |name: &[u8], scope: &[&str]| {
            let refused = judged(&NamespaceRule::Header, "/tools", &[name], scope).unwrap_err();
            assert_eq!(refused.reason, Reason::NamespaceNotFound);
            refused.message.into_owned()
        };
        let told = message(b"git-new", &["git*"]);
        assert!(
            told.starts_with(
                "Unknown namespace: \"git-new\". Its folder exists in the tools directory and is not loaded: call reload_core or POST /reload. "
            ),
            "{told}"
        );
        for (name, scope) in [
            (&b"git-new"[..], "shared"),
            (b"git-other", "git*"),
            (b"../git-new", "*"),
        ] {
            let told = message(name, &[scope]);
            assert!(!told.contains("folder"), "{told}");
        }
    }

    #[test]
    fn token_and_namespace_can_each_forbid() {
        assert_eq!(
            outcome("/mcp/github", &[], &["git*"]).as_deref(),
            Ok("github")
        );
        assert_eq!(
            outcome("/mcp/shared", &[], &["git*"]),
            Err(Reason::NamespaceForbidden)
        );
        assert_eq!(
            outcome("/mcp/vault", &[], &["*"]),
            Err(Reason::NamespaceForbidden)
        );
        assert_eq!(
            outcome("/mcp/nope", &[], &["git*"]),
            Err(Reason::NamespaceNotFound)
        );
    }
}
