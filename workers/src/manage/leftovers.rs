//! Leftovers of a killed manager process: incomplete files, and folders that were not removed completely.
//!
//! Leftovers are never served, since the scan ignores names that begin with a dot. They only use disk space.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tooldock_base::data_dir::{TEMPORARY, is_temporary};
use tooldock_base::names::NamespaceName;
use tooldock_process::environment::FileLock;

use super::folder::{DELETED, Folder};
use super::requirements::{ADDING_LOCK_END, CANDIDATE, CANDIDATE_END};
use super::tool_file::HISTORY;
use super::{NotDone, Workspace, blocking};

impl Workspace {
    /// Removes leftovers of killed manager processes below `tools/`, and returns the number of removed files and folders. Files
    /// of changes that other managers currently make are not removed.
    ///
    /// # Errors
    ///
    /// When another manager holds the lock for too long, or `tools/` cannot be read.
    pub async fn clear_leftovers(&self) -> Result<usize, NotDone> {
        // Managers hold this lock while they write a file or remove a folder, so no such change is in progress now.
        let lock = self.lock().await?;
        let (tools, venvs) = (self.tools(), self.data.venvs_dir());
        let namespaces = blocking({
            let tools = tools.clone();
            move || folders(&tools).map_err(|error| NotDone::io("read", &tools, &error))
        });
        let namespaces = namespaces.await?;
        let namespaces: Vec<_> = namespaces
            .into_iter()
            .map(|name| (self.adding_lock(&name), name))
            .collect();
        blocking(move || {
            let _lock = lock;
            let mut removed = remove_deleted(&tools);
            for (path, name) in locks(&venvs) {
                if matches!(tools.join(name.as_str()).try_exists(), Ok(false)) {
                    removed += usize::from(remove_lock(&path));
                }
            }
            for (adding, name) in namespaces {
                let Ok(folder) = Folder::open(&tools, &name) else {
                    continue;
                };
                let unfinished = |name: &OsStr| is_temporary(name, TEMPORARY, "");
                removed += remove_files(&folder.entry("."), unfinished);
                let history = folder.entry(HISTORY);
                if history.symlink_metadata().is_ok_and(|it| it.is_dir()) {
                    removed += remove_files(&history, unfinished);
                }
                let candidate = |name: &OsStr| is_temporary(name, CANDIDATE, CANDIDATE_END);
                if has(&folder.entry("."), candidate)
                    && let Ok(Some(_turn)) = FileLock::try_take(&adding)
                {
                    removed += remove_files(&folder.entry("."), candidate);
                }
            }
            Ok(removed)
        })
        .await
    }
}

/// The folders below `tools/` whose names are valid for namespaces.
fn folders(tools: &Path) -> io::Result<Vec<NamespaceName>> {
    let entries = fs::read_dir(tools)?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

/// The lock files that exist while requirements are added, each with its namespace.
fn locks(venvs: &Path) -> Vec<(PathBuf, NamespaceName)> {
    let entries = fs::read_dir(venvs).into_iter().flatten().flatten();
    let locks = entries.filter_map(|entry| {
        let name = entry.file_name();
        let owner = name.to_str()?.strip_prefix('.')?;
        let owner = owner.strip_suffix(ADDING_LOCK_END)?.parse().ok()?;
        Some((entry.path(), owner))
    });
    locks.collect()
}

/// Removes a lock file unless the lock is held; in that case its holder removes the file. Returns true if the file was removed.
pub(super) fn remove_lock(path: &Path) -> bool {
    if path.symlink_metadata().is_err() {
        return false;
    }
    // The lock is held until the file is removed: a process that acquires the lock afterwards creates a new file.
    match FileLock::try_take(path) {
        Ok(Some(_lock)) => fs::remove_file(path).is_ok(),
        _ => false,
    }
}

/// Removes what remains of the folders of deleted namespaces. The caller holds the lock of the workspace.
pub(super) fn remove_deleted(tools: &Path) -> usize {
    let mut removed = 0;
    for entry in fs::read_dir(tools).into_iter().flatten().flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(DELETED.as_bytes())
        {
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::warn!(%error, "what a deleted namespace held is not all removed");
            }
        }
    }
    removed
}

fn has(folder: &Path, is_meant: impl Fn(&OsStr) -> bool) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| is_meant(&entry.file_name()))
}

/// Removes the regular files of a folder for whose names `is_meant` returns true, and returns the number of removed files.
pub(super) fn remove_files(folder: &Path, is_meant: impl Fn(&OsStr) -> bool) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| {
        is_meant(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file())
    });
    files
        .filter(|entry| fs::remove_file(entry.path()).is_ok())
        .count()
}
