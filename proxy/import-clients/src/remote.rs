//! Import of servers that are reached over HTTP.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tooldock_base::yaml::{Mapping, Value as Yaml};

use crate::Kind;
use crate::credential;
use crate::entry::Reader;
use crate::finding::Weight;
use crate::tree::{Node, Value};
use crate::variable::{Text, is_name, variable_name};

/// Keys whose value is the server's URL, in the order of precedence.
const URLS: [&str; 4] = ["httpUrl", "serverUrl", "url", "uri"];
/// Headers that the gateway sets itself. They are not imported.
const OWN_HEADERS: [&str; 4] = ["accept", "content-type", "content-length", "host"];

impl Reader<'_> {
    /// Returns the URL of an entry and marks its keys as read.
    pub(crate) fn url(&mut self) -> Option<String> {
        let taken = URLS.map(|key| self.take(key).and_then(Node::scalar));
        let mut taken = taken.into_iter().flatten();
        taken.find(|it| !it.trim().is_empty())
    }

    /// Writes the gateway's keys for a server with this URL.
    pub(crate) fn remote(&mut self, url: &str) -> Option<Kind> {
        let kind = ["type", "transport", "transportType"]
            .into_iter()
            .find_map(|key| self.peek(key)?.text());
        match kind.unwrap_or_default().to_ascii_lowercase().as_str() {
            "sse" => {
                self.keys.insert("transport".into(), "sse".into());
            }
            "ws" | "websocket" => {
                let why =
                    "is left out: the gateway speaks to servers over HTTP, not over WebSocket";
                self.note_at(self.entry.line, Some("type"), Weight::Lost, why.to_owned());
                return None;
            }
            _ => {}
        }
        let headers = self.headers();
        for key in ["env", "envs", "environment", "env_keys"] {
            if let Some(node) = self.take(key)
                && !matches!(&node.value, Value::Map(all) if all.is_empty())
                && !matches!(&node.value, Value::List(all) if all.is_empty())
            {
                self.lost(node.line, key, "a server over HTTP has no variables; give headers their values by tooldock secrets set");
            }
        }
        self.remote_of(url, headers)
    }

    /// Reads the headers of an entry, each as one text `NAME: VALUE` with its line.
    fn headers(&mut self) -> Vec<(Text, usize)> {
        let mut headers = Vec::new();
        let options = self.take("requestOptions").and_then(|it| it.get("headers"));
        let nodes = ["headers", "http_headers"].map(|key| self.take(key));
        for node in nodes.into_iter().flatten().chain(options) {
            if !node.is_map() {
                self.lost(
                    node.line,
                    "headers",
                    "must be a map of names to texts, and is left out",
                );
            }
            for member in node.members() {
                let key = format!("headers.{}", member.key);
                let Some(value) = member.node.scalar() else {
                    self.lost(member.line, &key, "must be a single value, and is left out");
                    continue;
                };
                let value = self.parsed(&value, member.line, &key);
                headers.push((value.after(&format!("{}: ", member.key)), member.line));
            }
        }
        // Codex lists environment variables that contain the values of headers.
        if let Some(node) = self.take("env_http_headers") {
            for member in node.members() {
                let name = member.node.scalar().unwrap_or_default();
                let value = self.parsed(&format!("${{{name}}}"), member.line, "env_http_headers");
                headers.push((value.after(&format!("{}: ", member.key)), member.line));
            }
        }
        for (key, scheme) in [
            ("bearer_token_env_var", "${"),
            ("bearer_token", ""),
            ("apiKey", ""),
            ("api_key", ""),
        ] {
            let Some(node) = self.take(key) else { continue };
            let value = node.scalar().unwrap_or_default();
            let value = match scheme {
                "${" => format!("${{{value}}}"),
                _ => value,
            };
            let value = self.parsed(&value, node.line, key);
            headers.push((value.after("Authorization: Bearer "), node.line));
        }
        headers
    }

    /// Writes the gateway's keys for a server with this URL and these headers, each as `NAME: VALUE`.
    pub(crate) fn remote_of(&mut self, url: &str, headers: Vec<(Text, usize)>) -> Option<Kind> {
        let left_out = |reader: &mut Self, why: &str| {
            reader.note_at(
                reader.entry.line,
                Some("url"),
                Weight::Lost,
                format!("is left out: {why}"),
            );
            None
        };
        let Some(mut url) = self.parsed(url, self.entry.line, "url").plain() else {
            return left_out(
                self,
                "its URL has a variable, and URLs of the gateway have none; write the URL, and secrets in headers",
            );
        };
        let mut credentials = None;
        if let Some((scheme, rest)) = url.split_once("://")
            && let Some((login, host)) = rest.split_once('@')
            && !login.contains(['/', '?', '#'])
        {
            let name = self.keep("BASIC_LOGIN", &basic(login));
            credentials = Some(Text::around("Basic ", &name, ""));
            url = format!("{scheme}://{host}");
            self.note(
                self.entry.line,
                "url",
                "the login in the URL becomes credentials of the server",
            );
        }
        if credential::in_url(&url) {
            return left_out(
                self,
                "its URL has a credential in it, and a URL is no secret of the gateway: if the server takes it as a header, add it with tooldock add NAME URL --header 'NAME: VALUE'",
            );
        }
        let mut set = Mapping::new();
        for (header, line) in headers {
            self.header(&header, line, &mut credentials, &mut set);
        }
        let mut keys = Mapping::new();
        keys.insert("backends".into(), Yaml::Sequence(vec![url.as_str().into()]));
        if is_private_name(&url) {
            keys.insert("allow_private".into(), true.into());
        }
        if let Some(credentials) = credentials {
            keys.insert("credentials".into(), credentials.template().into());
        }
        if !set.is_empty() {
            let headers = Mapping::from_iter([("set".into(), Yaml::Mapping(set))]);
            keys.insert("headers".into(), Yaml::Mapping(headers));
        }
        keys.extend(std::mem::take(&mut self.keys));
        self.keys = keys;
        Some(Kind::Remote)
    }

    fn header(
        &mut self,
        header: &Text,
        line: usize,
        credentials: &mut Option<Text>,
        set: &mut Mapping,
    ) {
        let name: String = header
            .literals()
            .next()
            .unwrap_or_default()
            .split(':')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let key = format!("headers.{name}");
        let value = header
            .strip_prefix(&name)
            .and_then(|it| it.strip_prefix(":"));
        let is_header = !name.is_empty()
            && name
                .bytes()
                .all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'_');
        let (true, Some(value)) = (is_header, value) else {
            return self.lost(
                line,
                &key,
                "is no header, and is left out: write NAME: VALUE",
            );
        };
        if OWN_HEADERS.contains(&&*name.to_ascii_lowercase()) {
            return self.lost(line, &key, "is written by the gateway itself");
        }
        if name.eq_ignore_ascii_case("authorization") {
            let (scheme, rest) = ["Bearer ", "Basic ", "Token "]
                .iter()
                .find_map(|scheme| Some((*scheme, value.strip_prefix(scheme)?)))
                .unwrap_or(("", value));
            *credentials = Some(match rest.plain() {
                Some(token) if !token.is_empty() => {
                    let name = self.keep("AUTHORIZATION_TOKEN", &token);
                    Text::around(scheme, &name, "")
                }
                Some(_) => return self.lost(line, &key, "is empty, and is left out"),
                None => rest.after(scheme),
            });
            return;
        }
        let value = match value.plain() {
            Some(literal) if credential::is_secret(&name, &literal) => {
                Text::around("", &self.keep(&variable_name(&name), &literal), "")
            }
            None if value.literals().any(|it| credential::is_secret("", it)) => {
                let why = "mixes a credential with a variable, and is left out: store the whole value by tooldock secrets set";
                return self.lost(line, &key, why);
            }
            _ => value,
        };
        debug_assert!(value.variables().all(is_name));
        set.insert(name.into(), value.template().into());
    }
}

/// Returns true if the host of a URL is a name that exists only in the operator's own network.
fn is_private_name(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split(['/', '?', '#']).next().unwrap_or_default();
    if host.starts_with('[') {
        return false;
    }
    let host = host
        .split(':')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is_address = host.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    let ends = [".local", ".internal", ".lan", ".localhost", ".home.arpa"];
    !is_address && (!host.contains('.') || ends.iter().any(|it| host.ends_with(it)))
}

/// Encodes a login from a URL for the header of the scheme `Basic`, after percent-decoding it.
fn basic(login: &str) -> String {
    let login: Vec<u8> = percent_encoding::percent_decode_str(login).collect();
    STANDARD.encode(login)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_of_urls_are_encoded_as_basic_wants_them() {
        assert_eq!(basic("user:pass"), "dXNlcjpwYXNz");
        assert_eq!(basic("a:b%40c"), "YTpiQGM=");
        assert_eq!(basic("a:"), "YTo=");
        assert_eq!(basic("ab:c"), "YWI6Yw==");
    }

    #[test]
    fn names_of_the_own_network_are_told_from_public_names_and_addresses() {
        for (url, private) in [
            ("http://localhost:3000/mcp", true),
            ("http://search/mcp", true),
            ("http://box.local/mcp", true),
            ("https://example.com/mcp", false),
            ("http://127.0.0.1:3000/mcp", false),
            ("http://[::1]:3000/mcp", false),
        ] {
            assert_eq!(is_private_name(url), private, "{url}");
        }
    }
}
