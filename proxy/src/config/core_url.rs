//! `CORE_URL` and `--core`: the address at which another process reaches the process that serves tools (the core).

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

/// The address of a core: HTTP over TCP, or a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CoreUrl {
    /// Host name or IP address (IPv6 in brackets), port, and whether TLS is used.
    Tcp { host: String, port: u16, tls: bool },
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Default for CoreUrl {
    /// Returns the core's address in the shipped container configuration.
    fn default() -> Self {
        Self::Tcp {
            host: "172.30.0.11".to_owned(),
            port: 8000,
            tls: false,
        }
    }
}

impl CoreUrl {
    /// Returns true for an address of this machine: loopback, or a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                let address: Result<IpAddr, _> = bare(host).parse();
                address.map_or(host.eq_ignore_ascii_case("localhost"), |it| {
                    it.to_canonical().is_loopback()
                })
            }
            Self::Unix(_) => true,
        }
    }

    /// Returns the value of the `Host` header for requests to this address.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// Returns a host without the brackets of an IPv6 address.
pub(crate) fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

impl FromStr for CoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{text:?} is no address of a core: expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.starts_with('/') && !path.contains('\0') {
                true => Ok(Self::Unix(path.into())),
                false => Err(wrong()),
            };
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let plain = matches!(uri.path(), "" | "/")
            && uri.query().is_none()
            && uri.authority().is_some_and(|it| !it.as_str().contains('@'));
        let host = uri.host().filter(|host| plain && !host.is_empty());
        Ok(Self::Tcp {
            host: host.ok_or_else(wrong)?.to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            tls,
        })
    }
}

impl fmt::Display for CoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                write!(f, "{scheme}://{host}:{port}")
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_or_a_socket_are_an_address() {
        let read = |text: &str| text.parse::<CoreUrl>().map(|url| url.to_string());
        for (text, url) in [
            ("http://172.30.0.11:8000", "http://172.30.0.11:8000"),
            ("http://core:8000/", "http://core:8000"),
            ("http://[::1]:8000", "http://[::1]:8000"),
            ("http://core", "http://core:80"),
            ("https://core", "https://core:443"),
            ("https://core:8443/", "https://core:8443"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:///run/a.sock", "unix:/run/a.sock"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(url));
        }
        for text in [
            "",
            "core:8000",
            "ftp://core",
            "unix:a.sock",
            "unix:",
            "https://u:p@core",
            "http://core/x",
            "http://core?x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_told_from_others() {
        let is_local = |text: &str| text.parse::<CoreUrl>().expect("an address").is_local();
        for text in [
            "https://localhost",
            "https://127.0.0.2:1",
            "https://[::1]",
            "https://[::ffff:127.0.0.1]",
            "unix:/a",
        ] {
            assert!(is_local(text), "{text}");
        }
        for text in [
            "https://core",
            "https://10.0.0.1",
            "https://localhost.example",
        ] {
            assert!(!is_local(text), "{text}");
        }
    }
}
