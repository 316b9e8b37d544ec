//! MCP servers for Node.js, as the `package.json` of a folder describes them.

use std::fs;
use std::path::{Component, Path};

use serde_json::Value;
use tooldock_base::tree_file;
use tooldock_process::environment::{NodePackages, is_build};

use super::ServerProgram;

const MANIFEST: &str = "package.json";
const LOCK: &str = "package-lock.json";
/// Maximum size of a `package.json`, in bytes.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of a `package-lock.json`, in bytes.
const LOCK_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Prefix of the names of the official SDK's packages.
const OFFICIAL: &str = "@modelcontextprotocol/";
/// Names of packages, other than the official SDK's, with which MCP servers are written.
const OTHERS: [&str; 3] = ["fastmcp", "mcp-framework", "xmcp"];

/// Returns the packages that the files of a folder list; `None` without a `package.json`.
///
/// # Errors
///
/// When a file cannot be read, or when the `package.json` refers to packages in folders beside it, which the gateway does not
/// copy, and the author has not installed them in `node_modules`.
pub(super) fn packages(folder: &Path, tree: &Path) -> Result<Option<NodePackages>, String> {
    let read = |name: &str, max| {
        let content = tree_file::read(&folder.join(name), tree, max);
        content.map_err(|error| format!("{name}: {error}"))
    };
    let Some(manifest) = read(MANIFEST, MANIFEST_BYTES_MAX)? else {
        return Ok(None);
    };
    let modules = folder.join("node_modules");
    let is_of_author =
        modules.exists() && !fs::read_link(&modules).is_ok_and(|target| is_build(&target));
    if !is_of_author && let Some(what) = beside_the_manifest(&manifest) {
        return Err(format!(
            "{MANIFEST}: {what}, and the gateway installs from {MANIFEST} and {LOCK} alone: run npm install in the folder"
        ));
    }
    Ok(Some(NodePackages {
        manifest: manifest.into(),
        lock: read(LOCK, LOCK_BYTES_MAX)?.map(Into::into),
    }))
}

/// Returns a text for error messages about a part of a `package.json` that refers to folders beside the file; `None` if there is
/// no such part.
fn beside_the_manifest(manifest: &[u8]) -> Option<String> {
    let manifest: Value = serde_json::from_slice(manifest).ok()?;
    if manifest.get("workspaces").is_some() {
        return Some("it has workspaces".to_owned());
    }
    let lists = ["dependencies", "optionalDependencies"];
    let mut dependencies = lists
        .iter()
        .filter_map(|list| manifest[*list].as_object())
        .flatten();
    let is_relative = |place: &Value| {
        let place = place.as_str().unwrap_or_default();
        let named = ["file:", "link:"]
            .iter()
            .find_map(|scheme| place.strip_prefix(scheme));
        let begins = |signs: &str| place.starts_with(signs);
        named.is_some_and(|path| !path.starts_with('/'))
            || begins("./")
            || begins("../")
            || begins("~/")
    };
    let (name, _) = dependencies.find(|(_, place)| is_relative(place))?;
    Some(format!("{name} is a folder beside it"))
}

/// Returns the program that the `package.json` of a folder names; `None` if its package does not depend on an SDK.
///
/// # Errors
///
/// When the package depends on an SDK, but its program has no name, is outside the folder or does not exist, or when its lists of
/// packages cannot be used. The message gives the reason.
pub(super) fn program(folder: &Path, tree: &Path) -> Result<Option<ServerProgram>, String> {
    let content = tree_file::read(&folder.join(MANIFEST), tree, MANIFEST_BYTES_MAX);
    let Ok(Some(content)) = content else {
        return Ok(None);
    };
    let Ok(manifest) = serde_json::from_slice::<Value>(&content) else {
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
    if tree_file::open(&folder.join(file), tree).is_err() {
        return Err(format!(
            "{MANIFEST}: {file} is not there: build it (npm run build) before the reload, since the gateway runs no scripts"
        ));
    }
    Ok(Some(ServerProgram::Node {
        file: file.to_owned(),
        packages: packages(folder, tree)?,
    }))
}

/// Returns the file of the package's program: its single command, the command with the package's name, its first command, or its
/// main file.
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

    #[test]
    fn folders_beside_the_manifest_are_refused_unless_the_author_installed_them() {
        let manifest = |lists: &str| format!(r#"{{"main":"a.js",{lists}}}"#);
        for (lists, refused) in [
            (r#""dependencies":{"a":"^1","b":"file:/opt/b"}"#, false),
            (r#""dependencies":{"a":"file:lib"}"#, true),
            (r#""dependencies":{"a":"link:../lib"}"#, true),
            (r#""dependencies":{"a":"./lib"}"#, true),
            (r#""optionalDependencies":{"a":"../lib"}"#, true),
            (r#""workspaces":["lib"]"#, true),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let tree = folder.path().canonicalize().unwrap();
            fs::write(tree.join(MANIFEST), manifest(lists)).unwrap();
            assert_eq!(packages(&tree, &tree).is_err(), refused, "{lists}");
            // A symlink that the gateway made for an earlier version of the list does not count as the author's `node_modules`.
            let builds = "/data/venvs/.builds/ns-0123456789abcdef/node_modules";
            let modules = tree.join("node_modules");
            std::os::unix::fs::symlink(builds, &modules).unwrap();
            assert_eq!(packages(&tree, &tree).is_err(), refused, "{lists}");
            fs::remove_file(&modules).unwrap();
            fs::create_dir(&modules).unwrap();
            assert!(packages(&tree, &tree).is_ok(), "{lists}");
        }
    }

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
