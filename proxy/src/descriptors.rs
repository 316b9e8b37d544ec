//! Number of connections that the limit on open files (descriptors) allows.
//!
//! Each connection uses a descriptor. If connections could use all descriptors, the gateway could not start workers, open the
//! audit log or serve its metrics under load. So some descriptors are reserved for that.

use std::fmt;

use anyhow::ensure;
use tooldock_process::child::open_files;

/// Minimum limit on open files with which the gateway starts; a lower one leaves too few descriptors beside the reserve.
pub(crate) const LIMIT_MIN: u64 = 128;

/// Minimum number of descriptors that are reserved for workers, logs and management, but at most half of the limit. Of a large
/// limit, one part in [`RESERVE_PART`] is reserved.
const RESERVE_MIN: u64 = 256;
const RESERVE_PART: u64 = 32;

/// Maximum number of connections on the metrics listener. They use reserved descriptors.
const MANAGEMENT_MAX: usize = 64;

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Maximum number of connections on all listeners but the metrics listener.
    pub(crate) clients: usize,
    /// Maximum number of connections on the metrics listener.
    pub(crate) management: usize,
    configured: usize,
    /// The limit on open files, and the number of reserved descriptors; `None` if there is no limit.
    files: Option<(u64, u64)>,
}

impl Connections {
    /// Raises the limit on open files as far as possible, and returns the resulting numbers of connections.
    ///
    /// # Errors
    ///
    /// If the limit is still below [`LIMIT_MIN`]; the message is one line.
    pub(crate) fn raised(configured: usize) -> anyhow::Result<Self> {
        let connections = Self::under(configured, open_files::raise());
        if let Some((limit, _)) = connections.files {
            ensure!(
                limit >= LIMIT_MIN,
                "the limit on open files is {limit}, and at least {LIMIT_MIN} are needed: raise it (ulimit -n, LimitNOFILE=)"
            );
        }
        Ok(connections)
    }

    /// Returns the numbers of connections that a gateway started by this user would have. Changes nothing.
    pub(crate) fn expected(configured: usize) -> Self {
        Self::under(configured, open_files::highest())
    }

    /// Returns the limit on open files; `None` if there is none.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.files.map(|(limit, _)| limit)
    }

    pub(crate) fn under(configured: usize, limit: Option<u64>) -> Self {
        let Some(limit) = limit else {
            return Self {
                clients: configured,
                management: MANAGEMENT_MAX,
                configured,
                files: None,
            };
        };
        let reserve = (limit / RESERVE_PART).max(RESERVE_MIN).min(limit / 2);
        let room = usize::try_from(limit - reserve).unwrap_or(usize::MAX);
        let management = usize::try_from(reserve / 4).unwrap_or(usize::MAX);
        Self {
            clients: configured.min(room),
            management: management.min(MANAGEMENT_MAX),
            configured,
            files: Some((limit, reserve)),
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {}", self.clients)?;
        if self.clients == self.configured {
            return write!(f, ", as configured");
        }
        if let Some((limit, reserve)) = self.files {
            write!(
                f,
                ", by the limit on open files: {limit}, of which {reserve} are kept for workers, logs and management; \
                 admission.limits.connections is {}",
                self.configured
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_what_is_configured_and_what_files_leave_is_the_cap() {
        let under = |limit| {
            let Connections {
                clients,
                management,
                ..
            } = Connections::under(100_000, limit);
            (clients, management)
        };
        assert_eq!(under(None), (100_000, 64));
        assert_eq!(under(Some(1_048_576)), (100_000, 64));
        assert_eq!(under(Some(20_000)), (19_375, 64));
        assert_eq!(under(Some(1024)), (768, 64));
        assert_eq!(under(Some(256)), (128, 32));
    }

    #[test]
    fn it_says_which_of_the_two_it_is() {
        let said = |configured| Connections::under(configured, Some(1024)).to_string();
        assert_eq!(said(100), "up to 100, as configured");
        let by_files = said(100_000);
        assert!(by_files.starts_with("up to 768, by the limit on open files: 1024, of which 256"));
    }
}
