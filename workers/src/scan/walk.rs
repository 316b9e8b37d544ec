//! One pass over a namespace folder: the hash of its sources, whether it has tool files, what was skipped.
//!
//! Sources are what decides how a worker behaves once it is started: Python files, the manifest, lists of requirements,
//! and every file of the local packages and wheels that those lists name. Anything else is data. A tool may write data
//! beside its files at any time, so data is neither read nor counted.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::requirements::{Named, named};
use super::{REQUIREMENTS_BYTES_MAX, Requirements};
use crate::manifest::MANIFEST_FILE;
use crate::registry::Issue;
use crate::tree_file::{self, Refused, resolve};

/// Changes of sources beyond this many in one namespace go unnoticed.
const FILES_MAX: usize = 10_000;
/// Folders beyond this many in one namespace are not looked into.
const FOLDERS_MAX: usize = 10_000;
/// Beyond this much content in one namespace, changes are noticed by size and time only.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Folders deeper than this are not looked into.
const DEPTH_MAX: usize = 64;
/// Lists of requirements beyond this many in one namespace are not read.
const LISTS_MAX: usize = 64;

/// Which files of a folder count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Those that are sources by their names.
    Sources,
    /// All: the folder is a package, or holds some.
    All,
}

pub(super) struct Walk<'a> {
    tree: &'a Path,
    pub(super) hash: Sha256,
    /// Hash over the inode number and change time of each of the namespace's own sources.
    pub(super) stamps: Sha256,
    files: usize,
    folders: usize,
    bytes: u64,
    pub(super) has_python: bool,
    pub(super) issues: Vec<Issue>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(tree: &'a Path) -> Self {
        Self {
            tree,
            hash: Sha256::new(),
            stamps: Sha256::new(),
            files: 0,
            folders: 0,
            bytes: 0,
            has_python: false,
            issues: Vec::new(),
        }
    }

    /// The namespace's own sources.
    pub(super) fn sources(&mut self, folder: &Path) -> io::Result<()> {
        self.directory(folder, Path::new(""), 0, Counted::Sources)
    }

    /// What requirements name on this machine. A folder outside of the tools directory is not looked into, and of a file
    /// there only size and time count: nothing outside is read.
    pub(super) fn packages(&mut self, folder: &Path, requirements: &Requirements) {
        for path in referred(folder, self.tree, &requirements.text) {
            let relative = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            self.field(relative.as_os_str().as_bytes());
            match resolve(&path, self.tree) {
                // The namespace's folder, or one around it: what is in it counts by its own name.
                Ok(Some(real)) if folder.starts_with(&real) => {}
                Ok(Some(real)) if real.is_dir() => {
                    if let Err(error) = self.directory(&real, &relative, 1, Counted::All) {
                        self.skipped("unreadable", &relative, format!("cannot be read: {error}"));
                    }
                }
                Ok(Some(_)) => {
                    self.file(&path, &relative, false, false);
                }
                Ok(None) => {
                    if let Ok(metadata) = path.metadata()
                        && metadata.is_file()
                    {
                        self.size_and_time(&metadata);
                    }
                }
                // The installer says what is wrong with that.
                Err(_) => self.field(b"missing"),
            }
        }
    }

    pub(super) fn field(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    /// Files first, so that a namespace's own tools count before anything below exhausts the limits.
    fn directory(
        &mut self,
        directory: &Path,
        relative: &Path,
        depth: usize,
        counted: Counted,
    ) -> io::Result<()> {
        let mut files = Vec::new();
        let mut folders = Vec::new();
        let is_package = ["pyproject.toml", "setup.py"]
            .iter()
            .any(|file| directory.join(file).exists());
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if name.as_bytes().starts_with(b".")
                || kind.is_dir() && is_left_by_installers(&name, is_package)
            {
                continue;
            }
            if kind.is_dir() {
                folders.push(name);
            } else if counted == Counted::All || is_source(&name, depth) {
                files.push((name, kind.is_symlink()));
            }
        }
        files.sort();
        folders.sort();
        for (name, is_symlink) in files {
            if self.files == FILES_MAX {
                self.too_much("files");
                return Ok(());
            }
            self.files += 1;
            let top = depth == 0 && counted == Counted::Sources;
            let (path, relative) = (directory.join(&name), relative.join(&name));
            let opened = self.file(&path, &relative, is_symlink, top);
            if counted == Counted::Sources
                && let Some(metadata) = opened
            {
                self.stamp(&metadata);
            }
        }
        for name in folders {
            if depth == DEPTH_MAX || self.folders == FOLDERS_MAX {
                self.too_much("nested folders");
                return Ok(());
            }
            self.folders += 1;
            let (path, relative) = (directory.join(&name), relative.join(&name));
            // One unreadable folder below is reported; the rest of the namespace is as good as before.
            if let Err(error) = self.directory(&path, &relative, depth + 1, counted) {
                self.skipped("unreadable", &relative, format!("cannot be read: {error}"));
            }
        }
        Ok(())
    }

    /// Takes a file in, and says what it was when it was opened; `None` if it cannot be read.
    fn file(
        &mut self,
        path: &Path,
        relative: &Path,
        is_symlink: bool,
        top: bool,
    ) -> Option<Metadata> {
        self.field(relative.as_os_str().as_bytes());
        let (file, metadata) = match tree_file::open(path, self.tree) {
            Ok(opened) => opened,
            // A symlinked folder inside the tree is somebody's own; following it could go in circles.
            Err(Refused::Directory) if is_symlink => return None,
            Err(refused) => {
                let code = match refused {
                    Refused::Outside => "symlink_outside",
                    Refused::Directory | Refused::Special => "not_a_file",
                    Refused::TooLarge(_) | Refused::Unreadable(_) => "unreadable",
                };
                self.skipped(code, relative, format!("{refused}; it is not loaded"));
                return None;
            }
        };
        if let Err(error) = self.content(file, &metadata) {
            self.skipped("unreadable", relative, format!("cannot be read: {error}"));
            return None;
        }
        self.has_python |= top && is_tool_file(relative);
        Some(metadata)
    }

    fn content(&mut self, file: File, metadata: &Metadata) -> io::Result<()> {
        if metadata.len() > BYTES_MAX - self.bytes {
            self.too_much("content");
            self.size_and_time(metadata);
            return Ok(());
        }
        // Hashed on its own, so that a file growing while it is read cannot run into the next one's name.
        let mut hash = Sha256::new();
        let mut rest = file.take(BYTES_MAX - self.bytes);
        self.bytes += io::copy(&mut rest, &mut HashWriter(&mut hash))?;
        self.field(&hash.finalize());
        Ok(())
    }

    fn stamp(&mut self, metadata: &Metadata) {
        self.stamps.update(metadata.ino().to_le_bytes());
        for part in [metadata.ctime(), metadata.ctime_nsec()] {
            self.stamps.update(part.to_le_bytes());
        }
    }

    fn size_and_time(&mut self, metadata: &Metadata) {
        for part in [
            metadata.size() as i64,
            metadata.mtime(),
            metadata.mtime_nsec(),
        ] {
            self.field(&part.to_le_bytes());
        }
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

/// Whether a file of this name decides about how the worker behaves.
fn is_source(name: &OsStr, depth: usize) -> bool {
    let bytes = name.as_bytes();
    bytes.ends_with(b".py")
        || depth == 0 && name == MANIFEST_FILE
        || bytes.starts_with(b"requirements") && bytes.ends_with(b".txt")
        // The folder may be a package itself: `-e .`.
        || ["pyproject.toml", "setup.cfg", "MANIFEST.in"]
            .iter()
            .any(|file| name == *file)
}

/// Folders that interpreters and installers write into the sources: building a local package must not look like a change
/// of it.
fn is_left_by_installers(name: &OsStr, in_package: bool) -> bool {
    name == "__pycache__"
        || name.as_bytes().ends_with(b".egg-info")
        || in_package && (name == "build" || name == "dist" || name == "target")
}

/// The paths that a list names, those that the lists named in it name included.
fn referred(folder: &Path, tree: &Path, text: &str) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut lists = vec![(text.to_owned(), folder.to_owned())];
    let mut read = 0;
    while let Some((text, directory)) = lists.pop() {
        for named in named(&text) {
            let list = match named {
                Named::Package(path) => {
                    paths.insert(folder.join(path));
                    continue;
                }
                Named::List(path) => directory.join(path),
            };
            if !paths.insert(list.clone()) || read == LISTS_MAX {
                continue;
            }
            read += 1;
            // A list outside of the tools directory is not read. Of a list that cannot be read, the installer complains.
            if let Ok(Some(content)) = tree_file::read(&list, tree, REQUIREMENTS_BYTES_MAX) {
                let directory = list.parent().unwrap_or(folder).to_owned();
                lists.push((String::from_utf8_lossy(&content).into_owned(), directory));
            }
        }
    }
    paths
}
