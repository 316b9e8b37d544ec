//! Scan of the folders under `tools/` for the wanted state of each namespace (DRP-01…08, DRP-17, DRP-24).
//!
//! The scan only reads files: no tool code is parsed or run. An unchanged tree gives an equal result in the same order.
//! Unusable files are skipped and reported, and never affect others.

pub(crate) mod ignored;
mod packages;
mod program;
mod walk;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::Digest as _;
use tooldock_base::config::NamespacesConfig;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Claim;
use tooldock_base::tree_file::{self, resolve};
use tooldock_credentials::secrets::{NamespaceSecrets, Secrets};
use tooldock_process::environment::NamespacePackages;
use tooldock_process::requirements::{
    LocalFiles, REQUIREMENTS_BYTES_MAX, REQUIREMENTS_FILE, Requirements,
};

use crate::manifest::Manifest;

use program::ProgramFolder;
pub use program::ServerProgram;
use walk::Walk;

/// Maximum number of namespace folders that are served.
const NAMESPACES_MAX: usize = 10_000;

/// A namespace folder, with the result of the scan.
#[derive(Debug, Clone)]
pub struct NamespaceSource {
    /// Name of the namespace, which is the name of the folder.
    pub name: NamespaceName,
    /// Path of the folder, absolute.
    pub dir: PathBuf,
    /// True if the folder contains a Python file that may declare tools.
    pub has_python: bool,
    /// Content of the folder's `tooldock.yaml`.
    pub manifest: Manifest,
    /// MCP server that is run in place of a worker; `None` if the worker serves the folder.
    pub program: Option<ServerProgram>,
    /// Content of the folder's `requirements.txt`.
    pub requirements: Option<Requirements>,
    /// Issues about skipped files.
    pub issues: Vec<Issue>,
    /// Reason why the namespace cannot be served; `None` if it can.
    pub failure: Option<SourceFailure>,
    /// Hash over names and contents of the namespace's sources: Python files, requirements, manifest, and the local packages
    /// and wheels that the requirements name. Data that a tool writes to the folder are not part of the hash.
    pub files_hash: [u8; 32],
    /// Hash over the local files that an installer reads in addition to `requirements.txt`: further lists of requirements, and
    /// the content of local packages and wheels. A package that is used in place (`-e`) is included only with its build files,
    /// the names of its modules, and the sources that need a compiler.
    pub packages_hash: [u8; 32],
    /// Hash over `files_hash` and the inode number and change time of each source, except those of local packages. It changes
    /// when a source is written, even if its content is the same again.
    pub files_version: [u8; 32],
}

impl NamespaceSource {
    /// The secrets that the namespace's workers receive.
    pub(crate) fn secrets(&self, config: &NamespacesConfig, secrets: &Secrets) -> NamespaceSecrets {
        let (limits, ..) = self.manifest.effective_limits(&self.name, config);
        secrets.for_workers(&self.name, limits.global_secrets, &self.manifest.secrets)
    }

    /// The packages that the namespace's environment must contain.
    pub(crate) fn packages(&self) -> NamespacePackages<'_> {
        NamespacePackages {
            namespace: &self.name,
            requirements: self.requirements.as_ref(),
            packages: match &self.program {
                Some(ServerProgram::Python { packages, .. }) => packages,
                Some(ServerProgram::Node { .. }) | None => &[],
            },
            files_hash: self.packages_hash,
        }
    }

    /// Returns true if the namespace has a program or tool files, so that a process serves it.
    pub(crate) fn has_code(&self) -> bool {
        self.has_python || self.program.is_some()
    }

    /// Returns true if a Python interpreter serves the namespace.
    pub(crate) fn needs_python(&self) -> bool {
        match &self.program {
            Some(ServerProgram::Node { .. }) => false,
            Some(ServerProgram::Python { .. }) => true,
            None => self.has_python,
        }
    }

    /// Creates the failed source of a served namespace whose folder was removed or has no Python file left.
    pub(crate) fn unreadable(name: NamespaceName, dir: PathBuf) -> Self {
        let message = format!(
            "{}: no Python file is there any more; a reload (POST /reload or SIGHUP) takes the namespace as it is then",
            dir.display()
        );
        Self {
            name,
            dir,
            has_python: false,
            manifest: Manifest::default(),
            program: None,
            requirements: None,
            issues: Vec::new(),
            failure: Some(SourceFailure {
                code: "unreadable",
                message,
            }),
            files_hash: [0; 32],
            packages_hash: [0; 32],
            files_version: [0; 32],
        }
    }
}

/// Reason why a folder cannot be served as a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFailure {
    /// Stable code: `invalid_manifest`, `dependency_error`, `unreadable`.
    pub code: &'static str,
    /// Description of the problem, in one line.
    pub message: String,
}

/// Scans every folder under `tools_dir`, sorted by name.
///
/// # Errors
///
/// Only when `tools_dir` itself cannot be read.
pub fn scan(tools_dir: &Path) -> io::Result<Vec<NamespaceSource>> {
    let tree = tools_dir.canonicalize()?;
    let found = folders(&tree)?.into_iter();
    let sources = found.map(|found| look_at(found.name, found.path, &found.real, &tree));
    Ok(sources.collect())
}

/// The names of namespaces that the folders under `tools_dir` claim. Empty if the directory cannot be read.
pub fn claims(tools_dir: &Path) -> Vec<Claim> {
    let tree = tools_dir.canonicalize();
    let found = tree.and_then(|tree| folders(&tree)).unwrap_or_default();
    found.iter().map(|it| Claim::folder(&it.name)).collect()
}

/// A folder whose name is valid for a namespace.
struct ScannedFolder {
    name: NamespaceName,
    path: PathBuf,
    real: PathBuf,
}

/// The namespace folders of `tree`, sorted by name. `tree` is a path without symlinks.
fn folders(tree: &Path) -> io::Result<Vec<ScannedFolder>> {
    let mut entries = fs::read_dir(tree)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut folders = Vec::new();
    for entry in entries {
        let file_name = entry.file_name();
        let text = file_name.to_string_lossy();
        // Such names (also `__pycache__`) are ignored by design, so they are not reported.
        if text.starts_with(['_', '.']) {
            continue;
        }
        let path = entry.path();
        let Ok((name, real)) = namespace_at(&path, tree) else {
            continue;
        };
        if folders.len() == NAMESPACES_MAX {
            tracing::warn!(
                limit = NAMESPACES_MAX,
                "skipped the remaining folders: too many namespaces"
            );
            break;
        }
        folders.push(ScannedFolder { name, path, real });
    }
    Ok(folders)
}

/// Scans one folder under `tools_dir`; `None` if it is not a namespace.
///
/// # Errors
///
/// When `tools_dir` itself cannot be read.
pub(crate) fn scan_one(
    tools_dir: &Path,
    name: &NamespaceName,
) -> io::Result<Option<NamespaceSource>> {
    let tree = tools_dir.canonicalize()?;
    let path = tree.join(name.as_str());
    if !path.try_exists().unwrap_or(true) {
        return Ok(None);
    }
    let found = namespace_at(&path, &tree).ok();
    Ok(found.map(|(name, folder)| look_at(name, path, &folder, &tree)))
}

/// Returns true if the tools directory contains a folder with this name. Reads no file.
pub fn has_folder(tools_dir: &Path, name: &NamespaceName) -> bool {
    let Ok(tree) = tools_dir.canonicalize() else {
        return false;
    };
    let folder = resolve(&tree.join(name.as_str()), &tree);
    matches!(folder, Ok(Some(folder)) if folder.is_dir())
}

/// Scans the folder of a namespace at any path; `None` if the folder does not exist.
///
/// # Errors
///
/// When the folder's parent cannot be read.
pub(crate) fn scan_folder(name: &NamespaceName, dir: &Path) -> io::Result<Option<NamespaceSource>> {
    let (Some(parent), Some(own)) = (dir.parent(), dir.file_name()) else {
        return Ok(None);
    };
    let tree = parent.canonicalize()?;
    let path = tree.join(own);
    match resolve(&path, &tree) {
        Ok(Some(folder)) if folder.is_dir() => {
            Ok(Some(look_at(name.clone(), path, &folder, &tree)))
        }
        _ => Ok(None),
    }
}

/// Computes the current [`NamespaceSource::files_hash`] of a folder; `None` if it is not a namespace. Blocking.
pub fn files_hash(dir: &Path) -> Option<[u8; 32]> {
    source_of(dir).map(|source| source.files_hash)
}

/// Computes the current [`NamespaceSource::files_version`] of a folder; `None` if it is not a namespace. Blocking.
pub(crate) fn files_version(dir: &Path) -> Option<[u8; 32]> {
    source_of(dir).map(|source| source.files_version)
}

/// Maximum number of Python files at the top of a folder that are read in the search for servers and for mistakes.
const SEARCHED_MAX: usize = 500;

/// Returns the names of the Python files at the top of a folder, sorted. Names that begin with `.` or `_` are left out.
fn python_names(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = found.filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| name.ends_with(".py") && !name.starts_with(['_', '.']));
    let mut names: Vec<_> = names.take(SEARCHED_MAX).collect();
    names.sort();
    names
}

/// Scans a folder under an arbitrary namespace name, which is sufficient for hashes, since they do not depend on the name.
fn source_of(dir: &Path) -> Option<NamespaceSource> {
    scan_folder(&NamespaceName::global(), dir).ok()?
}

/// Returns the namespace name of a folder, and the folder's path without symlinks.
///
/// # Errors
///
/// The code and message of an issue about a folder that is not served; `None` for a file.
fn namespace_at(
    path: &Path,
    tree: &Path,
) -> Result<(NamespaceName, PathBuf), Option<(&'static str, String)>> {
    let folder = match resolve(path, tree) {
        Ok(Some(real)) if real.is_dir() => real,
        Ok(Some(_)) => return Err(None),
        Ok(None) => {
            let message = "is not served: a symlink that leaves the tools directory".to_owned();
            return Err(Some(("symlink_outside", message)));
        }
        Err(error) => {
            let message = format!("is not served: cannot be read: {error}");
            return Err(Some(("unreadable", message)));
        }
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.parse().map(|name| (name, folder)).map_err(|error| {
        let message = format!("is not served: not a namespace name: {error}; rename the folder");
        Some((ignored::INVALID_NAME, message))
    })
}

pub(crate) fn look_at(
    name: NamespaceName,
    dir: PathBuf,
    folder: &Path,
    tree: &Path,
) -> NamespaceSource {
    let mut walk = Walk::new(tree);
    let mut failure = walk.sources(folder).err().map(|error| SourceFailure {
        code: "unreadable",
        message: format!("the folder cannot be read: {error}"),
    });
    let manifest = Manifest::read(folder, tree).unwrap_or_else(|error| {
        failure.get_or_insert(SourceFailure {
            code: "invalid_manifest",
            message: error.to_string(),
        });
        Manifest::default()
    });
    let requirements = read_requirements(&dir, tree).unwrap_or_else(|message| {
        failure.get_or_insert(SourceFailure {
            code: "dependency_error",
            message: format!("{REQUIREMENTS_FILE}: {message}"),
        });
        None
    });
    let local = requirements.as_ref().map_or_else(
        || Ok(LocalFiles::default()),
        |requirements| LocalFiles::read(folder, &requirements.text),
    );
    let mut program = None;
    let mut ignored = Vec::new();
    if let Ok(local) = &local {
        let asked = ignored::asked(requirements.as_ref(), local);
        let found = ProgramFolder {
            folder,
            tree,
            manifest: &manifest,
            requirements: requirements.as_ref(),
            asked: &asked,
            has_local_packages: !local.places.is_empty(),
        };
        match found.program() {
            Ok(found) if found.is_some() && failure.is_none() => program = found,
            Ok(_) => ignored = ignored::files(folder, tree, &asked, local),
            Err(message) => {
                failure.get_or_insert(SourceFailure {
                    code: "invalid_manifest",
                    message,
                });
            }
        }
    }
    let scripts = match &program {
        Some(ServerProgram::Node { .. }) => walk.scripts(folder),
        _ => Ok(()),
    };
    if let Err(error) = scripts {
        failure.get_or_insert(SourceFailure {
            code: "unreadable",
            message: format!("the folder cannot be read: {error}"),
        });
    }
    let packages = local.and_then(|local| walk.packages(folder, &local));
    let packages_hash = packages.unwrap_or_else(|message| {
        failure.get_or_insert(SourceFailure {
            code: "dependency_error",
            message: format!("{REQUIREMENTS_FILE}: {message}"),
        });
        // The message is hashed, so that correcting the requirements counts as a change.
        walk.field(message.as_bytes());
        [0; 32]
    });
    // The manifest and the requirements are hashed here by content, so that a change of them is detected even if the walk
    // reached its limits.
    walk.field(format!("{manifest:?}").as_bytes());
    let text = requirements.as_ref().map(|found| found.text.as_bytes());
    walk.field(text.unwrap_or_default());
    match &program {
        Some(program @ ServerProgram::Python { .. }) => {
            walk.field(format!("{program:?}").as_bytes());
        }
        // The files that list the packages are hashed with the program's other files, so only the program's name is added here.
        Some(ServerProgram::Node { file, .. }) => walk.field(file.as_bytes()),
        None => {}
    }
    if let Some(program) = &program {
        walk.program(folder, program.file());
    }
    let mut issues = walk.issues;
    issues.extend(manifest.issues.iter().cloned());
    issues.extend(ignored);
    if !walk.has_python && program.is_none() && failure.is_none() {
        issues.push(ignored::empty(folder));
    }
    let files_hash = walk.hash.finalize();
    let files_version = walk.stamps.chain_update(files_hash).finalize();
    NamespaceSource {
        name,
        dir,
        has_python: walk.has_python,
        manifest,
        program,
        requirements,
        issues,
        failure,
        files_hash: files_hash.into(),
        packages_hash,
        files_version: files_version.into(),
    }
}

/// Reads the `requirements.txt` of a namespace folder inside the directory `tree`; `None` if it does not exist.
pub(crate) fn read_requirements(dir: &Path, tree: &Path) -> Result<Option<Requirements>, String> {
    let path = dir.join(REQUIREMENTS_FILE);
    let bytes = match tree_file::read(&path, tree, REQUIREMENTS_BYTES_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(refused) => return Err(refused.to_string()),
    };
    let text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    Ok(Some(Requirements { path, text }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tooldock_base::tree_file::{make_pipe, without_waiting};

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                tree.write(path, text);
            }
            tree
        }

        fn path(&self, relative: &str) -> PathBuf {
            self.0.path().join("tools").join(relative)
        }

        fn write(&self, relative: &str, text: &str) {
            let path = self.path(relative);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn scan(&self) -> Vec<NamespaceSource> {
            scan(&self.path("")).unwrap()
        }

        fn one(&self) -> NamespaceSource {
            let mut sources = self.scan();
            assert_eq!(sources.len(), 1);
            sources.remove(0)
        }
    }

    fn names(sources: &[NamespaceSource]) -> Vec<&str> {
        sources.iter().map(|source| source.name.as_str()).collect()
    }

    #[test]
    fn an_edited_tool_installs_nothing() {
        for requirements in ["httpx\n", "-r base.txt\n"] {
            let files = [
                ("ns/tool.py", "a = 1"),
                ("ns/requirements.txt", requirements),
                ("ns/base.txt", "httpx\n"),
            ];
            let tree = Tree::new(&files);
            let plain = tree.one();
            tree.write("ns/tool.py", "a = 2");
            let edited = tree.one();
            assert_ne!(plain.files_hash, edited.files_hash);
            assert_eq!(plain.packages(), edited.packages());
            tree.write("ns/base.txt", "httpx2\n");
            let follows = requirements.starts_with("-r");
            assert_eq!(plain.packages() != tree.one().packages(), follows);
        }
    }

    #[test]
    fn a_folder_of_a_name_is_found_in_the_tools_directory_and_nowhere_else() {
        let tree = Tree::new(&[("there/a.py", ""), ("file", ""), ("../outside/a.py", "")]);
        symlink(tree.path("../outside"), tree.path("leaving")).unwrap();
        let found = |name: &str| has_folder(&tree.path(""), &name.parse().unwrap());
        assert!(found("there"));
        for other in ["absent", "file", "leaving"] {
            assert!(!found(other), "{other}");
        }
        let absent = Path::new("/no/such/tools");
        assert!(!has_folder(absent, &"there".parse().unwrap()));
    }

    #[test]
    fn finds_valid_names_in_order_and_skips_the_rest() {
        let tree = Tree::new(&[
            ("my-tools/a.py", ""),
            ("Bad.Name/a.py", ""),
            ("_private/a.py", ""),
            (".git/a.py", ""),
            ("__pycache__/a.pyc", ""),
            ("alpha/a.py", ""),
            ("stray.py", ""),
        ]);
        fs::create_dir(tree.path("empty")).unwrap();
        let sources = tree.scan();
        assert_eq!(names(&sources), ["alpha", "empty", "my-tools"]);
        assert!(!sources[1].has_python);
        assert!(sources[0].has_python);
    }

    #[test]
    fn only_py_files_at_the_top_without_underscore_may_hold_tools() {
        let tree = Tree::new(&[
            ("ns/_helper.py", ""),
            ("ns/.hidden.py", ""),
            ("ns/README.md", ""),
            ("ns/requirements.txt", "httpx\n"),
            ("ns/tooldock.yaml", "description: x"),
            ("ns/pkg/inner.py", ""),
        ]);
        let source = tree.one();
        assert!(!source.has_python);
        assert_eq!(source.manifest.description, "x");
        assert_eq!(source.requirements.unwrap().text, "httpx\n");
    }

    #[test]
    fn the_hash_follows_sources_and_their_names_and_no_data_beside_them() {
        let tree = Tree::new(&[("ns/a.py", "1"), ("ns/pkg/inner.py", "1")]);
        let mut last = tree.one().files_hash;
        assert_eq!(tree.one().files_hash, last, "same tree, same hash");
        for data in [
            "ns/notes.db",
            "ns/notes.db-wal",
            "ns/cache/words.csv",
            "ns/README.md",
            "ns/__pycache__/a.pyc",
            "ns/.git/HEAD",
            "ns/pkg/tooldock.yaml",
            "ns/skills/review/more.md",
            "ns/a/b/c/d/SKILL.md",
        ] {
            tree.write(data, "2");
            assert_eq!(tree.one().files_hash, last, "{data}");
        }
        for source in [
            "ns/a.py",
            "ns/pkg/inner.py",
            "ns/pkg/new.py",
            "ns/requirements.txt",
            "ns/requirements-dev.txt",
            "ns/tooldock.yaml",
            "ns/skills/review/SKILL.md",
        ] {
            tree.write(source, "# 2");
            let hash = tree.one().files_hash;
            assert_ne!(hash, last, "{source}");
            last = hash;
        }
        fs::rename(tree.path("ns/a.py"), tree.path("ns/b.py")).unwrap();
        assert_ne!(tree.one().files_hash, last);
        assert_eq!(
            files_hash(&tree.path("ns")),
            Some(tree.one().files_hash),
            "one folder alone"
        );
        assert_eq!(files_hash(&tree.path("none")), None);
    }

    #[test]
    fn the_hash_follows_local_packages_and_wheels_that_requirements_name() {
        let tree = Tree::new(&[
            ("ns/a.py", ""),
            (
                "ns/requirements.txt",
                "libs/mine\nwheels/x-1.0-py3-none-any.whl\n-r lists/more.txt\n",
            ),
            ("ns/lists/more.txt", "./other\n../shared/common\n"),
            ("ns/libs/mine/pyproject.toml", ""),
            ("ns/libs/mine/mine/words.txt", "1"),
            ("ns/wheels/x-1.0-py3-none-any.whl", "1"),
            ("ns/wheels/y-1.0-py3-none-any.whl", "1"),
            ("ns/other/setup.cfg", "1"),
            ("shared/common/data.txt", "1"),
        ]);
        let hash = || {
            let mut sources = tree.scan().into_iter();
            let ns = sources.find(|source| source.name.as_str() == "ns").unwrap();
            assert_eq!(ns.issues, []);
            ns.files_hash
        };
        let mut last = hash();
        for named in [
            "ns/libs/mine/mine/words.txt",
            "ns/wheels/x-1.0-py3-none-any.whl",
            "ns/lists/more.txt",
            "ns/other/setup.cfg",
        ] {
            let before = fs::read_to_string(tree.path(named)).unwrap();
            tree.write(named, &format!("{before}\n# 2"));
            let now = hash();
            assert_ne!(now, last, "{named}");
            last = now;
        }
        tree.write("shared/common/data.txt", "2");
        assert_ne!(hash(), last, "beside the namespace");
        last = hash();
        for left in [
            // Left by building the package.
            "ns/libs/mine/build/lib/mine/mod.py",
            "ns/libs/mine/mine.egg-info/PKG-INFO",
            "ns/libs/mine/mine/__pycache__/mod.pyc",
            // Not named in the requirements.
            "ns/wheels/y-1.0-py3-none-any.whl",
        ] {
            tree.write(left, "2");
            assert_eq!(hash(), last, "{left}");
        }
    }

    #[test]
    fn requirements_that_name_their_own_folder_or_what_is_outside_of_the_tree_are_harmless() {
        let tree = Tree::new(&[("ns/a.py", "")]);
        let outside = tree.0.path().join("x-1.0-py3-none-any.whl");
        fs::write(&outside, "1").unwrap();
        let text = format!("-e .\n..\n/\n-r requirements.txt\n{}\n", outside.display());
        tree.write("ns/requirements.txt", &text);
        let first = tree.one();
        assert_eq!(first.issues, []);
        tree.write("ns/notes.db", "1");
        assert_eq!(tree.one().files_hash, first.files_hash);
        fs::write(&outside, "longer").unwrap();
        assert_ne!(tree.one().files_hash, first.files_hash, "by size and time");
    }

    #[test]
    fn the_hash_follows_the_content_of_local_packages_wherever_they_are() {
        let tree = Tree::new(&[("ns/a.py", "")]);
        let outside = tree.0.path().join("lib");
        fs::create_dir_all(outside.join("lib")).unwrap();
        fs::write(outside.join("pyproject.toml"), "").unwrap();
        let module = outside.join("lib/__init__.py");
        for (line, is_built) in [
            (outside.display().to_string(), true),
            (format!("file://{}", outside.display()), true),
            (format!("lib @ file://{}", outside.display()), true),
            (format!("-e {}", outside.display()), false),
            (format!("-e file://{}#egg=lib", outside.display()), false),
        ] {
            fs::write(&module, "V = 1").unwrap();
            tree.write("ns/requirements.txt", &line);
            let before = tree.one();
            assert_eq!(before.issues, [], "{line}");
            let times = fs::metadata(&module).unwrap().modified().unwrap();
            fs::write(&module, "V = 2").unwrap();
            fs::File::options()
                .write(true)
                .open(&module)
                .and_then(|file| file.set_modified(times))
                .unwrap();
            let after = tree.one();
            assert_ne!(after.files_hash, before.files_hash, "{line}");
            assert_eq!(
                after.packages_hash != before.packages_hash,
                is_built,
                "{line}"
            );
            for left in ["build/lib", ".venv", ".git", "lib.egg-info", "dist", "venv"] {
                fs::create_dir_all(outside.join(left)).unwrap();
                fs::write(outside.join(left).join("pyvenv.cfg"), "").unwrap();
            }
            assert_eq!(tree.one().files_hash, after.files_hash, "{line}");
        }
    }

    #[test]
    fn the_hash_of_packages_follows_lists_and_local_packages_and_no_tool() {
        let tree = Tree::new(&[
            ("ns/a.py", ""),
            ("ns/requirements.txt", "-r lists/more.txt\n-e ./mine\n"),
            ("ns/lists/more.txt", "-c pins.txt\n"),
            ("ns/lists/pins.txt", "httpx<1\n"),
            ("ns/mine/pyproject.toml", ""),
            ("ns/mine/mine/__init__.py", ""),
            ("ns/mine/fast.c", ""),
        ]);
        let mut last = tree.one().packages_hash;
        for (file, is_installed) in [
            ("ns/a.py", false),
            ("ns/requirements.txt.bak", false),
            ("ns/mine/mine/__init__.py", false),
            ("ns/mine/mine/new.py", false),
            ("ns/lists/pins.txt", true),
            ("ns/lists/more.txt", true),
            ("ns/mine/pyproject.toml", true),
            ("ns/mine/second/__init__.py", true),
            ("ns/mine/fast.c", true),
        ] {
            let text = match file {
                "ns/lists/more.txt" => "-c pins.txt\nhttpx\n",
                _ => "# 2",
            };
            tree.write(file, text);
            let now = tree.one().packages_hash;
            assert_eq!(now != last, is_installed, "{file}");
            last = now;
        }
    }

    #[test]
    fn a_list_or_local_package_with_a_pipe_or_device_fails_its_namespace_and_no_other() {
        for (text, subject) in [
            ("-r pipe\n", "pipe"),
            ("-c ./lists/pipes.txt\n", "pipe"),
            ("./lib\n", "lib/setup.cfg"),
            ("./pipe.whl\n", "pipe.whl"),
            ("-r /dev/zero\n", "/dev/zero"),
        ] {
            let tree = Tree::new(&[
                ("ns/a.py", ""),
                ("ns/requirements.txt", text),
                ("ns/lists/pipes.txt", "-r ../pipe\n"),
                ("ns/lib/pyproject.toml", ""),
                ("other/a.py", ""),
            ]);
            for pipe in ["ns/pipe", "ns/pipe.whl", "ns/lib/setup.cfg"] {
                make_pipe(&tree.path(pipe));
            }
            let sources = without_waiting(move || tree.scan());
            let failure = sources[0].failure.as_ref().unwrap();
            assert_eq!(failure.code, "dependency_error", "{text}");
            let named = failure.message.contains(&format!("{subject}: "));
            assert!(
                named && failure.message.contains("not a regular file"),
                "{failure:?}"
            );
            assert_eq!(sources[1].failure, None);
        }
    }

    #[test]
    fn a_local_package_beyond_the_limits_is_an_issue_that_names_it() {
        let tree = Tree::new(&[
            ("ns/a.py", ""),
            ("ns/requirements.txt", "./lib\n"),
            ("ns/lib/pyproject.toml", ""),
        ]);
        let large = fs::File::create(tree.path("ns/lib/model.bin")).unwrap();
        large.set_len(256 * 1024 * 1024 + 1).unwrap();
        let source = tree.one();
        let [issue] = &source.issues[..] else {
            panic!("{:?}", source.issues)
        };
        assert_eq!(issue.code, "folder_too_large");
        assert_eq!(issue.subject, "lib");
        assert!(issue.message.contains("local package"), "{issue:?}");
        assert_eq!(source.failure, None);
    }

    #[test]
    fn symlinks_out_of_the_tree_are_refused_and_reported() {
        let tree = Tree::new(&[("ns/a.py", "")]);
        let outside = tree.0.path().join("outside.py");
        fs::write(&outside, "x = 1").unwrap();
        symlink(&outside, tree.path("ns/evil.py")).unwrap();
        symlink(tree.path("ns/missing.py"), tree.path("ns/broken.py")).unwrap();
        symlink(tree.path("ns"), tree.path("ns/loop")).unwrap();
        symlink(tree.0.path(), tree.path("escaped")).unwrap();
        let source = tree.one();
        let issues: Vec<_> = source
            .issues
            .iter()
            .map(|i| (i.code, i.subject.as_str()))
            .collect();
        assert_eq!(
            issues,
            [("unreadable", "broken.py"), ("symlink_outside", "evil.py")]
        );
        let before = source.files_hash;
        fs::write(&outside, "x = 2").unwrap();
        assert_eq!(
            tree.one().files_hash,
            before,
            "what is outside was not read"
        );
    }

    #[test]
    fn a_bad_manifest_fails_its_namespace_and_no_other() {
        let tree = Tree::new(&[
            ("bad/a.py", ""),
            ("bad/tooldock.yaml", "timeout: soon"),
            ("good/a.py", ""),
        ]);
        let sources = tree.scan();
        let failure = sources[0].failure.as_ref().unwrap();
        assert_eq!(failure.code, "invalid_manifest");
        assert!(failure.message.starts_with("tooldock.yaml: timeout: "));
        assert_eq!(sources[1].failure, None);
    }

    #[test]
    fn requirements_that_are_no_text_fail_the_namespace() {
        let tree = Tree::new(&[("ns/a.py", "")]);
        fs::write(tree.path("ns/requirements.txt"), b"\xff\xfe\x00").unwrap();
        assert_eq!(tree.one().failure.unwrap().code, "dependency_error");
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_reported_and_not_waited_on() {
        for (file, code) in [
            ("requirements.txt", "dependency_error"),
            ("tooldock.yaml", "invalid_manifest"),
        ] {
            let tree = Tree::new(&[("ns/a.py", ""), ("other/a.py", "")]);
            make_pipe(&tree.path("ns").join(file));
            make_pipe(&tree.path("ns/data.py"));
            let sources = without_waiting(move || tree.scan());
            let failure = sources[0].failure.as_ref().unwrap();
            assert_eq!(failure.code, code);
            assert_eq!(failure.message, format!("{file}: not a regular file"));
            let mut issues = sources[0].issues.iter();
            assert!(
                issues.any(|issue| (issue.code, &*issue.subject) == ("not_a_file", "data.py")),
                "{:?}",
                sources[0].issues
            );
            assert_eq!(sources[1].failure, None);
        }
    }

    #[test]
    fn requirements_and_manifest_outside_the_tree_are_not_read() {
        for file in ["requirements.txt", "tooldock.yaml"] {
            let tree = Tree::new(&[("ns/a.py", "")]);
            let outside = tree.0.path().join("outside");
            fs::write(&outside, "# secret").unwrap();
            symlink(&outside, tree.path("ns").join(file)).unwrap();
            let failure = tree.one().failure.unwrap();
            assert!(
                failure.message.starts_with(file) && failure.message.contains("leaves the tools"),
                "{failure:?}"
            );
        }
    }
}
