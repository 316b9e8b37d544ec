//! Addresses to which the builder may connect for a caller: only public ones, unless the operator allows a host to have private
//! addresses.
//!
//! A host's name is resolved once, and the connection is restricted to the addresses found (`http.curloptResolve` of git, the
//! resolver of the HTTP client). So a name server cannot return a different address for the connection than for the check.

use std::net::{IpAddr, ToSocketAddrs as _};

use tooldock_base::address::is_public;
use tooldock_process::repositories::{BuilderConfig, BuilderError};

use crate::source::Repository;

/// Rules for the hosts and addresses to which the builder may connect.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    private_hosts: Vec<String>,
}

impl Reach {
    pub(crate) fn new(config: &BuilderConfig) -> Self {
        let private_hosts = config.private_hosts.iter();
        Self {
            private_hosts: private_hosts.map(|it| it.to_ascii_lowercase()).collect(),
        }
    }

    /// Returns true if the operator allows a host to have private addresses.
    pub(crate) fn is_trusted(&self, host: &str) -> bool {
        let host = bare(host).to_ascii_lowercase();
        self.private_hosts
            .iter()
            .any(|it| match it.strip_prefix('*') {
                Some(suffix) => suffix.starts_with('.') && host.ends_with(suffix),
                None => bare(it) == host,
            })
    }

    /// Resolves a repository's host and checks that all its addresses are allowed. The list is empty for a local repository, and
    /// if an HTTP proxy resolves the name.
    pub(crate) fn of(&self, repository: &Repository) -> Result<Vec<IpAddr>, BuilderError> {
        let Some((host, port)) = repository.host_and_port() else {
            return Ok(Vec::new());
        };
        let found = (bare(host), port).to_socket_addrs();
        let mut addresses: Vec<IpAddr> = match found {
            Ok(found) => found.map(|it| it.ip()).collect(),
            Err(_) if repository.goes_through_proxy() => return Ok(Vec::new()),
            Err(error) => {
                return Err(BuilderError::unavailable(format!(
                    "cannot find the host {host}: {error}. Check the spelling of the URL."
                )));
            }
        };
        addresses.dedup();
        if !self.is_trusted(host)
            && let Some(address) = addresses.iter().find(|it| !is_public(**it))
        {
            return Err(refused(host, *address));
        }
        Ok(addresses)
    }
}

/// The error for a host with a private address.
pub(crate) fn refused(host: &str, address: IpAddr) -> BuilderError {
    BuilderError::refused(format!(
        "{host} has the address {address}, which is not on the public internet. The operator can allow the host with the \
         key builder.private_hosts (GIT_PRIVATE_HOSTS)."
    ))
}

/// The host of a URL; for an IPv6 address, without the brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_host_may_have_private_addresses() {
        let reach = Reach::new(&BuilderConfig {
            private_hosts: vec![
                "git.corp.example".into(),
                "*.lab.example".into(),
                "::1".into(),
            ],
            ..BuilderConfig::default()
        });
        for trusted in [
            "git.corp.example",
            "GIT.corp.example",
            "a.lab.example",
            "[::1]",
        ] {
            assert!(reach.is_trusted(trusted), "{trusted}");
        }
        for other in [
            "corp.example",
            "x.git.corp.example",
            "lab.example",
            "notlab.example",
        ] {
            assert!(!reach.is_trusted(other), "{other}");
        }
    }
}
