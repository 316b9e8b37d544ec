//! The caller of a request, as the edge established it. A value, not headers: there is nothing to forge or to strip.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tooldock_workers::budget::{Budget, BudgetNote};
use tooldock_workers::grant::Grant;
use tooldock_workers::keys::{KeyLimit, KeyMaker};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;

use crate::profile::Profile;

/// An admitted caller. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    /// The namespace the request is for, already found and open to the principal; `None` on paths without one.
    pub namespace: Option<NamespaceName>,
    /// The principal of the token or client certificate that admitted the request; `None` for a stranger on a public path.
    pub principal: Option<Arc<str>>,
    /// The client's address, through trusted proxies only.
    pub client: IpAddr,
    /// The request id, which also stands in the response, the log and the audit line.
    pub request_id: Arc<str>,
    /// The switches of the listener the request came in on.
    pub profile: Arc<Profile>,
    /// True when a valid manager token was presented: such a caller may see tracebacks.
    pub manager: bool,
    /// The headers of the request, for namespaces of remote servers, which may be passed some of them.
    pub headers: Option<Arc<HeaderMap>>,
    /// The namespaces that the principal's token opens.
    pub visibility: Visibility,
    /// The tools that the credential's scopes allow; `None` for a credential without scopes, which opens every tool.
    pub grant: Option<Arc<Grant>>,
    /// The maker of API keys that the caller asks for.
    pub maker: KeyMaker,
    /// The process at the other end, for callers on the relay's socket.
    pub relay: Option<Arc<RelayPeer>>,
    /// The handle of a toolset in the address of the request.
    pub toolset: Option<Arc<str>>,
    /// Takes the outcome of the call for the edge; `None` if the edge does not need it.
    pub note: Option<Arc<CallNote>>,
    /// The limits of the API key; None for a key without limits and for other credentials.
    pub key_limits: Option<Arc<[KeyLimit]>>,
    /// Takes the remaining budget of limits for the edge; `None` if no limit counts calls.
    pub budget: Option<Arc<BudgetNote>>,
    /// True when a health check of the caller is answered with the status alone, even if the listener's checks are open.
    pub status_only: bool,
}

/// The process at the other end of the relay's socket, as the kernel identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPeer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process id, if the gateway can see the process: processes of another PID namespace have no number here.
    pub pid: Option<i32>,
    /// The project that the client claims to work for. Unverified, for records alone.
    pub project: Option<Arc<str>>,
}

/// The outcome of a caller's call, for the access log of the edge. For a batch, the outcome of the last call.
#[derive(Debug, Default)]
pub struct CallNote(Mutex<CallNotes>);

#[derive(Debug, Default)]
struct CallNotes {
    summary: Option<CallSummary>,
    backends: String,
}

/// The end of a call: its outcome and duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSummary {
    /// `ok`, or a stable code, as in the audit log.
    pub outcome: &'static str,
    /// The duration of the call, waiting for its turn included.
    pub time: Duration,
}

impl CallNote {
    /// The outcome that was noted last.
    pub fn read(&self) -> Option<CallSummary> {
        self.noted().summary
    }

    /// Takes the backends that the request went to, one after the other, in the form of nginx's `$upstream_addr`; empty if it
    /// went to none.
    pub fn take_backends(&self) -> String {
        std::mem::take(&mut self.noted().backends)
    }

    pub(crate) fn write(&self, summary: CallSummary) {
        self.noted().summary = Some(summary);
    }

    /// Notes that the request was sent to a backend.
    pub(crate) fn went_to(&self, backend: &BackendId) {
        /// Once the names are longer than this many bytes, further backends are not named.
        const MOST: usize = 1024;
        let backends = &mut self.noted().backends;
        if backends.len() > MOST {
            return;
        }
        if !backends.is_empty() {
            backends.push_str(", ");
        }
        backends.push_str(backend.as_str());
    }

    fn noted(&self) -> MutexGuard<'_, CallNotes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespaces that a token opens. The namespaces' own lists of principals apply as well.
#[derive(Clone, Default)]
pub enum Visibility {
    /// All of them.
    #[default]
    All,
    /// The namespaces for which the function returns true. One `Arc` per token, shared by its requests.
    Only(Arc<dyn Fn(&NamespaceName) -> bool + Send + Sync>),
}

impl Caller {
    /// The principal's name; empty on listeners without authentication.
    pub fn principal_name(&self) -> &str {
        self.principal.as_deref().unwrap_or_default()
    }

    /// The limits of the API key, which apply in addition to those of the configuration.
    pub fn key_limits(&self) -> &[KeyLimit] {
        self.key_limits.as_deref().unwrap_or_default()
    }

    /// Notes the budget that a limit has left after a call.
    pub(crate) fn note_budget(&self, budget: Option<Budget>) {
        if let (Some(note), Some(budget)) = (&self.budget, budget) {
            note.write(budget);
        }
    }

    /// The id of the caller's API key, for records.
    pub(crate) fn token_id(&self) -> Option<Arc<str>> {
        let grant = self.grant.as_ref()?;
        grant.key_id().map(Arc::clone)
    }

    /// Returns true if the caller may use a namespace: its token opens it, the namespace lets the principal in, and the listener
    /// serves it.
    pub fn may_use(&self, namespace: &Namespace) -> bool {
        let served = self.profile.namespace.as_ref();
        served.is_none_or(|served| *served == namespace.name) && self.is_let_into(namespace)
    }

    /// Returns true if a namespace is open to the caller on some listener: its token opens it, and the namespace lets the
    /// principal in.
    pub(crate) fn is_let_into(&self, namespace: &Namespace) -> bool {
        let opened = match &self.visibility {
            Visibility::All => true,
            Visibility::Only(opens) => opens(&namespace.name),
        };
        opened && namespace.policy.allows_principal(self.principal_name())
    }
}

impl fmt::Debug for Caller {
    /// Leaves out the headers, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("namespace", &self.namespace)
            .field("principal", &self.principal)
            .field("client", &self.client)
            .field("request_id", &self.request_id)
            .field("profile", &self.profile)
            .field("manager", &self.manager)
            .field("visibility", &self.visibility)
            .field("grant", &self.grant)
            .field("relay", &self.relay)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "All",
            Self::Only(_) => "Only(..)",
        })
    }
}
