//! Recognizes the kind of file or folder that `tooldock check PATH` is to check, by its path and by the keys of the file.

use std::fs;
use std::path::{Path, PathBuf};

use tooldock_base::yaml::{self, Value};
use tooldock_workers::manifest::MANIFEST_FILE;

use crate::config::Config;

/// Maximum size of a file that is recognized by its keys, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;

/// A file or folder that `tooldock check PATH` can check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A data directory with its content.
    DataDir(PathBuf),
    /// A file in the format of `external/config.yaml`.
    Servers(PathBuf),
    /// The folder of a namespace.
    Namespace(PathBuf),
    /// A Python file in the folder of a namespace, and its name.
    Python(PathBuf, String),
}

impl Target {
    /// Recognizes the file or folder at a path.
    ///
    /// # Errors
    ///
    /// The reason why nothing there can be checked, in one line that names the path.
    pub(crate) fn at(path: &Path) -> Result<Self, String> {
        let said = |what: &str| format!("{}: {what}", path.display());
        let real = std::path::absolute(path).map_err(|error| said(&error.to_string()))?;
        let metadata = fs::metadata(&real).map_err(|error| said(&error.to_string()))?;
        if metadata.is_dir() {
            let has = |name: &str| real.join(name).exists();
            return if has("tools") || has("external") || has("config.yaml") {
                Ok(Self::DataDir(real))
            } else if has(MANIFEST_FILE) || has_python(&real) || is_in_tools(&real) {
                Ok(Self::Namespace(real))
            } else {
                Err(said(
                    "neither a data directory (tools/ or external/ is in one) nor the folder of a namespace (a .py file or a tooldock.yaml is in one)",
                ))
            };
        }
        if !metadata.is_file() || metadata.len() > BYTES_MAX {
            return Err(said("not a regular file of at most 1 MiB"));
        }
        if let Some((folder, file)) = python_file(&real) {
            return Ok(Self::Python(folder, file));
        }
        let keys = keys(&real).map_err(|error| said(&error))?;
        if keys.iter().any(|key| is_gateways(key)) {
            return Err(said(
                "a configuration of the gateway; say tooldock check -c FILE",
            ));
        }
        match real.parent() {
            Some(folder) if real.ends_with(MANIFEST_FILE) => Ok(Self::Namespace(folder.to_owned())),
            _ if keys.iter().any(|key| key == "servers")
                || real.ends_with("external/config.yaml") =>
            {
                Ok(Self::Servers(real))
            }
            _ => Err(said(
                "neither a Python file, nor a file of external servers (with the key `servers`), nor a namespace's tooldock.yaml",
            )),
        }
    }
}

/// Returns true if the parent of a folder is called `tools`, as it is for folders of namespaces.
fn is_in_tools(folder: &Path) -> bool {
    let tools = folder.parent().and_then(Path::file_name);
    tools.is_some_and(|it| it == "tools")
}

/// Returns true if a folder contains a Python file.
fn has_python(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|it| it == "py"))
}

/// Splits the path of a Python file into its folder and its name; `None` for other files.
fn python_file(file: &Path) -> Option<(PathBuf, String)> {
    let name = file.file_name()?.to_str()?;
    let is_python = name.ends_with(".py");
    is_python.then_some((file.parent()?.to_owned(), name.to_owned()))
}

fn keys(file: &Path) -> Result<Vec<String>, String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let tree: Value =
        yaml::from_slice(&text).map_err(|error| format!("not valid YAML: {error}"))?;
    let keys = tree.as_mapping().into_iter().flat_map(|keys| keys.keys());
    Ok(keys
        .filter_map(|key| key.as_str().map(str::to_owned))
        .collect())
}

/// Returns true if `key` is a top-level key of the gateway's configuration file.
fn is_gateways(key: &str) -> bool {
    let all = yaml::to_value(Config::default()).unwrap_or_default();
    all.get(key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_path_is_told_by_its_place_and_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        let write = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().expect("a folder")).expect("made");
            fs::write(at(path), text).expect("written");
        };
        write("data/external/config.yaml", "");
        write("data/tools/github/tooldock.yaml", "timeout: 5s");
        write("servers.yaml", "servers: {}");
        write("conf/tooldock.yaml", "listeners: []");
        write("other.yaml", "a: 1");
        write("empty/file", "");
        let target = |path: &str| Target::at(&at(path));
        let data = Target::DataDir(at("data"));
        assert_eq!(target("data"), Ok(data));
        let servers = |path: &str| Ok(Target::Servers(at(path)));
        for path in ["data/external/config.yaml", "servers.yaml"] {
            assert_eq!(target(path), servers(path));
        }
        write("plain/add.py", "");
        assert_eq!(target("plain"), Ok(Target::Namespace(at("plain"))));
        let python = Target::Python(at("plain"), "add.py".to_owned());
        assert_eq!(target("plain/add.py"), Ok(python));
        let namespace = Ok(Target::Namespace(at("data/tools/github")));
        assert_eq!(target("data/tools/github/tooldock.yaml"), namespace);
        assert_eq!(target("data/tools/github"), namespace);
        // An empty folder in `tools` is a namespace, too; the check itself says that it is empty.
        fs::create_dir(at("data/tools/emp")).expect("made");
        let empty = Ok(Target::Namespace(at("data/tools/emp")));
        assert_eq!(target("data/tools/emp"), empty);
        for (path, why) in [
            ("conf/tooldock.yaml", "check -c FILE"),
            ("other.yaml", "neither"),
            ("empty", "neither"),
            ("none", "No such file"),
        ] {
            let error = target(path).expect_err(path);
            assert!(error.contains(path) && error.contains(why), "{error}");
        }
    }
}
