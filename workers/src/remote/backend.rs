//! A backend of a remote server: its parsed URL, and its name.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de};
use tooldock_base::yaml::{self, Value};

/// Default path of the MCP endpoint on a Unix socket, if the URL contains no path.
const DEFAULT_PATH_ON_A_SOCKET: &str = "/mcp";

/// Maximum length of a backend's URL, in bytes.
const URL_MAX: usize = 4_096;

/// An entry of the configuration key `backends:`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendConfig {
    /// URL of the backend: `http://host:port/path`, `https://…`, or `unix:/socket`, which may end in `:/path`.
    pub url: String,
    /// Share of the pool's calls that the backend gets, in proportion to the weights of the others. With 0 it gets no new calls.
    pub weight: u32,
    /// True if the backend is used only while no other backend is healthy.
    pub backup: bool,
}

impl BackendConfig {
    /// Creates a backend with a weight of 1.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            weight: 1,
            backup: false,
        }
    }
}

impl<'de> Deserialize<'de> for BackendConfig {
    /// Deserializes a URL, or a mapping that contains one. Errors do not contain the URL, which may contain a credential.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            url: String,
            #[serde(default = "one")]
            weight: u32,
            #[serde(default)]
            backup: bool,
        }
        fn one() -> u32 {
            1
        }
        match Value::deserialize(deserializer)? {
            Value::String(url) => Ok(Self::new(url)),
            mapping @ Value::Mapping(_) => {
                let keys: Keys = yaml::from_value(mapping).map_err(de::Error::custom)?;
                Ok(Self {
                    url: keys.url,
                    weight: keys.weight,
                    backup: keys.backup,
                })
            }
            _ => Err(de::Error::custom(
                "must be a URL, or { url: URL, weight: 1, backup: false }",
            )),
        }
    }
}

/// Name of a backend within its pool: `host:port` or `unix:/path`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(Arc<str>);

impl BackendId {
    /// Creates the name of a backend from a text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The backend's name, as shown in metrics and messages.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A backend's parsed URL: where to connect, and the path of the MCP endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct Backend {
    /// Host to connect to.
    pub host: Host,
    /// True if the connection is encrypted with TLS.
    pub tls: bool,
    /// Path and query of the MCP endpoint. A query may contain a credential and is not printed.
    pub target: String,
}

/// Host that connections to a backend are opened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Name and port. The name is resolved again from time to time.
    Name(String, u16),
    /// IP address and port.
    Address(IpAddr, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("host", &self.host)
            .field("tls", &self.tls)
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

impl Backend {
    /// Parses the URL of a backend.
    ///
    /// # Errors
    ///
    /// The problem and the remedy, for a message that begins with the key. The error does not quote any text of the URL that may
    /// be a credential.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.len() > URL_MAX {
            return Err(format!("is longer than {URL_MAX} bytes"));
        }
        if url.contains("${") {
            return Err(
                "must not refer to variables: write ${NAME} in credentials or headers.set".into(),
            );
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "has a space or a character that URLs do not have: percent-encode it".into(),
            );
        }
        if url.contains('#') {
            return Err(
                "has a fragment, which is never sent: leave out \"#\" and what follows".into(),
            );
        }
        if let Some(path) = url.strip_prefix("unix:") {
            return Self::unix(path);
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(
                "has no scheme: write https://host/path, http://host/path or unix:/path".into(),
            );
        };
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("has a scheme that is neither http, https nor unix".into()),
        };
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('?') => (&rest[..at], format!("/{}", &rest[at..])),
            Some(at) => (&rest[..at], rest[at..].to_owned()),
            None => (rest, "/".to_owned()),
        };
        if authority.contains('@') {
            return Err("has credentials in it: write credentials: \"Basic ${NAME}\" or \"Bearer ${NAME}\" beside backends".into());
        }
        let host = authority_of(authority, if tls { 443 } else { 80 })?;
        Ok(Self { host, tls, target })
    }

    fn unix(path: &str) -> Result<Self, String> {
        let (socket, target) = match path.split_once(":/") {
            Some((socket, target)) => (socket, format!("/{target}")),
            None => (path, DEFAULT_PATH_ON_A_SOCKET.to_owned()),
        };
        if !socket.starts_with('/') || socket.len() < 2 {
            return Err("must name the socket by its whole path, as in unix:/run/server.sock or unix:/run/server.sock:/mcp".into());
        }
        // The kernel does not accept longer socket paths.
        if socket.len() > 107 {
            return Err("names a socket whose path is longer than 107 bytes".into());
        }
        Ok(Self {
            host: Host::Unix(socket.into()),
            tls: false,
            target,
        })
    }

    /// Name of the backend within its pool.
    pub fn id(&self) -> BackendId {
        let text = match &self.host {
            Host::Name(name, port) => format!("{name}:{port}"),
            Host::Address(IpAddr::V6(address), port) => format!("[{address}]:{port}"),
            Host::Address(address, port) => format!("{address}:{port}"),
            Host::Unix(path) => format!("unix:{}", path.display()),
        };
        BackendId::new(&text)
    }

    /// Value of the header `Host` in requests to the backend.
    pub fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        let (host, port) = match &self.host {
            Host::Name(name, port) => (name.clone(), *port),
            Host::Address(IpAddr::V6(address), port) => (format!("[{address}]"), *port),
            Host::Address(address, port) => (address.to_string(), *port),
            Host::Unix(_) => return "localhost".to_owned(),
        };
        match port == default {
            true => host,
            false => format!("{host}:{port}"),
        }
    }

    /// Path of the MCP endpoint, without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

fn authority_of(authority: &str, default_port: u16) -> Result<Host, String> {
    let no_host = || "has no host: write https://host/path".to_owned();
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest
                .split_once(']')
                .ok_or("has a \"[\" without its \"]\"")?;
            let address: Ipv6Addr = address
                .parse()
                .map_err(|_| "has no IPv6 address between \"[\" and \"]\"")?;
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').ok_or_else(no_host)?),
            };
            (Err(IpAddr::V6(address)), port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (Ok(host), Some(port)),
            None => (Ok(authority), None),
        },
    };
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err("has a port that is no number between 1 and 65535".into()),
        },
    };
    match host {
        Err(address) => Ok(Host::Address(address, port)),
        Ok("") => Err(no_host()),
        Ok(host) => match host.parse() {
            Ok(address) => Ok(Host::Address(IpAddr::V4(address), port)),
            Err(_) if is_name(host) => Ok(Host::Name(host.to_ascii_lowercase(), port)),
            Err(_) => Err("has a host that is neither a name nor an address".into()),
        },
    }
}

/// Returns true if a host is a name that can be resolved. A name whose last label is a number is refused: it would be read as
/// an address in an unusual notation (`127.1`, `2130706433`, `0x7f000001`), which evades the rules for addresses.
fn is_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(fits)
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.to_ascii_lowercase().starts_with("0x");
    host.len() <= 253 && host.split('.').all(label) && !numeric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        for (url, id, authority, target) in [
            (
                "https://mcp.example/mcp",
                "mcp.example:443",
                "mcp.example",
                "/mcp",
            ),
            ("HTTP://MCP.Example", "mcp.example:80", "mcp.example", "/"),
            ("http://a:8080/x?y=1", "a:8080", "a:8080", "/x?y=1"),
            ("https://a:443?y=1", "a:443", "a", "/?y=1"),
            (
                "http://127.0.0.1:9000/mcp",
                "127.0.0.1:9000",
                "127.0.0.1:9000",
                "/mcp",
            ),
            ("http://[::1]:9000/mcp", "[::1]:9000", "[::1]:9000", "/mcp"),
            (
                "https://[2001:DB8::1]",
                "[2001:db8::1]:443",
                "[2001:db8::1]",
                "/",
            ),
            ("unix:/run/a.sock", "unix:/run/a.sock", "localhost", "/mcp"),
            (
                "unix:/run/a.sock:/x/y",
                "unix:/run/a.sock",
                "localhost",
                "/x/y",
            ),
        ] {
            let backend = Backend::parse(url).expect(url);
            assert_eq!(backend.id().as_str(), id, "{url}");
            assert_eq!(backend.authority(), authority, "{url}");
            assert_eq!(backend.target, target, "{url}");
        }
        assert!(Backend::parse("https://a").expect("a URL").tls);
        assert!(!Backend::parse("http://a").expect("a URL").tls);
    }

    #[test]
    fn a_url_that_cannot_be_used_says_what_to_write_instead_and_is_not_quoted() {
        for (url, said) in [
            (
                "mcp.example/hunter2",
                "has no scheme: write https://host/path",
            ),
            ("hunter2:8000", "has no scheme"),
            ("ftp://hunter2/", "neither http, https nor unix"),
            (
                "https://user:hunter2@a/mcp",
                "credentials: \"Basic ${NAME}\"",
            ),
            ("https://a/mcp#hunter2", "leave out \"#\""),
            ("https://a/?k=${HUNTER2}", "credentials or headers.set"),
            ("https:///hunter2", "has no host"),
            ("https://:80/hunter2", "has no host"),
            ("https://a:0/hunter2", "port"),
            ("https://a:hunter2/", "port"),
            ("https://[::1/hunter2", "without its \"]\""),
            ("https://[hunter2]/", "no IPv6 address"),
            ("https://hun ter2/", "a space"),
            ("https://127.1/", "neither a name nor an address"),
            ("https://2130706433/", "neither a name nor an address"),
            ("https://0x7f000001/", "neither a name nor an address"),
            ("https://a..b/", "neither a name nor an address"),
            ("unix:hunter2.sock", "whole path"),
        ] {
            let error = Backend::parse(url).expect_err(url);
            assert!(error.contains(said), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn printing_a_backend_shows_no_query() {
        let backend = Backend::parse("https://a/mcp?key=hunter2").expect("a URL");
        let text = format!("{backend:?}");
        assert!(text.contains("/mcp") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn an_entry_is_a_url_or_a_mapping() {
        let entries: Vec<BackendConfig> =
            yaml::from_str("['https://a', { url: 'https://b', weight: 2, backup: true }]")
                .expect("entries");
        assert_eq!(entries[0], BackendConfig::new("https://a"));
        assert_eq!((entries[1].weight, entries[1].backup), (2, true));
        for yaml in ["[1]", "{ weight: 1 }", "{ url: 'https://b', wieght: 1 }"] {
            assert!(yaml::from_str::<BackendConfig>(yaml).is_err(), "{yaml}");
        }
    }
}
