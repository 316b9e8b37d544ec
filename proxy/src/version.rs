//! `tooldock --version --json`: prints information about the build of this program, for inventories and reports. The information
//! is recorded by `build.rs`.

use std::collections::BTreeSet;
use std::ffi::OsString;

use serde_json::json;

/// Returns true if the arguments are `--version` (or `-V`) and `--json`, in any order and without others.
pub(crate) fn is_asked_as_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut asked = BTreeSet::new();
    for argument in arguments {
        let name = match argument.to_str() {
            Some("--version" | "-V") => "version",
            Some("--json") => "json",
            _ => return false,
        };
        if !asked.insert(name) {
            return false;
        }
    }
    asked.len() == 2
}

/// The build information as a line of JSON.
pub(crate) fn json() -> String {
    let commit = option_env!("TOOLDOCK_BUILD_COMMIT").filter(|it| !it.is_empty());
    let build = json!({
        "name": "tooldock",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit,
        "rustc": env!("TOOLDOCK_BUILD_RUSTC"),
        "target": env!("TOOLDOCK_BUILD_TARGET"),
        "profile": env!("TOOLDOCK_BUILD_PROFILE"),
    });
    format!("{build}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_options_alone_ask_for_json() {
        let asked = |words: &[&str]| is_asked_as_json(words.iter().map(OsString::from));
        assert!(asked(&["--version", "--json"]) && asked(&["--json", "-V"]));
        for other in [
            &[][..],
            &["--version"],
            &["--json"],
            &["--json", "--json"],
            &["keys", "--version", "--json"],
        ] {
            assert!(!asked(other), "{other:?}");
        }
    }
}
