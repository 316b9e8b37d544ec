//! Settings that stdio servers and remote servers share.

use serde::{Deserialize, Serialize};
use tooldock_base::config::{Limits, LimitsPatch};
use tooldock_base::policy::ToolPolicy;
use tooldock_base::server_failure::InvalidServer;

/// Sharing of a server's processes or sessions among clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// All clients share a process, except clients that the server may ask: each of these has a separate process.
    Auto,
    /// All clients share a process.
    Shared,
    /// Each session has a separate process.
    Session,
    /// All sessions of one principal share a process.
    Principal,
}

impl Isolation {
    /// Value of the setting, as written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shared => "shared",
            Self::Session => "session",
            Self::Principal => "principal",
        }
    }
}

/// Treatment of a server's lists of tools and resources before clients get them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListMode {
    /// Lists are corrected where that keeps their meaning, so that strict clients accept them.
    #[default]
    Mend,
    /// Lists are passed on unchanged.
    Raw,
}

/// Returns an error for limits that are out of bounds or do not apply to servers, and for invalid patterns. `processes` is the
/// advice in the error for the limit `processes`: the setting to use instead.
pub(crate) fn check_limits(patch: &LimitsPatch, processes: &str) -> Result<(), InvalidServer> {
    let wrong = |key: &str, message: String| InvalidServer::new(format!("limits.{key}"), message);
    for (key, said, instead) in [
        (
            "sync_concurrency",
            patch.sync_concurrency.is_some(),
            "an external server has max_concurrency",
        ),
        (
            "mask_errors",
            patch.mask_errors.is_some(),
            "an external server words its own errors",
        ),
        (
            "global_secrets",
            patch.global_secrets.is_some(),
            "an external server gets the secrets that its entry names",
        ),
        ("processes", patch.processes.is_some(), processes),
    ] {
        if said {
            return Err(wrong(key, format!("is for Python namespaces; {instead}")));
        }
    }
    patch
        .check()
        .map_err(|refused| wrong(&refused.key, refused.message))?;
    let mut limits = Limits::default();
    limits.apply(patch);
    ToolPolicy::new(&limits).map(drop).map_err(|error| {
        let message = format!("{:?} is no pattern: {}", error.pattern, error.reason);
        wrong(error.key, message)
    })
}
