//! The key `vault:` of the configuration: settings of listeners with the profile `vault`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;
use tooldock_workers::reload::VaultFolder;

use super::ConfigError;
use super::off::OFF;

const AUTO: &str = "auto";
/// Default folder of Tool Vault's tools, relative to the working directory.
const OWN_TOOLS: &str = "tools";

/// Settings of listeners with the profile `vault`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct VaultConfig {
    /// The namespace that these listeners serve.
    pub(crate) namespace: NamespaceName,
    /// The folder with the namespace's tool files. `auto` means the namespace's folder in the data directory, or `./tools` if
    /// that does not exist.
    pub(crate) tools_dir: PathBuf,
    /// The folder with the web app that is served at `/ui/`, or `off`.
    pub(crate) ui_dir: PathBuf,
    /// True if `/tools/list` and `/tools/call` are served in addition to `/mcp`.
    pub(crate) rest: bool,
    /// True if the value that a tool's function returns is the complete `result` of MCP's `tools/call`; false if it is wrapped as
    /// MCP specifies.
    pub(crate) raw_result: bool,
}

impl Default for VaultConfig {
    fn default() -> Self {
        Self {
            namespace: "vault".parse().expect("a valid name"),
            tools_dir: AUTO.into(),
            ui_dir: OFF.into(),
            rest: true,
            raw_result: false,
        }
    }
}

impl VaultConfig {
    /// Returns the folder with the namespace's tools (K-44).
    ///
    /// # Errors
    ///
    /// If the folder that `vault.tools_dir` names does not exist.
    pub(crate) fn folder(&self, data_tools: &Path) -> Result<VaultFolder, ConfigError> {
        let elsewhere = |dir: &Path| real(dir, "vault.tools_dir");
        let dir = if self.tools_dir != Path::new(AUTO) {
            Some(elsewhere(&self.tools_dir)?)
        } else if data_tools.join(self.namespace.as_str()).is_dir() || !holds_python(OWN_TOOLS) {
            None
        } else {
            Some(elsewhere(Path::new(OWN_TOOLS))?)
        };
        Ok(VaultFolder {
            name: self.namespace.clone(),
            dir,
        })
    }

    /// Returns the folder of the web app; `None` if it is off.
    pub(crate) fn ui(&self) -> Option<&Path> {
        (self.ui_dir != Path::new(OFF)).then_some(&self.ui_dir)
    }

    /// Checks that the configured directories exist.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if let Some(ui) = self.ui() {
            real(ui, "vault.ui_dir")?;
        }
        self.folder(Path::new("")).map(drop)
    }
}

fn real(dir: &Path, key: &str) -> Result<PathBuf, ConfigError> {
    let wrong = |reason: String| ConfigError::key(key, format!("{}: {reason}", dir.display()));
    let real = dir
        .canonicalize()
        .map_err(|error| wrong(error.to_string()))?;
    match real.is_dir() {
        true => Ok(real),
        false => Err(wrong("is no directory".to_owned())),
    }
}

fn holds_python(dir: &str) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name());
    names.any(|name| Path::new(&name).extension().is_some_and(|end| end == "py"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let missing = |tools: &str, ui: &str| {
            let config = VaultConfig {
                tools_dir: tools.into(),
                ui_dir: ui.into(),
                ..VaultConfig::default()
            };
            config.check().expect_err("missing").to_string()
        };
        let error = missing("/not/there", OFF);
        assert!(
            error.starts_with("vault.tools_dir: /not/there: "),
            "{error}"
        );
        let error = missing(AUTO, "/etc/passwd");
        assert_eq!(error, "vault.ui_dir: /etc/passwd: is no directory");
        assert_eq!(VaultConfig::default().check(), Ok(()));
    }
}
