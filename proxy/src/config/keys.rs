//! `keys:` — the file of API keys.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file of API keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeysConfig {
    /// The file's path. `$DATA` is replaced by the data directory.
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
    /// The absolute path of the file.
    pub(crate) fn path(&self, data_dir: &Path) -> PathBuf {
        let text = self.file.replace("$DATA", &data_dir.to_string_lossy());
        std::path::absolute(&text).unwrap_or_else(|_| PathBuf::from(text))
    }
}
