//! MCP servers for Node.js, as their `package.json` describes them.

use std::path::{Component, Path};

use serde_json::Value;
use tooldock_base::tree_file;
use tooldock_process::environment::NodePackages;

use super::ServerProgram;

const MANIFEST: &str = "package.json";
const LOCK: &str = "package-lock.json";
/// Maximum size of a `package.json`, in bytes.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of a `package-lock.json`, in bytes.
const LOCK_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Prefix of the names of the official SDK's packages.
const OFFICIAL: &str = "@modelcontextprotocol/";
/// Packages of others with which servers are written.
const OTHERS: [&str; 3] = ["fastmcp", "mcp-framework", "xmcp"];

/// Returns the packages that the files of a folder list; `None` without a `package.json`.
pub(super) fn packages(folder: &Path, tree: &Path) -> Option<NodePackages> {
    let read = |name: &str, max| tree_file::read(&folder.join(name), tree, max).ok()?;
    Some(NodePackages {
        manifest: read(MANIFEST, MANIFEST_BYTES_MAX)?,
        lock: read(LOCK, LOCK_BYTES_MAX),
    })
}

/// Returns the program that the `package.json` of a folder names, if it depends on an SDK.
///
/// # Errors
///
/// The reason why the program cannot be run.
pub(super) fn program(folder: &Path, tree: &Path) -> Result<Option<ServerProgram>, String> {
    let Some(packages) = packages(folder, tree) else {
        return Ok(None);
    };
    let Ok(manifest) = serde_json::from_slice::<Value>(&packages.manifest) else {
        return Ok(None);
    };
    let dependencies = manifest["dependencies"].as_object();
    let mut dependencies = dependencies.into_iter().flatten();
    let is_sdk = |name: &str| name.starts_with(OFFICIAL) || OTHERS.contains(&name);
    if !dependencies.any(|(name, _)| is_sdk(name)) {
        return Ok(None);
    }
    let Some(file) = entry(&manifest) else {
        return Err(format!(
            "{MANIFEST}: names no program of the MCP server: write its file under \"bin\" or \"main\", or `server: FILE` into \
             tooldock.yaml"
        ));
    };
    let file = file.strip_prefix("./").unwrap_or(file);
    let mut parts = Path::new(file).components();
    if !parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("{MANIFEST}: {file}: must be a path in the folder"));
    }
    if !folder.join(file).is_file() {
        return Err(format!(
            "{MANIFEST}: {file} is not there: build it (npm run build) before the reload, since the gateway runs no scripts"
        ));
    }
    Ok(Some(ServerProgram::Node {
        file: file.to_owned(),
        packages: Some(packages),
    }))
}

/// The file of the package's program: its only command, the command with the package's name, or its main file.
fn entry(manifest: &Value) -> Option<&str> {
    let bin = &manifest["bin"];
    let name = manifest["name"].as_str().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or(name);
    let commands = bin.as_object();
    let named = commands.and_then(|it| it.get(name).or_else(|| it.values().next()));
    let main = manifest["main"].as_str();
    bin.as_str().or_else(|| named?.as_str()).or(main)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program_of(manifest: &str, file: &str) -> Result<Option<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().canonicalize().unwrap();
        std::fs::write(tree.join(MANIFEST), manifest).unwrap();
        let path = tree.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        let found = program(&tree, &tree)?;
        Ok(found.map(|it| it.file().to_owned()))
    }

    #[test]
    fn the_program_is_a_command_or_the_main_file_of_a_package_that_depends_on_an_sdk() {
        let sdk = r#""dependencies": {"@modelcontextprotocol/sdk": "1"}"#;
        for (keys, file) in [
            (
                r#""bin": {"weather": "./build/index.js"}"#,
                "build/index.js",
            ),
            (
                r#""name": "@me/w", "bin": {"a": "a.js", "w": "w.js"}"#,
                "w.js",
            ),
            (r#""bin": "cli.js", "main": "index.js""#, "cli.js"),
            (r#""main": "index.js""#, "index.js"),
        ] {
            let found = program_of(&format!("{{{keys}, {sdk}}}"), file);
            assert_eq!(found, Ok(Some(file.to_owned())), "{keys}");
        }
        assert_eq!(program_of(r#"{"main": "a.js"}"#, "a.js"), Ok(None));
        assert_eq!(program_of("no json", "a.js"), Ok(None));
        for (keys, what) in [
            (r#""main": "build/x.js""#, "npm run build"),
            (r#""main": "../x.js""#, "path in the folder"),
            (r#""version": "1""#, "names no program"),
        ] {
            let error = program_of(&format!("{{{keys}, {sdk}}}"), "a.js").unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
