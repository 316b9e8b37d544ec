//! Headers of requests to a remote server, including the server's credentials. A value that may be a secret becomes `${NAME}`,
//! and the report names the environment variable to set.

use std::collections::BTreeMap;

use tooldock_base::names::NamespaceName;
use tooldock_base::yaml;
use tooldock_workers::remote::{RemoteServerConfig, is_of_the_gateway};

use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable, variables_in};
use crate::variables::Variables;
use crate::yaml_text::{Item, Map, Node};

/// Maximum number of headers in one list; the gateway refuses longer lists.
pub(crate) const HEADERS_MAX: usize = 64;

/// Headers whose values are never secrets.
#[rustfmt::skip]
const HARMLESS: [&str; 10] = [
    "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-ssl", "x-scheme", "x-namespace",
    "user-agent", "host", "cache-control",
];

/// Values that are never secrets.
#[rustfmt::skip]
const HARMLESS_VALUES: [&str; 10] = ["http", "https", "on", "off", "true", "false", "1", "0", "80", "443"];

/// Report line for a server to which nginx forwarded the credentials of clients.
const KEPT_BACK: &str = "clients' credentials open the gateway and do not go up: write credentials with a token of the gateway's own, or \
                         credentials: pass if clients log in by admission.oauth and the server takes the same access tokens";

/// Report line for a client's header that nginx passes on after it has compared the value.
const JUDGED: &str = "nginx sends this header to the server with values that FILE allows, and the gateway compares no headers but Authorization: \
                      the header is left out, as clients could write any value. Set it in headers.set of the server, for each principal by \
                      ${NAME} and personal";

/// Name of the header with the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// Report line for a header whose value a `map` or another directive of the file makes, or which tells the client's name.
const NAME_STAYS: &str = "the server no longer gets what nginx made of the request, such as the client's name, and may have refused or kept apart \
                          clients by it. Write the header into headers.set \
                          of the server with ${NAME} as its value, list NAME under personal, and set each principal's value by tooldock secrets set --key NAME \
                          --scope principal:PRINCIPAL. Never name the header in headers.pass: clients could write any name";

/// Report line for any other header whose value nginx built from the client's request, such as the client's address.
const VALUE_STAYS: &str = "the server no longer gets what nginx takes from the request or the connection, such as the client's address: networks that it \
                           lets in belong into admission.cidrs, and headers.set of the server has fixed values. Never name it in \
                           headers.pass where the server relies on it: clients could write any value";

/// Report line for a request id that nginx sent in a header other than `X-Request-Id`, or for another id in `X-Request-Id`.
const ID_GOES_UP: &str = "the gateway sends the id of a request as X-Request-Id, and in no other header: headers.forward_id: false turns that off";

/// Adds the keys `headers` and `credentials` of a remote server.
pub(crate) fn write_requests<'a>(
    location: &ProxiedLocation<'a>,
    name: &NamespaceName,
    variables: &Variables<'a>,
    server: &mut Map,
    report: &mut Report,
) {
    let mut set: BTreeMap<String, (String, String, &Directive)> = BTreeMap::new();
    let mut pass: Vec<&str> = Vec::new();
    let mut credentials: Option<(String, &Directive)> = None;
    let mut without_id: Option<&Directive> = None;
    for at in location.scope.all("proxy_set_header") {
        let (header, value) = (at.first(), at.arg(1).unwrap_or_default());
        let lower = header.to_ascii_lowercase();
        let of_client = format!("http_{}", lower.replace('-', "_"));
        if set.len() + pass.len() == HEADERS_MAX {
            report.plain(at, format!("a server gets at most {HEADERS_MAX} headers"));
            continue;
        }
        // An empty value removes the header, which the gateway does by default: it sends headers of clients only if
        // `headers.pass` names them.
        let used = only_variable(value);
        let is_empty = value.is_empty();
        if lower == REQUEST_ID {
            // The value is a request id. The gateway sends its own, which equals the client's id if that is valid.
            without_id = is_empty.then_some(at);
            if used.is_some_and(|it| it == "request_id" || it == of_client) {
                continue;
            }
        }
        let names_client = variables_in(value).any(|it| variables.names_client(it));
        if !is_empty && names_client {
            report.security(at, NAME_STAYS);
            continue;
        }
        if is_empty || !is_ours_to_set(header) {
            continue;
        }
        if used == Some(&of_client) {
            if is_of_the_gateway(&lower) {
                report.plain(at, KEPT_BACK);
            } else if variables.is_judged(&of_client) {
                report.security(at, JUDGED);
            } else if lower != "host" && !pass.iter().any(|it| it.eq_ignore_ascii_case(header)) {
                pass.push(header);
            }
            continue;
        }
        if lower == "host" && !is_literal(value) {
            if variables_in(value).any(|it| variables.is_made(it)) {
                report.security(at, NAME_STAYS);
            }
            continue;
        }
        let is_plain = HARMLESS.contains(&lower.as_str()) && !value.contains("${");
        if is_literal(value) && (is_plain || HARMLESS_VALUES.contains(&value)) {
            set.insert(lower, (header.to_owned(), value.to_owned(), at));
        } else if let Some((template, variable)) = template(value, &lower, name, variables) {
            let part = match scheme(value) {
                "" => "the value that stands here",
                _ => "what stands here behind the first word",
            };
            let why = format!("set the variable or the secret {variable} to {part}");
            report.plain(at, why);
            if lower == "authorization" {
                credentials = Some((template, at));
            } else {
                set.insert(lower, (header.to_owned(), template, at));
            }
        } else if lower == REQUEST_ID || used == Some("request_id") {
            report.plain(at, ID_GOES_UP);
        } else if !(is_plain && lower.starts_with("x-forwarded-"))
            && variables_in(value).any(|it| tells_name(it, variables))
        {
            report.security(at, NAME_STAYS);
        } else {
            report.plain(at, VALUE_STAYS);
        }
    }
    pass.retain(|header| !set.contains_key(&header.to_ascii_lowercase()));
    let mut headers = Map::default();
    let mut values = Map::default();
    for (header, value, at) in set.into_values() {
        values.add_at(&header, value, at);
    }
    headers.add("set", values);
    headers.add_list(
        "pass",
        pass.into_iter().map(|it| Item::new("", it)).collect(),
    );
    if let Some(at) = without_id {
        headers.add_at("forward_id", false, at);
    }
    server.add("headers", headers);
    if let Some((template, at)) = credentials {
        server.add_at("credentials", template, at);
    }
}

/// Returns true if a variable may tell a server who the client is: nginx has authenticated the client, or a directive of the file
/// makes the variable of the request.
fn tells_name(name: &str, variables: &Variables<'_>) -> bool {
    let of_nginx = ["remote_user", "ssl_client_", "jwt_"];
    variables.is_made(name) || of_nginx.iter().any(|it| name.starts_with(it))
}

/// Returns true if a server may judge its clients by this header, whose name is in lower case.
pub(crate) fn may_judge(header: &str) -> bool {
    !HARMLESS.contains(&header) && header != REQUEST_ID && is_ours_to_set(header)
}

/// Returns true if the configuration of a remote server can set this header.
fn is_ours_to_set(header: &str) -> bool {
    let set = Map::from([(header, "x".into())]);
    let headers = Map::from([("set", set.into())]);
    let backends = Node::list(["http://a/"]);
    let server = Map::from([("backends", backends), ("headers", headers.into())]);
    let server = yaml::from_str::<RemoteServerConfig>(&server.to_yaml());
    server.is_ok_and(|server| server.validate().is_ok())
}

/// Returns the value of a header as a text that refers to an environment variable, and the variable's name. Returns `None` if
/// nginx builds the value from the client's request.
fn template(
    value: &str,
    header: &str,
    name: &NamespaceName,
    variables: &Variables<'_>,
) -> Option<(String, String)> {
    // A variable that this file does not set may be set in a file that includes this one.
    if variables_in(value).any(|it| variables.is_made(it) || is_of_request(it)) {
        return None;
    }
    let scheme = scheme(value);
    let what = match (header, scheme.trim_end().to_ascii_lowercase().as_str()) {
        ("authorization", "basic") => "basic",
        ("authorization", "") if is_literal(value) => header,
        ("authorization", _) => "token",
        _ => header,
    };
    let variable = match only_variable(value.strip_prefix(scheme).unwrap_or(value)) {
        Some(it) if it.contains('_') => variable(it),
        _ => variable(&format!("{name}_{what}")),
    };
    Some((format!("{scheme}${{{variable}}}"), variable))
}

/// The scheme of a credential with the following space, which is not secret; empty if the value has no scheme.
fn scheme(value: &str) -> &str {
    #[rustfmt::skip]
    let schemes = ["Bearer ", "bearer ", "Basic ", "basic ", "Token ", "token ", "ApiKey "];
    let mut schemes = schemes.into_iter();
    schemes.find(|it| value.starts_with(it)).unwrap_or_default()
}

/// Derives from a text the name of an environment variable that differs from the gateway's own variables.
fn variable(text: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    let mut name: String = text.chars().map(plain).collect();
    #[rustfmt::skip]
    let own = ["BEARER_TOKEN", "MANAGER_INTERNAL_TOKEN", "SESSION_KEY", "SECRETS_KEY", "SECRETS_KEY_NEW"];
    if own.contains(&name.trim_end_matches("_FILE"))
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        name.insert_str(0, "MCP_");
    }
    name
}

/// Prefixes of the names of variables that nginx itself sets from the client's request.
#[rustfmt::skip]
const BEGINNINGS: [&str; 14] = [
    "http_", "arg_", "cookie_", "sent_", "upstream_", "ssl_", "proxy_", "request", "remote_", "server_", "realip_", "geoip", "jwt_",
    "connection",
];

/// Names of further variables that nginx itself sets.
#[rustfmt::skip]
const NAMES: [&str; 22] = [
    "host", "scheme", "uri", "args", "is_args", "query_string", "document_uri", "document_root", "content_type", "content_length", "hostname",
    "pid", "nginx_version", "status", "time_local", "time_iso8601", "msec", "binary_remote_addr", "body_bytes_sent", "bytes_sent", "https", "pipe",
];

/// Returns true if nginx itself sets a variable from the client's request.
fn is_of_request(name: &str) -> bool {
    let is_capture = name.bytes().all(|byte| byte.is_ascii_digit());
    is_capture || NAMES.contains(&name) || BEGINNINGS.iter().any(|it| name.starts_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::parsed;

    fn shown(value: &str, header: &str) -> String {
        let tree = parsed(
            "map $http_x $mapped { default a; } geo $near { default a; } set $always a; set $at_times a; \
             if ($http_x) { set $at_times b; } rewrite ^/(?<part>.*)$ / last; set_by_lua_block $made { }",
        );
        let tree = tree.expect("valid");
        let name = "search".parse().expect("a name");
        match template(value, header, &name, &Variables::of(&tree)) {
            Some((template, _)) => template,
            None => "of request".into(),
        }
    }

    #[test]
    fn no_value_that_may_be_a_secret_is_copied() {
        for (value, header, expected) in [
            ("Bearer hunter2", "authorization", "Bearer ${SEARCH_TOKEN}"),
            (
                "Basic aHVudGVyMg==",
                "authorization",
                "Basic ${SEARCH_BASIC}",
            ),
            ("hunter2", "authorization", "${SEARCH_AUTHORIZATION}"),
            ("hunter2", "x-tenant", "${SEARCH_X_TENANT}"),
            (
                "Bearer $search_token",
                "authorization",
                "Bearer ${SEARCH_TOKEN}",
            ),
            ("Bearer $token", "authorization", "Bearer ${SEARCH_TOKEN}"),
            ("hunter2$api_key", "x-key", "${SEARCH_X_KEY}"),
            ("$remote_addr", "x-real-ip", "of request"),
            ("$mapped", "x-real-ip", "of request"),
            ("Bearer $near", "authorization", "of request"),
            ("Bearer $at_times", "authorization", "of request"),
            ("Bearer $part", "authorization", "of request"),
            ("Bearer $made", "authorization", "of request"),
            ("Bearer $always", "authorization", "of request"),
            ("$1", "x-path", "of request"),
        ] {
            assert_eq!(shown(value, header), expected, "{header}: {value}");
        }
        assert_eq!(variable("bearer_token"), "MCP_BEARER_TOKEN");
        assert_eq!(variable("9-lives_x"), "MCP_9_LIVES_X");
    }
}
