//! URL of a Redis or Valkey, in the forms of `sessions.store`:
//!
//! ```text
//! redis://[USER[:PASSWORD]@]HOST[:6379][/DATABASE]      rediss://… is the same over TLS
//! redis+unix:///PATH[?database=0]
//! redis+sentinel://HOST[:26379],HOST…/NAME[/DATABASE]   rediss+sentinel://… with TLS to Redis and to the Sentinels
//! redis+cluster://HOST[:6379],HOST…                     rediss+cluster://…
//! ```
//!
//! Parameters after `?`, joined by `&`: `password_file=PATH` (read at each connect, so a password can be changed without
//! a restart), `sentinel_password_file=PATH` (the password of the Sentinels themselves) and `ca_file=PATH` (PEM; replaces
//! the certificate authorities of the system). Special characters of a user or a password are percent-encoded.
//!
//! The password is never printed: `Debug`, `Display` and errors do not contain it, and errors quote no text of the URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use zeroize::Zeroizing;

/// Default port of Redis.
const PORT: u16 = 6379;
/// Default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;

/// Address of a Redis, with the credentials for it.
#[derive(Clone)]
pub struct RedisUrl {
    pub(super) deployment: Deployment,
    pub(super) tls: bool,
    pub(super) database: i64,
    pub(super) user: Option<String>,
    pub(super) password: Option<Zeroizing<String>>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) sentinel_password_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
}

/// Kind of a Redis installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// A single server.
    Node(Address),
    /// A server on this machine, reached through the Unix socket at this path.
    Unix(PathBuf),
    /// The primary that the Sentinels know by this name.
    Sentinel {
        sentinels: Vec<Address>,
        name: String,
    },
    /// A cluster, whose other nodes are found through these nodes.
    Cluster(Vec<Address>),
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Error in a Redis URL. It quotes no text of the URL, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RedisUrlError {
    /// The scheme is unknown.
    #[error(
        "a Redis URL begins with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://"
    )]
    Scheme,
    /// The host is missing or malformed.
    #[error("the Redis URL names no host: redis://HOST:PORT")]
    Host,
    /// A URL for a single server contains more than one host.
    #[error(
        "a redis:// URL names one host; several are for redis+sentinel:// and redis+cluster://"
    )]
    ManyHosts,
    /// The port is not a number.
    #[error("the port of the Redis URL is no number from 1 to 65535")]
    Port,
    /// The database is not a number.
    #[error("the database of the Redis URL is no number from 0 on: redis://HOST:PORT/0")]
    Database,
    /// The URL of a cluster selects a database other than 0.
    #[error("a Redis Cluster has database 0 alone: redis+cluster://HOST,HOST")]
    ClusterDatabase,
    /// A Sentinel URL lacks the name of the primary.
    #[error("the Redis Sentinel URL names no primary: redis+sentinel://HOST,HOST/NAME/0")]
    Name,
    /// The path of a Unix socket is missing or relative.
    #[error("the Redis socket is an absolute path: redis+unix:///run/redis/redis.sock")]
    Path,
    /// A `%` is not followed by two hexadecimal digits, or the decoded text is not UTF-8.
    #[error("the user or the password of the Redis URL is not percent-encoded")]
    Encoding,
    /// The URL contains a password as well as a password file.
    #[error("the Redis URL has a password and a password_file: keep one of them")]
    TwoPasswords,
    /// A query parameter is unknown, or not allowed in this kind of URL.
    #[error(
        "parameters of a Redis URL are password_file=, ca_file= (with TLS), sentinel_password_file= (Sentinel) and database= (redis+unix://)"
    )]
    Parameter,
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, RedisUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(RedisUrlError::Scheme)?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (deployment, database) = deployment(scheme, hosts, path)?;
        let (user, password) = login.map_or(Ok((None, None)), credentials)?;
        let mut url = Self {
            deployment,
            tls: scheme.starts_with("rediss"),
            database,
            user,
            password,
            password_file: None,
            sentinel_password_file: None,
            ca_file: None,
        };
        for parameter in parameters.split('&').filter(|it| !it.is_empty()) {
            url.set(parameter)?;
        }
        if url.password.is_some() && url.password_file.is_some() {
            return Err(RedisUrlError::TwoPasswords);
        }
        Ok(url)
    }
}

impl RedisUrl {
    fn set(&mut self, parameter: &str) -> Result<(), RedisUrlError> {
        let (name, value) = parameter.split_once('=').ok_or(RedisUrlError::Parameter)?;
        let value = decoded(value).map_err(|_| RedisUrlError::Parameter)?;
        if value.is_empty() {
            return Err(RedisUrlError::Parameter);
        }
        let path = || Some(PathBuf::from(&*value));
        match (name, &self.deployment) {
            ("password_file", _) => self.password_file = path(),
            ("ca_file", _) if self.tls => self.ca_file = path(),
            ("sentinel_password_file", Deployment::Sentinel { .. }) => {
                self.sentinel_password_file = path();
            }
            ("database", Deployment::Unix(_)) => self.database = database(&value)?,
            _ => return Err(RedisUrlError::Parameter),
        }
        Ok(())
    }
}

fn deployment(scheme: &str, hosts: &str, path: &str) -> Result<(Deployment, i64), RedisUrlError> {
    let below = path.strip_prefix('/').unwrap_or_default();
    match scheme {
        "redis" | "rediss" => {
            let mut hosts = addresses(hosts, PORT)?;
            let host = hosts.pop().ok_or(RedisUrlError::Host)?;
            if !hosts.is_empty() {
                return Err(RedisUrlError::ManyHosts);
            }
            Ok((Deployment::Node(host), database(below)?))
        }
        "redis+unix" => {
            if !hosts.is_empty() || below.is_empty() {
                return Err(RedisUrlError::Path);
            }
            Ok((Deployment::Unix(path.into()), 0))
        }
        "redis+sentinel" | "rediss+sentinel" => {
            let sentinels = addresses(hosts, SENTINEL_PORT)?;
            let (name, number) = below.split_once('/').unwrap_or((below, ""));
            if name.is_empty() {
                return Err(RedisUrlError::Name);
            }
            let name = name.to_owned();
            Ok((Deployment::Sentinel { sentinels, name }, database(number)?))
        }
        "redis+cluster" | "rediss+cluster" => {
            if !matches!(below, "" | "0") {
                return Err(RedisUrlError::ClusterDatabase);
            }
            Ok((Deployment::Cluster(addresses(hosts, PORT)?), 0))
        }
        _ => Err(RedisUrlError::Scheme),
    }
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, RedisUrlError> {
    hosts
        .split(',')
        .map(|host| address(host, default_port))
        .collect()
}

fn address(text: &str, default_port: u16) -> Result<Address, RedisUrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(RedisUrlError::Host)?;
            match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if port.is_empty() => (host, None),
                None => return Err(RedisUrlError::Host),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let strange = |character: char| character.is_whitespace() || "[]@%".contains(character);
    if host.is_empty() || host.contains(strange) {
        return Err(RedisUrlError::Host);
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| RedisUrlError::Port)?,
        None => default_port,
    };
    if port == 0 {
        return Err(RedisUrlError::Port);
    }
    let host = host.to_owned();
    Ok(Address { host, port })
}

fn database(text: &str) -> Result<i64, RedisUrlError> {
    if text.is_empty() {
        return Ok(0);
    }
    let number: u32 = text.parse().map_err(|_| RedisUrlError::Database)?;
    Ok(number.into())
}

type Credentials = (Option<String>, Option<Zeroizing<String>>);

fn credentials(login: &str) -> Result<Credentials, RedisUrlError> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let user = Some(decoded(user)?.to_string()).filter(|user| !user.is_empty());
    let password = password.map(decoded).transpose()?;
    Ok((user, password.filter(|password| !password.is_empty())))
}

/// Replaces each `%XX` by its byte.
fn decoded(text: &str) -> Result<Zeroizing<String>, RedisUrlError> {
    let mut parts = text.split('%');
    let mut bytes = Zeroizing::new(parts.next().unwrap_or_default().as_bytes().to_vec());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(RedisUrlError::Encoding)?;
        let byte = hex::decode(digits).map_err(|_| RedisUrlError::Encoding)?;
        bytes.extend_from_slice(&byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| RedisUrlError::Encoding)?;
    Ok(Zeroizing::new(text.to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, addresses: &[Address]| {
            for (place, address) in addresses.iter().enumerate() {
                write!(f, "{}{address}", if place > 0 { "," } else { "" })?;
            }
            Ok(())
        };
        match self {
            Self::Node(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
            Self::Sentinel { sentinels, name } => {
                write!(f, "{name} of the Sentinels ")?;
                list(f, sentinels)
            }
            Self::Cluster(nodes) => list(f, nodes),
        }
    }
}

impl fmt::Display for RedisUrl {
    /// Formats the address without credentials and parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deployment.fmt(f)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisUrl")
            .field("deployment", &self.deployment)
            .field("tls", &self.tls)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RedisUrl {
        text.parse().expect("a Redis URL")
    }

    fn address(host: &str, port: u16) -> Address {
        let host = host.to_owned();
        Address { host, port }
    }

    #[test]
    fn every_kind_of_deployment_is_spelled_by_its_scheme() {
        let url = parsed("redis://cache");
        assert_eq!(url.deployment, Deployment::Node(address("cache", 6379)));
        assert_eq!((url.database, url.tls), (0, false));
        let url = parsed("rediss://[::1]:7000/3");
        assert_eq!(url.deployment, Deployment::Node(address("::1", 7000)));
        assert_eq!((url.database, url.tls), (3, true));
        assert_eq!(url.to_string(), "[::1]:7000");
        let url = parsed("redis+unix:///run/redis.sock?database=2");
        assert_eq!(url.deployment, Deployment::Unix("/run/redis.sock".into()));
        assert_eq!(url.database, 2);
        let url = parsed("redis+sentinel://a,b:1/main/4?sentinel_password_file=/s");
        let sentinels = vec![address("a", 26379), address("b", 1)];
        let name = "main".to_owned();
        assert_eq!(url.deployment, Deployment::Sentinel { sentinels, name });
        assert_eq!(url.database, 4);
        assert_eq!(url.sentinel_password_file, Some("/s".into()));
        let url = parsed("rediss+cluster://a,b:1/?ca_file=/ca.pem&password_file=/p");
        let nodes = vec![address("a", 6379), address("b", 1)];
        assert_eq!(url.deployment, Deployment::Cluster(nodes));
        assert_eq!(url.ca_file, Some("/ca.pem".into()));
        assert_eq!(url.password_file, Some("/p".into()));
        assert!(url.tls);
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        let url = parsed("redis://us%40er:p%2Fa%3As%C3%B6@h");
        assert_eq!(url.user.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_ref().map(|it| it.as_str()), Some("p/a:sö"));
        let url = parsed("redis://:secret@h");
        assert_eq!(url.user, None);
        assert_eq!(url.password.as_ref().map(|it| it.as_str()), Some("secret"));
    }

    #[test]
    fn wrong_urls_are_refused_by_their_fault() {
        use RedisUrlError::*;
        for (text, fault) in [
            ("memory", Scheme),
            ("http://h", Scheme),
            ("unix:///s", Scheme),
            ("rediss+unix:///s", Scheme),
            ("redis://", Host),
            ("redis:///0", Host),
            ("redis://:6379", Host),
            ("redis://user:secret@", Host),
            ("redis://[::1", Host),
            ("redis+cluster://a,,b", Host),
            ("redis://a,b", ManyHosts),
            ("redis://h:port", Port),
            ("redis://h:0", Port),
            ("redis://h:65536", Port),
            ("redis://:sec/ret@h", Host),
            ("redis://user:sec/ret@h", Port),
            ("redis://h/x", Database),
            ("redis://h/-1", Database),
            ("redis+cluster://h/1", ClusterDatabase),
            ("redis+sentinel://h", Name),
            ("redis+sentinel://h//0", Name),
            ("redis+sentinel://h/name/x", Database),
            ("redis+unix://", Path),
            ("redis+unix://run/redis.sock", Path),
            ("redis://:%2@h", Encoding),
            ("redis://:%zz@h", Encoding),
            ("redis://:%ff@h", Encoding),
            ("redis://:secret@h?password_file=/p", TwoPasswords),
            ("redis://h?password=secret", Parameter),
            ("redis://h?ca_file=/p", Parameter),
            ("redis://h?password_file=", Parameter),
            ("redis://h?sentinel_password_file=/p", Parameter),
        ] {
            assert_eq!(text.parse::<RedisUrl>().err(), Some(fault), "{text}");
            let said = fault.to_string();
            assert!(!said.contains("secret") && !said.contains("ret@"), "{said}");
        }
    }

    #[test]
    fn neither_debug_nor_display_has_the_password() {
        for text in [
            "redis://user:hunter2@h:1/0",
            "redis+sentinel://user:hunter2@h/name",
            "redis+cluster://:hunter2@h",
            "redis+unix://:hunter2@/run/redis.sock",
        ] {
            let url = parsed(text);
            assert!(url.password.is_some());
            let printed = format!("{url} {url:?} {url:#?}");
            assert!(!printed.contains("hunter2"), "{printed}");
        }
    }
}
