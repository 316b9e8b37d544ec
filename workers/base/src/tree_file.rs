//! Opens files below `tools/`, to which others can write. Files outside of it are refused, opening never blocks, and reading
//! always has a size limit.
//!
//! A process that can write to the directory can create any kind of file under any name. A named pipe would block for ever and
//! a symlink could refer to any file that the gateway may read, so every file of a namespace is opened by this module.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::regular_file;

/// Reason why a file below `tools/` is not opened or not read.
#[derive(Debug, thiserror::Error)]
pub enum TreeFileError {
    /// The path is a symlink that leads out of the directory.
    #[error("a symlink that leaves the tools directory")]
    Outside,
    /// The path is a directory.
    #[error("a directory, not a regular file")]
    Directory,
    /// The path is a named pipe, a socket or a device.
    #[error("not a regular file")]
    Special,
    /// The file is larger than the maximum, given in bytes.
    #[error("larger than {} KiB", .0 / 1024)]
    TooLarge(u64),
    /// The operating system returned an error.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Resolves the symlinks of `path`; returns `None` if the result is not below `tree`, which must be a resolved path itself.
pub fn resolve(path: &Path, tree: &Path) -> io::Result<Option<PathBuf>> {
    let real = path.canonicalize()?;
    Ok(real.starts_with(tree).then_some(real))
}

/// Opens a regular file below the directory `tree`, without blocking.
pub fn open(path: &Path, tree: &Path) -> Result<(File, Metadata), TreeFileError> {
    let real = resolve(path, tree)?.ok_or(TreeFileError::Outside)?;
    // The kind of file is checked before it is opened, because opening a device can have effects.
    regular(&real.metadata()?)?;
    let file = regular_file::open(&real)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// Reads a file of at most `max` bytes; returns `None` if it does not exist. A dangling symlink is an error.
pub fn read(path: &Path, tree: &Path, max: u64) -> Result<Option<Vec<u8>>, TreeFileError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    let (file, _) = open(path, tree)?;
    let mut content = Vec::new();
    file.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(TreeFileError::TooLarge(max));
    }
    Ok(Some(content))
}

fn regular(metadata: &Metadata) -> Result<(), TreeFileError> {
    if metadata.is_file() {
        Ok(())
    } else if metadata.is_dir() {
        Err(TreeFileError::Directory)
    } else {
        Err(TreeFileError::Special)
    }
}

/// Creates a named pipe without a writer. Opening it in the usual way blocks.
#[cfg(any(test, feature = "testing"))]
pub fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
}

/// Runs `work` in a thread and returns its result; panics if `work` does not end in time, which means that it blocks.
#[cfg(any(test, feature = "testing"))]
pub fn without_waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || sender.send(work()));
    receiver
        .recv_timeout(std::time::Duration::from_secs(10))
        .expect("it waits for something")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().canonicalize().unwrap().join("tools");
        fs::create_dir(&tree).unwrap();
        (temp, tree)
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_a_missing_one_is_nothing() {
        let (_temp, tree) = tree();
        let path = tree.join("f");
        assert!(matches!(read(&path, &tree, 1024), Ok(None)));
        fs::write(&path, vec![b'x'; 1024]).unwrap();
        assert_eq!(read(&path, &tree, 1024).unwrap().unwrap().len(), 1024);
        fs::write(&path, vec![b'x'; 1025]).unwrap();
        let error = read(&path, &tree, 1024).unwrap_err();
        assert_eq!(error.to_string(), "larger than 1 KiB");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_on() {
        let (_temp, tree) = tree();
        let path = tree.join("pipe");
        make_pipe(&path);
        let refused = without_waiting(move || read(&path, &tree, 10)).unwrap_err();
        assert!(matches!(refused, TreeFileError::Special), "{refused}");
    }

    #[test]
    fn a_symlink_is_followed_inside_the_tree_only() {
        let (temp, tree) = tree();
        fs::write(temp.path().join("secret"), "s").unwrap();
        fs::write(tree.join("shared"), "ok").unwrap();
        for (link, target) in [("in", "shared"), ("out", "../secret"), ("gone", "missing")] {
            symlink(target, tree.join(link)).unwrap();
        }
        assert_eq!(read(&tree.join("in"), &tree, 10).unwrap().unwrap(), b"ok");
        assert!(matches!(
            read(&tree.join("out"), &tree, 10),
            Err(TreeFileError::Outside)
        ));
        assert!(matches!(
            read(&tree.join("gone"), &tree, 10),
            Err(TreeFileError::Unreadable(_))
        ));
    }

    #[test]
    fn a_directory_is_no_file() {
        let (_temp, tree) = tree();
        assert!(matches!(open(&tree, &tree), Err(TreeFileError::Directory)));
    }
}
