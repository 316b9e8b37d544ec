//! The caller of a request, as the edge has authenticated it. A value instead of headers, which could be forged and would have
//! to be stripped.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tooldock_base::budget::{Budget, BudgetNote};
use tooldock_base::grant::Grant;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::RequestTrace;
use tooldock_credentials::keys::KeyLimit;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;

use crate::profile::Profile;

/// An admitted caller. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    /// The namespace that the request is for, which exists and is open to the principal; `None` on paths without a namespace.
    pub namespace: Option<NamespaceName>,
    /// The principal of the token or client certificate that admitted the request; `None` for a client without credentials on a
    /// public path.
    pub principal: Option<Arc<str>>,
    /// The client's address; headers about it count from trusted proxies only.
    pub client: IpAddr,
    /// The request id, which is also in the response, the log and the audit line.
    pub request_id: Arc<str>,
    /// The rules of the listener on which the request came.
    pub profile: Arc<Profile>,
    /// True if a valid manager token was presented: such a caller may see tracebacks.
    pub manager: bool,
    /// The headers of the request, some of which may be passed to remote servers.
    pub headers: Option<Arc<HeaderMap>>,
    /// The namespaces that the principal's token opens.
    pub visibility: Visibility,
    /// The tools that the credential's scopes allow; `None` for a credential without scopes, which opens every tool.
    pub grant: Option<Arc<Grant>>,
    /// The maker of API keys that the caller asks for.
    pub maker: KeyMaker,
    /// The process at the other end of the relay's socket, for callers there.
    pub relay: Option<Arc<RelayPeer>>,
    /// The handle of a toolset in the address of the request.
    pub toolset: Option<Arc<str>>,
    /// Record of the call's outcome, which the edge reads; `None` if the edge does not need it.
    pub note: Option<Arc<CallNote>>,
    /// The limits of the API key; None for a key without limits and for other credentials.
    pub key_limits: Option<Arc<[KeyLimit]>>,
    /// Record of limits' remaining budgets, which the edge reads; `None` if no limit counts calls.
    pub budget: Option<Arc<BudgetNote>>,
    /// True if health checks of the caller are answered with the status alone, even if the listener's checks are open.
    pub status_only: bool,
    /// Trace of the request; `None` if none is exported.
    pub trace: Option<Arc<RequestTrace>>,
}

/// The process at the other end of the relay's socket, as the kernel identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPeer {
    /// User id of the process, as the kernel reports it.
    pub uid: u32,
    /// Group id of the process, as the kernel reports it.
    pub gid: u32,
    /// The id of the process; `None` if it runs in another PID namespace, where the gateway cannot see it.
    pub pid: Option<i32>,
    /// The project that the client claims to work for. Unverified, and for records alone.
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

/// Outcome and duration of a call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSummary {
    /// `ok`, or a stable code, as in the audit log.
    pub outcome: &'static str,
    /// Duration of the call, including its wait in the queue.
    pub time: Duration,
}

impl CallNote {
    /// The outcome that was recorded last.
    pub fn read(&self) -> Option<CallSummary> {
        self.noted().summary
    }

    /// Takes out the backends to which the request was sent, in order, in the form of nginx's `$upstream_addr`; empty if there
    /// were none.
    pub fn take_backends(&self) -> String {
        std::mem::take(&mut self.noted().backends)
    }

    /// Sets the summary of the call, in place of an earlier one.
    pub fn write(&self, summary: CallSummary) {
        self.noted().summary = Some(summary);
    }

    /// Records that the request was sent to a backend.
    pub fn went_to(&self, backend: &BackendId) {
        /// Size of the recorded names in bytes beyond which further backends are not named.
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

/// Namespaces that a token opens. The lists of principals of the namespaces apply in addition.
#[derive(Clone, Default)]
pub enum Visibility {
    /// The token opens all namespaces.
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

    /// The limits of the caller's API key, which apply in addition to those of the configuration.
    pub fn key_limits(&self) -> &[KeyLimit] {
        self.key_limits.as_deref().unwrap_or_default()
    }

    /// Records the budget that remains of a limit after a call.
    pub fn note_budget(&self, budget: Option<Budget>) {
        if let (Some(note), Some(budget)) = (&self.budget, budget) {
            note.write(budget);
        }
    }

    /// The id of the caller's API key, for records.
    pub fn token_id(&self) -> Option<Arc<str>> {
        let grant = self.grant.as_ref()?;
        grant.key_id().map(Arc::clone)
    }

    /// Returns true if the caller may use a namespace: its token opens the namespace, the namespace admits the principal, and
    /// the listener serves the namespace.
    pub fn may_use(&self, namespace: &Namespace) -> bool {
        let served = self.profile.namespace.as_ref();
        served.is_none_or(|served| *served == namespace.name) && self.is_let_into(namespace)
    }

    /// Returns true if a namespace is open to the caller on some listener: its token opens the namespace, and the namespace
    /// admits the principal.
    pub fn is_let_into(&self, namespace: &Namespace) -> bool {
        self.opens(&namespace.name) && namespace.policy.allows_principal(self.principal_name())
    }

    /// Returns true if the caller's credential opens namespaces of this name.
    pub fn opens(&self, name: &NamespaceName) -> bool {
        match &self.visibility {
            Visibility::All => true,
            Visibility::Only(opens) => opens(name),
        }
    }
}

impl fmt::Debug for Caller {
    /// The headers are omitted, since they contain credentials.
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
