//! The key `keys:` of the configuration: the file of API keys.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Settings of API keys: the file in which they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeysConfig {
    /// Path of the file with the API keys. `$DATA` in it is replaced by the data directory.
    pub(crate) file: String,
}

impl Default for KeysConfig {
    fn default() -> Self {
        Self {
            file: "$DATA/keys.json".to_owned(),
        }
    }
}

impl KeysConfig {
    /// Returns the absolute path of the file with the API keys.
    pub(crate) fn path(&self, data_dir: &Path) -> PathBuf {
        let text = self.file.replace("$DATA", &data_dir.to_string_lossy());
        std::path::absolute(&text).unwrap_or_else(|_| PathBuf::from(text))
    }
}
