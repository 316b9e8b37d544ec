//! The key `builder:` of the configuration file: settings for reading repositories, packages and the MCP registry.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// Settings of the key `builder:`, for the repositories and registries that management tools read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BuilderConfig {
    /// Allowed schemes of the URLs of repositories.
    pub git_schemes: Vec<GitScheme>,
    /// Hosts that may have private addresses. Private addresses of other hosts are refused, so that callers cannot reach the
    /// gateway's own network.
    pub private_hosts: Vec<String>,
    /// URL of the MCP registry.
    pub registry: String,
    /// Maximum duration of one clone, download or search, including the analysis.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum size of a clone or an unpacked package.
    pub max_size: ByteSize,
}

/// Scheme of a repository's URL, which determines the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GitScheme {
    /// The repository is read over HTTP with TLS.
    Https,
    /// The repository is read over unencrypted HTTP, so its content may be changed during the transfer.
    Http,
    /// The repository is read over SSH, with the keys of the gateway's user.
    Ssh,
    /// The repository is a folder on the gateway's own disk.
    File,
}

impl GitScheme {
    /// All schemes of repositories' URLs.
    pub const ALL: [Self; 4] = [Self::Https, Self::Http, Self::Ssh, Self::File];

    /// The scheme as it is written in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::File => "file",
        }
    }
}

impl fmt::Display for GitScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl BuilderConfig {
    /// Checks the values that are not numbers.
    ///
    /// # Errors
    ///
    /// The key below `builder`, and the problem with its value.
    pub fn validate(&self) -> Result<(), (String, String)> {
        let is_url = ["http://", "https://"].iter().any(|scheme| {
            let rest = self.registry.strip_prefix(scheme);
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
        if !is_url || self.registry.contains(char::is_whitespace) {
            let reason = "is not a URL: expected one such as https://registry.example";
            return Err(("registry".into(), reason.into()));
        }
        for (index, host) in self.private_hosts.iter().enumerate() {
            let is_host = !host.is_empty()
                && !host.contains(['/', '@', ' '])
                && !host.trim_start_matches("*.").contains('*');
            if !is_host {
                let reason = format!(
                    "{host:?} is not a host: expected one such as git.corp.example or *.corp.example"
                );
                return Err((format!("private_hosts[{index}]"), reason));
            }
        }
        Ok(())
    }
}

impl Default for BuilderConfig {
    fn default() -> Self {
        Self {
            git_schemes: vec![GitScheme::Https],
            private_hosts: Vec::new(),
            registry: "https://registry.modelcontextprotocol.io".into(),
            timeout: Duration::from_secs(300),
            max_size: ByteSize::mib(200),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_url_and_a_private_host_is_a_host() {
        assert_eq!(BuilderConfig::default().validate(), Ok(()));
        let with = |registry: &str, host: &str| BuilderConfig {
            registry: registry.into(),
            private_hosts: vec![host.into()],
            ..BuilderConfig::default()
        };
        assert_eq!(
            with("http://127.0.0.1:1", "*.corp.example").validate(),
            Ok(())
        );
        for registry in [
            "registry.example",
            "https://",
            "https:///x",
            "file:///x",
            "http://a b",
        ] {
            let (key, _) = with(registry, "h").validate().unwrap_err();
            assert_eq!(key, "registry", "{registry}");
        }
        for host in ["", "https://h", "h/x", "*", "a.*.b"] {
            let (key, _) = with("https://h", host).validate().unwrap_err();
            assert_eq!(key, "private_hosts[0]", "{host}");
        }
    }
}
