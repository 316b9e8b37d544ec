//! Log files with one record per line, which operators may rotate: the audit log and the access log.
//!
//! ```text
//! request ── record ─▶ queue ─▶ writer thread ── lines ─▶ LogFile
//!                       │ full                             │ disk full, no permission, …
//!                       └────────────▶ losses ◀────────────┘   counted; their begin and end are logged
//! ```
//!
//! A request only queues its record: a slow or full disk never delays a request. Before each write, [`LogFile`] checks whether
//! its file was moved or deleted. A line is never appended to an incomplete line.
//!
//! The crate `tracing-appender` does not meet these requirements: its queue is bounded in lines instead of bytes, it formats the
//! line while the request waits, keeps writing to a moved file until the next rollover, deletes old files by number instead of
//! age, and does not report a full disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tooldock_base::regular_file;

mod clock;
mod losses;
mod queue;
mod writer;

pub use clock::Clock;
pub use losses::Losses;
pub use queue::Record;
pub use writer::{LogEnds, LogGuard, LogSender, Sink, start};

#[cfg(test)]
pub(crate) use queue::{RecordQueue, Records};

/// Number of buffered bytes at which the lines are written to the file.
const BUFFER: usize = 64 * 1024;
/// Time limit for writing a batch of lines to a named pipe whose reader is slow or missing. `PIPE_LOOK` is the interval of the
/// attempts.
const PIPE_PATIENCE: Duration = Duration::from_secs(1);
const PIPE_LOOK: Duration = Duration::from_millis(10);
/// Permissions of log files, which name people and addresses: only their owner and their group may read them.
const MODE: u32 = 0o640;

/// The destination of a log's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// A file, a named pipe or a device that the operator configured.
    Path(PathBuf),
    /// A regular file in a directory where tool code can write. Any other kind of file with this name is refused, even a
    /// symbolic link.
    Regular(PathBuf),
    /// The standard output of the process.
    Stdout,
}

/// Appends complete lines to a log's target.
#[derive(Debug)]
pub struct LogFile {
    target: LogTarget,
    open: Option<OpenLogFile>,
    buffer: Vec<u8>,
    /// True if the last write ended within a line; the next write then begins with a line feed.
    torn: bool,
    losses: Losses,
}

/// An open log file and its identity. A comparison of identities shows whether the path still leads to this file.
#[derive(Debug)]
struct OpenLogFile {
    file: File,
    identity: (u64, u64),
}

/// Error of a write, with the number of lines that were written before it failed.
#[derive(Debug)]
struct WriteFailure {
    lines_written: usize,
    error: io::Error,
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        Self {
            lines_written: 0,
            error,
        }
    }
}

impl LogFile {
    /// Creates a log file, which is opened when the first line is written. `losses` counts lines that cannot be written.
    pub fn new(target: LogTarget, losses: Losses) -> Self {
        Self {
            target,
            open: None,
            buffer: Vec::new(),
            torn: false,
            losses,
        }
    }

    /// Adds a line, which ends with a line feed. Lines are buffered until [`Self::flush`].
    pub fn append(&mut self, line: &[u8]) {
        self.buffer.extend_from_slice(line);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Writes all buffered lines. Lines that cannot be written are lost, and counted.
    pub fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.write() {
            Ok(()) => self.losses.written(),
            Err(failure) => {
                let lost = count_lines(&self.buffer) - failure.lines_written;
                self.open = None;
                self.failed(lost, &failure.error);
            }
        }
        self.buffer.clear();
    }

    /// Writes the buffered lines and reopens the path, which recreates a file that was moved.
    pub fn reopen(&mut self) {
        self.flush();
        if self.target == LogTarget::Stdout {
            return;
        }
        self.open = None;
        if let Err(error) = self.ensure_open() {
            self.failed(0, &error);
        }
    }

    /// Closes the file if it is no longer at its path: a deleted file takes up disk space as long as it is open.
    pub fn close_if_replaced(&mut self) {
        let (Some(path), Some(open)) = (self.target.path(), &self.open) else {
            return;
        };
        let found = match &self.target {
            LogTarget::Regular(path) => fs::symlink_metadata(path),
            _ => fs::metadata(path),
        };
        let is_there = found.is_ok_and(|metadata| identity_of(&metadata) == open.identity);
        if !is_there {
            self.open = None;
        }
    }

    fn write(&mut self) -> Result<(), WriteFailure> {
        self.close_if_replaced();
        self.ensure_open()?;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if self.torn {
            open.file.write_all(b"\n")?;
            self.torn = false;
        }
        write_lines(&mut open.file, &self.buffer, &mut self.torn)
    }

    fn ensure_open(&mut self) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        let (file, metadata) = match &self.target {
            LogTarget::Stdout => {
                let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                let metadata = file.metadata()?;
                (file, metadata)
            }
            LogTarget::Path(_) | LogTarget::Regular(_) => {
                let file = self.target.open()?;
                let metadata = file.metadata()?;
                // A killed gateway or a full disk may have left an incomplete line.
                if metadata.is_file() {
                    self.torn = self.target.ends_within_a_line().unwrap_or(self.torn);
                }
                (file, metadata)
            }
        };
        self.open = Some(OpenLogFile {
            file,
            identity: identity_of(&metadata),
        });
        Ok(())
    }

    fn failed(&self, lost: usize, error: &io::Error) {
        match self.target.path() {
            Some(path) => self
                .losses
                .lost(lost as u64, format_args!("{}: {error}", path.display())),
            None => self
                .losses
                .lost(lost as u64, format_args!("standard output: {error}")),
        }
    }
}

impl LogTarget {
    /// Returns the path of the log file; `None` for standard output.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) | Self::Regular(path) => Some(path),
            Self::Stdout => None,
        }
    }

    /// Opens the file for appending, as the gateway does when it writes to it. A missing folder is created. Never blocks.
    ///
    /// # Errors
    ///
    /// The system's error, or the kind of the file that was found where a regular file must be.
    pub fn open(&self) -> io::Result<File> {
        let open = || match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::Path(path) => regular_file::open_log_of_the_operator(path, MODE),
            Self::Regular(path) => regular_file::open_to_append(path, MODE),
        };
        match (open(), self.path().and_then(Path::parent)) {
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                open()
            }
            (opened, _) => opened,
        }
    }

    /// Returns true if the target is a regular file that ends within a line.
    fn ends_within_a_line(&self) -> io::Result<bool> {
        match self {
            Self::Stdout => Ok(false),
            Self::Path(path) => ends_within_a_line(&regular_file::open_following(path)?),
            Self::Regular(path) => ends_within_a_line(&regular_file::open(path)?),
        }
    }
}

/// The identity of a file, independent of its name.
fn identity_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn ends_within_a_line(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last != *b"\n")
}

fn count_lines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// Writes complete lines. Sets `torn` to true if the write failed within a line.
fn write_lines(out: &mut impl Write, lines: &[u8], torn: &mut bool) -> Result<(), WriteFailure> {
    let mut rest = lines;
    let mut waited = Duration::ZERO;
    while !rest.is_empty() {
        let error = match out.write(rest) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(written) => {
                rest = &rest[written..];
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The reader of the pipe is slow or missing.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < PIPE_PATIENCE => {
                std::thread::sleep(PIPE_LOOK);
                waited += PIPE_LOOK;
                continue;
            }
            Err(error) => error,
        };
        let written = &lines[..lines.len() - rest.len()];
        *torn = written.last().is_some_and(|last| *last != b'\n');
        return Err(WriteFailure {
            lines_written: count_lines(written),
            error,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt as _;

    use super::*;

    /// Takes this many bytes, in pieces of up to three, and then reports a full disk.
    struct Disk {
        room: usize,
        content: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.room).min(3);
            self.room -= taken;
            self.content.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).expect("a file")
    }

    #[test]
    fn a_full_disk_keeps_the_lines_that_came_through_and_counts_the_others() {
        let lines = b"one\ntwo\nthree\n";
        for (room, written, is_torn) in [
            (0, 0, false),
            (2, 0, true),
            (4, 1, false),
            (6, 1, true),
            (8, 2, false),
            (13, 2, true),
        ] {
            let mut disk = Disk {
                room,
                content: Vec::new(),
            };
            let mut torn = false;
            let failure = write_lines(&mut disk, lines, &mut torn).expect_err("too little room");
            assert_eq!((failure.lines_written, torn), (written, is_torn), "{room}");
            assert_eq!(failure.error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(disk.content, lines[..room]);
        }
    }

    #[test]
    fn lines_that_a_full_device_does_not_take_are_counted() {
        let losses = Losses::for_tests();
        let mut file = LogFile::new(LogTarget::Path("/dev/full".into()), losses.clone());
        file.append(b"one\n");
        file.append(b"two\n");
        file.flush();
        file.append(b"three\n");
        file.flush();
        assert_eq!(losses.counted(), 3);
    }

    #[test]
    fn half_a_line_at_the_end_of_a_file_swallows_nothing() {
        let folder = folder();
        let path = folder.path().join("log");
        fs::write(&path, "whole\nhalf a li").expect("written");
        let mut file = LogFile::new(LogTarget::Path(path.clone()), Losses::for_tests());
        file.append(b"next\n");
        file.flush();
        file.append(b"last\n");
        file.flush();
        assert_eq!(text(&path), "whole\nhalf a li\nnext\nlast\n");
    }

    #[test]
    fn a_file_that_was_moved_or_deleted_is_made_again() {
        let folder = folder();
        let path = folder.path().join("logs/log");
        let losses = Losses::for_tests();
        let mut file = LogFile::new(LogTarget::Path(path.clone()), losses.clone());
        file.append(b"one\n");
        file.flush();
        fs::rename(&path, folder.path().join("log.1")).expect("moved");
        file.append(b"two\n");
        file.flush();
        assert_eq!(text(&path), "two\n");
        assert_eq!(text(&folder.path().join("log.1")), "one\n");
        fs::remove_dir_all(path.parent().expect("a folder")).expect("deleted");
        file.append(b"three\n");
        file.flush();
        assert_eq!(text(&path), "three\n");
        assert_eq!(losses.counted(), 0);
    }

    #[test]
    fn opening_anew_makes_the_file_before_there_is_a_line_for_it() {
        let folder = folder();
        let path = folder.path().join("log");
        let mut file = LogFile::new(LogTarget::Path(path.clone()), Losses::for_tests());
        file.append(b"one\n");
        file.reopen();
        fs::rename(&path, folder.path().join("log.1")).expect("moved");
        file.reopen();
        assert_eq!(text(&path), "");
        assert_eq!(text(&folder.path().join("log.1")), "one\n");
    }

    #[test]
    fn strangers_cannot_read_a_log_file() {
        let folder = folder();
        let path = folder.path().join("log");
        LogTarget::Path(path.clone()).open().expect("opened");
        let mode = fs::metadata(&path).expect("a file").mode();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
    }

    /// Runs work in a thread, and fails if it blocks.
    fn without_waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || sender.send(work()));
        let done = receiver.recv_timeout(Duration::from_secs(60));
        done.expect("it waits for something")
    }

    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo").success());
    }

    #[test]
    fn a_file_that_tools_can_replace_is_a_regular_one_or_none_at_all() {
        let folder = folder();
        let path = folder.path().join("2026-01-01.jsonl");
        let victim = folder.path().join("victim");
        fs::write(&victim, "kept\n").expect("written");
        let plants: [&dyn Fn(); 4] = [
            &|| make_pipe(&path),
            &|| fs::create_dir(&path).expect("made"),
            &|| std::os::unix::fs::symlink(&victim, &path).expect("linked"),
            &|| std::os::unix::fs::symlink("/dev/full", &path).expect("linked"),
        ];
        for (lost, plant) in plants.into_iter().enumerate() {
            plant();
            let target = LogTarget::Regular(path.clone());
            let losses = without_waiting(move || {
                let losses = Losses::for_tests();
                let mut file = LogFile::new(target, losses.clone());
                file.append(b"one\n");
                file.flush();
                file.reopen();
                losses
            });
            assert_eq!(losses.counted(), 1, "{lost}");
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        let losses = Losses::for_tests();
        let mut file = LogFile::new(LogTarget::Regular(path.clone()), losses.clone());
        file.append(b"two\n");
        file.flush();
        assert_eq!(text(&path), "two\n", "writing goes on");
        assert_eq!(text(&victim), "kept\n");
        // A path that becomes a pipe while the file is open is refused, too.
        fs::rename(&path, folder.path().join("aside")).expect("moved");
        make_pipe(&path);
        file.append(b"three\n");
        let (losses, target) = without_waiting(move || {
            file.flush();
            (losses, path)
        });
        assert_eq!(losses.counted(), 1);
        assert!(
            fs::symlink_metadata(target)
                .expect("there")
                .file_type()
                .is_fifo()
        );
    }

    #[test]
    fn a_pipe_of_the_operator_without_a_reader_takes_what_fits_and_is_not_waited_on() {
        let folder = folder();
        let path = folder.path().join("pipe");
        make_pipe(&path);
        let losses = without_waiting(move || {
            let losses = Losses::for_tests();
            let mut file = LogFile::new(LogTarget::Path(path), losses.clone());
            for _ in 0..4 {
                file.append(&[b"x".repeat(BUFFER - 1), b"\n".to_vec()].concat());
                file.flush();
            }
            losses
        });
        assert!((1..=4).contains(&losses.counted()), "{}", losses.counted());
    }
}
