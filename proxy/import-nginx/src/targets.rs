//! The target of a proxied location of nginx: the MCP servers behind it, and the path of their MCP endpoint.

use regex_syntax::hir::literal::Extractor;

use crate::refusals::regex;
use crate::report::Report;
use crate::scope::Paths;
use crate::sites::{ProxiedLocation, Sites};
use crate::tree::Directive;
use crate::values::{Piece, pieces};
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
    /// True if the endpoint is assumed to be `/mcp` below the location's path, since that path does not look like an endpoint.
    pub(crate) is_guessed: bool,
}

/// The server of a `proxy_pass`, or the servers of the `upstream` that it names.
pub(crate) enum Servers<'a> {
    /// Address of a single server: `host:port`, or `unix:/path`.
    One(String),
    Pool(&'a Directive),
}

impl Servers<'_> {
    /// Identifies the servers: true and the name of an `upstream`, or false and the address of a single server.
    fn id(&self) -> (bool, &str) {
        match self {
            Self::One(authority) => (false, authority),
            Self::Pool(pool) => (true, pool.first()),
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
        self.encrypted == other.encrypted && self.servers.id() == other.servers.id()
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

/// Finds the target of an exposure (a location that proxies requests), and reports what makes its paths uncertain.
///
/// # Errors
///
/// The reason why the exposure has no target, as a fixed text.
pub(crate) fn target<'a>(
    location: &ProxiedLocation<'a>,
    pass: &'a Directive,
    sites: &Sites<'a>,
    report: &mut Report,
) -> Result<Target<'a>, &'static str> {
    let text = resolved(pass.first()).ok_or(
        "which server it is depends on the request: write the servers into upstreams.remote",
    )?;
    let (scheme, rest) = text.split_once("://").ok_or("is no URL")?;
    let encrypted = scheme == "https";
    if !encrypted && scheme != "http" {
        return Err("only http and https are spoken to servers");
    }
    let (authority, uri) = match rest.strip_prefix("unix:") {
        Some(path) => {
            let (socket, uri) = match path.split_once(':') {
                Some((socket, uri)) => (socket, Some(uri)),
                None => (path, None),
            };
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
    if query.is_some_and(|(_, query)| !query.is_empty()) {
        report.plain(pass, "the query may hold a secret, and is left out: write it behind the URL in backends, if the server needs it");
    }
    let uri = query.map(|(path, _)| path).or(uri);
    let servers = match pool_named(sites, &authority) {
        Some(pool) => Servers::Pool(pool),
        None => Servers::One(authority),
    };
    let paths = location.paths.unwrap_or(Paths::Below("/"));
    let mut also = Vec::new();
    let (literal, is_whole) = match paths {
        Paths::Matching(pattern) => match all_paths(pattern) {
            Some((first, others)) => {
                also = others;
                (first, true)
            }
            None => {
                report.plain(location.at, "paths are no regular expressions: clients get 404 at the paths that it matches, and use /mcp/NAME; or write the paths into aliases");
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
    let path = rewritten(location, &endpoint, &asked, report)
        .unwrap_or_else(|| path_at_server(&endpoint, &literal, uri));
    Ok(Target {
        encrypted,
        servers,
        endpoint,
        also,
        asked,
        path,
        is_guessed,
    })
}

/// Removes variables that only repeat the request's own path from a URL. Returns `None` if the URL has other variables.
fn resolved(text: &str) -> Option<String> {
    let mut url = String::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => url.push_str(text),
            Piece::Variable("request_uri" | "uri" | "is_args" | "args") if url.contains("://") => {}
            Piece::Variable(_) => return None,
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
    let path = |it| Some(str::from_utf8(it).ok()?.trim_end_matches('/').to_owned());
    let paths: Option<Vec<_>> = literals.iter().map(|it| path(it.as_bytes())).collect();
    let mut paths = paths?;
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
    if literal.is_empty() { "/" } else { literal }.to_owned()
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
        return if endpoint.is_empty() { "/" } else { endpoint }.to_owned();
    };
    let path = match endpoint.strip_prefix(literal) {
        Some(rest) => format!("{uri}{rest}"),
        None if uri.len() > 1 => uri.trim_end_matches('/').to_owned(),
        None => uri.to_owned(),
    };
    path.replace("//", "/")
}

/// Returns the path that a location's own `rewrite … break` makes of the endpoint; `None` if there is none. Reports all others:
/// after a rewrite in the server, or one in a location without `break`, nginx chooses a location again, which may refuse the
/// request.
fn rewritten(
    location: &ProxiedLocation<'_>,
    endpoint: &str,
    asked: &str,
    report: &mut Report,
) -> Option<String> {
    // For a location with a regular expression the endpoint's path is a guess, so that every rewrite may match it.
    let is_guess = matches!(location.paths, Some(Paths::Matching(_)));
    let mut path = None;
    let is_own = |rewrite: &Directive| location.scope.own().any(|it| std::ptr::eq(it, rewrite));
    for rewrite in location.scope.of_server_and_own("rewrite") {
        let leaves = regex(rewrite.first(), false)
            .is_some_and(|it| !is_guess && !it.is_match(endpoint) && !it.is_match(asked));
        if leaves {
            report.plain(rewrite, "paths are not rewritten: see that the path in backends is that of the MCP endpoint");
            continue;
        }
        let to = replaced(rewrite, endpoint).or_else(|| replaced(rewrite, asked));
        path = to.filter(|_| is_own(rewrite) && rewrite.has("break") && path.is_none());
        if path.is_none() {
            report.security(rewrite, "paths are not rewritten, and requests may come to other rules in nginx: see that the path in backends is right, and that clients are asked for no less");
        }
    }
    path
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
