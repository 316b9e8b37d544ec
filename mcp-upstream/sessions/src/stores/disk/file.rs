//! Opening of the SQLite file: a missing file is created, a file of another program or of a newer version is refused, and a
//! damaged file is renamed.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, Result, TransactionBehavior};

use super::{connect, events, failed, now, records, tasks};
use crate::stream::StoreError;

/// Application id that marks a file as one of this store: `tdss`.
const APPLICATION: i64 = 0x7464_7373;

/// Version of the table format.
const FORMAT: i64 = 1;

/// Maximum size in bytes of a file that is checked completely when it is opened, which takes about a tenth of a second.
const CHECKED: u64 = 64 * 1024 * 1024;

/// Reason why the file cannot be used.
enum UnusableFile {
    /// The file is damaged: its pages contradict each other, or some are missing.
    Damaged(String),
    /// The file is not damaged, but cannot be used for another reason.
    Failed(StoreError),
}

impl From<rusqlite::Error> for UnusableFile {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged(error.to_string())
            }
            _ => Self::Failed(failed(error)),
        }
    }
}

/// Opens the file for reading and writing, and creates its tables if needed.
pub(super) fn open(file: &Path) -> Result<Connection, StoreError> {
    let named = |error: StoreError| StoreError(format!("{}: {}", file.display(), error.0));
    match open_whole(file) {
        Ok(connection) => Ok(connection),
        Err(UnusableFile::Failed(error)) => Err(named(error)),
        Err(UnusableFile::Damaged(cause)) => {
            let aside = set_aside(file).map_err(|error| named(StoreError(error.to_string())))?;
            tracing::error!(
                file = %file.display(),
                aside = %aside.display(),
                cause,
                "the session store was damaged and is set aside: its clients initialize again. Check the disk"
            );
            open_whole(file).map_err(|error| match error {
                UnusableFile::Failed(error) => named(error),
                UnusableFile::Damaged(cause) => named(StoreError(cause)),
            })
        }
    }
}

fn open_whole(file: &Path) -> Result<Connection, UnusableFile> {
    // SQLite creates the files beside this one (`-wal`, `-shm`) with the mode of this file. Session ids are credentials, so only
    // the owner may read them.
    let made = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file);
    made.map_err(|error| UnusableFile::Failed(StoreError(error.to_string())))?;
    let mut connection = connect(file)?;
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, format) = (pragma("application_id")?, pragma("user_version")?);
    let is_empty = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| {
        Ok(row.get::<_, i64>(0)? == 0)
    })?;
    let refuse = |cause: String| Err(UnusableFile::Failed(StoreError(cause)));
    match (application, format) {
        (0, 0) if is_empty => make_tables(&mut connection)?,
        (APPLICATION, FORMAT) => check(&connection, file)?,
        (APPLICATION, newer) if newer > FORMAT => {
            return refuse(format!(
                "written by a newer version (format {newer}, this version reads {FORMAT}): run the newer version, or \
                 move the file away, which ends its sessions"
            ));
        }
        _ => {
            return refuse(
                "the file belongs to another program: move it away, or choose another data directory".into(),
            );
        }
    }
    connection.execute_batch(tasks::SCHEMA)?;
    Ok(connection)
}

fn make_tables(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have created the tables since the file was opened.
    let format: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if format == 0 {
        transaction.execute_batch(records::SCHEMA)?;
        transaction.execute_batch(events::SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.commit()
}

/// Checks a file for damage; files above [`CHECKED`] are not checked.
fn check(connection: &Connection, file: &Path) -> Result<(), UnusableFile> {
    let length = fs::metadata(file).map_or(0, |it| it.len());
    if length > CHECKED {
        return Ok(());
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(UnusableFile::Damaged(found)),
    }
}

/// Renames the file and its write-ahead log, and returns the new path.
fn set_aside(file: &Path) -> std::io::Result<PathBuf> {
    let aside = with_ending(file, &format!(".damaged-{}", now()));
    for ending in ["-wal", "-shm"] {
        let (from, to) = (with_ending(file, ending), with_ending(&aside, ending));
        if from.exists() {
            fs::rename(from, to)?;
        }
    }
    fs::rename(file, &aside)?;
    Ok(aside)
}

fn with_ending(file: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(ending);
    name.into()
}
