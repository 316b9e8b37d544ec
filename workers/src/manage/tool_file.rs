//! Tool files: reading, replacing and removing them. The content before a change is stored in `.history/` in the same folder.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tooldock_base::data_dir::write_atomically;
use tooldock_base::fault;
use tooldock_base::names::NamespaceName;

use super::folder::{Folder, sync_folder};
use super::history::{entries, version_name};
use super::{FileInspection, NotDone, ToolFileName, Workspace, blocking};

/// Maximum size of a tool file that a manager writes, in bytes.
pub const TOOL_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of a tool file that was written by other means than a manager, in bytes. A larger one is neither read nor
/// stored as an earlier version.
pub(super) const KEPT_BYTES_MAX: usize = 4 * TOOL_FILE_BYTES_MAX;
/// Name of the subfolder with earlier versions of tool files. The scan ignores it.
pub(super) const HISTORY: &str = ".history";
/// Maximum number of earlier versions that are stored of one tool file.
const VERSIONS_MAX: usize = 10;
/// Maximum number of tool files of one namespace that are listed.
pub(super) const FILES_MAX: usize = 1000;
/// Maximum total size of the tool files of a namespace whose declarations are listed, in bytes.
const LISTED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Result of replacing or removing a tool file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Path of the stored previous version, relative to the namespace's folder; `None` if the file did not exist before.
    pub previous: Option<String>,
    /// True if the file already had the same content. In that case nothing was written, and no version was stored.
    pub unchanged: bool,
}

impl Workspace {
    /// Reads the declarations of a namespace's tool files, in the order of the files' names. Files that are not tool files, are
    /// not text, or have more than [`TOOL_FILE_BYTES_MAX`] bytes are skipped.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or its files have more bytes in total than may be read.
    pub async fn declared(
        &self,
        namespace: &NamespaceName,
    ) -> Result<Vec<FileInspection>, NotDone> {
        // The number of concurrent listings is limited, since each has all sources in memory.
        let _turn = self.listings.acquire().await;
        let files = self.tool_files(namespace).await?;
        match self.inspect(&files).await {
            Ok(inspected) => Ok(inspected),
            // A single file may have exceeded the parser's limits, so that all failed. The files are inspected one by one, so
            // that only that file fails.
            Err(error) => {
                tracing::warn!(%namespace, %error, "tool files are inspected one by one");
                let mut inspected = Vec::new();
                for file in &files {
                    let one = self.inspect(std::slice::from_ref(file)).await;
                    inspected.extend(one.unwrap_or_default());
                }
                Ok(inspected)
            }
        }
    }

    async fn tool_files(
        &self,
        namespace: &NamespaceName,
    ) -> Result<Vec<(String, String)>, NotDone> {
        let (tools, namespace) = (self.tools(), namespace.clone());
        blocking(move || {
            let folder = Folder::open(&tools, &namespace)?;
            let entries = fs::read_dir(folder.entry("."))
                .map_err(|error| NotDone::io("read", &folder.path, &error))?;
            let names = entries.flatten().filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let name = name.parse::<ToolFileName>().ok()?;
                (!name.is_helper()).then_some(name)
            });
            let mut names: Vec<_> = names.take(FILES_MAX).collect();
            names.sort();
            let (mut files, mut size) = (Vec::new(), 0);
            for name in names {
                let Ok(Some(held)) = bytes(&folder, name.as_str(), TOOL_FILE_BYTES_MAX) else {
                    continue;
                };
                size += held.len();
                if size > LISTED_BYTES_MAX {
                    return Err(NotDone(format!(
                        "the tool files of namespace {namespace} hold more than {} MiB, which is not looked at; split the namespace",
                        LISTED_BYTES_MAX >> 20
                    )));
                }
                if let Ok(source) = String::from_utf8(held) {
                    files.push((name.to_string(), source));
                }
            }
            Ok(files)
        })
        .await
    }

    /// Replaces a tool file by `source`, or creates the file. The caller must check the source. If the file already has this
    /// content, the file and its earlier versions stay unchanged.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or the operating system returns an error. The file is then unchanged.
    pub async fn write_tool_file(
        &self,
        namespace: &NamespaceName,
        file: &ToolFileName,
        source: String,
    ) -> Result<FileChange, NotDone> {
        if source.len() > TOOL_FILE_BYTES_MAX {
            return Err(NotDone(format!(
                "the code has {} bytes; {TOOL_FILE_BYTES_MAX} are allowed. Split it into several files",
                source.len()
            )));
        }
        let lock = self.lock().await?;
        let (tools, namespace, file) = (self.tools(), namespace.clone(), file.clone());
        blocking(move || {
            let _lock = lock;
            let folder = Folder::open(&tools, &namespace)?;
            let held = bytes(&folder, file.as_str(), KEPT_BYTES_MAX)?;
            let unchanged = held.as_deref() == Some(source.as_bytes());
            if unchanged {
                return Ok(FileChange {
                    previous: None,
                    unchanged,
                });
            }
            let previous = held.map(|held| keep(&folder, &file, &held)).transpose()?;
            let path = folder.entry(file.as_str());
            write_atomically(&path, source.as_bytes(), 0o644)
                .map_err(|error| NotDone::io("write", &folder.shown(file.as_str()), &error))?;
            Ok(FileChange {
                previous,
                unchanged,
            })
        })
        .await
    }

    /// Removes a tool file, and stores its content as an earlier version.
    ///
    /// # Errors
    ///
    /// When the file does not exist, or the operating system returns an error.
    pub async fn delete_tool_file(
        &self,
        namespace: &NamespaceName,
        file: &ToolFileName,
    ) -> Result<FileChange, NotDone> {
        let lock = self.lock().await?;
        let (tools, namespace, file) = (self.tools(), namespace.clone(), file.clone());
        blocking(move || {
            let _lock = lock;
            let folder = Folder::open(&tools, &namespace)?;
            let Some(held) = bytes(&folder, file.as_str(), KEPT_BYTES_MAX)? else {
                return Err(no_file(&folder, &namespace, &file));
            };
            let previous = Some(keep(&folder, &file, &held)?);
            let shown = folder.shown(file.as_str());
            fault::point();
            fs::remove_file(folder.entry(file.as_str()))
                .map_err(|error| NotDone::io("remove", &shown, &error))?;
            fault::point();
            sync_folder(&folder.entry("."))?;
            Ok(FileChange {
                previous,
                unchanged: false,
            })
        })
        .await
    }
}

/// Returns the error for a missing file. It names the existing files, including helper modules, which no list of tools
/// contains.
pub(super) fn no_file(folder: &Folder, namespace: &NamespaceName, file: &ToolFileName) -> NotDone {
    const NAMED_MAX: usize = 20;
    let mut names: Vec<_> = entries(folder)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|entry| entry.name.parse::<ToolFileName>().ok())
        .map(|name| name.to_string())
        .collect();
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    let held = match names.is_empty() {
        true => "it has no files yet; write_tool makes one".to_owned(),
        false => format!("its files: {}", names.join(", ")),
    };
    NotDone(format!("namespace {namespace} has no file {file}; {held}"))
}

/// Reads a regular file of the folder; `None` if the name does not exist. No symlink is followed, and a pipe does not block the
/// call.
pub(super) fn bytes(folder: &Folder, name: &str, bound: usize) -> Result<Option<Vec<u8>>, NotDone> {
    let shown = folder.shown(name);
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(CWD, folder.entry(name), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(special(&shown)),
        Err(error) => return Err(NotDone::io("read", &shown, &error.into())),
    };
    let failed = |error: io::Error| NotDone::io("read", &shown, &error);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(special(&shown));
    }
    let mut held = Vec::new();
    let bound = bound as u64;
    file.take(bound + 1)
        .read_to_end(&mut held)
        .map_err(failed)?;
    if held.len() as u64 > bound {
        return Err(NotDone(format!(
            "{} is too large to be managed",
            shown.display()
        )));
    }
    Ok(Some(held))
}

fn special(path: &Path) -> NotDone {
    NotDone(format!(
        "{} is no regular file (a symlink, for example), and is not managed",
        path.display()
    ))
}

/// Stores the current content of a file as an earlier version and returns the version's path. The oldest versions beyond the
/// limit are removed.
fn keep(folder: &Folder, file: &ToolFileName, held: &[u8]) -> Result<String, NotDone> {
    let history = folder.entry(HISTORY);
    let shown = folder.shown(HISTORY);
    match fs::DirBuilder::new().mode(0o755).create(&history) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(NotDone::io("create", &shown, &error));
        }
        _ => {}
    }
    if !history.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Err(special(&shown));
    }
    fault::point();
    let mut versions = versions(&history, file);
    let newest = versions.last().copied().unwrap_or_default();
    let kept = version_name(file, newest + 1);
    write_atomically(&history.join(&kept), held, 0o644)
        .map_err(|error| NotDone::io("write", &shown.join(&kept), &error))?;
    let surplus = (versions.len() + 1).saturating_sub(VERSIONS_MAX);
    for old in versions.drain(..surplus) {
        let _ = fs::remove_file(history.join(version_name(file, old)));
        fault::point();
    }
    Ok(format!("{HISTORY}/{kept}"))
}

/// The numbers of a file's stored versions, in ascending order.
fn versions(history: &Path, file: &ToolFileName) -> Vec<u64> {
    let entries = fs::read_dir(history).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix(file.as_str())?.strip_prefix('.')?;
        // Other spellings of a number, such as `07`, are ignored, as are numbers so large that the next one could overflow.
        let parsed: u64 = number.parse().ok()?;
        (parsed < u64::MAX / 2 && parsed.to_string() == number).then_some(parsed)
    };
    let mut numbers: Vec<u64> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}
