//! The store of sessions beside the memory of the process (`sessions.store`).

use anyhow::bail;
use tooldock_upstream::session::config::StoreConfig;
use tooldock_upstream::stores::Stores;
use tooldock_upstream::stores::disk::{Bounds, DiskStore};

use crate::config::{Effective, NOT_SUPPORTED, Role};

/// Opens the store that the configuration names; `None` for `memory`.
///
/// # Errors
///
/// When the store cannot be opened, or was written by a newer version.
pub(crate) fn open(effective: &Effective) -> anyhow::Result<Option<Stores>> {
    let sessions = &effective.config.sessions;
    match sessions.store {
        StoreConfig::Memory => Ok(None),
        StoreConfig::Disk => {
            let file = effective.data_dir.join(file_name(effective.role));
            let store = DiskStore::open(&file, Bounds::of(sessions))?;
            Ok(Some(Stores::of(store)))
        }
        StoreConfig::Redis => bail!("sessions.store: {NOT_SUPPORTED}"),
    }
}

/// A manager beside a core has a file of its own: neither takes up the sessions of the other.
fn file_name(role: Role) -> &'static str {
    match role {
        Role::All | Role::Core => "sessions.db",
        Role::Manager => "sessions-manager.db",
    }
}
