//! Headers of requests to a remote server, including the server's credentials. A value that may be a secret becomes `${NAME}`,
//! and the report names the environment variable to set.

use std::collections::BTreeMap;

use tooldock_base::names::NamespaceName;
use tooldock_base::yaml;
use tooldock_workers::remote::{RemoteServerConfig, is_of_the_gateway};

use crate::guards::may_be_secret;
use crate::report::Report;
use crate::scope::Scope;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::values::{Piece, is_literal, only_variable, pieces};
use crate::variables::Variables;
use crate::yaml_text::{Map, Node};

/// Maximum number of headers in one list; the gateway refuses longer lists.
pub(crate) const HEADERS_MAX: usize = 64;

/// Headers whose values are never secrets.
const HARMLESS: [&str; 10] = [
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-ssl",
    "x-scheme",
    "x-namespace",
    "user-agent",
    "host",
    "cache-control",
];

/// Report line for a server to which nginx forwarded the credentials of clients.
const KEPT_BACK: &str = "clients' credentials open the gateway and do not go up: write credentials with a token of the gateway's own, or \
                         credentials: pass if clients log in by admission.oauth and the server takes the same access tokens";

/// Name of the header with the id of a request.
const REQUEST_ID: &str = "x-request-id";

/// Report line for a header in which nginx sent the server the client's name, or a value derived from the client's credential.
const NAME_STAYS: &str = "the server no longer gets what nginx made of the client's credential, such as its name, and may have refused or kept apart \
                          clients by it. Write the header into headers.set \
                          of the server with ${NAME} as its value, list NAME under personal, and set each principal's value by tooldock secrets set --key NAME \
                          --scope principal:PRINCIPAL. Never name the header in headers.pass: clients could write any name";

/// Report line for a header in which nginx sent the server the client's address.
const ADDRESS_STAYS: &str = "the server sees the gateway's address and learns the client's no longer, and the gateway has no key for that: networks that it lets \
                             in belong into admission.cidrs, and addresses stand in the access log. Never name the header in headers.pass: clients could \
                             write any address";

/// Report line for any other header whose value nginx built from the client's request.
const VALUE_STAYS: &str = "nginx makes this header of the request, and the server gets it no longer: headers.set of the server has fixed values. Never name it in \
                           headers.pass where the server relies on it: clients could write any value";

/// Report line for a request id that nginx sent in a header other than `X-Request-Id`, or for another id in `X-Request-Id`.
const ID_GOES_UP: &str = "the gateway sends the id of a request as X-Request-Id, and in no other header: headers.forward_id: false turns that off";

/// Adds the keys `headers` and `credentials` of a remote server.
pub(crate) fn write_requests<'a>(
    proxied_location: &ProxiedLocation<'a>,
    name: &NamespaceName,
    variables: &Variables<'a>,
    server: &mut Map,
    report: &mut Report,
) {
    let mut set: BTreeMap<String, (String, String, &Directive)> = BTreeMap::new();
    let mut pass: Vec<&str> = Vec::new();
    let mut credentials: Option<(String, &Directive)> = None;
    let mut without_id: Option<&Directive> = None;
    for directive in proxied_location.scope.all("proxy_set_header") {
        let (header, value) = (directive.first(), directive.arg(1).unwrap_or_default());
        let lower = header.to_ascii_lowercase();
        let of_client = format!("http_{}", lower.replace('-', "_"));
        if set.len() + pass.len() == HEADERS_MAX {
            report.plain(
                directive,
                format!("a server gets at most {HEADERS_MAX} headers"),
            );
            continue;
        }
        // An empty value removes the header, which the gateway does by default: it sends headers of clients only if
        // `headers.pass` names them.
        let constant =
            only_variable(value).and_then(|it| variables.constant(it, &proxied_location.scope));
        let is_empty = value.is_empty() || constant == Some("");
        if lower == REQUEST_ID {
            // The value is a request id. The gateway sends its own, which equals the client's id if that is valid.
            let is_id =
                only_variable(value).is_some_and(|it| it == "request_id" || it == of_client);
            without_id = is_empty.then_some(directive);
            if is_id {
                continue;
            }
        }
        if is_empty || !is_ours_to_set(header) {
            continue;
        }
        if only_variable(value) == Some(&of_client) {
            if is_of_the_gateway(&lower) {
                report.plain(directive, KEPT_BACK);
            } else if lower != "host" && !pass.iter().any(|it| it.eq_ignore_ascii_case(header)) {
                pass.push(header);
            }
            continue;
        }
        if lower == "host" && !is_literal(value) {
            continue;
        }
        match filled(value, &lower, name, variables, &proxied_location.scope) {
            HeaderValueForm::Plain => {
                drop(set.insert(lower, (header.to_owned(), value.to_owned(), directive)))
            }
            HeaderValueForm::Template(template, variable) => {
                report.plain(
                    directive,
                    format!(
                        "set the variable or the secret {variable} to {}",
                        part(value)
                    ),
                );
                if lower == "authorization" {
                    credentials = Some((template, directive));
                } else {
                    set.insert(lower, (header.to_owned(), template, directive));
                }
            }
            HeaderValueForm::OfRequest => {
                let is_id = lower == REQUEST_ID || only_variable(value) == Some("request_id");
                let used: Vec<&str> = variables_in(value).collect();
                if is_id {
                    report.plain(directive, ID_GOES_UP);
                } else if used.iter().any(|it| tells_name(it, variables)) {
                    report.security(directive, NAME_STAYS);
                } else if used.iter().any(|it| ADDRESSES.contains(it)) {
                    report.plain(directive, ADDRESS_STAYS);
                } else {
                    report.plain(directive, VALUE_STAYS);
                }
            }
        }
    }
    pass.retain(|header| !set.contains_key(&header.to_ascii_lowercase()));
    let mut headers = Map::default();
    let mut values = Map::default();
    for (header, value, at) in set.into_values() {
        values.add_with(&header, value, at.place.to_string());
    }
    headers.add("set", values);
    if !pass.is_empty() {
        headers.add("pass", Node::list(pass));
    }
    if let Some(at) = without_id {
        headers.add_with("forward_id", false, at.place.to_string());
    }
    server.add("headers", headers);
    if let Some((template, at)) = credentials {
        server.add_with("credentials", template, at.place.to_string());
    }
}

/// nginx variables with the address of a client.
const ADDRESSES: [&str; 7] = [
    "remote_addr",
    "binary_remote_addr",
    "remote_port",
    "realip_remote_addr",
    "proxy_protocol_addr",
    "proxy_add_x_forwarded_for",
    "http_x_forwarded_for",
];

/// Maximum number of `map` directives in a chain that are followed.
const MAPS_MAX: usize = 8;

/// The names of the nginx variables in a text.
fn variables_in(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).into_iter().filter_map(|piece| match piece {
        Piece::Variable(name) => Some(name),
        Piece::Text(_) => None,
    })
}

/// Returns true if a variable contains the name of a client that nginx has authenticated, or a value that `map` directives derive
/// from the client's name or credential.
fn tells_name(name: &str, variables: &Variables<'_>) -> bool {
    let mut names = vec![name.to_ascii_lowercase()];
    for depth in 0..MAPS_MAX {
        let mut sources = Vec::new();
        for name in &names {
            // A header of the client counts only if a `map` derives the variable from it: then nginx has evaluated the header.
            let header = name.strip_prefix("http_").filter(|_| depth > 0);
            let is_judged = name == "remote_user"
                || ["ssl_client_", "jwt_"]
                    .iter()
                    .any(|it| name.starts_with(it))
                || header.is_some_and(may_be_secret) && name != "http_mcp_session_id";
            if is_judged {
                return true;
            }
            if let Some(map) = variables.map(name) {
                sources.extend(variables_in(map.source).map(str::to_ascii_lowercase));
            }
        }
        names = sources;
    }
    false
}

/// Text for the report: the part of a header's value that the environment variable must contain.
fn part(value: &str) -> &'static str {
    match scheme(value) {
        "" => "the value that stands here",
        _ => "what stands here behind the first word",
    }
}

/// Returns true if the configuration of a remote server can set this header.
fn is_ours_to_set(header: &str) -> bool {
    let mut set = Map::default();
    set.add(header, "x");
    let mut headers = Map::default();
    headers.add("set", set);
    let mut server = Map::default();
    server.add("backends", Node::list(["http://a/"]));
    server.add("headers", headers);
    let server = yaml::from_str::<RemoteServerConfig>(&server.to_yaml());
    server.is_ok_and(|server| server.validate().is_ok())
}

/// The form in which the value of a header is written to the configuration.
enum HeaderValueForm {
    /// The value is written as it is.
    Plain,
    /// The value is a text that refers to an environment variable. Contains the text and the variable's name.
    Template(String, String),
    /// The value is omitted, since it would be built from the client's request.
    OfRequest,
}

fn filled<'a>(
    value: &str,
    header: &str,
    name: &NamespaceName,
    variables: &Variables<'a>,
    scope: &Scope<'a>,
) -> HeaderValueForm {
    let harmless = [
        "http", "https", "on", "off", "true", "false", "1", "0", "80", "443",
    ];
    let is_plain = HARMLESS.contains(&header) && !value.contains("${") || harmless.contains(&value);
    if is_literal(value) {
        if is_plain {
            return HeaderValueForm::Plain;
        }
        let what = match (
            header,
            scheme(value).trim_end().to_ascii_lowercase().as_str(),
        ) {
            ("authorization", "bearer") => "token".to_owned(),
            ("authorization", "basic") => "basic".to_owned(),
            _ => header.to_owned(),
        };
        let variable = variable(&format!("{name}_{what}"));
        return HeaderValueForm::Template(format!("{}${{{variable}}}", scheme(value)), variable);
    }
    let mut made = None;
    for piece in pieces(value) {
        if let Piece::Variable(it) = piece {
            // A variable that this file does not set may be set in a file that includes this one.
            let varies = match variables.is_made(it) {
                true => variables.constant(it, scope).is_none(),
                false => is_of_request(it),
            };
            if varies {
                return HeaderValueForm::OfRequest;
            }
            made = Some(it);
        }
    }
    let is_alone = match pieces(value)[..] {
        [Piece::Variable(_)] => true,
        [Piece::Text(text), Piece::Variable(_)] => text == scheme(value),
        _ => false,
    };
    let variable = match made.filter(|it| is_alone && it.contains('_')) {
        Some(it) => variable(it),
        None => variable(&format!(
            "{name}_{}",
            if header == "authorization" {
                "token"
            } else {
                header
            }
        )),
    };
    HeaderValueForm::Template(
        format!(
            "{}${{{variable}}}",
            if is_alone { scheme(value) } else { "" }
        ),
        variable,
    )
}

/// The scheme of a credential with the following space, which is not secret; empty if the value has no scheme.
fn scheme(value: &str) -> &str {
    let schemes = [
        "Bearer ", "bearer ", "Basic ", "basic ", "Token ", "token ", "ApiKey ",
    ];
    schemes
        .into_iter()
        .find(|scheme| value.starts_with(scheme))
        .unwrap_or_default()
}

/// Derives from a text the name of an environment variable that differs from the gateway's own variables.
fn variable(text: &str) -> String {
    let mut name: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    let own = [
        "BEARER_TOKEN",
        "MANAGER_INTERNAL_TOKEN",
        "SESSION_KEY",
        "SECRETS_KEY",
        "SECRETS_KEY_NEW",
    ];
    if own.contains(&name.trim_end_matches("_FILE"))
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        name.insert_str(0, "MCP_");
    }
    name
}

/// Returns true if nginx itself sets a variable from the client's request.
fn is_of_request(name: &str) -> bool {
    const BEGINNINGS: [&str; 14] = [
        "http_",
        "arg_",
        "cookie_",
        "sent_",
        "upstream_",
        "ssl_",
        "proxy_",
        "request",
        "remote_",
        "server_",
        "realip_",
        "geoip",
        "jwt_",
        "connection",
    ];
    const NAMES: [&str; 22] = [
        "host",
        "scheme",
        "uri",
        "args",
        "is_args",
        "query_string",
        "document_uri",
        "document_root",
        "content_type",
        "content_length",
        "hostname",
        "pid",
        "nginx_version",
        "status",
        "time_local",
        "time_iso8601",
        "msec",
        "binary_remote_addr",
        "body_bytes_sent",
        "bytes_sent",
        "https",
        "pipe",
    ];
    let is_capture = name.bytes().all(|byte| byte.is_ascii_digit());
    is_capture || NAMES.contains(&name) || BEGINNINGS.iter().any(|it| name.starts_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Level;
    use crate::tree::tests::parsed;

    fn shown(value: &str, header: &str) -> String {
        let tree = parsed(
            "map $http_x $mapped { default a; } geo $near { default a; } set $always a; set $at_times a; \
             if ($http_x) { set $at_times b; } rewrite ^/(?<part>.*)$ / last; set_by_lua_block $made { }",
        );
        let tree = tree.expect("valid");
        let name = "search".parse().expect("a name");
        let scope = Scope {
            levels: vec![Level::of(&tree)],
            server: None,
        };
        match filled(value, header, &name, &Variables::of(&tree), &scope) {
            HeaderValueForm::Plain => "plain".into(),
            HeaderValueForm::Template(template, _) => template,
            HeaderValueForm::OfRequest => "of request".into(),
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
            ("https", "x-forwarded-proto", "plain"),
            ("gw.example.com", "host", "plain"),
            ("true", "x-debug", "plain"),
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
            ("Bearer $always", "authorization", "Bearer ${SEARCH_TOKEN}"),
            ("$1", "x-path", "of request"),
        ] {
            assert_eq!(shown(value, header), expected, "{header}: {value}");
        }
        assert_eq!(variable("bearer_token"), "MCP_BEARER_TOKEN");
        assert_eq!(variable("9-lives_x"), "MCP_9_LIVES_X");
    }
}
