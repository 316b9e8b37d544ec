//! The target of a proxied location of nginx: the MCP servers behind it, and the path of their MCP endpoint.

use regex_syntax::hir::literal::Extractor;

use crate::refusals::regex;
use crate::scope::Paths;
use crate::sites::{ProxiedLocation, Sites};
use crate::tree::Directive;
use crate::values::{Piece, pieces};
use crate::variables::Variables;
use crate::view::pool_named;

/// Maximum number of paths that are taken from the regular expression of a location; with more, none are taken.
const PATHS_MAX: usize = 16;

/// The servers to which a location of nginx proxies requests, and the paths of the MCP endpoint.
pub(crate) struct Target<'a> {
    pub(crate) encrypted: bool,
    pub(crate) servers: Servers<'a>,
    /// The path of the endpoint for clients of nginx, without a slash at its end.
    pub(crate) endpoint: String,
    /// Further paths of the endpoint for clients, if the location's regular expression matches several.
    pub(crate) also: Vec<String>,
    /// The path of the endpoint for clients, with a slash at its end if the location's own path is the endpoint and has one.
    pub(crate) asked: String,
    /// The endpoint's path at the servers.
    pub(crate) path: String,
    /// The directive that makes the endpoint's path uncertain, and the report line about it.
    pub(crate) unsure: Option<(&'a Directive, &'static str)>,
    /// True if the endpoint is assumed to be `/mcp` below the location's path, since that path does not look like an endpoint.
    pub(crate) is_guessed: bool,
    /// The effect of `rewrite` directives on the endpoint's path.
    pub(crate) rewritten: Rewritten<'a>,
}

/// The server of a `proxy_pass`, or the servers of the `upstream` that it names.
#[derive(Clone)]
pub(crate) enum Servers<'a> {
    /// Address of a single server: `host:port`, or `unix:/path`.
    One(String),
    Pool(&'a Directive),
}

impl Servers<'_> {
    /// Text that identifies the servers: the address of a single server, or the name of the `upstream`.
    fn id(&self) -> &str {
        match self {
            Self::One(authority) => authority,
            Self::Pool(pool) => pool.first(),
        }
    }
}

impl Target<'_> {
    /// Returns true if two locations lead to the same MCP server: the same servers, and the same path there. Paths of the
    /// HTTP+SSE transport count as the same, since they belong to the endpoint at the same servers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same_path = self.is_of_sse()
            || other.is_of_sse()
            || self.path.trim_end_matches('/') == other.path.trim_end_matches('/');
        same_path && self.is_at_same_servers(other)
    }

    /// Returns true if two targets have the same servers, and both or neither use TLS.
    pub(crate) fn is_at_same_servers(&self, other: &Self) -> bool {
        let same_kind =
            matches!(self.servers, Servers::One(_)) == matches!(other.servers, Servers::One(_));
        same_kind && self.encrypted == other.encrypted && self.servers.id() == other.servers.id()
    }

    /// Returns true if the path is one of the HTTP+SSE transport, which the gateway serves in addition to `/mcp`.
    pub(crate) fn is_of_sse(&self) -> bool {
        self.last_segment() == "sse" || self.is_of_messages()
    }

    /// Returns true if the path is the one of the HTTP+SSE transport to which clients POST messages.
    pub(crate) fn is_of_messages(&self) -> bool {
        matches!(self.last_segment(), "message" | "messages")
    }

    fn last_segment(&self) -> &str {
        self.endpoint.rsplit('/').next().unwrap_or_default()
    }
}

/// Finds the target of an exposure (a location that proxies requests).
///
/// # Errors
///
/// The reason why the exposure has no target, as a fixed text.
pub(crate) fn target<'a>(
    proxied_location: &ProxiedLocation<'a>,
    pass: &'a Directive,
    sites: &Sites<'a>,
    variables: &Variables<'a>,
) -> Result<Target<'a>, &'static str> {
    let text = resolved(pass.first(), proxied_location, variables).ok_or(
        "which server it is depends on the request: write the servers into upstreams.remote",
    )?;
    let (scheme, rest) = text.split_once("://").ok_or("is no URL")?;
    let encrypted = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err("only http and https are spoken to servers"),
    };
    let (authority, uri) = match rest.strip_prefix("unix:") {
        Some(path) => {
            let (socket, uri) = path
                .split_once(':')
                .map_or((path, None), |(socket, uri)| (socket, Some(uri)));
            (format!("unix:{socket}"), uri)
        }
        None => match rest.find('/') {
            Some(at) => (rest[..at].to_owned(), Some(&rest[at..])),
            None => (rest.to_owned(), None),
        },
    };
    if encrypted && authority.starts_with("unix:") {
        return Err("TLS is not spoken on Unix sockets");
    }
    if authority.contains('@') {
        return Err("has credentials in it: write credentials of the remote server");
    }
    let query = uri.and_then(|uri| uri.split_once('?'));
    let has_query = query.is_some_and(|(_, query)| !query.is_empty());
    let uri = query.map(|(path, _)| path).or(uri);
    let servers = match pool_named(sites, &authority) {
        Some(pool) => Servers::Pool(pool),
        None => Servers::One(authority),
    };
    let paths = proxied_location.paths.unwrap_or(Paths::Below("/"));
    let mut also = Vec::new();
    let mut unsure = None;
    let (literal, is_whole) = match paths {
        Paths::Matching(pattern) => match all_paths(pattern) {
            Some((first, others)) => {
                also = others;
                (first, true)
            }
            None => {
                unsure = Some((
                    proxied_location.at,
                    "paths are no regular expressions: clients get 404 at the paths that it matches, and use /mcp/NAME; or write the paths into aliases",
                ));
                (literal_beginning(pattern), false)
            }
        },
        Paths::Exactly(path) => (path.to_owned(), true),
        Paths::Below(path) => (path.to_owned(), false),
        Paths::Named => ("/".to_owned(), false),
    };
    let endpoint = endpoint(is_whole, &literal, uri);
    let is_guessed = endpoint != literal.trim_end_matches('/');
    let asked = match paths {
        Paths::Exactly(path) | Paths::Below(path) if path.trim_end_matches('/') == endpoint => path,
        _ => endpoint.as_str(),
    }
    .to_owned();
    let rewritten = rewritten(proxied_location, &endpoint, &asked);
    let path = match &rewritten {
        Rewritten::To(path, _) => path.clone(),
        Rewritten::No | Rewritten::Elsewhere(_) => path_at_server(&endpoint, &literal, uri),
    };
    if has_query {
        unsure = Some((
            pass,
            "the query may hold a secret, and is left out: write it behind the URL in backends, if the server needs it",
        ));
    }
    Ok(Target {
        encrypted,
        servers,
        endpoint,
        also,
        asked,
        path,
        unsure,
        is_guessed,
        rewritten,
    })
}

/// Replaces variables with a constant value in a URL, and removes variables that only repeat the request's own path. Returns
/// `None` if the URL has other variables.
fn resolved<'a>(
    text: &str,
    proxied_location: &ProxiedLocation<'a>,
    variables: &Variables<'a>,
) -> Option<String> {
    let mut url = String::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => url.push_str(text),
            Piece::Variable("request_uri" | "uri" | "is_args" | "args") if url.contains("://") => {}
            Piece::Variable(name) => {
                url.push_str(variables.constant(name, &proxied_location.scope)?)
            }
        }
    }
    Some(url)
}

/// Returns all paths that a regular expression matches: the first, and the others. Returns `None` if there are more than
/// `PATHS_MAX`, or if the expression does not match whole paths only.
fn all_paths(pattern: &str) -> Option<(String, Vec<String>)> {
    let is_whole = pattern.starts_with('^') && pattern.ends_with('$');
    let parsed = regex_syntax::parse(pattern).ok().filter(|_| is_whole)?;
    let found = Extractor::new().extract(&parsed);
    let literals = found.literals()?;
    if !found.is_exact() || literals.len() > PATHS_MAX {
        return None;
    }
    let mut paths: Vec<_> = literals
        .iter()
        .map(|it| std::str::from_utf8(it.as_bytes()).ok())
        .map(|path| Some(path?.trim_end_matches('/').to_owned()))
        .collect::<Option<_>>()?;
    paths.dedup();
    let mut paths = paths.into_iter();
    Some((paths.next()?, paths.collect()))
}

fn literal_beginning(pattern: &str) -> String {
    let Some(rest) = pattern.strip_prefix('^') else {
        return "/".to_owned();
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_".contains(c);
    let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
    let mut literal = &rest[..end];
    // In a regular expression, a quantifier such as `?` makes the letter before it optional, so that the fixed prefix ends before
    // it.
    if rest[end..].starts_with(['?', '*', '{']) {
        literal = &literal[..literal.len().saturating_sub(1)];
    }
    match literal {
        "" => "/".to_owned(),
        literal => literal.to_owned(),
    }
}

/// Guesses the path of the endpoint for clients: the location's path if it is exact or named after MCP, otherwise `/mcp` below
/// it.
fn endpoint(is_whole: bool, literal: &str, uri: Option<&str>) -> String {
    let path = literal.trim_end_matches('/');
    if is_whole {
        return path.to_owned();
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_endpoint = matches!(last, "mcp" | "sse" | "message" | "messages");
    let replaced = uri.is_some_and(|uri| uri.len() > 1 && !uri.ends_with('/'));
    match is_endpoint || replaced && !path.is_empty() {
        true => path.to_owned(),
        false => format!("{path}/mcp"),
    }
}

/// Returns the endpoint's path at the server, by nginx's rule: the path in `proxy_pass` replaces the prefix that the location
/// matches.
fn path_at_server(endpoint: &str, literal: &str, uri: Option<&str>) -> String {
    let Some(uri) = uri else {
        return match endpoint {
            "" => "/".to_owned(),
            endpoint => endpoint.to_owned(),
        };
    };
    let path = match endpoint.strip_prefix(literal) {
        Some(rest) => format!("{uri}{rest}"),
        None if uri.len() > 1 => uri.trim_end_matches('/').to_owned(),
        None => uri.to_owned(),
    };
    path.replace("//", "/")
}

/// The effect of the `rewrite` directives that apply to a request.
pub(crate) enum Rewritten<'a> {
    No,
    /// The server receives requests under this path.
    To(String, &'a Directive),
    /// The effect is not known: nginx may choose another location for the request, or the path at the server is unknown.
    Elsewhere(&'a Directive),
}

/// Determines the effect of `rewrite` directives on an endpoint. After a rewrite in the server, or one in a location without
/// `break`, nginx chooses a location again, which may refuse the request.
fn rewritten<'a>(
    proxied_location: &ProxiedLocation<'a>,
    endpoint: &str,
    asked: &str,
) -> Rewritten<'a> {
    // For a location with a regular expression the endpoint's path is a guess, so that every rewrite may match it.
    let guessed = matches!(proxied_location.paths, Some(Paths::Matching(_)));
    let leaves = |rewrite: &Directive| {
        let pattern = regex(rewrite.first(), false);
        pattern.is_some_and(|it| !guessed && !it.is_match(endpoint) && !it.is_match(asked))
    };
    let of_server = proxied_location.scope.server.iter();
    let mut of_server = of_server.flat_map(|level| level.all("rewrite"));
    if let Some(rewrite) = of_server.find(|it| !leaves(it)) {
        return Rewritten::Elsewhere(rewrite);
    }
    let own = proxied_location.scope.levels.last();
    let mut own = own.into_iter().flat_map(|level| level.all("rewrite"));
    let Some(rewrite) = own.find(|it| !leaves(it)) else {
        return Rewritten::No;
    };
    let to = replaced(rewrite, endpoint).or_else(|| replaced(rewrite, asked));
    match to.filter(|_| rewrite.has("break")) {
        Some(to) => Rewritten::To(to, rewrite),
        None => Rewritten::Elsewhere(rewrite),
    }
}

/// Returns the path that `rewrite` makes of a path; `None` if its pattern does not match, or its replacement has variables.
fn replaced(rewrite: &Directive, path: &str) -> Option<String> {
    let found = regex(rewrite.first(), false)?.captures(path)?;
    let mut to = rewrite.arg(1)?.to_owned();
    for (index, digit) in ('1'..='9').enumerate() {
        let part = found.get(index + 1).map_or("", |it| it.as_str());
        to = to.replace(&format!("${digit}"), part);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    (to.starts_with('/') && to.bytes().all(plain)).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_at_the_server_is_the_one_that_nginx_would_ask_for() {
        for (paths, uri, client, server) in [
            (Paths::Exactly("/mcp"), None, "/mcp", "/mcp"),
            (Paths::Below("/mcp"), None, "/mcp", "/mcp"),
            (Paths::Below("/"), None, "/mcp", "/mcp"),
            (Paths::Below("/time/"), Some("/"), "/time/mcp", "/mcp"),
            (Paths::Below("/time"), Some("/"), "/time/mcp", "/mcp"),
            (Paths::Below("/search/"), Some("/mcp"), "/search", "/mcp"),
            (
                Paths::Below("/github/mcp"),
                Some("/mcp"),
                "/github/mcp",
                "/mcp",
            ),
            (
                Paths::Below("/github/mcp/"),
                Some("/mcp/"),
                "/github/mcp",
                "/mcp",
            ),
            (Paths::Below("/x/"), Some("/api/"), "/x/mcp", "/api/mcp"),
            (Paths::Exactly("/x"), Some("/api/mcp"), "/x", "/api/mcp"),
            (Paths::Below("/sse"), None, "/sse", "/sse"),
        ] {
            let literal = match paths {
                Paths::Exactly(path) | Paths::Below(path) => path,
                _ => "",
            };
            let endpoint = endpoint(matches!(paths, Paths::Exactly(_)), literal, uri);
            assert_eq!(
                (
                    endpoint.as_str(),
                    path_at_server(&endpoint, literal, uri).as_str()
                ),
                (client, server),
                "{literal} {uri:?}"
            );
        }
    }

    #[test]
    fn a_regular_expression_begins_with_a_text() {
        for (pattern, literal) in [
            ("^/github/(.*)$", "/github/"),
            ("^/(mcp|sse)", "/"),
            ("^/mcp/?$", "/mcp"),
            ("\\.php$", "/"),
            ("^/a{2}", "/"),
            ("", "/"),
        ] {
            assert_eq!(literal_beginning(pattern), literal, "{pattern}");
        }
    }
}
