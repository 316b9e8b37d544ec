//! Aggregates: many servers behind one namespace, whose tools the model turns on and off ("Toolman").
//!
//! ```text
//! toolman: NAME ─▶ tools.toml ─▶ AggregateSpec ─▶ Aggregate, in the snapshot ─▶ one hidden namespace for each server
//! ```
//!
//! Here stands only what is configured. What the members offer, which of that is active for whom, and how a call finds
//! its member is known to the service above.

mod file;
mod serve;
mod spec;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::names::NamespaceName;

pub use file::read;
pub use serve::{Aggregate, AggregateMember, Surroundings, namespace};
pub use spec::{
    ActivationScope, ActivePatterns, AggregateOptions, AggregateSpec, InvalidActivePattern, Member,
    MemberKind, Pin,
};

/// `toolman:` — aggregates by namespace.
pub type AggregatesConfig = BTreeMap<NamespaceName, AggregateConfig>;

/// One aggregate of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregateConfig {
    /// Its file, relative to where the gateway runs.
    pub config: PathBuf,
}
