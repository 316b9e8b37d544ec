//! The caller of a request, after authentication. It is passed as a value and not in headers, which a client could forge.

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

/// The client that sent an admitted request, with its credential's rights and the request's metadata. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    /// The namespace that the request is for. It exists, and the principal may use it. `None` on paths without a namespace.
    pub namespace: Option<NamespaceName>,
    /// The principal of the request's credential, such as a token or client certificate; `None` for a client without credentials
    /// on a public path.
    pub principal: Option<Arc<str>>,
    /// The client's IP address. Forwarding headers are taken into account only if a trusted proxy sent them.
    pub client: IpAddr,
    /// Id of the request. The response, the log and the audit record contain it, too.
    pub request_id: Arc<str>,
    /// The profile (rules) of the listener that received the request.
    pub profile: Arc<Profile>,
    /// True if the request contains the valid manager token; then errors may contain tracebacks.
    pub manager: bool,
    /// Headers of the request. Those that the configuration of a remote server names are forwarded to it.
    pub headers: Option<Arc<HeaderMap>>,
    /// The namespaces that the credential gives access to.
    pub visibility: Visibility,
    /// The tools that the credential's scopes allow; `None` for a credential without scopes, which allows every tool.
    pub grant: Option<Arc<Grant>>,
    /// Identifies the caller's credential. It is recorded as the maker of API keys that the caller creates.
    pub maker: KeyMaker,
    /// The process at the other end of the relay's socket; `None` for callers by other transports.
    pub relay: Option<Arc<RelayPeer>>,
    /// Toolset handle from the URL of the request; `None` if the URL contains none.
    pub toolset: Option<Arc<str>>,
    /// Receives the call's outcome, for the edge's access log; `None` if the edge does not need it.
    pub note: Option<Arc<CallNote>>,
    /// Rate limits of the caller's API key; `None` for a key without limits and for other credentials.
    pub key_limits: Option<Arc<[KeyLimit]>>,
    /// Receives the remaining budget of rate limits, for response headers; `None` if no limit counts calls.
    pub budget: Option<Arc<BudgetNote>>,
    /// True if health checks of this caller are answered with the status alone, even if the listener shows details to all
    /// clients.
    pub status_only: bool,
    /// Trace of the request; `None` if traces are not exported.
    pub trace: Option<Arc<RequestTrace>>,
}

/// The process at the other end of the relay's socket, identified by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPeer {
    /// User id of the process, reported by the kernel.
    pub uid: u32,
    /// Group id of the process, reported by the kernel.
    pub gid: u32,
    /// Process id; `None` if the process runs in a PID namespace that the gateway cannot see.
    pub pid: Option<i32>,
    /// Project that the client states. It is not verified, and is only used in logs.
    pub project: Option<Arc<str>>,
}

/// Stores the outcome of a caller's call for the edge's access log. After a batch, it contains the outcome of the last call.
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
    /// Outcome of the call: `ok`, or the stable code of the error, as in the audit log.
    pub outcome: &'static str,
    /// Duration of the call, including its wait in the queue.
    pub time: Duration,
}

impl CallNote {
    /// The most recently stored outcome; `None` if no call has ended yet.
    pub fn read(&self) -> Option<CallSummary> {
        self.noted().summary
    }

    /// Takes the names of the backends to which the request was sent, in order, in the format of nginx's `$upstream_addr`; empty
    /// if there were none.
    pub fn take_backends(&self) -> String {
        std::mem::take(&mut self.noted().backends)
    }

    /// Stores the outcome of a call, and replaces an earlier one.
    pub fn write(&self, summary: CallSummary) {
        self.noted().summary = Some(summary);
    }

    /// Records, for the access log, that the request was sent to this backend.
    pub fn record_backend(&self, backend: &BackendId) {
        /// Length of the recorded names, in bytes, beyond which no further backends are recorded.
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

/// The namespaces that a credential gives access to. The list of principals of each namespace applies in addition.
#[derive(Clone, Default)]
pub enum Visibility {
    /// The credential gives access to all namespaces.
    #[default]
    All,
    /// The credential gives access to the namespaces for which this function returns true. Requests with the same credential
    /// share the function.
    Only(Arc<dyn Fn(&NamespaceName) -> bool + Send + Sync>),
}

impl Caller {
    /// Name of the caller's principal; empty on listeners without authentication.
    pub fn principal_name(&self) -> &str {
        self.principal.as_deref().unwrap_or_default()
    }

    /// The rate limits of the caller's API key, which apply in addition to those of the configuration; empty if there are none.
    pub fn key_limits(&self) -> &[KeyLimit] {
        self.key_limits.as_deref().unwrap_or_default()
    }

    /// Stores the budget that a rate limit has left after a call, for response headers.
    pub fn note_budget(&self, budget: Option<Budget>) {
        if let (Some(note), Some(budget)) = (&self.budget, budget) {
            note.write(budget);
        }
    }

    /// Id of the caller's API key, for logs; `None` for other credentials.
    pub fn token_id(&self) -> Option<Arc<str>> {
        let grant = self.grant.as_ref()?;
        grant.key_id().map(Arc::clone)
    }

    /// Returns true if the caller may use a namespace on this listener: its credential gives access, the namespace's policy
    /// admits its principal, and the listener serves the namespace.
    pub fn may_use(&self, namespace: &Namespace) -> bool {
        let served = self.profile.namespace.as_ref();
        served.is_none_or(|served| *served == namespace.name) && self.is_let_into(namespace)
    }

    /// Returns true if the caller may use a namespace on at least one listener: its credential gives access, and the namespace's
    /// policy admits its principal.
    pub fn is_let_into(&self, namespace: &Namespace) -> bool {
        self.opens(&namespace.name) && namespace.policy.allows_principal(self.principal_name())
    }

    /// Returns true if the caller's credential gives access to namespaces of this name.
    pub fn opens(&self, name: &NamespaceName) -> bool {
        match &self.visibility {
            Visibility::All => true,
            Visibility::Only(opens) => opens(name),
        }
    }
}

impl fmt::Debug for Caller {
    /// Leaves out the request's headers, since they contain credentials.
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
