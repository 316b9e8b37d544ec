//! The key `listeners[].headers:` — headers that are set and removed. This module only parses; `header_edits.rs` decides which
//! headers may be changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `listeners[].headers:` — a listener's changes to the headers of requests and responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HeadersConfig {
    /// Changes to requests, applied before admission.
    #[serde(skip_serializing_if = "HeaderEditsConfig::is_empty")]
    pub(crate) request: HeaderEditsConfig,
    /// Changes to every response.
    #[serde(skip_serializing_if = "HeaderEditsConfig::is_empty")]
    pub(crate) response: HeaderEditsConfig,
}

/// Changes to the headers of requests, or to those of responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HeaderEditsConfig {
    /// Headers that are set, by name, each with its new value.
    pub(crate) set: BTreeMap<String, String>,
    /// Names of headers that are removed.
    pub(crate) remove: Vec<String>,
}

impl HeadersConfig {
    /// Returns true if the configuration changes no header.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

impl HeaderEditsConfig {
    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}
