//! `CORE_URL`: where a manager in a process of its own reaches the core.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// The address of a core. Plain HTTP: core and manager share a network of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CoreUrl {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Default for CoreUrl {
    /// The core's address in the shipped container configuration.
    fn default() -> Self {
        Self {
            host: "172.30.0.11".to_owned(),
            port: 8000,
        }
    }
}

impl FromStr for CoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is no address of a core: expected http://HOST:PORT");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let plain = uri.scheme_str() == Some("http")
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
            && uri.authority().is_some_and(|it| !it.as_str().contains('@'));
        let host = uri.host().filter(|host| plain && !host.is_empty());
        Ok(Self {
            host: host.ok_or_else(wrong)?.to_owned(),
            port: uri.port_u16().unwrap_or(80),
        })
    }
}

impl fmt::Display for CoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_over_plain_http_are_an_address() {
        let read = |text: &str| text.parse::<CoreUrl>().map(|url| url.to_string());
        for (text, url) in [
            ("http://172.30.0.11:8000", "http://172.30.0.11:8000"),
            ("http://core:8000/", "http://core:8000"),
            ("http://[::1]:8000", "http://[::1]:8000"),
            ("http://core", "http://core:80"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(url));
        }
        for text in [
            "",
            "core:8000",
            "https://core",
            "http://u:p@core",
            "http://core/x",
            "http://core?x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
