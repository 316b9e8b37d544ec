//! Writes the stored source trees in `$DATA/repos`. [`tooldock_process::repositories::store`] defines the layout and reads it.
//!
//! When a new tree is stored, the least recently used trees beyond [`REPOS_MAX`] trees and [`BYTES_MAX`] bytes are removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tooldock_process::repositories::store::{BUILDING, FILES, SOURCE, TreeSource, TreeStore};

/// Maximum number of trees that are stored.
const REPOS_MAX: usize = 32;
/// Maximum size of all stored trees together, in bytes. A single new tree may be larger.
const BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Writes source trees into the folder of stored trees.
#[derive(Debug)]
pub(crate) struct TreeWriter {
    store: TreeStore,
}

/// An incomplete source tree. Dropping it removes its folder, unless the tree was published.
#[derive(Debug)]
pub(crate) struct UnfinishedTree {
    path: PathBuf,
    /// Lock held while the tree is written, so that another builder does not remove it.
    _lock: File,
}

impl TreeWriter {
    /// Creates a writer for the trees below `root`, without creating any folder yet.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self {
            store: TreeStore::new(root),
        }
    }

    /// Creates the folder of a new tree, and removes incomplete trees of builders that were killed.
    pub(crate) fn begin(&self) -> io::Result<UnfinishedTree> {
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(self.store.root())?;
        self.store.sweep();
        let exclusive = self.store.lock_exclusively()?;
        let path = self.aside();
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        drop(exclusive);
        fs::create_dir(path.join(FILES))?;
        Ok(UnfinishedTree { path, _lock: lock })
    }

    /// Publishes a complete tree in place of an older tree of the same address, and removes the least recently used trees.
    pub(crate) fn complete(&self, building: UnfinishedTree, source: &TreeSource) -> io::Result<()> {
        let text = serde_json::to_vec(source)?;
        fs::write(building.path.join(SOURCE), text)?;
        let exclusive = self.store.lock_exclusively()?;
        let place = self.store.place_of(&source.source);
        let mut gone = Vec::new();
        if place.symlink_metadata().is_ok() {
            gone.push(self.put_aside(&place)?);
        }
        fs::rename(&building.path, &place)?;
        gone.extend(self.put_oldest_aside(&place)?);
        drop(exclusive);
        gone.iter().for_each(|it| drop(fs::remove_dir_all(it)));
        Ok(())
    }

    /// Creates a hidden path for a tree that is incomplete or about to be removed.
    fn aside(&self) -> PathBuf {
        self.store
            .root()
            .join(format!("{BUILDING}{:016x}", fastrand::u64(..)))
    }

    /// Renames a tree to a hidden path, so that readers do not find it. The slower removal of its files then needs no lock.
    fn put_aside(&self, tree: &Path) -> io::Result<PathBuf> {
        let aside = self.aside();
        fs::rename(tree, &aside)?;
        Ok(aside)
    }

    fn put_oldest_aside(&self, new: &Path) -> io::Result<Vec<PathBuf>> {
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        for entry in fs::read_dir(self.store.root())? {
            let path = entry?.path();
            let source = path.join(SOURCE);
            let hidden = path
                .file_name()
                .is_some_and(|it| it.as_encoded_bytes().starts_with(b"."));
            if hidden || path == new {
                continue;
            }
            let about = TreeSource::of(&path);
            // For a damaged tree there is no time of its last use, so it is removed first.
            let used = about
                .as_ref()
                .and_then(|_| source.metadata().ok()?.modified().ok());
            kept.push((used, about.map_or(0, |it| it.bytes), path));
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        bytes += TreeSource::of(new).map_or(0, |it| it.bytes);
        let mut count = kept.len() + 1;
        for (_, size, path) in kept {
            if count <= REPOS_MAX && bytes <= BYTES_MAX {
                break;
            }
            gone.push(self.put_aside(&path)?);
            count -= 1;
            bytes -= size;
        }
        Ok(gone)
    }
}

impl UnfinishedTree {
    /// Folder of the tree. Other files, such as git's, may be written there until the tree is published.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the repository's files within the tree's folder.
    pub(crate) fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }
}

impl Drop for UnfinishedTree {
    fn drop(&mut self) {
        // Has no effect for a published tree, whose folder was renamed. If the removal fails, the next builder tries it again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use tooldock_process::repositories::BuilderErrorCode;
    use tooldock_process::repositories::store::FILE_MAX;

    use super::*;

    fn writer() -> (tempfile::TempDir, TreeWriter) {
        let temp = tempfile::tempdir().unwrap();
        let writer = TreeWriter::new(temp.path().join("repos"));
        (temp, writer)
    }

    fn keep(writer: &TreeWriter, source: &str, bytes: u64) -> PathBuf {
        let building = writer.begin().unwrap();
        fs::write(building.files().join("a.txt"), source).unwrap();
        let about = TreeSource {
            source: source.into(),
            bytes,
            left_out: BTreeMap::from([("link".into(), "is a symbolic link".into())]),
            ..TreeSource::default()
        };
        writer.complete(building, &about).unwrap();
        writer.store.place_of(source)
    }

    #[test]
    fn reads_files_of_what_was_analysed_and_of_nothing_else() {
        let (_temp, writer) = writer();
        let not_yet = writer.store.read("https://h/x", "a.txt").unwrap_err();
        assert!(not_yet.message.contains("analyze_repo"), "{not_yet}");
        keep(&writer, "https://h/x", 1);
        for same in ["https://h/x", "https://h/x.git", " https://h/x/ "] {
            assert_eq!(
                writer.store.read(same, "./a.txt").unwrap().content,
                "https://h/x"
            );
        }
        assert!(writer.store.read("https://h/y", "a.txt").is_err());
        let missing = writer.store.read("https://h/x", "b.txt").unwrap_err();
        assert_eq!(missing.code, BuilderErrorCode::NotFound);
        let link = writer.store.read("https://h/x", "link").unwrap_err();
        assert!(link.message.contains("symbolic link"), "{link}");
    }

    #[test]
    fn paths_that_lead_out_and_files_that_are_no_text_are_refused() {
        let (temp, writer) = writer();
        let place = keep(&writer, "x", 1);
        fs::write(temp.path().join("secret"), "hush").unwrap();
        let files = place.join(FILES);
        std::os::unix::fs::symlink(temp.path().join("secret"), files.join("out")).unwrap();
        fs::write(files.join("binary"), b"\x7fELF\0").unwrap();
        fs::write(files.join("large"), vec![b'a'; FILE_MAX as usize + 1]).unwrap();
        fs::create_dir(files.join("folder")).unwrap();
        for (path, says) in [
            ("../source.json", "leads out"),
            ("a/../../source.json", "leads out"),
            ("/etc/passwd", "is absolute"),
            ("", "is empty"),
            (".", "names no file"),
            ("a\0b", "control character"),
            ("out", "leads out"),
            ("binary", "binary"),
            ("large", "larger than 1 MiB"),
            ("folder", "is a folder"),
        ] {
            let error = writer.store.read("x", path).unwrap_err();
            assert!(error.message.contains(says), "{path:?}: {error}");
            assert!(!error.message.contains("hush"));
        }
    }

    #[test]
    fn the_tree_that_was_used_longest_ago_goes_first() {
        let (_temp, writer) = writer();
        let old = SystemTime::now() - Duration::from_secs(3600);
        let places: Vec<_> = (0..REPOS_MAX)
            .map(|index| keep(&writer, &format!("repo {index}"), 1))
            .collect();
        for (age, place) in places.iter().enumerate() {
            let file = File::options()
                .append(true)
                .open(place.join(SOURCE))
                .unwrap();
            file.set_modified(old + Duration::from_secs(age as u64))
                .unwrap();
        }
        writer.store.read("repo 0", "a.txt").unwrap();
        keep(&writer, "one more", 1);
        assert!(places[0].exists(), "it was read a moment ago");
        assert!(!places[1].exists());
        assert!(places[2].exists());
        let last = keep(&writer, "a large one", 2 * BYTES_MAX);
        assert!(last.exists() && !places[0].exists() && !places[2].exists());
    }

    #[test]
    fn links_and_pipes_in_the_folder_are_neither_followed_nor_waited_for() {
        let (temp, writer) = writer();
        let place = keep(&writer, "x", 1);
        let victim = temp.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let lock = writer.store.root().join(".lock");
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        assert!(writer.store.read("x", "a.txt").is_err());
        assert!(writer.begin().is_err());
        fs::remove_file(&lock).unwrap();
        let pipe = |path: &Path| {
            rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).unwrap();
        };
        let file = place.join(FILES).join("pipe");
        pipe(&file);
        assert!(writer.store.read("x", "pipe").is_err());
        fs::remove_file(place.join(SOURCE)).unwrap();
        pipe(&place.join(SOURCE));
        assert!(writer.store.read("x", "a.txt").is_err());
        let elsewhere = TreeWriter::new(temp.path().join("linked"));
        std::os::unix::fs::symlink(temp.path(), elsewhere.store.root()).unwrap();
        assert!(elsewhere.begin().is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "kept");
    }

    #[test]
    fn what_a_killed_builder_left_behind_is_removed_and_what_is_being_built_is_not() {
        let (_temp, writer) = writer();
        let building = writer.begin().unwrap();
        let abandoned = writer.store.root().join(".building-0");
        fs::create_dir(&abandoned).unwrap();
        writer.store.sweep();
        assert!(building.path.exists() && !abandoned.exists());
        drop(building);
        let left = fs::read_dir(writer.store.root()).unwrap().count();
        assert_eq!(left, 1, "the lock file");
    }
}
