//! Whose active set counts for a request, and where a changed one is kept.
//!
//! | client | set | kept |
//! |---|---|---|
//! | in a session | the session's | in the session's record |
//! | without one, with a handle in the address or in `_meta` | the handle's | by the client, sealed |
//! | without both | the start set | as a new handle |
//!
//! `activation_scope = "principal"` keeps one set for all clients with the same token, `"process"` one for everybody; a
//! handle takes precedence over a principal's.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tooldock_workers::aggregate::ActivationScope;

use crate::broadcast::Change;
use crate::jsonrpc::{self, Key, Members, RequestError, spans};
use crate::metrics::toolman::{KeptToolset, ToolmanMetrics};
use crate::seal::SessionKey;
use crate::session::{Session, Toolset};
use crate::upstream::CallContext;

/// The member of `_meta` that may hold a handle, and that holds a new one in the answer to an activation.
pub(super) const HANDLE_KEY: &str = "tooldock/toolset";
/// Principals whose sets are kept.
const PRINCIPALS_MAX: usize = 10_000;

/// The set that counts for a request, and what becomes of a changed one.
#[derive(Clone)]
pub(super) struct Active {
    pub(super) toolset: Arc<Toolset>,
    pub(super) keep: Keep,
}

/// Where a changed set goes.
#[derive(Clone)]
pub(super) enum Keep {
    Session(Arc<Session>),
    /// To the client.
    Handle,
    Principal(Option<Arc<str>>),
    Process,
}

impl Keep {
    /// The word for it in metrics.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Handle => "handle",
            Self::Principal(_) => "principal",
            Self::Process => "process",
        }
    }
}

/// Sets that one aggregate keeps itself, by principal; everybody's has none.
#[derive(Default)]
pub(super) struct SharedSets(Mutex<HashMap<Owner, (Arc<Toolset>, KeptToolset)>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    Everybody,
    Principal(Option<Arc<str>>),
}

/// No further principal can have a set of its own.
#[derive(Debug)]
pub(super) struct NoRoom;

impl SharedSets {
    fn get(&self, owner: &Owner) -> Arc<Toolset> {
        let kept = self.lock();
        let own = kept.get(owner).map(|(toolset, _)| Arc::clone(toolset));
        own.unwrap_or_default()
    }

    /// Keeps what a request with that [`Keep`] changed.
    pub(super) fn keep(
        &self,
        keep: &Keep,
        toolset: Toolset,
        metrics: &ToolmanMetrics,
    ) -> Result<(), NoRoom> {
        let owner = match keep {
            Keep::Process => Owner::Everybody,
            Keep::Principal(principal) => Owner::Principal(principal.clone()),
            Keep::Session(_) | Keep::Handle => return Ok(()),
        };
        let mut kept = self.lock();
        let is_full = kept.len() >= PRINCIPALS_MAX;
        match kept.entry(owner) {
            Entry::Occupied(own) if toolset.is_empty() => drop(own.remove()),
            Entry::Occupied(mut own) => own.get_mut().0 = Arc::new(toolset),
            Entry::Vacant(_) if is_full => return Err(NoRoom),
            Entry::Vacant(own) => {
                own.insert((Arc::new(toolset), KeptToolset::new(metrics)));
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, (Arc<Toolset>, KeptToolset)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The set that counts for a request. `members` are the request's, where it is one of MCP.
///
/// # Errors
///
/// A handle that is none, or somebody else's.
pub(super) fn active(
    cx: &CallContext<'_>,
    members: Option<&Members<'_>>,
    scope: ActivationScope,
    shared: &SharedSets,
    key: &SessionKey,
) -> Result<Active, RequestError> {
    if scope == ActivationScope::Process {
        let toolset = shared.get(&Owner::Everybody);
        let keep = Keep::Process;
        return Ok(Active { toolset, keep });
    }
    let principal = cx.caller.principal.clone();
    if let Some(session) = cx.session().filter(|_| scope == ActivationScope::Session) {
        return Ok(Active {
            toolset: session.toolset(),
            keep: Keep::Session(Arc::clone(session)),
        });
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
        return Ok(Active {
            toolset: Arc::new(toolset),
            keep: Keep::Handle,
        });
    }
    if scope == ActivationScope::Principal {
        return Ok(Active {
            toolset: shared.get(&Owner::Principal(principal.clone())),
            keep: Keep::Principal(principal),
        });
    }
    Ok(Active {
        toolset: Arc::default(),
        keep: Keep::Handle,
    })
}

/// The handle that a request brings: in `_meta`, else in its address.
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

/// The lists that an activation of these kinds changes.
pub(super) fn changes(tools: bool, resources: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    if tools || resources {
        // The catalogue in the description of toolman_activate is another one, whatever was turned on.
        changes.push(Change::Tools);
    }
    if resources {
        changes.push(Change::Resources);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::UpstreamMetrics;
    use crate::session::toolset::EntryId;

    #[test]
    fn a_principals_set_is_its_own_and_is_counted_while_it_differs() {
        let registry = prometheus::Registry::new();
        let metrics = UpstreamMetrics::new(&registry).unwrap().toolman;
        let shared = SharedSets::default();
        let mut changed = Toolset::default();
        changed.set(EntryId::of(0, "a"), true, false);
        let ada = Keep::Principal(Some("ada".into()));
        shared.keep(&ada, changed.clone(), &metrics).unwrap();
        let of = |name: &str| shared.get(&Owner::Principal(Some(name.into())));
        assert_eq!((&*of("ada"), of("bob").len()), (&changed, 0));
        assert_eq!(shared.get(&Owner::Everybody).len(), 0);
        assert_eq!(metrics.toolsets.get(), 1);
        shared.keep(&ada, Toolset::default(), &metrics).unwrap();
        assert_eq!((of("ada").len(), metrics.toolsets.get()), (0, 0));
    }
}
