//! Commands about servers and the files of MCP clients: `tooldock import`, `add`, `remove` and `connect`.
//!
//! The crate `tooldock_import_clients` reads and writes the formats of clients. This module reads and writes the files in which
//! the gateway stores its servers: servers with a command in `$DATA/external/config.yaml`, servers with a URL in the
//! configuration file.

mod connect;
mod importing;
mod one_server;
mod placed;

pub(crate) use connect::connect;
pub(crate) use importing::import;
pub(crate) use one_server::{add, remove};

use std::path::{Path, PathBuf};

use tooldock_base::listening;
use tooldock_process::child::output::printable_text;

use crate::cli::ServerFiles;
use crate::config::{self, DEFAULT_FILE, Effective};

/// The gateway's configuration, and the configuration file into which servers with a URL are written.
struct Gateway {
    effective: Effective,
    config_file: PathBuf,
}

impl Gateway {
    /// Loads the configuration that `serve` would use. A configuration file that is named and missing is an error.
    fn load(places: &ServerFiles) -> Result<Self, String> {
        let effective =
            config::load_for_command(places.config.as_deref(), places.data_dir.as_deref())?;
        let config_file = effective.source.clone();
        Ok(Self {
            config_file: config_file.unwrap_or_else(|| DEFAULT_FILE.into()),
            effective,
        })
    }

    fn data(&self) -> &Path {
        &self.effective.data_dir
    }

    /// Returns a text that tells the user how the changes take effect. `data_file` is true if `external/config.yaml` was changed,
    /// `config_file` if the configuration file was.
    fn next_step(&self, data_file: bool, config_file: bool) -> String {
        if listening::addresses(self.data()).is_empty() {
            return match self.effective.source.is_none() && config_file {
                true => format!(
                    "Next: `tooldock serve -c {}` serves them.\n",
                    self.config_file.display()
                ),
                false => "Next: `tooldock serve` serves them.\n".to_owned(),
            };
        }
        let is_watched = self.effective.config.watcher.enabled;
        match (data_file, config_file) {
            (_, true) => "Next: send SIGHUP to the running gateway, which reads both files.\n",
            (true, false) if is_watched => {
                "Next: the running gateway reloads by itself within seconds.\n"
            }
            _ => {
                "Next: reload the running gateway: POST /reload, `reload_core`, or SIGHUP; with `serve --dev` it reloads by itself.\n"
            }
        }
        .to_owned()
    }
}

/// Writes a line to standard error, without characters that could control the terminal.
fn print_line(line: &str) {
    eprintln!("{}", printable_text(line));
}

/// Returns the home directory of the user.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|it| !it.is_empty());
    home.map(PathBuf::from)
}
