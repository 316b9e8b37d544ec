//! The active set of a request's client, and the storage of a changed set.
//!
//! | client | set | kept |
//! |---|---|---|
//! | in a session | the session's | in the session's record |
//! | without one, with a handle in the address or in `_meta` | the handle's | by the client, sealed |
//! | without both | the start set | as a new handle |
//! | by the relay's socket, which takes no handle | the start set | nowhere: a change is refused |
//!
//! `activation_scope = "principal"` stores one set for all clients with the same token, `"process"` a single set for all
//! clients; a handle takes precedence over a principal's set. Clients without a token share no set: each has its own as with
//! `"session"`.
//!
//! A change is applied to the set that is current when it is stored, under a lock, so that two concurrent activations both take
//! effect.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tooldock_base::names::{ANONYMOUS, NamespaceName};
use tooldock_protocol::jsonrpc::{self, Key, Members, RequestError, spans};
use tooldock_protocol::seal::SessionKey;
use tooldock_sessions::broadcast::Change;
use tooldock_sessions::session::toolset::{DIFFERENCES_MAX, EntryId};
use tooldock_sessions::session::{PerSession, Session, SessionPatch, Toolset};
use tooldock_workers::aggregate::ActivationScope;

use crate::metrics::toolman::{KeptToolset, ToolmanMetrics};
use crate::upstream::CallContext;
use crate::upstream::sessions::SessionChanges;

/// The key of `_meta` that may contain a handle, and that contains the new handle in the response to an activation.
pub(super) const HANDLE_KEY: &str = "tooldock/toolset";
/// Maximum number of principals whose sets an aggregate keeps.
const PRINCIPALS_MAX: usize = 10_000;

/// The active set of a request's client, and where a changed set is kept.
#[derive(Clone)]
pub(super) struct Active {
    pub(super) toolset: Arc<Toolset>,
    pub(super) keep: ToolsetStorage,
    /// True if every entry counts as active, because the request comes from an outer aggregate that decides itself; false if
    /// `toolset` decides.
    pub(super) is_all: bool,
}

impl Active {
    fn of(toolset: Arc<Toolset>, keep: ToolsetStorage) -> Self {
        Self {
            toolset,
            keep,
            is_all: false,
        }
    }

    /// The active set of a nested aggregate: every entry counts as active.
    pub(super) fn all() -> Self {
        Self {
            is_all: true,
            ..Self::of(Arc::default(), ToolsetStorage::Handle)
        }
    }
}

/// Storage of a changed set.
#[derive(Clone)]
pub(super) enum ToolsetStorage {
    Session(Arc<Session>),
    /// The set is returned to the client as a handle.
    Handle,
    /// The set is not kept: the caller cannot send a handle, so changes are refused.
    Nowhere,
    Principal(Arc<str>),
    Process,
}

impl ToolsetStorage {
    /// Value of the metrics label for this kind of storage.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Handle => "handle",
            Self::Nowhere => "nowhere",
            Self::Principal(_) => "principal",
            Self::Process => "process",
        }
    }
}

/// Active sets that the aggregate stores itself: one for each principal, or one for all clients.
#[derive(Default)]
pub(super) struct SharedSets(Mutex<HashMap<ToolsetOwner, (Arc<Toolset>, KeptToolset)>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ToolsetOwner {
    Everybody,
    Principal(Arc<str>),
}

/// The changes of an activation. Each element of `wanted` has the entry's id, a flag that is true if the entry becomes active and
/// false if it becomes inactive, and a flag that is true if the entry is active in the start set.
#[derive(Debug)]
pub(super) struct Switches {
    pub(super) wanted: Vec<(EntryId, bool, bool)>,
    /// Ids of all current entries. If a set would grow too large, entries that no longer exist are removed from it.
    pub(super) known: HashSet<EntryId>,
}

impl Switches {
    /// Applies the changes to a set.
    ///
    /// # Errors
    ///
    /// When the set would contain more differences from the start set than a toolset can store.
    pub(super) fn applied(&self, before: &Toolset) -> Result<Toolset, String> {
        let mut after = before.clone();
        for (entry, on, at_start) in &self.wanted {
            after.set(*entry, *on, *at_start);
        }
        if after.len() > DIFFERENCES_MAX {
            after.retain(|entry| self.known.contains(&entry));
        }
        match after.len() > DIFFERENCES_MAX {
            true => Err(format!(
                "more than {DIFFERENCES_MAX} tools and resources would differ from the start: turn some back first"
            )),
            false => Ok(after),
        }
    }
}

/// Lock that lets activations of one session run one after the other, so that each is applied to the result of the previous one,
/// in this process and in the store.
pub(super) struct SessionTurn {
    /// Semaphore with one permit, which an activation holds while it changes the set.
    turn: Semaphore,
    /// Entry in the metrics' count of changed sets, while the set differs from the start set.
    counted: Mutex<Option<KeptToolset>>,
}

impl Default for SessionTurn {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            counted: Mutex::default(),
        }
    }
}

/// Changes the set of a session. Returns true if the change made a difference.
///
/// # Errors
///
/// When the set would be too large, or cannot be recorded.
pub(super) async fn keep_in_session(
    turns: &PerSession<SessionTurn>,
    (session, aggregate): (&Session, &NamespaceName),
    switches: &Switches,
    changes: &SessionChanges,
    metrics: &ToolmanMetrics,
) -> Result<bool, String> {
    let own = turns.get_or_make(session, aggregate, SessionTurn::default);
    // The semaphore is never closed, so the permit is always granted.
    let _turn = own.turn.acquire().await;
    let before = session.toolset();
    let after = switches.applied(&before)?;
    if *before == after {
        return Ok(false);
    }
    let differs = !after.is_empty();
    let kept = changes.commit(session, SessionPatch::Toolset(after)).await;
    kept.map_err(|error| error.message().into_owned())?;
    let mut counted = own.counted.lock().unwrap_or_else(PoisonError::into_inner);
    match differs {
        true => drop(counted.get_or_insert_with(|| KeptToolset::new(metrics))),
        false => *counted = None,
    }
    Ok(true)
}

impl SharedSets {
    fn get(&self, owner: &ToolsetOwner) -> Arc<Toolset> {
        let kept = self.lock();
        let own = kept.get(owner).map(|(toolset, _)| Arc::clone(toolset));
        own.unwrap_or_default()
    }

    /// Changes the set that the aggregate stores for a principal or for all clients, as `keep` says. Returns true if the set
    /// changed.
    ///
    /// # Errors
    ///
    /// When the set would be too large, or the maximum number of principals have a set.
    pub(super) fn keep(
        &self,
        keep: &ToolsetStorage,
        switches: &Switches,
        metrics: &ToolmanMetrics,
    ) -> Result<bool, String> {
        let owner = match keep {
            ToolsetStorage::Process => ToolsetOwner::Everybody,
            ToolsetStorage::Principal(principal) => ToolsetOwner::Principal(principal.clone()),
            ToolsetStorage::Session(_) | ToolsetStorage::Handle | ToolsetStorage::Nowhere => {
                return Ok(false);
            }
        };
        let mut kept = self.lock();
        let is_full = kept.len() >= PRINCIPALS_MAX;
        match kept.entry(owner) {
            Entry::Occupied(mut own) => {
                let toolset = switches.applied(&own.get().0)?;
                if *own.get().0 == toolset {
                    return Ok(false);
                }
                match toolset.is_empty() {
                    true => drop(own.remove()),
                    false => own.get_mut().0 = Arc::new(toolset),
                }
            }
            Entry::Vacant(own) => {
                let toolset = switches.applied(&Toolset::default())?;
                if toolset.is_empty() {
                    return Ok(false);
                }
                if is_full {
                    return Err(
                        "too many principals have a set of their own; try again later".into(),
                    );
                }
                own.insert((Arc::new(toolset), KeptToolset::new(metrics)));
            }
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ToolsetOwner, (Arc<Toolset>, KeptToolset)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The active set of a request's client. `members`: the request's members, if it is a request of MCP.
///
/// # Errors
///
/// When a handle is invalid, or belongs to another principal.
pub(super) fn active(
    cx: &CallContext<'_>,
    members: Option<&Members<'_>>,
    scope: ActivationScope,
    shared: &SharedSets,
    key: &SessionKey,
) -> Result<Active, RequestError> {
    if scope == ActivationScope::Process {
        let toolset = shared.get(&ToolsetOwner::Everybody);
        return Ok(Active::of(toolset, ToolsetStorage::Process));
    }
    let principal = cx.caller.principal.clone();
    // Anonymous clients share no set, since they do not count as one principal.
    let of_principal = principal
        .clone()
        .filter(|name| scope == ActivationScope::Principal && **name != *ANONYMOUS);
    if let Some(session) = cx.session().filter(|_| of_principal.is_none()) {
        let keep = ToolsetStorage::Session(Arc::clone(session));
        return Ok(Active::of(session.toolset(), keep));
    }
    if cx.session().is_none()
        && let Some(handle) = handle(cx, members)?
    {
        let namespace = &cx.namespace.name;
        let opened = key.open_toolset(namespace, principal.as_deref(), &handle);
        let toolset = opened.and_then(|bytes| Toolset::from_bytes(&bytes).ok());
        let toolset = toolset.ok_or_else(|| {
            RequestError::InvalidParams(
                "the toolset handle is not valid here: it was changed, or made for another token or namespace. Leave it out, and call toolman_activate for a new one".into(),
            )
        })?;
        return Ok(Active::of(Arc::new(toolset), ToolsetStorage::Handle));
    }
    Ok(match of_principal {
        Some(principal) => {
            let toolset = shared.get(&ToolsetOwner::Principal(Arc::clone(&principal)));
            Active::of(toolset, ToolsetStorage::Principal(principal))
        }
        None if cx.caller.relay.is_some() => Active::of(Arc::default(), ToolsetStorage::Nowhere),
        None => Active::of(Arc::default(), ToolsetStorage::Handle),
    })
}

/// The toolset handle of a request: from `_meta`, otherwise from the request's address.
fn handle(
    cx: &CallContext<'_>,
    members: Option<&Members<'_>>,
) -> Result<Option<String>, RequestError> {
    let meta = members.and_then(|members| members.get(Key::Meta));
    let Some(sent) = meta.and_then(|meta| spans::member(meta, HANDLE_KEY)) else {
        return Ok(cx.caller.toolset.as_deref().map(ToOwned::to_owned));
    };
    let text = jsonrpc::string(sent).ok_or_else(|| {
        RequestError::InvalidParams(format!("params._meta[{HANDLE_KEY:?}] must be a string").into())
    })?;
    Ok(Some(text.into_owned()))
}

/// The lists that clients must read again after an activation of tools or resources.
pub(super) fn changes(tools: bool, resources: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    if tools || resources {
        // The catalogue in the description of toolman_activate changes with every activation.
        changes.push(Change::Tools);
    }
    if resources {
        changes.push(Change::Resources);
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;
    use tooldock_protocol::version::ProtocolVersion;
    use tooldock_sessions::session::config::EventLogConfig;
    use tooldock_sessions::session::table::{SessionTable, TableLimits};
    use tooldock_sessions::session::{Binding, SessionTransport};
    use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics};
    use tooldock_sessions::testing::shadow::Shadow;

    use super::*;
    use crate::metrics::UpstreamMetrics;

    fn metrics() -> Arc<UpstreamMetrics> {
        Arc::new(UpstreamMetrics::new(&prometheus::Registry::new()).unwrap())
    }

    fn switch(name: &str, on: bool) -> Switches {
        Switches {
            wanted: vec![(EntryId::of(0, name), on, false)],
            known: HashSet::new(),
        }
    }

    #[test]
    fn a_principals_set_is_its_own_and_is_counted_while_it_differs() {
        let metrics = &metrics().toolman;
        let shared = SharedSets::default();
        let ada = ToolsetStorage::Principal("ada".into());
        shared.keep(&ada, &switch("a", true), metrics).unwrap();
        let of = |name: &str| shared.get(&ToolsetOwner::Principal(name.into()));
        let mut changed = Toolset::default();
        changed.set(EntryId::of(0, "a"), true, false);
        assert_eq!((&*of("ada"), of("bob").len()), (&changed, 0));
        assert_eq!(shared.get(&ToolsetOwner::Everybody).len(), 0);
        assert_eq!(metrics.toolsets.get(), 1);
        shared.keep(&ada, &switch("a", false), metrics).unwrap();
        assert_eq!((of("ada").len(), metrics.toolsets.get()), (0, 0));
    }

    #[test]
    fn of_two_changes_of_everybodys_set_neither_undoes_the_other() {
        let metrics = &metrics().toolman;
        let shared = SharedSets::default();
        // Both were checked before the first was stored.
        let (one, other) = (switch("a", true), switch("b", true));
        shared
            .keep(&ToolsetStorage::Process, &one, metrics)
            .unwrap();
        shared
            .keep(&ToolsetStorage::Process, &other, metrics)
            .unwrap();
        let set = shared.get(&ToolsetOwner::Everybody);
        let says = |name| set.says(EntryId::of(0, name));
        assert_eq!((says("a"), says("b")), (Some(true), Some(true)));
    }

    #[tokio::test]
    async fn of_two_activations_at_once_in_a_session_both_count_here_and_in_the_store() {
        let shadow = Arc::new(Shadow::default());
        let keep_alive = KeepAlive::new(Duration::from_secs(15));
        let config = EventLogConfig::default();
        let events = EventLog::new(config, keep_alive, StreamMetrics::unregistered());
        let limits = TableLimits {
            ttl: Duration::from_secs(60),
            unused_ttl: Duration::from_secs(60),
            max: 100,
            per_principal: 100,
            bytes: usize::MAX,
            bytes_per_principal: usize::MAX,
        };
        let store = Arc::clone(&shadow) as _;
        let key = SessionKey::from_text("a key");
        let table = Arc::new(SessionTable::new(
            limits,
            key,
            Arc::new(events),
            Some(store),
            tooldock_sessions::replicas::Replicas::alone(),
        ));
        let name: NamespaceName = "toolman".parse().unwrap();
        let binding = Binding {
            namespace: name.clone(),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        let session = table.create(binding, None, Instant::now()).await;
        let session = session.expect("memory").session;
        let metrics = metrics();
        let changes = SessionChanges::new(table, Arc::clone(&metrics));
        let (one, other) = (switch("a", true), switch("b", true));
        let turns = PerSession::default();
        let place = (&*session, &name);
        let keep = |switches| keep_in_session(&turns, place, switches, &changes, &metrics.toolman);
        let (first, second) = tokio::join!(keep(&one), keep(&other));
        assert_eq!((first, second), (Ok(true), Ok(true)));
        assert_eq!(keep(&one).await, Ok(false), "nothing is left to change");
        let recorded = shadow.record(session.id().as_str()).expect("a record");
        for set in [&*session.toolset(), &recorded.toolset] {
            let says = |name| set.says(EntryId::of(0, name));
            assert_eq!((says("a"), says("b")), (Some(true), Some(true)));
        }
        assert_eq!(metrics.toolman.toolsets.get(), 1);
        // A set that equals the start set is no longer stored.
        let back = [switch("a", false), switch("b", false)];
        for switches in &back {
            assert_eq!(keep(switches).await, Ok(true));
        }
        assert_eq!(metrics.toolman.toolsets.get(), 0);
    }

    #[test]
    fn what_is_gone_counts_only_while_there_is_room() {
        let mut before = Toolset::default();
        for number in 0..DIFFERENCES_MAX {
            before.set(EntryId::of(0, &format!("gone_{number}")), true, false);
        }
        let all = (0..DIFFERENCES_MAX).map(|number| EntryId::of(0, &format!("gone_{number}")));
        let full = Switches {
            known: all.chain([EntryId::of(0, "a")]).collect(),
            ..switch("a", true)
        };
        assert!(full.applied(&before).is_err(), "all of it is there");
        let switches = Switches {
            known: [EntryId::of(0, "a"), EntryId::of(0, "gone_1")].into(),
            ..switch("a", true)
        };
        let after = switches.applied(&before).unwrap();
        let says = |name| after.says(EntryId::of(0, name));
        assert_eq!(
            (after.len(), says("a"), says("gone_1")),
            (2, Some(true), Some(true))
        );
        // If there is room, entries that are away keep their place in the set.
        let few = switch("b", true).applied(&Toolset::default()).unwrap();
        assert_eq!(switches.applied(&few).unwrap().len(), 2);
    }
}
