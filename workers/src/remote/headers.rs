//! Headers of requests that are forwarded to remote servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;

/// Maximum number of headers in the configuration of one server.
const HEADERS_MAX: usize = 100;

/// Headers that apply only to one connection. They are not forwarded in either direction.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers whose values follow from the MCP protocol or from the message. They cannot be configured.
const DECIDED: [&str; 12] = [
    "accept",
    "accept-encoding",
    "content-length",
    "content-type",
    "expect",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "traceparent",
    "tracestate",
];

/// Headers with credentials for the gateway itself. They are never forwarded, because a server could use them to call the
/// gateway. The only exception are OAuth access tokens of clients, if `credentials: pass` is set.
const OF_THE_GATEWAY: [&str; 2] = ["authorization", "x-manager-token"];

/// Configuration key `headers:` of a remote server: changes to the headers of forwarded requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeadersConfig {
    /// Headers that are added to every request, with their values. `${NAME}` refers to a secret or a variable of the gateway.
    pub set: BTreeMap<String, Template>,
    /// Names of headers that are removed from every request.
    pub remove: Vec<String>,
    /// Names of headers that are forwarded from the client's request.
    pub pass: Vec<String>,
    /// True if requests contain the id of the client's request in `X-Request-Id`; false if they contain no request id.
    pub forward_id: bool,
}

impl Default for HeadersConfig {
    fn default() -> Self {
        Self {
            set: BTreeMap::new(),
            remove: Vec::new(),
            pass: Vec::new(),
            forward_id: true,
        }
    }
}

/// Returns true if a header contains a credential for the gateway itself. `name` is in lower case.
pub fn is_of_the_gateway(name: &str) -> bool {
    OF_THE_GATEWAY.contains(&name)
}

/// Returns true if a header is hop-by-hop: it applies to a single connection and is not forwarded. `name` is in lower case.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.contains(&name)
}

impl HeadersConfig {
    /// Checks that the names are valid, and that no two keys (`set`, `remove`, `pass`, `credentials`) contradict each other.
    pub(super) fn validate(&self, credentials: bool) -> Result<(), InvalidServer> {
        let set = self.set.keys().map(|name| (name, "headers.set"));
        let remove = self.remove.iter().map(|name| (name, "headers.remove"));
        let pass = self.pass.iter().map(|name| (name, "headers.pass"));
        for (name, key) in set.chain(remove).chain(pass) {
            let wrong = |message: &str| {
                let key = match key {
                    "headers.set" => {
                        format!("{key}.{}", name.replace(char::is_control, "\u{fffd}"))
                    }
                    key => key.to_owned(),
                };
                Err(InvalidServer::new(key, message.to_owned()))
            };
            let lower = name.to_ascii_lowercase();
            if !is_header_name(name) {
                return wrong("is no name of a header");
            }
            if is_hop_by_hop(&lower) {
                return wrong("says how a message travels on one connection, and never goes up");
            }
            if DECIDED.contains(&lower.as_str()) {
                return wrong("is decided by the protocol: leave it out");
            }
            if key == "headers.remove" && lower == "host" {
                return wrong(
                    "has host, which every request needs: leave it out, or write another one in headers.set",
                );
            }
            if key == "headers.pass" && lower == "host" {
                return wrong(
                    "is decided by the backend's URL: leave it out, or write headers.set",
                );
            }
            if key == "headers.pass" && lower == "authorization" {
                return wrong(
                    "has authorization, which carries API keys and tokens that open this gateway: leave it out. Write \
                     credentials: pass to hand on the access tokens of clients that logged in by admission.oauth",
                );
            }
            if key == "headers.pass" && OF_THE_GATEWAY.contains(&&*lower) {
                return wrong(&format!(
                    "has {lower}, which carries a token that opens this gateway: leave it out"
                ));
            }
        }
        for (key, names) in [
            ("headers.remove", &self.remove),
            ("headers.pass", &self.pass),
        ] {
            if names.len() > HEADERS_MAX {
                return Err(InvalidServer::new(
                    key,
                    format!("more than {HEADERS_MAX} entries"),
                ));
            }
        }
        if self.set.len() > HEADERS_MAX {
            let message = format!("more than {HEADERS_MAX} entries");
            return Err(InvalidServer::new("headers.set", message));
        }
        self.agree(credentials)
    }

    /// Returns true if the header is forwarded from the client's request.
    fn passes(&self, name: &str) -> bool {
        self.pass.iter().any(|it| it.eq_ignore_ascii_case(name))
    }

    fn agree(&self, credentials: bool) -> Result<(), InvalidServer> {
        let has =
            |names: &[String], name: &str| names.iter().any(|it| it.eq_ignore_ascii_case(name));
        if let Some(name) = self.remove.iter().find(|name| self.passes(name)) {
            return Err(InvalidServer::new(
                "headers.remove",
                format!("has {name}, and headers.pass has it, too: leave out one of them"),
            ));
        }
        if credentials && has(&self.remove, "authorization") {
            return Err(InvalidServer::new(
                "headers.remove",
                "has authorization, and there are credentials: leave out one of them",
            ));
        }
        let mut seen: Vec<&String> = Vec::new();
        for name in self.set.keys() {
            if seen.iter().any(|before| before.eq_ignore_ascii_case(name)) {
                return Err(InvalidServer::new(
                    format!("headers.set.{name}"),
                    "is set twice: names of headers are the same in upper and lower case",
                ));
            }
            seen.push(name);
            let key = format!("headers.set.{name}");
            if name.eq_ignore_ascii_case("authorization") && credentials {
                let message = "is what credentials set: leave out one of them";
                return Err(InvalidServer::new(key, message));
            }
            for (list, names) in [
                ("headers.remove", &self.remove),
                ("headers.pass", &self.pass),
            ] {
                if has(names, name) {
                    let message = format!("is in {list}, too: leave out one of them");
                    return Err(InvalidServer::new(key, message));
                }
            }
        }
        Ok(())
    }
}

/// Returns true if the text is a valid name of an HTTP header.
fn is_header_name(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.len() <= 256 && name.bytes().all(token)
}

/// Returns true if the text is a valid value of an HTTP header.
pub(super) fn is_header_value(value: &str) -> bool {
    value
        .bytes()
        .all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}
