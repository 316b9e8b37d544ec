//! The key `relay:` of the configuration: tools for containers over a Unix socket, and the scopes of credentials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;
use tooldock_base::scope::ScopeTable;

use super::ConfigError;
use super::address::SocketMode;
use super::off::OFF;

/// Maximum length of the path of the relay's socket, in bytes. The kernel allows 107; some are left for the path of the folder
/// under which a container sees the socket.
const PATH_MAX: usize = 100;

/// Settings of the relay, and the scopes of credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RelayConfig {
    /// Path of the relay's Unix socket, or `off`.
    pub(crate) socket: PathBuf,
    /// The namespace whose tools the relay offers.
    pub(crate) namespace: NamespaceName,
    /// File permissions of the socket, which decide which users may connect.
    pub(crate) mode: SocketMode,
    /// Scopes in addition to `admin`: each name with the patterns of the tools that it opens.
    pub(crate) scopes: BTreeMap<String, Vec<String>>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            socket: OFF.into(),
            namespace: "oubliette".parse().expect("a valid name"),
            mode: SocketMode::default(),
            scopes: BTreeMap::new(),
        }
    }
}

impl RelayConfig {
    /// Returns the path of the socket; `None` if the relay is off.
    pub(crate) fn socket(&self) -> Option<&Path> {
        (self.socket != Path::new(OFF)).then_some(&self.socket)
    }

    /// Returns the table of scopes, with the tools that each opens.
    ///
    /// # Errors
    ///
    /// The scope whose name or patterns are invalid.
    pub(crate) fn scope_table(&self) -> Result<ScopeTable, ConfigError> {
        ScopeTable::new(&self.scopes)
            .map_err(|error| ConfigError::key("relay.scopes", error.to_string()))
    }

    /// Checks the path of the socket, and the scopes.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.scope_table()?;
        let Some(socket) = self.socket() else {
            return Ok(());
        };
        let socket_key = |reason: String| Err(ConfigError::key("relay.socket", reason));
        if !socket.is_absolute() {
            return socket_key(format!(
                "the path of a Unix socket is absolute, and {} is not: write /PATH, or off",
                socket.display()
            ));
        }
        let length = socket.as_os_str().len();
        if length > PATH_MAX {
            return socket_key(format!(
                "the path has {length} bytes, and a socket's path at most {PATH_MAX}: choose a shorter one"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn refused(keys: &str) -> String {
        let relay: RelayConfig = yaml::from_str(keys).expect(keys);
        let refused = relay.check().err();
        refused.map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_relay_is_off_unless_a_socket_is_named() {
        assert_eq!(RelayConfig::default().socket(), None);
        assert_eq!(RelayConfig::default().check(), Ok(()));
        let relay: RelayConfig = yaml::from_str("socket: /run/relay.sock").expect("keys");
        assert_eq!(relay.socket(), Some(Path::new("/run/relay.sock")));
        assert_eq!(relay.check(), Ok(()));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        assert!(refused("socket: relay.sock").starts_with("relay.socket: the path of a Unix"));
        let path = |length: usize| format!("/{}", "s".repeat(length - 1));
        let socket = |length| format!("socket: {}", path(length));
        assert_eq!(refused(&socket(100)), "");
        let long = refused(&socket(101));
        assert!(
            long.contains("101 bytes") && long.contains("at most 100"),
            "{long}"
        );
    }

    #[test]
    fn scopes_are_checked() {
        assert_eq!(
            refused("scopes: { admin: ['*'] }"),
            "relay.scopes: admin opens every tool and cannot be given patterns; choose another name"
        );
        assert!(refused("scopes: { ci: ['['] }").starts_with("relay.scopes: ci: invalid pattern"));
    }
}
