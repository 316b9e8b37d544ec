//! Folders under `tools/` → what each namespace wants to be (DRP-01…08, DRP-17, DRP-24).
//!
//! Reads files and nothing else: no tool code is parsed or run here. The same tree gives the same result in the same
//! order. What cannot be used is skipped and reported, never fatal for its neighbours.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::manifest::Manifest;
use crate::names::NamespaceName;
use crate::registry::Issue;
use crate::tree_file::{self, Refused, resolve};

mod check;

pub use check::{check, check_folder};

/// The file with a namespace's dependencies.
pub const REQUIREMENTS_FILE: &str = "requirements.txt";

/// Folders beyond this many are not served.
const NAMESPACES_MAX: usize = 10_000;
/// Changes of files beyond this many in one namespace go unnoticed.
const FILES_MAX: usize = 10_000;
/// Beyond this much content in one namespace, changes are noticed by size and time only.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Folders deeper than this are not looked into.
const DEPTH_MAX: usize = 64;
/// The largest `requirements.txt`.
const REQUIREMENTS_BYTES_MAX: u64 = 1024 * 1024;

/// One namespace folder as it was found.
#[derive(Debug, Clone)]
pub struct NamespaceSource {
    /// Its name: the folder's.
    pub name: NamespaceName,
    /// The folder, absolute.
    pub dir: PathBuf,
    /// Whether there is a file that may hold tools.
    pub has_python: bool,
    /// Its `tooldock.yaml`.
    pub manifest: Manifest,
    /// Its `requirements.txt`.
    pub requirements: Option<Requirements>,
    /// What was skipped in it.
    pub issues: Vec<Issue>,
    /// Why it cannot be served as it is now.
    pub failure: Option<SourceFailure>,
    /// Hash over names and contents of its files, manifest and requirements included.
    pub files_hash: [u8; 32],
}

/// Why a folder cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFailure {
    /// Stable code: `invalid_manifest`, `dependency_error`, `unreadable`.
    pub code: &'static str,
    /// What is wrong, in one line.
    pub message: String,
}

/// A `requirements.txt` as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// The file, in its folder: relative lines in it are relative to that.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

impl Requirements {
    /// Whether any line asks for something.
    pub fn asks_for_packages(&self) -> bool {
        self.lines().next().is_some()
    }

    /// Whether a line names other files, so that the text alone does not say what will be installed.
    pub fn refers_to_files(&self) -> bool {
        const OPTIONS: [&str; 8] = [
            "-r",
            "-c",
            "-e",
            "-f",
            "--requirement",
            "--constraint",
            "--editable",
            "--find-links",
        ];
        self.lines().any(|line| {
            line.starts_with(['.', '/'])
                || line.contains("file:")
                || OPTIONS.iter().any(|option| line.starts_with(option))
        })
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.text
            .trim_start_matches('\u{feff}')
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
    }
}

/// Looks at every folder under `tools_dir`, in name order.
///
/// # Errors
///
/// Only when `tools_dir` itself cannot be read.
pub fn scan(tools_dir: &Path) -> io::Result<Vec<NamespaceSource>> {
    let tree = tools_dir.canonicalize()?;
    let mut entries = fs::read_dir(&tree)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut sources = Vec::new();
    for entry in entries {
        let file_name = entry.file_name();
        let text = file_name.to_string_lossy();
        // `_`, `.` and `__pycache__`: ignored by design, not by mistake.
        if text.starts_with(['_', '.']) {
            continue;
        }
        let path = entry.path();
        let folder = match resolve(&path, &tree) {
            Ok(Some(real)) if real.is_dir() => real,
            Ok(Some(_)) => continue,
            Ok(None) => {
                tracing::warn!(folder = %path.display(), "skipped: a symlink that leaves the tools directory");
                continue;
            }
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "skipped: cannot be read");
                continue;
            }
        };
        let name = match text.parse::<NamespaceName>() {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "skipped: not a namespace name");
                continue;
            }
        };
        if sources.len() == NAMESPACES_MAX {
            tracing::warn!(
                limit = NAMESPACES_MAX,
                "skipped the remaining folders: too many namespaces"
            );
            break;
        }
        sources.push(look_at(name, path, &folder, &tree));
    }
    Ok(sources)
}

fn look_at(name: NamespaceName, dir: PathBuf, folder: &Path, tree: &Path) -> NamespaceSource {
    let mut walk = Walk::new(tree);
    let mut failure = walk
        .directory(folder, Path::new(""), 0)
        .err()
        .map(|error| SourceFailure {
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
    // Once more by what they say: beyond the limits of the walk a change of these two is still a change.
    walk.field(format!("{manifest:?}").as_bytes());
    let text = requirements.as_ref().map(|found| found.text.as_bytes());
    walk.field(text.unwrap_or_default());
    let mut issues = walk.issues;
    issues.extend(manifest.issues.iter().cloned());
    NamespaceSource {
        name,
        dir,
        has_python: walk.has_python,
        manifest,
        requirements,
        issues,
        failure,
        files_hash: walk.hash.finalize().into(),
    }
}

/// Reads the `requirements.txt` of a namespace folder inside `tree`.
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

/// One pass over a namespace folder: its hash, whether it has tool files, what was skipped.
struct Walk<'a> {
    tree: &'a Path,
    hash: Sha256,
    files: usize,
    bytes: u64,
    has_python: bool,
    issues: Vec<Issue>,
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Path) -> Self {
        Self {
            tree,
            hash: Sha256::new(),
            files: 0,
            bytes: 0,
            has_python: false,
            issues: Vec::new(),
        }
    }

    /// Files first, so that a namespace's own tools count before any data below it exhausts the limits.
    fn directory(&mut self, directory: &Path, relative: &Path, depth: usize) -> io::Result<()> {
        let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let mut folders = Vec::new();
        for entry in entries {
            let file_name = entry.file_name();
            let name = file_name.to_string_lossy();
            let relative = relative.join(&file_name);
            let kind = entry.file_type()?;
            if name.starts_with('.')
                || name == "__pycache__"
                || depth == 0 && kind.is_file() && is_prose(&name)
            {
                continue;
            }
            if kind.is_dir() {
                folders.push((entry.path(), relative));
            } else if self.files == FILES_MAX {
                self.too_much("files");
                return Ok(());
            } else {
                self.files += 1;
                self.entry(&entry.path(), &relative, kind.is_symlink(), depth == 0);
            }
        }
        for (path, relative) in folders {
            if depth == DEPTH_MAX {
                self.too_much("nested folders");
                return Ok(());
            }
            // One unreadable folder below is reported; the rest of the namespace is as good as before.
            if let Err(error) = self.directory(&path, &relative, depth + 1) {
                self.skipped("unreadable", &relative, format!("cannot be read: {error}"));
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, relative: &Path, is_symlink: bool, top: bool) {
        self.field(relative.as_os_str().as_bytes());
        let (file, metadata) = match tree_file::open(path, self.tree) {
            Ok(opened) => opened,
            // A symlinked folder inside the tree is somebody's own; following it could go in circles.
            Err(Refused::Directory) if is_symlink => return,
            Err(refused) => {
                let code = match refused {
                    Refused::Outside => "symlink_outside",
                    Refused::Directory | Refused::Special => "not_a_file",
                    Refused::TooLarge(_) | Refused::Unreadable(_) => "unreadable",
                };
                return self.skipped(code, relative, format!("{refused}; it is not loaded"));
            }
        };
        if let Err(error) = self.content(file, &metadata) {
            return self.skipped("unreadable", relative, format!("cannot be read: {error}"));
        }
        self.has_python |= top && is_tool_file(relative);
    }

    fn content(&mut self, file: File, metadata: &Metadata) -> io::Result<()> {
        if metadata.len() > BYTES_MAX - self.bytes {
            self.too_much("content");
            for part in [
                metadata.size() as i64,
                metadata.mtime(),
                metadata.mtime_nsec(),
            ] {
                self.field(&part.to_le_bytes());
            }
            return Ok(());
        }
        // Hashed on its own, so that a file growing while it is read cannot run into the next one's name.
        let mut hash = Sha256::new();
        let mut rest = file.take(BYTES_MAX - self.bytes);
        self.bytes += io::copy(&mut rest, &mut HashWriter(&mut hash))?;
        self.field(&hash.finalize());
        Ok(())
    }

    fn field(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    fn skipped(&mut self, code: &'static str, relative: &Path, message: String) {
        // Part of the hash: a file that becomes readable is a change.
        self.field(code.as_bytes());
        self.issues.push(Issue {
            code,
            subject: relative.display().to_string(),
            message,
        });
    }

    fn too_much(&mut self, what: &str) {
        if self
            .issues
            .iter()
            .any(|issue| issue.code == "folder_too_large")
        {
            return;
        }
        self.issues.push(Issue {
            code: "folder_too_large",
            subject: ".".into(),
            message: format!(
                "too much {what} to compare; some changes will not be noticed on reload"
            ),
        });
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the file may hold tools (DRP-05, DRP-07). `tooldock.yaml` and the like do not end in `.py`.
fn is_tool_file(relative: &Path) -> bool {
    let name = relative.as_os_str().as_bytes();
    name.ends_with(b".py") && !name.starts_with(b"_")
}

/// Files for people: editing them restarts nothing.
fn is_prose(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    ["README", "LICENSE", "LICENCE", "CHANGELOG"]
        .iter()
        .any(|prose| stem.eq_ignore_ascii_case(prose))
        && !name.ends_with(".py")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tree_file::{make_pipe, without_waiting};

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
    fn the_hash_follows_tools_data_and_names_but_not_prose_and_caches() {
        let tree = Tree::new(&[
            ("ns/a.py", "1"),
            ("ns/data/words.csv", "1"),
            ("ns/README.md", "1"),
        ]);
        let first = tree.one().files_hash;
        assert_eq!(tree.one().files_hash, first, "same tree, same hash");
        tree.write("ns/README.md", "2");
        tree.write("ns/LICENSE", "2");
        tree.write("ns/__pycache__/a.pyc", "2");
        tree.write("ns/.git/HEAD", "2");
        assert_eq!(tree.one().files_hash, first);
        tree.write("ns/data/words.csv", "2");
        let second = tree.one().files_hash;
        assert_ne!(second, first);
        fs::rename(tree.path("ns/a.py"), tree.path("ns/b.py")).unwrap();
        let third = tree.one().files_hash;
        assert_ne!(third, second);
        tree.write("ns/requirements.txt", "x");
        assert_ne!(tree.one().files_hash, third);
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
            make_pipe(&tree.path("ns/data.csv"));
            let sources = without_waiting(move || tree.scan());
            let failure = sources[0].failure.as_ref().unwrap();
            assert_eq!(failure.code, code);
            assert_eq!(failure.message, format!("{file}: not a regular file"));
            let mut issues = sources[0].issues.iter();
            assert!(
                issues.any(|issue| (issue.code, &*issue.subject) == ("not_a_file", "data.csv")),
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

    #[test]
    fn requirements_tell_whether_they_ask_for_anything_or_name_files() {
        let requirements = |text: &str| Requirements {
            path: PathBuf::new(),
            text: text.into(),
        };
        assert!(!requirements("\n# nothing\n").asks_for_packages());
        assert!(requirements("httpx>=0.28.0\n").asks_for_packages());
        assert!(!requirements("httpx>=0.28.0\n--index-url https://x/\n").refers_to_files());
        for text in [
            "-r base.txt",
            "-e .",
            "./wheels/x.whl",
            "x @ file:///tmp/x.whl",
            "--find-links w",
        ] {
            assert!(requirements(text).refers_to_files(), "{text}");
        }
    }
}
