//! The key `listeners[].address:` — an IP address with a port, or the path of a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::net as unix;
use std::path::PathBuf;
use std::str::FromStr;

use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;
use serde::{Deserialize, Serialize};

/// Maximum length of the path of a Unix socket, in bytes: the kernel has room for 108, including a zero byte at the end.
const PATH_MAX: usize = 107;

/// The address on which a listener listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum ListenAddress {
    /// An IP address and a port of this machine.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

/// Reasons why a text is not a valid address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidAddress {
    /// The text is no IP address with a port and does not begin with `unix:`.
    #[error("invalid address {0:?}: write IP:PORT, as 127.0.0.1:8000 or [::1]:8000, or unix:/PATH")]
    Unknown(String),
    /// The path of the Unix socket is relative, so it would depend on the folder in which the gateway is started.
    #[error("the path of a Unix socket is absolute: write unix:/PATH")]
    RelativePath,
    /// The path of the Unix socket is longer than the kernel allows.
    #[error("the path of a Unix socket has at most {PATH_MAX} bytes")]
    LongPath,
}

impl ListenAddress {
    /// Returns true for a loopback address, which only this machine can reach.
    pub(crate) fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().is_loopback())
    }

    /// Returns true for addresses that only this machine can reach: loopback addresses and Unix sockets.
    pub(crate) fn is_local(&self) -> bool {
        self.is_loopback() || matches!(self, Self::Unix(_))
    }

    /// Returns the port; `None` for a Unix socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }

    /// Changes the port. Returns false for a Unix socket, which has none.
    pub(crate) fn set_port(&mut self, port: u16) -> bool {
        match self {
            Self::Tcp(address) => {
                address.set_port(port);
                true
            }
            Self::Unix(_) => false,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let Some(path) = text.strip_prefix("unix:") else {
            let address = text.parse().map(Self::Tcp);
            return address.map_err(|_| InvalidAddress::Unknown(text.to_owned()));
        };
        if !path.starts_with('/') {
            return Err(InvalidAddress::RelativePath);
        }
        if path.len() > PATH_MAX {
            return Err(InvalidAddress::LongPath);
        }
        if path.contains('\0') || path.ends_with('/') {
            return Err(InvalidAddress::Unknown(text.to_owned()));
        }
        Ok(Self::Unix(path.into()))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Conversion to the type in which connections store their local address.
impl From<ListenAddress> for LocalAddress {
    fn from(address: ListenAddress) -> Self {
        match address {
            ListenAddress::Tcp(address) => Self::Inet(address),
            ListenAddress::Unix(path) => {
                let path = unix::SocketAddr::from_pathname(path);
                Self::Unix(path.expect("the path was checked when it was read"))
            }
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Self, InvalidAddress> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> Self {
        address.to_string()
    }
}

/// `listeners[].mode`: the permissions of a Unix socket, which decide which users may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SocketMode(pub(crate) u32);

impl Default for SocketMode {
    /// The default mode lets the gateway's user and group read and write.
    fn default() -> Self {
        Self(0o660)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
        let mode = u32::from_str_radix(&text, 8).ok();
        match mode.filter(|mode| digits && *mode <= 0o777) {
            Some(mode) => Ok(Self(mode)),
            None => Err(format!(
                "invalid mode {text:?}: write permissions in octal and in quotes, as \"0660\""
            )),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        format!("{:04o}", mode.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_was_written() {
        for text in ["127.0.0.1:8000", "[::1]:1", "unix:/run/tooldock/mcp.sock"] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_says_what_to_write() {
        let long = format!("unix:/{}", "x".repeat(PATH_MAX));
        for (text, named) in [
            ("localhost:8000", "write IP:PORT"),
            ("8000", "write IP:PORT"),
            ("", "write IP:PORT"),
            ("unix:mcp.sock", "is absolute"),
            ("unix:", "is absolute"),
            ("unix:/run/", "unix:/PATH"),
            (&long, "at most 107 bytes"),
        ] {
            let error = text.parse::<ListenAddress>().expect_err(text).to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_mode_is_octal() {
        let mode = |text: &str| SocketMode::try_from(text.to_owned());
        assert_eq!(mode("0660"), Ok(SocketMode(0o660)));
        assert_eq!(mode("666"), Ok(SocketMode(0o666)));
        assert_eq!(String::from(SocketMode(0o600)), "0600");
        for wrong in ["", "rw", "0888", "1777", "432 ", "+660", "00660"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
