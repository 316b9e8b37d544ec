//! Walk over a namespace folder: hashes its sources, looks for tool files, and reports skipped files.
//!
//! Sources are the files that determine the behaviour of a worker after its start: Python files, the manifest, lists of
//! requirements, `SKILL.md` of each skill, and every file of the local packages and wheels that those lists name. All other files are data. A tool may
//! write data to its folder at any time, so data are neither read nor counted.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tooldock_base::issue::Issue;
use tooldock_base::regular_file;
use tooldock_base::tree_file::{self, TreeFileError};
use tooldock_process::requirements::{LocalFiles, REQUIREMENTS_BYTES_MAX, Use, is_archive};

use crate::manifest::MANIFEST_FILE;

/// Maximum number of sources of one namespace that are hashed. Changes of further ones are not detected.
const FILES_MAX: usize = 10_000;
/// Maximum number of subfolders of one namespace that are read. Changes in further ones are not detected.
const FOLDERS_MAX: usize = 10_000;
/// Maximum number of bytes of one namespace that are hashed. Changes of further files are detected by size and time only.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum depth of a skill's folder in the namespace's folder.
const SKILL_DEPTH: usize = 3;
/// Maximum depth of subfolders that are read.
const DEPTH_MAX: usize = 64;

/// Selection of the files of a folder that are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSelection {
    /// Only files that are sources according to their names.
    Sources,
    /// Only files of Node.js programs, and the files that list their packages.
    Scripts,
    /// All files, because the folder is a package or contains packages.
    All,
}

impl FileSelection {
    fn has(self, name: &OsStr, depth: usize) -> bool {
        match self {
            Self::Sources => is_source(name, depth),
            Self::Scripts => is_script(name, depth),
            Self::All => true,
        }
    }
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
    /// Path, as written in the requirements, of the local package that is being read; `None` while the namespace's own files are
    /// read.
    place: Option<PathBuf>,
    /// Hash over those sources of the current local package that must be compiled.
    compiled: Sha256,
    /// Message about the first named pipe or device in a local package, on which an installer would block.
    refused: Option<String>,
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
            place: None,
            compiled: Sha256::new(),
            refused: None,
        }
    }

    /// Hashes the namespace's own sources.
    pub(super) fn sources(&mut self, folder: &Path) -> io::Result<()> {
        self.directory(folder, Path::new(""), 0, FileSelection::Sources)
    }

    /// Hashes the files of the namespace's Node.js program.
    pub(super) fn scripts(&mut self, folder: &Path) -> io::Result<()> {
        self.directory(folder, Path::new(""), 0, FileSelection::Scripts)
    }

    /// Hashes the file of the namespace's server program. Its path need not be one at which the walk looks for sources.
    pub(super) fn program(&mut self, folder: &Path, file: &str) {
        if let Some(metadata) = self.file(&folder.join(file), Path::new(file), false, false) {
            self.stamp(&metadata);
        }
    }

    /// Hashes the local lists and packages that requirements name, and returns
    /// [`packages_hash`](super::NamespaceSource::packages_hash). A folder outside of the tools directory is hashed completely
    /// if it is a package; otherwise only the wheels and archives in it are.
    ///
    /// # Errors
    ///
    /// A message about a named pipe or a device on which an installer would block.
    pub(super) fn packages(
        &mut self,
        folder: &Path,
        local: &LocalFiles,
    ) -> Result<[u8; 32], String> {
        let mut installed = Sha256::new();
        // The files of the namespace's own folder were already hashed as its sources. Their hash is used if that folder is itself
        // named as a package.
        let own: [u8; 32] = self.hash.clone().finalize().into();
        for (list, content) in &local.lists {
            let relative = list.strip_prefix(folder).unwrap_or(list);
            for part in [relative.as_os_str().as_bytes(), content.as_bytes()] {
                self.field(part);
                field(&mut installed, part);
            }
        }
        for (path, how) in &local.places {
            let relative = path.strip_prefix(folder).unwrap_or(path).to_owned();
            self.field(relative.as_os_str().as_bytes());
            field(&mut installed, relative.as_os_str().as_bytes());
            let Ok(real) = path.canonicalize() else {
                // A missing path is reported by the installer.
                self.field(b"missing");
                field(&mut installed, b"missing");
                continue;
            };
            // A folder outside of the tools directory in which the installer looks for packages is skipped: it may also contain
            // packages of others, whose changes must not count as changes of this namespace.
            if *how == Use::Links && !real.starts_with(self.tree) {
                continue;
            }
            let is_own = folder.starts_with(&real);
            // The package is hashed separately, because its hash is added to two hashes: `self.hash` and `installed`.
            let before = std::mem::take(&mut self.hash);
            self.compiled = Sha256::new();
            if !is_own {
                self.package(&real, &relative);
            }
            let content = std::mem::replace(&mut self.hash, before).finalize();
            self.field(&content);
            match how {
                Use::Editable if real.is_dir() => {
                    field(&mut installed, &described(&real));
                    field(&mut installed, &self.compiled.clone().finalize());
                }
                _ if is_own => field(&mut installed, &own),
                _ => field(&mut installed, &content),
            }
        }
        match self.refused.take() {
            Some(refused) => Err(refused),
            None => Ok(installed.finalize().into()),
        }
    }

    /// Hashes a package, an archive, or a folder of archives. `real` is a path without symlinks. Symlinks in the package are
    /// followed wherever they lead, as an installer follows them.
    fn package(&mut self, real: &Path, relative: &Path) {
        let is_inside = real.starts_with(self.tree);
        let tree = std::mem::replace(&mut self.tree, Path::new("/"));
        self.place = Some(relative.to_owned());
        if !real.is_dir() {
            self.file(real, relative, false, false);
        } else if is_inside || is_package(real) {
            if let Err(error) = self.directory(real, relative, 1, FileSelection::All) {
                self.skipped("unreadable", relative, format!("cannot be read: {error}"));
            }
        } else {
            self.archives(real, relative);
        }
        self.place = None;
        self.tree = tree;
    }

    /// Hashes the wheels and archives in a folder that is not a package.
    fn archives(&mut self, real: &Path, relative: &Path) {
        let found = fs::read_dir(real).into_iter().flatten().flatten();
        let names = found.map(|entry| entry.file_name());
        let mut names: Vec<_> = names
            .filter(|name| name.to_str().is_some_and(is_archive))
            .collect();
        names.sort();
        for name in names {
            if self.files == FILES_MAX {
                return self.too_much("files");
            }
            self.files += 1;
            self.file(&real.join(&name), &relative.join(&name), false, false);
        }
    }

    pub(super) fn field(&mut self, bytes: &[u8]) {
        field(&mut self.hash, bytes);
    }

    /// Hashes a folder. Its files are read before its subfolders, so that a namespace's own tools are read before subfolders
    /// exhaust the limits.
    fn directory(
        &mut self,
        directory: &Path,
        relative: &Path,
        depth: usize,
        counted: FileSelection,
    ) -> io::Result<()> {
        let mut files = Vec::new();
        let mut folders = Vec::new();
        let is_package = is_package(directory);
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if name.as_bytes().starts_with(b".")
                || kind.is_dir() && is_left_by_installers(&name, is_package)
                || kind.is_dir()
                    && counted == FileSelection::All
                    && directory.join(&name).join("pyvenv.cfg").exists()
            {
                continue;
            }
            if kind.is_dir() {
                folders.push(name);
            } else if counted.has(&name, depth) {
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
            let top = depth == 0 && counted == FileSelection::Sources;
            let (path, relative) = (directory.join(&name), relative.join(&name));
            let opened = self.file(&path, &relative, is_symlink, top);
            if counted != FileSelection::All
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
            // An unreadable subfolder is only reported, so that the rest of the namespace can be served.
            if let Err(error) = self.directory(&path, &relative, depth + 1, counted) {
                self.skipped("unreadable", &relative, format!("cannot be read: {error}"));
            }
        }
        Ok(())
    }

    /// Hashes a file, and returns its metadata at the time of opening; `None` if it cannot be read.
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
            // A symlink to a folder inside the tree is skipped, because following it could lead in circles.
            Err(TreeFileError::Directory) if is_symlink => return None,
            Err(refused) => {
                if self.place.is_some() && would_be_waited_for(path) {
                    let message = format!(
                        "{}: a named pipe or a device, not a regular file",
                        relative.display()
                    );
                    self.refused.get_or_insert(message);
                }
                let code = match refused {
                    TreeFileError::Outside => "symlink_outside",
                    TreeFileError::Directory | TreeFileError::Special => "not_a_file",
                    TreeFileError::TooLarge(_) | TreeFileError::Unreadable(_) => "unreadable",
                };
                self.skipped(code, relative, format!("{refused}; it is not loaded"));
                return None;
            }
        };
        match self.content(file, &metadata) {
            Ok(content) => {
                if self.place.is_some() && is_compiled(relative) {
                    field(&mut self.compiled, relative.as_os_str().as_bytes());
                    field(&mut self.compiled, &content);
                }
                self.field(&content);
            }
            Err(error) => {
                self.skipped("unreadable", relative, format!("cannot be read: {error}"));
                return None;
            }
        }
        self.has_python |= top && is_tool_file(relative);
        Some(metadata)
    }

    /// Returns the hash over a file's content, or over its size and time if the limit on bytes would be exceeded.
    fn content(&mut self, file: File, metadata: &Metadata) -> io::Result<[u8; 32]> {
        // The content is hashed separately, so that its length in the outer hash is fixed: a file that grows while it is read
        // cannot imitate a following file.
        let mut hash = Sha256::new();
        if metadata.len() > BYTES_MAX - self.bytes {
            self.too_much("content");
            for part in [
                metadata.size() as i64,
                metadata.mtime(),
                metadata.mtime_nsec(),
            ] {
                hash.update(part.to_le_bytes());
            }
        } else {
            let mut rest = file.take(BYTES_MAX - self.bytes);
            self.bytes += io::copy(&mut rest, &mut HashWriter(&mut hash))?;
        }
        Ok(hash.finalize().into())
    }

    fn stamp(&mut self, metadata: &Metadata) {
        self.stamps.update(metadata.ino().to_le_bytes());
        for part in [metadata.ctime(), metadata.ctime_nsec()] {
            self.stamps.update(part.to_le_bytes());
        }
    }

    fn skipped(&mut self, code: &'static str, relative: &Path, message: String) {
        // The problem is added to the hash, so that resolving it counts as a change.
        self.field(code.as_bytes());
        self.issues.push(Issue {
            code,
            subject: relative.display().to_string(),
            message,
        });
    }

    fn too_much(&mut self, what: &str) {
        const CODE: &str = "folder_too_large";
        let (subject, message) = match &self.place {
            Some(place) => (
                place.display().to_string(),
                format!(
                    "too much {what} in this local package to compare ({FILES_MAX} files and {} MiB are, with all sources of the \
                     namespace); some changes will not be noticed on reload",
                    BYTES_MAX / 1024 / 1024
                ),
            ),
            None => (
                ".".to_owned(),
                format!("too much {what} to compare; some changes will not be noticed on reload"),
            ),
        };
        let mut issues = self.issues.iter();
        if issues.any(|issue| issue.code == CODE && issue.subject == subject) {
            return;
        }
        self.issues.push(Issue {
            code: CODE,
            subject,
            message,
        });
    }
}

fn field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
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

/// Returns true if the file may declare tools, by its name (DRP-05, DRP-07).
fn is_tool_file(relative: &Path) -> bool {
    let name = relative.as_os_str().as_bytes();
    name.ends_with(b".py") && !name.starts_with(b"_")
}

/// Returns true if a file with this name determines the behaviour of the worker.
fn is_source(name: &OsStr, depth: usize) -> bool {
    let bytes = name.as_bytes();
    bytes.ends_with(b".py")
        || depth == 0 && name == MANIFEST_FILE
        || bytes.starts_with(b"requirements") && bytes.ends_with(b".txt")
        // The worker lists the skills that it finds at its start (workers/python/app/skills.py).
        || depth <= SKILL_DEPTH && name == "SKILL.md"
        // These files matter if the namespace's folder is installed as a package, by the requirement `-e .`.
        || ["pyproject.toml", "setup.cfg", "MANIFEST.in"]
            .iter()
            .any(|file| name == *file)
}

/// Returns true if a file with this name determines the behaviour of a Node.js program.
fn is_script(name: &OsStr, depth: usize) -> bool {
    let path = Path::new(name);
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ["js", "mjs", "cjs", "node"].contains(&ending))
        || depth == 0 && (name == "package.json" || name == "package-lock.json")
}

/// Returns true for folders that interpreters and installers write next to sources. They are not hashed, so that building a local
/// package does not count as a change of it.
fn is_left_by_installers(name: &OsStr, in_package: bool) -> bool {
    name == "__pycache__"
        || name == "node_modules"
        || name.as_bytes().ends_with(b".egg-info")
        || in_package && (name == "build" || name == "dist" || name == "target")
}

/// Files that describe the build of a package.
const DESCRIPTIONS: [&str; 4] = ["pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in"];

/// Returns true if a folder is a package that can be installed.
fn is_package(folder: &Path) -> bool {
    let descriptions = ["pyproject.toml", "setup.py", "setup.cfg"];
    descriptions.iter().any(|file| folder.join(file).exists())
}

/// Hash over the build files of a package that is used in place, and over the names of its modules: an installer creates links to
/// these modules, which must be renewed when the names change.
fn described(folder: &Path) -> [u8; 32] {
    let mut hash = Sha256::new();
    for name in DESCRIPTIONS {
        let content = regular_file::read_following(&folder.join(name), REQUIREMENTS_BYTES_MAX);
        field(&mut hash, &content.unwrap_or_default());
    }
    for place in [folder.to_owned(), folder.join("src")] {
        let found = fs::read_dir(place).into_iter().flatten().flatten();
        let mut names: Vec<_> = found
            .filter(|entry| {
                let name = entry.file_name();
                name.as_bytes().ends_with(b".py") || entry.path().join("__init__.py").is_file()
            })
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        field(&mut hash, &(names.len() as u64).to_le_bytes());
        for name in names {
            field(&mut hash, name.as_bytes());
        }
    }
    hash.finalize().into()
}

/// Returns true if the file must be compiled before a change of it takes effect.
fn is_compiled(relative: &Path) -> bool {
    const ENDINGS: [&str; 11] = [
        "c", "cc", "cpp", "cxx", "f90", "h", "hpp", "pxd", "pyx", "rs", "go",
    ];
    let ending = relative.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Returns true for pipes, sockets and devices, because reading them may block for ever.
fn would_be_waited_for(path: &Path) -> bool {
    let found = fs::metadata(path).map(|metadata| metadata.file_type());
    found.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_block_device())
}
