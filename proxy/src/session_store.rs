//! Opens the store of sessions (`sessions.store`), and adds this process to the replicas that share the store.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tooldock_base::data_dir::DataDir;
use tooldock_base::gateway_process::GatewayProcess;
use tooldock_sessions::replicas::{Announcement, ReplicaId, Replicas};
use tooldock_sessions::session::config::{StoreConfig, StoreUrl};
use tooldock_sessions::stores::Stores;
use tooldock_sessions::stores::disk::{Bounds, DiskDirectory, DiskStore, ReplicaFolder};
use tooldock_sessions::stores::redis::{RedisStore, RedisUrl};
use tooldock_upstream::seal::SessionKey;

use crate::config::{Effective, ListenAddress, Peers, ProfileName, Role, SocketMode};
use crate::{kept_file, session_key, sockets};

/// File in the data directory with the generated name of this replica. It is used if no name is configured.
const NAME_FILE: &str = "replica.id";

/// Suffix of the name of a replica that replaces a running one with the same name, see [`beside`].
const SUCCESSOR: &str = "~2";

/// Number of random bytes in the generated name of a replica.
const NAME_BYTES: usize = 8;

/// The open store, and this process as one of the replicas that share it.
pub(crate) struct OpenStore {
    /// The stores of sessions and their data; `None` if sessions are in memory only.
    pub(crate) stores: Option<Stores>,
    pub(crate) replicas: Arc<Replicas>,
    /// The Unix socket for requests from other replicas on this machine; `None` if they cannot send any.
    pub(crate) socket: Option<ReplicaSocket>,
}

/// A Unix socket for requests from other replicas on this machine.
pub(crate) struct ReplicaSocket {
    pub(crate) address: ListenAddress,
    pub(crate) socket: UnixListener,
}

/// Opens the configured store. A connection to Redis is opened only with its first operation. `succeeded` is the name of the
/// replica that this process replaces.
///
/// # Errors
///
/// When the store cannot be opened, or was written by a newer version. When replicas would not share a session key. When another
/// process on this data directory has the name of this replica.
pub(crate) fn open(
    effective: &Effective,
    data: &DataDir,
    key: &SessionKey,
    succeeded: Option<&str>,
) -> anyhow::Result<OpenStore> {
    let open = match &effective.config.sessions.store {
        StoreConfig::Memory => alone(effective, key),
        StoreConfig::Disk => on_disk(effective, data, key, succeeded),
        StoreConfig::Redis(url) => in_redis(effective, url, key, succeeded),
    }?;
    if let Some(name) = succeeded {
        open.replicas.set_predecessor(ReplicaId::named(name));
    }
    Ok(open)
}

/// Error text if sessions are in Redis but there is no session key that all replicas could share. `None` if there is a key, or
/// sessions are not in Redis.
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

/// Names of the sessions file and of the folder for the replicas that share it. A manager in a separate process has other names
/// than the core, so that neither process loads the other's sessions.
fn names_on_disk(role: Role) -> (&'static str, &'static str) {
    match role {
        Role::All | Role::Core => ("sessions.db", "replicas"),
        Role::Manager => ("sessions-manager.db", "replicas-manager"),
    }
}

/// Creates the store for a process whose sessions are in memory only.
fn alone(effective: &Effective, key: &SessionKey) -> anyhow::Result<OpenStore> {
    let replicas = match effective.config.replicas.name() {
        None => Replicas::alone(),
        Some(name) => Replicas::single(announcement(effective, name, key, None)?),
    };
    Ok(OpenStore {
        stores: None,
        replicas,
        socket: None,
    })
}

/// Opens the sessions in a data directory, and joins the replicas that share them.
fn on_disk(
    effective: &Effective,
    data: &DataDir,
    key: &SessionKey,
    succeeded: Option<&str>,
) -> anyhow::Result<OpenStore> {
    let (file, folder) = names_on_disk(effective.role);
    let name = name(effective, succeeded)?;
    // This process joins the other replicas before it opens the store: if another process already has this replica's name,
    // joining fails and the store stays unchanged.
    let sealing = may_forward(effective).then(|| key.clone());
    let folder = ReplicaFolder::join(&data.root().join(folder), &name, sealing)?;
    let bounds = Bounds::of(&effective.config.sessions);
    let store = DiskStore::open(&data.root().join(file), bounds)?;
    let socket = match wants_socket(effective) {
        true => bind(data, &folder)
            .inspect_err(|error| {
                tracing::warn!("other replicas of this machine cannot reach this one: {error:#}");
            })
            .ok(),
        false => None,
    };
    let address = socket.as_ref().map(|it| it.address.to_string().into());
    let mut own = announcement(effective, &name, key, address)?;
    own.process = Some(GatewayProcess::this().to_string().into());
    let store = store.of_replica(own.id);
    let directory = DiskDirectory::of(&store, folder)?;
    Ok(OpenStore {
        stores: Some(Stores::of(store)),
        replicas: Replicas::of(own, Arc::new(directory)),
        socket,
    })
}

/// Returns true if this replica needs a Unix socket for requests from other replicas on this machine.
fn wants_socket(effective: &Effective) -> bool {
    let serves = effective.role != Role::Manager;
    serves && may_forward(effective) && effective.replica_address().is_none()
}

/// Returns true if replicas on this machine may forward requests to each other. For that the operator must have set the replica's
/// name or `SESSION_KEY`. The reason: a key stored in the data directory can be read by tools of the same user, and such a tool
/// could impersonate a replica to get the credentials of clients. Gateways without other replicas should not have this risk.
fn may_forward(effective: &Effective) -> bool {
    effective.session_key.is_some() || effective.config.replicas.name().is_some()
}

/// Binds the Unix socket for requests from other replicas.
fn bind(data: &DataDir, folder: &ReplicaFolder) -> anyhow::Result<ReplicaSocket> {
    let path = data.socket_at(folder.socket())?;
    let printed = path.display();
    // The path must be UTF-8, because it is announced to other replicas as text.
    path.to_str()
        .with_context(|| format!("{printed}: the path is not UTF-8"))?;
    let bound = sockets::bind_unix(&path, SocketMode(0o600));
    let socket = bound.with_context(|| format!("{printed}: cannot listen there"))?;
    Ok(ReplicaSocket {
        address: ListenAddress::Unix(path),
        socket,
    })
}

fn in_redis(
    effective: &Effective,
    url: &StoreUrl,
    key: &SessionKey,
    succeeded: Option<&str>,
) -> anyhow::Result<OpenStore> {
    let sessions = &effective.config.sessions;
    let url: RedisUrl = url
        .expose()
        .parse()
        .map_err(|error| anyhow!("sessions.store: {error}"))?;
    let prefix = match effective.role {
        Role::All | Role::Core => sessions.store_prefix.clone(),
        // A manager in a separate process uses another prefix than the core, because the sessions with the management tools are
        // separate from those with the core.
        Role::Manager => format!("{}manager:", sessions.store_prefix),
    };
    let store = RedisStore::unconnected(&url, &prefix, sessions.ttl, &sessions.event_log)?;
    let own = announcement(effective, &name(effective, succeeded)?, key, None)?;
    let store = store.of_replica(own.id);
    let replicas = Replicas::of(own, Arc::new(store.clone()));
    match &effective.config.replicas.peers {
        Peers::List(addresses) => {
            replicas.forward_only_to(addresses.iter().cloned().collect());
        }
        // Until the name in `replicas.peers` has been resolved, requests are forwarded to no address.
        peers @ Peers::Word(_) if peers.name().is_some() => {
            replicas.forward_only_to(BTreeSet::new());
        }
        Peers::Word(_) => {}
    }
    Ok(OpenStore {
        stores: Some(Stores::of(store)),
        replicas,
        socket: None,
    })
}

/// The announcement of this process to other replicas. Its address is `replicas.address` if that is set, otherwise `address`.
fn announcement(
    effective: &Effective,
    name: &str,
    key: &SessionKey,
    address: Option<Arc<str>>,
) -> anyhow::Result<Announcement> {
    let configured = effective.replica_address();
    let address = configured.map(|(address, _)| address.into()).or(address);
    Ok(Announcement {
        id: ReplicaId::named(name),
        name: name.into(),
        incarnation: getrandom::u64()?,
        address,
        process: None,
        key: Arc::clone(key.digest()),
        listeners: effective
            .served_listeners()
            .filter(|(_, listener)| listener.profile != ProfileName::Metrics)
            .map(|(_, listener)| listener.name.as_str().into())
            .collect(),
        leaving: false,
        sources: None,
        reloaded: None,
        behind: false,
    })
}

/// The name of a replica that replaces the replica `succeeded`. If both had the name `name`, the new one gets a suffix, because
/// both run for a while. The next replacement has the plain name again.
pub(crate) fn beside(name: &str, succeeded: Option<&str>) -> String {
    match succeeded == Some(name) {
        true => format!("{name}{SUCCESSOR}"),
        false => name.to_owned(),
    }
}

/// The name of this replica: the configured or else the generated one, with a suffix if the replaced replica has the same name.
fn name(effective: &Effective, succeeded: Option<&str>) -> anyhow::Result<String> {
    let name = match effective.config.replicas.name() {
        Some(name) => name.to_owned(),
        None => kept_name(&effective.data_dir)?,
    };
    Ok(beside(&name, succeeded))
}

/// The generated name in the data directory. It is stored, so that a restarted replica can continue its sessions immediately.
fn kept_name(data_dir: &Path) -> anyhow::Result<String> {
    let bytes = kept_file::read_or_make(&data_dir.join(NAME_FILE), NAME_BYTES, || {
        let mut name = vec![0; NAME_BYTES];
        getrandom::fill(&mut name)?;
        Ok(name)
    })?;
    Ok(hex::encode(bytes))
}
