//! The data directory: its layout, permissions, format version, lock and socket paths.
//!
//! All persistent data are in files. Each write goes through [`write_atomically`], so that readers never see a partly written
//! file, not even after a crash. File modes are set explicitly and do not depend on the umask.
//!
//! ```text
//! $DATA/tools/<ns>/          folders of tools that people drop in
//!       venvs/<ns>           symlink to venvs/.builds/<ns>-<hash>
//!       external/            config.yaml: external MCP servers, made when some are added
//!       workers/<ns>/        0700: worker.sock; a process that can connect can call every tool
//!       repos/               analysed repositories and packages of other authors
//!       logs/  runtime/      audit files; the unpacked Python runtime
//!       version              format number; a newer one is refused
//!       gateway.lock         held while a gateway runs, and names its process
//!       *.addresses          addresses that the core and the manager listen on
//!       replicas/<name>/     gateways that share the sessions of this directory, one folder each: lock, sockets
//! ```
//!
//! This module does not read namespaces (see `scan` in `tooldock-workers`) and handles no file of the secrets store.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::fault;
use crate::gateway_process::GatewayProcess;
use crate::names::NamespaceName;
use crate::regular_file;

/// Format number of the data directory that this version writes. It refuses higher numbers.
const FORMAT: u32 = 1;

/// Maximum size of the `version` file, in bytes.
const VERSION_BYTES_MAX: u64 = 1024;

/// Maximum length of a socket's path in bytes. The kernel allows 107 bytes, other systems 103.
const SOCKET_PATH_MAX: usize = 100;

/// Maximum number of bytes that a worker adds to the name of its socket before `.sock`: the number of its process (`.p63`), a dot
/// and a 64-bit generation.
const GENERATION_MAX: usize = 4 + 21;

/// Name of a worker's socket in the namespace's folder for sockets.
const WORKER_SOCKET: &str = "worker.sock";

/// Content of the example tool that is created at a first start (DRP-14).
const HELLO: &str = include_str!("../../../conf/examples/basic-tool/hello.py");

/// Name of the namespace that is created at a first start (DRP-14).
pub const STARTER: &str = "shared";

/// File name of the example tool that is created at a first start.
const HELLO_FILE: &str = "hello.py";

/// Facts about other gateways that may use the data directory at the same time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Occupancy<'a> {
    /// Name of this replica if several share the data directory; otherwise `None`.
    pub replica: Option<&'a str>,
    /// True if this gateway replaces a gateway that still runs (`--upgrade`).
    pub successor: bool,
}

/// An open data directory. Dropping the value releases the lock.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    /// Folder for the sockets of Python workers.
    sockets: PathBuf,
    first_start: bool,
    /// True if this process holds `gateway.lock` exclusively. False while a replaced gateway is still shutting down
    /// (`--upgrade`), and always if replicas share the directory.
    sole: Arc<AtomicBool>,
    /// The locked file `gateway.lock`. `None` if another process holds the lock and this process uses the directory at the same
    /// time ([`DataDir::beside`]).
    _lock: Option<File>,
    /// The gateway that used the data directory before ([`DataDir::predecessor`]).
    predecessor: Option<GatewayProcess>,
}

/// Reason why a data directory cannot be used. The text is one line that names the path.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another gateway uses the data directory.
    #[error("{}: another gateway uses this data directory (gateway.lock is held); stop it, replace it with `tooldock serve --upgrade`, give this one a DATA_DIR of its own, or share the directory by a REPLICA_ID for each with sessions.store: disk", .0.display())]
    InUse(PathBuf),
    /// A newer version wrote the data directory.
    #[error("{}: written by a newer version (format {found}, this one reads up to {FORMAT}); upgrade, or restore a backup", path.display())]
    Newer {
        /// Path of the `version` file.
        path: PathBuf,
        /// Format number in the `version` file.
        found: u64,
    },
    /// The `version` file does not contain a number.
    #[error("{}: not a format number; this is not a data directory, or it is damaged", .0.display())]
    BadVersion(PathBuf),
    /// The directory for short socket paths is accessible to other users.
    #[error("{}: must be a directory of this user with mode 0700; remove it", .0.display())]
    ForeignSocketDir(PathBuf),
    /// The operating system returned an error for an action on the data directory.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The path on which the action failed.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl DataDir {
    /// Opens a data directory: creates missing folders, takes the lock and removes sockets of ended processes.
    ///
    /// # Errors
    ///
    /// [`DataDirError`] names the path and the remedy.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        Self::open_with(path, Occupancy::default(), true)
    }

    /// Opens a data directory as [`DataDir::open`] does, but allows the other gateways in `occupancy`. With `starter`, the first
    /// namespace is created in a new directory.
    ///
    /// A gateway that replaces a running one starts while the other has the lock, and takes the lock when the other ends.
    /// Replicas share the lock.
    ///
    /// # Errors
    ///
    /// As for [`DataDir::open`].
    pub fn open_with(
        path: &Path,
        occupancy: Occupancy<'_>,
        starter: bool,
    ) -> Result<Self, DataDirError> {
        let root = std::path::absolute(path).map_err(io_error("resolve", path))?;
        make_dir(&root, 0o755)?;
        let (lock, sole) = take_lock(&root, occupancy)?;
        let predecessor = sole
            .load(Ordering::Acquire)
            .then(|| replace_holder(&lock))
            .flatten();

        let version = root.join("version");
        let first_start = !check_version(&version)?;
        make_layout(&root)?;
        let sockets = match occupancy.replica {
            // `replicas/NAME/workers` is created later, when the replica has locked `replicas/NAME`: other replicas remove such a
            // folder if no process holds its lock.
            Some(name) => root
                .join("replicas")
                .join(replica_file_name(name))
                .join("workers"),
            None => root.join("workers"),
        };
        // The mode is set again because a restored backup or a volume may have another one. Other users must not connect to
        // workers.
        set_mode(&root.join("workers"), 0o700)?;
        let data = Self {
            root,
            sockets,
            first_start,
            sole,
            _lock: Some(lock),
            predecessor,
        };
        if data.sockets.is_dir() {
            remove_stale_sockets(&data.sockets)?;
        }
        let short = data.short_socket_dir();
        if short.symlink_metadata().is_ok() {
            verify_private(&short)?;
            remove_stale_sockets(&short)?;
        }
        if first_start {
            if starter {
                data.seed()?;
            }
            write_atomically(&version, format!("{FORMAT}\n").as_bytes(), 0o644)
                .map_err(io_error("write", &version))?;
        }
        Ok(data)
    }

    /// Opens the directory for a separate manager that runs at the same time as the gateway. Missing folders are created. The
    /// lock, the sockets and the first namespace are left to the gateway.
    ///
    /// # Errors
    ///
    /// [`DataDirError`] names the path and the remedy.
    pub fn beside(path: &Path) -> Result<Self, DataDirError> {
        let root = std::path::absolute(path).map_err(io_error("resolve", path))?;
        make_dir(&root, 0o755)?;
        check_version(&root.join("version"))?;
        make_layout(&root)?;
        Ok(Self {
            sockets: root.join("workers"),
            root,
            first_start: false,
            sole: Arc::new(AtomicBool::new(false)),
            _lock: None,
            predecessor: None,
        })
    }

    /// The absolute path of the data directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns true if the data directory was new and its content was created at this start.
    pub fn is_first_start(&self) -> bool {
        self.first_start
    }

    /// Returns true if no other gateway uses the directory. Files that this process does not use are then unused.
    pub fn is_sole_user(&self) -> bool {
        self.sole.load(Ordering::Acquire)
    }

    /// The gateway that used the directory before. If it was killed together with its guards, some of its processes may still
    /// run.
    pub fn predecessor(&self) -> Option<GatewayProcess> {
        self.predecessor
    }

    /// Folder in which users put the folders of namespaces.
    pub fn tools_dir(&self) -> PathBuf {
        self.root.join("tools")
    }

    /// Folder of the Python environments. Its entry `<ns>` is a symlink into [`DataDir::builds_dir`].
    pub fn venvs_dir(&self) -> PathBuf {
        self.root.join("venvs")
    }

    /// Folder in which Python environments are built.
    pub fn builds_dir(&self) -> PathBuf {
        self.root.join("venvs/.builds")
    }

    /// Folder of the audit files.
    pub fn logs_dir(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Folder of analysed repositories and packages of other authors. It is created when it is needed.
    pub fn repos_dir(&self) -> PathBuf {
        self.root.join("repos")
    }

    /// Folder into which the Python runtime is unpacked.
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.join("runtime")
    }

    /// Returns the path of a namespace's socket: `workers/<ns>/worker.sock`, for a replica below `replicas/<name>/`. The socket
    /// has a separate folder, because its worker can access all sockets in that folder. If the path would be too long for a
    /// socket address, a folder in a short private directory is used instead (Q-22).
    ///
    /// # Errors
    ///
    /// When the short directory cannot be created, or exists and other users have access to it.
    pub fn socket_for(&self, namespace: &NamespaceName) -> Result<PathBuf, DataDirError> {
        make_dir(&self.sockets, 0o700)?;
        let folder = self.sockets.join(namespace.as_str());
        let plain = folder.join(WORKER_SOCKET);
        if plain.as_os_str().len() + GENERATION_MAX <= SOCKET_PATH_MAX {
            make_dir(&folder, 0o700)?;
            return Ok(plain);
        }
        let short = self.short_socket(namespace.as_str().as_bytes())?;
        let folder = short.with_extension("");
        make_dir(&folder, 0o700)?;
        Ok(folder.join(WORKER_SOCKET))
    }

    /// Returns `path`. If it is too long for a socket address, returns a path in a short private directory instead.
    ///
    /// # Errors
    ///
    /// As for [`DataDir::socket_for`].
    pub fn socket_at(&self, path: PathBuf) -> Result<PathBuf, DataDirError> {
        match path.as_os_str().len() <= SOCKET_PATH_MAX {
            true => Ok(path),
            false => self.short_socket(path.as_os_str().as_encoded_bytes()),
        }
    }

    /// Creates the short private directory, and returns the path of a socket in it. The file's name is a digest of `name`.
    fn short_socket(&self, name: &[u8]) -> Result<PathBuf, DataDirError> {
        let short = self.short_socket_dir();
        match fs::DirBuilder::new().mode(0o700).create(&short) {
            Ok(()) => set_mode(&short, 0o700)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(io_error("create", &short)(source)),
        }
        verify_private(&short)?;
        Ok(short.join(format!("{}.sock", short_hash(name))))
    }

    /// Directory for sockets whose usual path would be too long. It may not exist. It is always in `/tmp`, because the path in
    /// `TMPDIR` may be long, too.
    pub fn short_socket_dir(&self) -> PathBuf {
        PathBuf::from(format!(
            "/tmp/tooldock-{}-{}",
            rustix::process::getuid().as_raw(),
            short_hash(self.sockets.as_os_str().as_encoded_bytes())
        ))
    }

    /// Creates the first namespace if `tools/` is empty. Existing content, such as that of a mount, is not changed.
    fn seed(&self) -> Result<(), DataDirError> {
        let tools = self.tools_dir();
        let mut entries = fs::read_dir(&tools).map_err(io_error("read", &tools))?;
        if entries.next().is_some() {
            return Ok(());
        }
        let folder = tools.join(STARTER);
        let hello = folder.join(HELLO_FILE);
        make_dir(&folder, 0o755)?;
        write_atomically(&hello, HELLO.as_bytes(), 0o644).map_err(io_error("write", &hello))
    }
}

/// Returns true if a folder contains only the files that are created at a first start.
pub fn is_starter(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let mut placed = false;
    for entry in entries {
        match entry.map(|entry| entry.file_name()) {
            Ok(name) if name == HELLO_FILE => placed = true,
            Ok(name) if name == "__pycache__" => {}
            _ => return false,
        }
    }
    let size = |path: &Path| path.metadata().map(|it| it.len());
    let hello = folder.join(HELLO_FILE);
    placed
        && size(&hello).is_ok_and(|size| size == HELLO.len() as u64)
        && fs::read(&hello).is_ok_and(|text| text == HELLO.as_bytes())
}

/// Creates the missing folders of the data directory.
fn make_layout(root: &Path) -> Result<(), DataDirError> {
    for (name, mode) in [
        ("tools", 0o755),
        ("venvs", 0o755),
        ("venvs/.builds", 0o755),
        ("workers", 0o700),
        ("logs", 0o750),
        ("runtime", 0o755),
    ] {
        make_dir(&root.join(name), mode)?;
    }
    Ok(())
}

/// Prefix of the names of temporary files that [`write_atomically`] creates.
pub const TEMPORARY: &str = ".tmp-";

/// Returns true if a name is that of a temporary file of this module: `beginning`, six letters or digits, `ending`.
pub fn is_temporary(name: &OsStr, beginning: &str, ending: &str) -> bool {
    let random = name
        .to_str()
        .and_then(|name| name.strip_prefix(beginning)?.strip_suffix(ending));
    random.is_some_and(|it| it.len() == 6 && it.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Replaces a file in one step: writes and syncs a temporary file in the same directory, renames it, and syncs the directory.
///
/// # Errors
///
/// The error of the operating system; the old file is then unchanged.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_file(path, bytes, mode, TEMPORARY, |_| Ok(()))
}

/// Replaces a file as [`write_atomically`] does. The temporary file's name begins with `prefix`, and `finish` is called before
/// the temporary file replaces the old one.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    prefix: &str,
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fault::point();
    let mut file = tempfile::Builder::new()
        .prefix(prefix)
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(directory)?;
    fault::point();
    file.write_all(bytes)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(mode))?;
    finish(file.as_file())?;
    fault::point();
    file.as_file().sync_all()?;
    fault::point();
    file.persist(path).map_err(|error| error.error)?;
    fault::point();
    File::open(directory)?.sync_all()
}

/// The first 16 hexadecimal digits of a SHA-256 digest, for use in file names.
pub fn short_hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..8])
}

/// Converts bytes to lowercase hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Replaces the process in the lock file by this process, and returns the previous one. Errors are ignored, because the process
/// is only recorded to find processes that remain after a crash.
fn replace_holder(lock: &File) -> Option<GatewayProcess> {
    let mut text = [0; 64];
    let read = lock.read_at(&mut text, 0).unwrap_or_default();
    let before = std::str::from_utf8(&text[..read]).unwrap_or_default();
    let _ = lock.set_len(0);
    let _ = lock.write_all_at(format!("{}\n", GatewayProcess::this()).as_bytes(), 0);
    before.trim().parse().ok()
}

/// The name of a replica for use in file names: the name itself if it is short and plain, otherwise a digest.
pub fn replica_file_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let fits = name.len() <= 64 && !name.starts_with(['.', '~']) && name.bytes().all(is_plain);
    match fits {
        true => name.to_owned(),
        false => format!("~{}", short_hash(name.as_bytes())),
    }
}

fn take_lock(
    root: &Path,
    occupancy: Occupancy<'_>,
) -> Result<(File, Arc<AtomicBool>), DataDirError> {
    let is_sole = occupancy.replica.is_none();
    let (at_once, in_time) = match is_sole {
        true => (
            FlockOperation::NonBlockingLockExclusive,
            FlockOperation::LockExclusive,
        ),
        false => (
            FlockOperation::NonBlockingLockShared,
            FlockOperation::LockShared,
        ),
    };
    let path = root.join("gateway.lock");
    let lock = regular_file::open_or_make(&path, 0o600).map_err(io_error("open", &path))?;
    let sole = Arc::new(AtomicBool::new(false));
    match flock(&lock, at_once) {
        Ok(()) => sole.store(is_sole, Ordering::Release),
        Err(Errno::WOULDBLOCK) if occupancy.successor => {
            // The lock belongs to the open file, so a lock of the duplicate is also a lock of `lock`. The thread waits until the
            // other gateway ends.
            let waiting = lock.try_clone().map_err(io_error("open", &path))?;
            let sole = Arc::clone(&sole);
            std::thread::Builder::new()
                .name("gateway-lock".into())
                .spawn(move || {
                    if flock(&waiting, in_time).is_ok() && is_sole {
                        replace_holder(&waiting);
                        sole.store(true, Ordering::Release);
                    }
                })
                .map_err(io_error("wait for", &path))?;
        }
        Err(Errno::WOULDBLOCK) => return Err(DataDirError::InUse(root.to_owned())),
        Err(errno) => return Err(io_error("lock", &path)(errno.into())),
    }
    Ok((lock, sole))
}

/// Checks the format number in the version file. Returns true if the file exists.
fn check_version(path: &Path) -> Result<bool, DataDirError> {
    let text = match regular_file::read(path, VERSION_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(io_error("read", path)(source)),
    };
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let found: u64 = text
        .trim()
        .parse()
        .map_err(|_| DataDirError::BadVersion(path.to_owned()))?;
    if found > u64::from(FORMAT) {
        return Err(DataDirError::Newer {
            path: path.to_owned(),
            found,
        });
    }
    Ok(true)
}

/// Creates a directory with its parents. The mode of an existing directory is not changed.
fn make_dir(path: &Path, mode: u32) -> Result<(), DataDirError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(io_error("create", path))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), DataDirError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(io_error("set the mode of", path))
}

/// Returns an error unless a directory belongs to this user and has mode 0700. The check is needed because all users can write to
/// `/tmp`: a directory that another user has prepared there, or can read, must not contain the gateway's sockets.
fn verify_private(path: &Path) -> Result<(), DataDirError> {
    let metadata = path.symlink_metadata().map_err(io_error("read", path))?;
    let private = metadata.is_dir()
        && metadata.uid() == rustix::process::getuid().as_raw()
        && metadata.mode() & 0o7777 == 0o700;
    if private {
        Ok(())
    } else {
        Err(DataDirError::ForeignSocketDir(path.to_owned()))
    }
}

/// Removes the files of sockets on which no process listens. A socket that accepts connections, or whose queue is full, is kept:
/// it belongs to a running worker, for example of an older gateway during an upgrade.
fn remove_stale_sockets(directory: &Path) -> Result<(), DataDirError> {
    for entry in fs::read_dir(directory).map_err(io_error("read", directory))? {
        let path = entry.map_err(io_error("read", directory))?.path();
        if path.is_dir() && !path.is_symlink() {
            remove_stale_sockets(&path)?;
            // Removing fails for a folder that still contains a socket. Such a folder is kept.
            let _ = fs::remove_dir(&path);
            continue;
        }
        if path
            .extension()
            .is_some_and(|extension| extension == "sock")
            && connect_is_refused(&path)
        {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            tracing::info!(socket = %path.display(), "removed a stale worker socket");
        }
    }
    Ok(())
}

fn connect_is_refused(path: &Path) -> bool {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    let Ok(address) = SocketAddrUnix::new(path) else {
        return false;
    };
    // The socket is non-blocking, because connecting to a worker whose accept queue is full would otherwise wait.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    matches!(connect(&socket, &address), Err(Errno::CONNREFUSED))
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it exists").mode() & 0o7777
    }

    #[test]
    fn first_start_makes_the_layout_and_the_hello_tool() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("deep/data");
        let data = DataDir::open(&root).unwrap();
        assert!(data.is_first_start());
        assert!(data.is_sole_user());
        assert_eq!(mode(&root.join("workers")), 0o700);
        let hello = root.join("tools/shared/hello.py");
        assert_eq!(mode(&hello), 0o644);
        let example =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf/examples/basic-tool/hello.py");
        assert_eq!(fs::read(hello).unwrap(), fs::read(example).unwrap());
        assert!(
            data.builds_dir().is_dir() && data.logs_dir().is_dir() && data.runtime_dir().is_dir()
        );
        assert_eq!(data.predecessor(), None);
        drop(data);
        fs::remove_dir_all(root.join("tools/shared")).unwrap();
        let again = DataDir::open(&root).unwrap();
        assert_eq!(again.predecessor(), Some(GatewayProcess::this()));
        assert!(!again.is_first_start());
        assert!(
            !root.join("tools/shared").exists(),
            "what was removed stays removed"
        );
    }

    #[test]
    fn a_first_start_without_the_starter_places_nothing_and_what_was_placed_is_known_again() {
        let temp = tempfile::tempdir().unwrap();
        let tools = |root: &Path| root.join("tools");
        let without = temp.path().join("without");
        DataDir::open_with(&without, Occupancy::default(), false).unwrap();
        assert_eq!(fs::read_dir(tools(&without)).unwrap().count(), 0);
        drop(DataDir::open(&without).unwrap());
        assert_eq!(fs::read_dir(tools(&without)).unwrap().count(), 0);

        let with = temp.path().join("with");
        DataDir::open(&with).unwrap();
        let folder = tools(&with).join(STARTER);
        assert!(is_starter(&folder) && !is_starter(&tools(&with)));
        make_dir(&folder.join("__pycache__"), 0o755).unwrap();
        assert!(is_starter(&folder));
        fs::write(folder.join("requirements.txt"), "").unwrap();
        assert!(!is_starter(&folder), "it is the operator's by now");
        fs::remove_file(folder.join("requirements.txt")).unwrap();
        fs::write(folder.join(HELLO_FILE), HELLO.to_uppercase()).unwrap();
        assert!(!is_starter(&folder));
    }

    #[test]
    fn a_tools_folder_with_content_is_not_seeded() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("tools/mine")).unwrap();
        DataDir::open(temp.path()).unwrap();
        assert!(!temp.path().join("tools/shared").exists());
    }

    #[test]
    fn a_second_gateway_is_refused_unless_it_upgrades() {
        let temp = tempfile::tempdir().unwrap();
        let first = DataDir::open(temp.path()).unwrap();
        let error = DataDir::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("another gateway") && error.contains(temp.path().to_str().unwrap()));
        let successor = Occupancy {
            successor: true,
            ..Occupancy::default()
        };
        let second = DataDir::open_with(temp.path(), successor, true).unwrap();
        assert!(!second.is_sole_user());
        drop(first);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !second.is_sole_user() {
            assert!(
                std::time::Instant::now() < deadline,
                "the lock was not handed over"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn replicas_share_the_directory_with_sockets_of_their_own_and_no_other_gateway() {
        let temp = tempfile::tempdir().unwrap();
        let namespace: NamespaceName = "github".parse().unwrap();
        let open = |name| {
            let occupancy = Occupancy {
                replica: Some(name),
                ..Occupancy::default()
            };
            DataDir::open_with(temp.path(), occupancy, true)
        };
        let (first, second) = (open("a").unwrap(), open("b c").unwrap());
        assert!(!first.is_sole_user() && !second.is_sole_user());
        let sockets = [&first, &second].map(|it| it.socket_for(&namespace).unwrap());
        assert_ne!(sockets[0], sockets[1]);
        assert_eq!(
            sockets[0],
            temp.path().join("replicas/a/workers/github/worker.sock")
        );
        assert!(DataDir::open(temp.path()).is_err());
        drop((first, second));
        let sole = DataDir::open(temp.path()).unwrap();
        assert!(open("a").is_err());
        drop(sole);
    }

    #[test]
    fn every_name_of_a_replica_is_the_name_of_a_file_of_its_own() {
        let plain = ["one", "gateway-1.example_x", "one~2"];
        for name in plain {
            assert_eq!(replica_file_name(name), name);
        }
        let long = "x".repeat(128);
        let odd = ["..", ".", "a/b", "a%2fb", "~", &long];
        let mut folders: Vec<_> = odd.iter().map(|name| replica_file_name(name)).collect();
        folders.sort();
        folders.dedup();
        assert_eq!(folders.len(), odd.len());
        for folder in folders {
            assert!(folder.len() == 17 && !folder.contains('/'), "{folder}");
        }
    }

    #[test]
    fn a_newer_format_and_a_damaged_one_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("version"), "2\n").unwrap();
        let error = DataDir::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("newer version (format 2"), "{error}");
        fs::write(temp.path().join("version"), b"\xff\xfe").unwrap();
        let error = DataDir::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("not a format number"), "{error}");
    }

    #[test]
    fn stale_sockets_go_and_live_ones_stay() {
        let temp = tempfile::tempdir().unwrap();
        drop(DataDir::open(temp.path()).unwrap());
        let (stale, live) = (
            temp.path().join("workers/a/worker.sock"),
            temp.path().join("workers/b/worker.sock"),
        );
        fs::create_dir(temp.path().join("workers/a")).unwrap();
        fs::create_dir(temp.path().join("workers/b")).unwrap();
        drop(UnixListener::bind(&stale).unwrap());
        let _listening = UnixListener::bind(&live).unwrap();
        DataDir::open(temp.path()).unwrap();
        assert!(!stale.parent().unwrap().exists());
        assert!(live.exists());
    }

    #[test]
    fn long_paths_get_a_short_private_socket_directory() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("x".repeat(80));
        let data = DataDir::open(&root).unwrap();
        let name: NamespaceName = "n".repeat(63).parse().unwrap();
        let socket = data.socket_for(&name).unwrap();
        assert!(socket.as_os_str().len() + GENERATION_MAX <= SOCKET_PATH_MAX);
        let directory = socket.parent().and_then(Path::parent).unwrap();
        assert_eq!(mode(directory), 0o700);
        set_mode(directory, 0o755).unwrap();
        assert!(matches!(
            data.socket_for(&name),
            Err(DataDirError::ForeignSocketDir(_))
        ));
        fs::remove_dir_all(directory).unwrap();
        std::os::unix::fs::symlink(temp.path(), directory).unwrap();
        assert!(matches!(
            data.socket_for(&name),
            Err(DataDirError::ForeignSocketDir(_))
        ));
        fs::remove_file(directory).unwrap();
    }

    #[test]
    fn short_paths_stay_beside_the_data() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::open(temp.path()).unwrap();
        let socket = data.socket_for(&"github".parse().unwrap()).unwrap();
        assert_eq!(socket, temp.path().join("workers/github/worker.sock"));
    }

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_beside_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        write_atomically(&path, b"one", 0o600).unwrap();
        write_atomically(&path, b"two", 0o640).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(mode(&path), 0o640);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }
}
