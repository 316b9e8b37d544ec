//! Folders of namespaces: listing, creating and deleting them.

use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tooldock_base::fault;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{EXTERNAL_FILE, Names};
use tooldock_credentials::secrets::DeclaredSecret;

use super::{NotDone, Workspace, blocking, leftovers, servers};
use crate::scan;

/// Prefix of a deleted namespace's folder while its content is being removed. The scan ignores folders with this prefix.
pub(super) const DELETED: &str = ".deleted-";

/// A namespace's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceFolder {
    /// Name of the namespace.
    pub name: NamespaceName,
    /// True if the folder has a `requirements.txt`.
    pub has_requirements: bool,
    /// The secrets that the folder's `tooldock.yaml` declares.
    pub secrets: Vec<DeclaredSecret>,
    /// Reason why the folder's `tooldock.yaml` cannot be read, with the file's path. The declared secrets are unknown then.
    pub unreadable: Option<String>,
}

impl Workspace {
    /// Lists the folders of namespaces, sorted by name.
    ///
    /// # Errors
    ///
    /// When `tools/` cannot be read.
    pub async fn namespaces(&self) -> Result<Vec<NamespaceFolder>, NotDone> {
        let tools = self.data.tools_dir();
        blocking(move || {
            let sources =
                scan::scan(&tools).map_err(|error| NotDone::io("read", &tools, &error))?;
            let folder = |source: scan::NamespaceSource| NamespaceFolder {
                unreadable: unreadable(&source),
                name: source.name,
                has_requirements: source.requirements.is_some(),
                secrets: source.manifest.declared_secrets(),
            };
            Ok(sources.into_iter().map(folder).collect())
        })
        .await
    }

    /// Checks that the folder of a namespace exists.
    ///
    /// # Errors
    ///
    /// When the folder does not exist or cannot be opened.
    pub async fn exists(&self, name: &NamespaceName) -> Result<(), NotDone> {
        let (tools, name) = (self.tools(), name.clone());
        blocking(move || Folder::open(&tools, &name).map(drop)).await
    }

    /// Creates the folder of a new namespace and returns its path.
    ///
    /// # Errors
    ///
    /// When a file or folder of that name exists, with its path in the message, or when the configuration or a server
    /// of `external/config.yaml` has the name.
    pub async fn create_namespace(&self, name: &NamespaceName) -> Result<PathBuf, NotDone> {
        if name.is_path_of_v1() {
            return Err(NotDone(format!(
                "the name {name} is taken by a path of ToolDock v1 (/mcp/{name}); choose another one"
            )));
        }
        self.not_configured(name)?;
        let lock = self.lock().await?;
        let (tools, name) = (self.tools(), name.clone());
        blocking(move || {
            let _lock = lock;
            if servers::has(&tools.servers, &name) {
                return Err(NotDone(format!(
                    "there is a server {name} in {EXTERNAL_FILE}, which a namespace of that name would displace; choose another \
                     name, or remove_server first"
                )));
            }
            let path = tools.join(name.as_str());
            fault::point();
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(NotDone(format!(
                        "the namespace exists already: {}",
                        path.display()
                    )));
                }
                Err(error) => return Err(NotDone::io("create", &path, &error)),
            }
            fault::point();
            sync_folder(path.parent().unwrap_or(&path))?;
            Ok(path)
        })
        .await
    }

    /// Removes a namespace's folder with its content, and its environment. Processes of the namespace continue until the next
    /// reload.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or the operating system returns an error.
    pub async fn delete_namespace(&self, name: &NamespaceName) -> Result<(), NotDone> {
        let lock = self.lock().await?;
        let tools = self.tools();
        let venv = self.data.venvs_dir().join(name.as_str());
        let adding = self.adding_lock(name);
        let name = name.clone();
        blocking(move || {
            let _lock = lock;
            let folder = Folder::open(&tools, &name)?;
            // The folder is first renamed, so that no reload reads a partly removed namespace.
            let aside = tools.join(format!("{DELETED}{:016x}", fastrand::u64(..)));
            fault::point();
            fs::rename(&folder.path, &aside)
                .map_err(|error| NotDone::io("remove", &folder.path, &error))?;
            fault::point();
            sync_folder(&tools)?;
            remove_environment(&venv)?;
            fault::point();
            leftovers::remove_lock(&adding);
            leftovers::remove_deleted(&tools);
            Ok(())
        })
        .await
    }
}

/// Returns the scan's error about an unreadable `tooldock.yaml`.
fn unreadable(source: &scan::NamespaceSource) -> Option<String> {
    let failure = source.failure.as_ref()?;
    let (folder, message) = (source.dir.display(), &failure.message);
    match failure.code {
        // The scan's message already begins with the file's name.
        "invalid_manifest" => Some(format!("{folder}/{message}")),
        "unreadable" => Some(format!("{folder}: {message}")),
        _ => None,
    }
}

/// Removes the symlink to the environment. The environment itself is removed by the next reload, since a worker may still use
/// it.
fn remove_environment(venv: &Path) -> Result<(), NotDone> {
    let removed = match venv.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(venv),
        Ok(_) => fs::remove_file(venv),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NotDone::io("remove", venv, &error))
        }
        _ => Ok(()),
    }
}

pub(super) fn sync_folder(path: &Path) -> Result<(), NotDone> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|error| NotDone::io("sync", path, &error))
}

/// The directory with the folders of all namespaces, and the names that the configuration and `external/config.yaml` use.
#[derive(Clone)]
pub(super) struct Tools {
    dir: PathBuf,
    /// Path of `external/config.yaml`, which contains the servers that management tools add.
    servers: PathBuf,
    configured: Arc<Names>,
}

impl Workspace {
    pub(super) fn tools(&self) -> Tools {
        Tools {
            dir: self.data.tools_dir(),
            servers: self.servers_file(),
            configured: Arc::clone(&self.configured_names()),
        }
    }
}

impl Tools {
    /// The error for a namespace that has no folder.
    fn no_folder(&self, name: &NamespaceName) -> NotDone {
        let configured = self.configured.winner(name).map(|claim| &*claim.place);
        let place = match configured {
            None if servers::has(&self.servers, name) => Some(EXTERNAL_FILE),
            configured => configured,
        };
        NotDone(match place {
            Some(place) => format!(
                "{name} is a server that others wrote ({place}): it has no tool files, no requirements.txt and no tooldock.yaml \
                 here. test_tool runs a tool of it, read_output shows what it printed, list_secrets(namespace) shows its secrets"
            ),
            None => format!(
                "there is no namespace {name}; list_namespaces shows those there are, create_namespace makes one"
            ),
        })
    }
}

impl Deref for Tools {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.dir
    }
}

/// An open folder of a namespace. It refers to the same folder even if the folder is moved.
pub(super) struct Folder {
    descriptor: OwnedFd,
    /// Path of the folder for messages.
    pub(super) path: PathBuf,
}

impl Folder {
    /// Opens the folder of a namespace. Fails if the name is a symlink.
    pub(super) fn open(tools: &Tools, name: &NamespaceName) -> Result<Self, NotDone> {
        let path = tools.join(name.as_str());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, &path, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Self { descriptor, path }),
            Err(rustix::io::Errno::NOENT) => Err(tools.no_folder(name)),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => Err(NotDone(format!(
                "{} is no folder of its own (a symlink or a file), and is not managed",
                path.display()
            ))),
            Err(error) => Err(NotDone::io("open", &path, &error.into())),
        }
    }

    /// Opens a subfolder; `None` if the name does not exist. Fails if the name is a symlink.
    pub(super) fn subfolder(&self, name: &str) -> Result<Option<Self>, NotDone> {
        let path = self.shown(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Some(Self { descriptor, path })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => Err(NotDone(format!(
                "{} is no folder of its own (a symlink or a file), and is not managed",
                path.display()
            ))),
            Err(error) => Err(NotDone::io("open", &path, &error.into())),
        }
    }

    /// The path through which an entry of the open folder is accessed; valid even after the folder was moved.
    pub(super) fn entry(&self, name: &str) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}/{name}",
            self.descriptor.as_raw_fd()
        ))
    }

    /// The path of an entry, for messages.
    pub(super) fn shown(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}
