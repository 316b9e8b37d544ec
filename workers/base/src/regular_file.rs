//! Opens regular files in directories to which others can write. Other kinds of files are refused, and opening never blocks.
//!
//! Tools run as the gateway's user and can create any kind of file under any name in the data directory. A named pipe would
//! block for ever, a device can have effects when it is opened, and a symbolic link can refer to any file that the gateway may
//! read or write. For files below `tools/` there is a further rule, see `tree_file`.

use std::fs::{self, File, FileType};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Treatment of a symbolic link as the last component of a path. Links in the directories before it are always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Refused,
    Followed,
}

/// Opens a regular file for reading. A symbolic link at this path is refused.
///
/// # Errors
///
/// The error of the operating system, or the kind of a file that is not a regular one.
pub fn open(path: &Path) -> io::Result<File> {
    opened(path, OFlags::RDONLY, 0, Links::Refused)
}

/// Opens a regular file for reading and follows symbolic links, for directories where only the operator creates links, such as
/// mounted secrets.
///
/// # Errors
///
/// As [`open`].
pub fn open_following(path: &Path) -> io::Result<File> {
    opened(path, OFlags::RDONLY, 0, Links::Followed)
}

/// Opens a regular file to append to it, or creates it with this mode. A symbolic link at this path is refused.
///
/// # Errors
///
/// As [`open`].
pub fn open_to_append(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    opened(path, flags, mode, Links::Refused)
}

/// Opens a log file that the operator configured, to append to it, or creates it with this mode. A regular file, a named pipe
/// or a device is opened. Writing to a full pipe returns [`io::ErrorKind::WouldBlock`] instead of blocking.
///
/// # Errors
///
/// The error of the operating system.
pub fn open_log_of_the_operator(path: &Path, mode: u32) -> io::Result<File> {
    // A named pipe without a reader cannot be opened for writing only, so it is opened for reading and writing.
    let is_pipe = fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    let access = match is_pipe {
        true => OFlags::RDWR,
        false => OFlags::WRONLY | OFlags::CREATE,
    };
    let flags = access | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?;
    Ok(File::from(file))
}

/// Opens a regular file for reading and writing, or creates it with this mode. If the file belongs to this user and has more
/// permissions than the mode, they are reduced to it. A symbolic link at this path is refused.
///
/// # Errors
///
/// As [`open`].
pub fn open_or_make(path: &Path, mode: u32) -> io::Result<File> {
    let file = opened(path, OFlags::RDWR | OFlags::CREATE, mode, Links::Refused)?;
    tighten(&file, mode);
    Ok(file)
}

/// Removes those permissions of a file that are not part of a mode. With them, another user could lock a lock file, or read the
/// file with the secrets' names. A file that belongs to another user, or that has several hard links, is not changed.
pub fn tighten(file: &File, mode: u32) {
    let Ok(found) = file.metadata() else { return };
    let beyond = found.mode() & 0o777 & !mode;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if beyond != 0 && own && found.nlink() == 1 {
        let _ = file.set_permissions(fs::Permissions::from_mode(found.mode() & mode));
    }
}

/// Reads a regular file of at most `max` bytes. A symbolic link at this path is refused.
///
/// # Errors
///
/// As [`open`], and when the file is larger.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    content(open(path)?, max)
}

/// Reads a regular file and follows symbolic links, for directories where only the operator creates links.
///
/// # Errors
///
/// As [`read`].
pub fn read_following(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    content(open_following(path)?, max)
}

fn content(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut content)?;
    match content.len() as u64 > max {
        true => Err(io::Error::other(format!("larger than {} KiB", max / 1024))),
        false => Ok(content),
    }
}

fn opened(path: &Path, flags: OFlags, mode: u32, links: Links) -> io::Result<File> {
    let (found, follow) = match links {
        Links::Refused => (fs::symlink_metadata(path), OFlags::NOFOLLOW),
        Links::Followed => (fs::metadata(path), OFlags::empty()),
    };
    // The kind of file is checked before it is opened, because opening a device can have effects.
    match found {
        Ok(found) => regular(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The file may have been replaced since the check, so it is opened without blocking and without following links.
    let flags = flags | follow | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?;
    let file = File::from(file);
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

fn regular(found: FileType) -> io::Result<()> {
    let kind = if found.is_file() {
        return Ok(());
    } else if found.is_symlink() {
        "a symbolic link"
    } else if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a named pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let message = format!("{kind}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;
    use crate::tree_file::{make_pipe, without_waiting};

    fn told(work: fn(&Path) -> io::Result<()>, path: PathBuf) -> String {
        let outcome = without_waiting(move || work(&path));
        outcome.expect_err("refused").to_string()
    }

    #[test]
    fn everything_but_a_regular_file_is_refused_by_name_and_not_waited_on() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("plain"), "text").unwrap();
        fs::create_dir(at("directory")).unwrap();
        make_pipe(&at("pipe"));
        symlink(at("plain"), at("link")).unwrap();
        symlink(at("pipe"), at("to-pipe")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let ways: [fn(&Path) -> io::Result<()>; 4] = [
            |path| open(path).map(drop),
            |path| open_to_append(path, 0o600).map(drop),
            |path| open_or_make(path, 0o600).map(drop),
            |path| read(path, 10).map(drop),
        ];
        for work in ways {
            for (name, kind) in [
                ("directory", "a directory"),
                ("pipe", "a named pipe"),
                ("link", "a symbolic link"),
                ("to-pipe", "a symbolic link"),
                ("dangling", "a symbolic link"),
                ("socket", "a socket"),
            ] {
                let error = told(work, at(name));
                assert!(
                    error.contains(&format!("{kind}, not a regular file")),
                    "{name}: {error}"
                );
            }
            assert!(work(&at("plain")).is_ok());
        }
        assert!(told(|it| open(it).map(drop), "/dev/null".into()).contains("a device"));
        assert!(!at("nowhere").exists(), "no link leads to a new file");
        let follow: fn(&Path) -> io::Result<()> = |path| open_following(path).map(drop);
        assert!(follow(&at("link")).is_ok());
        assert!(told(follow, at("to-pipe")).contains("a named pipe"));
    }

    #[test]
    fn a_file_that_others_may_do_too_much_with_is_tightened_unless_it_has_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("lock"), folder.path().join("other"));
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        fs::hard_link(&path, &other).unwrap();
        drop(open_or_make(&path, 0o600).unwrap());
        assert_eq!(mode(), 0o664);
        fs::remove_file(&other).unwrap();
        drop(open_or_make(&path, 0o600).unwrap());
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        tighten(&open(&path).unwrap(), 0o600);
        assert_eq!(mode(), 0o400, "nothing is added");
    }

    #[test]
    fn a_file_is_made_with_its_mode_and_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let missing = read(&path, 10).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        drop(open_to_append(&path, 0o600).unwrap());
        fs::write(&path, [b'x'; 11]).unwrap();
        assert!(read(&path, 10).is_err());
        assert_eq!(read(&path, 11).unwrap().len(), 11);
        assert_eq!(read_following(&path, u64::MAX).unwrap().len(), 11);
    }
}
