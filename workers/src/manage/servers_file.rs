//! Changes of `external/config.yaml` by commands that run in a process next to the gateway. Several servers are changed in one
//! step, and comments in the file are kept if its style allows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::servers::{SERVERS_MAX, read, read_text, servers_of, write, write_text};
use super::{NotDone, ServerRefused};
use crate::external::check_entry;
use crate::yaml_edit::{self, NewEntry};
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::EXTERNAL_FILE;
use tooldock_base::yaml::{Mapping, Value};
use tooldock_process::environment::FileLock;

/// Maximum wait for the lock while a manager changes the file.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts to take the lock.
const RETRY: Duration = Duration::from_millis(20);

/// The servers' file, locked until this value is dropped.
#[derive(Debug)]
pub struct LockedServers {
    path: PathBuf,
    tools: PathBuf,
    _lock: FileLock,
    text: String,
    /// The parsed content of the file, with the changes. `text` contains the same changes, unless the file's style does not allow
    /// changing it in place.
    tree: Mapping,
    is_rewritten: bool,
}

impl LockedServers {
    /// Locks and reads the servers' file of a data directory. Creates the directory if it is missing. May wait for a manager.
    ///
    /// # Errors
    ///
    /// When another process holds the lock for too long, or the file cannot be read.
    pub fn open(data: &Path) -> Result<Self, NotDone> {
        fs::create_dir_all(data).map_err(|error| NotDone::io("make", data, &error))?;
        let deadline = Instant::now() + PATIENCE;
        let lock = loop {
            let taken = FileLock::try_take(&data.join("manager.lock"));
            let taken =
                taken.map_err(|error| NotDone(format!("another manager is at work: {error}")))?;
            match taken {
                Some(lock) => break lock,
                None if Instant::now() >= deadline => {
                    let message = format!("another manager holds manager.lock for {PATIENCE:?}");
                    return Err(NotDone(message));
                }
                None => thread::sleep(RETRY),
            }
        };
        let path = data.join(EXTERNAL_FILE);
        Ok(Self {
            text: read_text(&path)?.unwrap_or_default(),
            tree: read(&path)?,
            tools: data.join("tools"),
            path,
            _lock: lock,
            is_rewritten: false,
        })
    }

    /// Reads the servers of the file of a data directory, without locking it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn peek(data: &Path) -> Result<Mapping, NotDone> {
        Ok(servers_of(&read(&data.join(EXTERNAL_FILE))?))
    }

    /// Path of the servers' file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file has a server with that name.
    pub fn has(&self, name: &NamespaceName) -> bool {
        servers_of(&self.tree).contains_key(Value::from(name.as_str()))
    }

    /// Adds servers, or replaces existing servers with the same names. The file is written only by [`LockedServers::save`].
    ///
    /// # Errors
    ///
    /// The first server whose entry is not valid, or whose name is used by a folder of tools.
    pub fn put_all(&mut self, servers: &[NewEntry<'_>]) -> Result<(), (String, ServerRefused)> {
        let mut all = servers_of(&self.tree);
        for server in servers {
            let refused = |why| Err((server.name.to_owned(), why));
            let entry = Value::Mapping(server.entry.clone());
            if let Err(error) = check_entry(entry.clone()) {
                let (key, message) = (error.key, error.message);
                return refused(ServerRefused::Invalid { key, message });
            }
            if self.tools.join(server.name).symlink_metadata().is_ok() {
                return match server.name.parse() {
                    Ok(name) => refused(ServerRefused::Folder(name)),
                    Err(error) => refused(NotDone(format!("{error}")).into()),
                };
            }
            all.insert(server.name.into(), entry);
            if all.len() > SERVERS_MAX {
                let message = format!("{EXTERNAL_FILE} would have more than {SERVERS_MAX} servers");
                return refused(NotDone(message).into());
            }
        }
        self.tree.insert("servers".into(), Value::Mapping(all));
        match yaml_edit::put_all(&self.text, &["servers"], servers.iter().copied()) {
            Ok(text) => self.text = text,
            Err(_) => self.is_rewritten = true,
        }
        Ok(())
    }

    /// Removes a server. Returns false if the file has no server with that name.
    pub fn remove(&mut self, name: &NamespaceName) -> bool {
        let mut servers = servers_of(&self.tree);
        if servers.shift_remove(Value::from(name.as_str())).is_none() {
            return false;
        }
        self.tree.insert("servers".into(), Value::Mapping(servers));
        match yaml_edit::remove(&self.text, &["servers"], name.as_str()) {
            Ok(text) => self.text = text,
            Err(_) => self.is_rewritten = true,
        }
        true
    }

    /// Writes the file atomically, readable for its owner only. The previous content is stored in a second file. Returns true if
    /// the file's comments are lost, because its style did not allow changing it in place.
    ///
    /// # Errors
    ///
    /// When the file cannot be written. It is then unchanged.
    pub fn save(self) -> Result<bool, NotDone> {
        let had_comments = self
            .text
            .lines()
            .any(|line| line.trim_start().starts_with('#'));
        match self.is_rewritten {
            true => write(&self.path, self.tree)?,
            false => write_text(&self.path, &self.text)?,
        }
        Ok(self.is_rewritten && had_comments)
    }
}
