//! Aggregates: several servers published as one namespace, whose tools the model activates and deactivates ("Toolman").
//!
//! ```text
//! toolman: NAME ─▶ tools.toml ─▶ AggregateSpec ─▶ Aggregate, in the snapshot ─▶ one hidden namespace for each server
//! ```
//!
//! This module handles only the configuration. The service that serves requests keeps the members' tools, the tools that are
//! active for each client, and the member to which a call is sent.

mod file;
mod nesting;
mod spec;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Source;

#[cfg(any(test, fuzzing))]
pub use file::fuzzing::aggregate_file;
pub use file::{ServedOver, read};
pub use nesting::{DEPTH_MAX, refused_nesting};
pub use spec::{
    ActivationScope, ActivePatterns, AggregateOptions, AggregateSpec, InvalidActivePattern, Member,
    MemberKind, Pin, ToolNames,
};

/// Configuration key `toolman:`, with the aggregates by namespace.
pub type AggregatesConfig = BTreeMap<NamespaceName, AggregateConfig>;

/// An entry of the configuration that defines an aggregate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregateConfig {
    /// Path of the aggregate's file, relative to the gateway's working directory.
    pub config: PathBuf,
    /// The configuration file that defines the aggregate. If it is `$DATA/config.yaml`, the aggregate's servers may have no `url`
    /// and no `timeout`.
    #[serde(skip)]
    pub source: Source,
}

impl AggregateConfig {
    /// Reads the aggregate's file.
    ///
    /// # Errors
    ///
    /// A one-line message with the file, the position in it, the problem, and the remedy.
    pub fn read(&self) -> Result<AggregateSpec, String> {
        let spec = read(&self.config, ServedOver::Http)?;
        match self.source {
            Source::Operator => Ok(spec),
            Source::DataFile | Source::Folder | Source::ExternalFile => self.narrowed(spec),
        }
    }

    fn narrowed(&self, mut spec: AggregateSpec) -> Result<AggregateSpec, String> {
        for member in &mut spec.members {
            let what = match &mut member.kind {
                MemberKind::Remote(_) => "url",
                MemberKind::Stdio(config) if config.limits.timeout.is_some() => "timeout",
                MemberKind::Stdio(config) => {
                    config.source = self.source;
                    continue;
                }
                MemberKind::Namespace(_) => continue,
            };
            return Err(format!(
                "{}: server {:?}: {what} is for aggregates that the operator's configuration names; this one stands in $DATA/config.yaml",
                self.config.display(),
                member.prefix
            ));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_tool_code_could_name_sends_no_credentials_anywhere_and_raises_no_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tools.toml");
        for (server, refused) in [
            ("command = \"true\"", None),
            ("url = \"https://example.com/mcp\"", Some("url")),
            ("command = \"true\"\ntimeout = \"5m\"", Some("timeout")),
        ] {
            let text = format!("[[servers]]\nnamespace = \"a\"\n{server}\n");
            std::fs::write(&file, text).expect("a file");
            let mut config = AggregateConfig {
                config: file.clone(),
                source: Source::Operator,
            };
            config.read().expect("the operator may");
            config.source = Source::DataFile;
            match (config.read(), refused) {
                (Ok(_), None) => {}
                (Err(message), Some(key)) => {
                    assert!(
                        message.contains(&format!("server \"a\": {key} is for")),
                        "{message}"
                    );
                }
                (read, _) => panic!("{server}: {read:?}"),
            }
        }
    }
}
