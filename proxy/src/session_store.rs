//! The store of sessions beside the memory of the process (`sessions.store`), and this process among the replicas that
//! share it.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use tooldock_upstream::replicas::{Announcement, ReplicaId, Replicas};
use tooldock_upstream::seal::SessionKey;
use tooldock_upstream::session::config::{StoreConfig, StoreUrl};
use tooldock_upstream::stores::Stores;
use tooldock_upstream::stores::disk::{Bounds, DiskStore};
use tooldock_upstream::stores::redis::{RedisStore, RedisUrl};

use crate::config::{Effective, ProfileName, Role};
use crate::{kept_file, session_key};

/// The file with the name of a replica that was given none.
const NAME_FILE: &str = "replica.id";

/// The suffix of the name of every other successor.
const SUCCESSOR: &str = "~2";

/// Random bytes of such a name.
const NAME_BYTES: usize = 8;

/// Opens the store that the configuration names: none for `memory`. A Redis is connected to by the first operation.
/// `succeeded` is the replica that this process succeeds.
///
/// # Errors
///
/// When the store cannot be opened, or was written by a newer version; when replicas would not share a session key.
pub(crate) fn open(
    effective: &Effective,
    key: &SessionKey,
    succeeded: Option<&str>,
) -> anyhow::Result<(Option<Stores>, Arc<Replicas>)> {
    let sessions = &effective.config.sessions;
    match &sessions.store {
        StoreConfig::Memory => Ok((None, alone(effective, key)?)),
        StoreConfig::Disk => {
            let file = effective.data_dir.join(file_name(effective.role));
            let store = DiskStore::open(&file, Bounds::of(sessions))?;
            Ok((Some(Stores::of(store)), alone(effective, key)?))
        }
        StoreConfig::Redis(url) => in_redis(effective, url, key, succeeded),
    }
}

/// Words about replicas of a Redis that would not share a session key; `None` where there is a key, or no Redis.
pub(crate) fn missing_key(effective: &Effective) -> Option<String> {
    let shares_sessions = matches!(effective.config.sessions.store, StoreConfig::Redis(_));
    let file = effective.data_dir.join(session_key::FILE);
    let is_missing = shares_sessions && effective.session_key.is_none() && !file.exists();
    is_missing.then(|| {
        format!(
            "sessions.store is a Redis, which replicas share: set SESSION_KEY to one secret of 32 characters or more for all of \
             them, or put one key file at {}",
            file.display()
        )
    })
}

/// A manager beside a core has a file of its own: neither takes up the sessions of the other.
fn file_name(role: Role) -> &'static str {
    match role {
        Role::All | Role::Core => "sessions.db",
        Role::Manager => "sessions-manager.db",
    }
}

/// A process whose sessions no other one has at the same time.
fn alone(effective: &Effective, key: &SessionKey) -> anyhow::Result<Arc<Replicas>> {
    match effective.config.replicas.name() {
        None => Ok(Replicas::alone()),
        Some(name) => Ok(Replicas::single(announcement(effective, name, key)?)),
    }
}

fn in_redis(
    effective: &Effective,
    url: &StoreUrl,
    key: &SessionKey,
    succeeded: Option<&str>,
) -> anyhow::Result<(Option<Stores>, Arc<Replicas>)> {
    let sessions = &effective.config.sessions;
    let url: RedisUrl = url
        .expose()
        .parse()
        .map_err(|error| anyhow!("sessions.store: {error}"))?;
    let prefix = match effective.role {
        Role::All | Role::Core => sessions.store_prefix.clone(),
        // Sessions at management tools have nothing to do with those at the core.
        Role::Manager => format!("{}manager:", sessions.store_prefix),
    };
    let store = RedisStore::unconnected(&url, &prefix, sessions.ttl, &sessions.event_log)?;
    let name = match effective.config.replicas.name() {
        Some(name) => name.to_owned(),
        None => kept_name(&effective.data_dir)?,
    };
    let name = beside(&name, succeeded);
    let own = announcement(effective, &name, key)?;
    let store = store.of_replica(own.id);
    let replicas = Replicas::of(own, Arc::new(store.clone()));
    Ok((Some(Stores::of(store)), replicas))
}

fn announcement(
    effective: &Effective,
    name: &str,
    key: &SessionKey,
) -> anyhow::Result<Announcement> {
    let address = effective
        .replica_address()
        .map(|(address, _)| address.into());
    Ok(Announcement {
        id: ReplicaId::named(name),
        name: name.into(),
        incarnation: getrandom::u64()?,
        address,
        key: Arc::clone(key.digest()),
        listeners: effective
            .served_listeners()
            .filter(|(_, listener)| listener.profile != ProfileName::Metrics)
            .map(|(_, listener)| listener.name.as_str().into())
            .collect(),
        leaving: false,
        sources: None,
        reloaded: None,
    })
}

/// The name of a replica beside the one that it succeeds: both are up for a while, and each needs a name of its own. The
/// next successor has the plain name again.
pub(crate) fn beside(name: &str, succeeded: Option<&str>) -> String {
    match succeeded == Some(name) {
        true => format!("{name}{SUCCESSOR}"),
        false => name.to_owned(),
    }
}

/// The name that this data directory keeps, so that a restarted replica goes on with its sessions at once.
fn kept_name(data_dir: &Path) -> anyhow::Result<String> {
    let bytes = kept_file::read_or_make(&data_dir.join(NAME_FILE), NAME_BYTES, || {
        let mut name = vec![0; NAME_BYTES];
        getrandom::fill(&mut name)?;
        Ok(name)
    })?;
    Ok(hex::encode(bytes))
}
