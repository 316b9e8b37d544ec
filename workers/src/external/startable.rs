//! Check of a server's program: reasons why this machine cannot start it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::spec::StdioSpec;

/// Returns the reason why the server cannot be started on this machine, with the configuration key at fault; `None` if no
/// reason is found.
pub(crate) fn not_startable(spec: &StdioSpec) -> Option<(&'static str, String)> {
    if !spec.cwd.is_dir() {
        return Some(("cwd", format!("{}: no such directory", spec.cwd.display())));
    }
    if is_found(spec) {
        return None;
    }
    let program = spec.program.display();
    let message = match spec.program.to_str() {
        Some(path) if path.contains('/') => format!("{program}: no program is there"),
        Some("npx") => "npx is not on PATH: install Node.js".to_owned(),
        Some("uvx") => "uvx is not on PATH: install uv, which brings it".to_owned(),
        _ => format!("{program} is not on PATH: install it, or say its whole path"),
    };
    Some(("command", message))
}

/// Returns true if the program exists. It is looked up as the system does when the server is started.
fn is_found(spec: &StdioSpec) -> bool {
    if spec.program.as_os_str().as_bytes().contains(&b'/') {
        return is_program(&spec.cwd.join(&spec.program));
    }
    let path = spec.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map(|(_, value)| value.expose()).unwrap_or_default();
    std::env::split_paths(OsStr::new(path))
        .map(|directory: PathBuf| spec.cwd.join(directory).join(&spec.program))
        .any(|candidate| is_program(&candidate))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
