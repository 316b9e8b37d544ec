//! Receives the changes that the operating system reports, and selects those that concern a reload.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, MetadataKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tooldock_base::precedence::EXTERNAL_FILE;
use tooldock_credentials::secrets::{META_FILE, VALUES_FILE};

const TOOLS: &str = "tools";

/// Watcher that notifies about relevant changes below a data directory.
#[derive(Debug)]
pub(super) struct ChangeWatcher {
    watcher: RecommendedWatcher,
    /// The watched folders, each with its device and inode number when watching began.
    watched: BTreeMap<PathBuf, (u64, u64)>,
}

impl ChangeWatcher {
    pub(super) fn new(root: &Path, mark: Arc<Notify>) -> notify::Result<Self> {
        let own = root.to_owned();
        let told = move |event: notify::Result<Event>| {
            // An error may mean that changes were missed, so it is treated as a change.
            if event.map_or(true, |event| counts(&event, &own)) {
                mark.notify_one();
            }
        };
        // Symlinks are not followed, because a tool could create one to the whole file system.
        let config = notify::Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(told, config)?;
        let mut source = Self {
            watcher,
            watched: BTreeMap::new(),
        };
        source.renew(root)?;
        Ok(source)
    }

    /// Watches folders that are not watched yet or were replaced. Returns true if there were any.
    pub(super) fn renew(&mut self, root: &Path) -> notify::Result<bool> {
        let external = root.join(EXTERNAL_FILE);
        let folders = [
            (root.to_owned(), RecursiveMode::NonRecursive),
            (root.join(TOOLS), RecursiveMode::Recursive),
            (
                external.parent().unwrap_or(root).to_owned(),
                RecursiveMode::NonRecursive,
            ),
        ];
        let mut renewed = false;
        for (folder, mode) in folders {
            let now = fs::metadata(&folder).ok().filter(fs::Metadata::is_dir);
            let now = now.map(|it| (it.dev(), it.ino()));
            if now == self.watched.get(&folder).copied() {
                continue;
            }
            if self.watched.remove(&folder).is_some() {
                // The result is ignored, because the system may have removed the watch already.
                let _ = self.watcher.unwatch(&folder);
            }
            renewed = true;
            if let Some(identity) = now {
                match self.watcher.watch(&folder, mode) {
                    Ok(()) => drop(self.watched.insert(folder, identity)),
                    // The folder was removed meanwhile. If it is created again, the next check of the folders finds it.
                    Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(renewed)
    }
}

/// Returns true if an event may change the result of a reload.
fn counts(event: &Event, root: &Path) -> bool {
    if event.need_rescan() {
        return true;
    }
    let changes = match event.kind {
        // Only writing counts as a change. Reading does not, because a reload itself reads all files.
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_)
        | EventKind::Modify(ModifyKind::Metadata(MetadataKind::AccessTime)) => false,
        _ => true,
    };
    changes && event.paths.iter().any(|path| path_counts(path, root))
}

/// Returns true if a reload reads the path.
fn path_counts(path: &Path, root: &Path) -> bool {
    let Ok(below) = path.strip_prefix(root) else {
        return false;
    };
    let mut parts = below.components();
    match parts.next().and_then(name) {
        Some(TOOLS) => parts.all(|part| name(part).is_some_and(name_counts)),
        Some(file @ (VALUES_FILE | META_FILE)) => below == Path::new(file),
        _ => below == Path::new(EXTERNAL_FILE) || Path::new(EXTERNAL_FILE).parent() == Some(below),
    }
}

fn name(part: Component<'_>) -> Option<&str> {
    part.as_os_str().to_str()
}

/// Returns false for names of files below `tools/` that are temporary or irrelevant for the gateway: earlier versions, backup and
/// swap files of editors, compiled code.
pub(super) fn name_counts(name: &str) -> bool {
    let ends = ["~", ".swp", ".swx", ".tmp", ".pyc", ".part"];
    !name.starts_with('.')
        && name != "__pycache__"
        // The editor vim creates a file with this name to test if it can write.
        && name != "4913"
        && !ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, Flag, RemoveKind};

    use super::*;

    #[test]
    fn only_what_a_reload_reads_counts() {
        let root = Path::new("/data");
        for path in [
            "tools",
            "tools/new",
            "tools/calc/add.py",
            "tools/calc/sub/part.py",
            "tools/calc/requirements.txt",
            "tools/calc/tooldock.yaml",
            "secrets.enc",
            "secrets.meta.yaml",
            "external",
            "external/config.yaml",
        ] {
            assert!(path_counts(&root.join(path), root), "{path}");
        }
        for path in [
            "",
            "secrets.lock",
            ".tmp-secrets-x",
            "logs/2026-01-01.jsonl",
            "venvs",
            "tools/calc/.history/add.py.1",
            "tools/.deleted-00",
            "tools/calc/.add.py.swp",
            "tools/calc/add.py~",
            "tools/calc/__pycache__/add.cpython-312.pyc",
            "tools/calc/4913",
            "external/.config.yaml.swp",
        ] {
            assert!(!path_counts(&root.join(path), root), "{path}");
        }
        assert!(!path_counts(Path::new("/elsewhere/tools/a.py"), root));
    }

    #[test]
    fn reading_is_no_change_and_a_full_queue_is_one() {
        let root = Path::new("/data");
        let event = |kind| Event::new(kind).add_path("/data/tools/calc/add.py".into());
        assert!(counts(&event(EventKind::Create(CreateKind::File)), root));
        assert!(counts(&event(EventKind::Remove(RemoveKind::File)), root));
        let close = |mode| EventKind::Access(AccessKind::Close(mode));
        assert!(counts(&event(close(AccessMode::Write)), root));
        assert!(!counts(&event(close(AccessMode::Read)), root));
        assert!(!counts(&event(EventKind::Access(AccessKind::Read)), root));
        let full = Event::new(EventKind::Other).set_flag(Flag::Rescan);
        assert!(counts(&full, root));
    }
}
