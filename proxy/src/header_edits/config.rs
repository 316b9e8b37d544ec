//! The key `listeners[].headers:` — headers that are set and removed. This module only parses: the code that changes headers
//! decides which may be changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `listeners[].headers:`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HeadersConfig {
    /// Changes to requests, before admission.
    #[serde(skip_serializing_if = "HeaderEditsConfig::is_empty")]
    pub(crate) request: HeaderEditsConfig,
    /// Changes of responses.
    #[serde(skip_serializing_if = "HeaderEditsConfig::is_empty")]
    pub(crate) response: HeaderEditsConfig,
}

/// Changes to the headers of requests, or of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HeaderEditsConfig {
    /// Names with the value each gets.
    pub(crate) set: BTreeMap<String, String>,
    /// Names of headers that are removed.
    pub(crate) remove: Vec<String>,
}

impl HeadersConfig {
    /// Returns true if no header is changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

impl HeaderEditsConfig {
    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}
