//! Launcher for remote servers: each connection is a session at a backend that the pool of backends picks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_credentials::secrets::PersonalSecrets;
use tooldock_process::child::Exit;
use tooldock_workers::external::{ProcessHost, Restart, StdioSettings};
use tooldock_workers::registry::Registry;
use tooldock_workers::remote::{BackendId, RemoteServer, RemoteSpec};
use tooldock_workers::server_settings::Isolation;

use super::api::ApiClient;
use super::port::{Backend, BackendState, Backends, HttpClient};
use super::reached::CurrentServer;
use super::session::{Opener, Session, SessionTransport};
use super::sse::Channel;
use crate::key::ProcessKey;
use crate::launch::{
    Instance, LaunchRequirements, Launcher, Launchers, LinkParts, PersonalUse, ProcessLaunchers,
    ServerRef, is_outdated, personal_use,
};
use crate::link::Link;

/// Maximum number of sessions at one server, equal to the number of sessions that the gateway itself may have.
const SESSIONS_MAX: usize = 100_000;
/// Time that an unused session is kept at its backend.
const IDLE: Duration = Duration::from_secs(600);
/// Retention of an unused session whose state exists only at its backend. It is practically unlimited, since such a session ends
/// with its client's session.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum time that calls may continue after their session stopped accepting new calls. The calls also have time limits of their
/// own.
const LEFT: Duration = Duration::from_secs(3600);
/// Retry delay that is sent to clients if a server has no healthy backend.
const RETRY: Duration = Duration::from_secs(1);

/// The launchers for all servers, stdio and remote.
pub struct AllLaunchers {
    processes: ProcessLaunchers,
    client: Arc<dyn HttpClient>,
    personal: Arc<PersonalSecrets>,
    runtime: Handle,
}

impl AllLaunchers {
    /// Creates the launchers. `client`: `None` if the gateway reaches no remote servers.
    pub fn new(
        host: &Arc<ProcessHost>,
        client: Option<Arc<dyn HttpClient>>,
        registry: &Arc<Registry>,
    ) -> Arc<Self> {
        let personal = registry.personal();
        let inner = client.unwrap_or_else(|| Arc::new(NoClient));
        let client = ApiClient {
            inner,
            registry: Arc::clone(registry),
        };
        Arc::new(Self {
            processes: ProcessLaunchers {
                host: Arc::clone(host),
                personal: Arc::clone(personal),
            },
            personal: Arc::clone(personal),
            client: Arc::new(client),
            runtime: host.control.clone(),
        })
    }
}

impl Launchers for AllLaunchers {
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher> {
        match server {
            ServerRef::Process(_) => self.processes.launcher(server),
            ServerRef::Remote(server) => Arc::new(RemoteLauncher {
                name: server.name.clone(),
                reached: CurrentServer::new(server, &*self.client),
                client: Arc::clone(&self.client),
                personal: Arc::clone(&self.personal),
                runtime: self.runtime.clone(),
            }),
        }
    }
}

/// Launcher of one server's sessions at its backends.
struct RemoteLauncher {
    name: NamespaceName,
    reached: Arc<CurrentServer>,
    client: Arc<dyn HttpClient>,
    personal: Arc<PersonalSecrets>,
    runtime: Handle,
}

/// Settings of the pool for a remote server's sessions.
fn settings(spec: &RemoteSpec) -> StdioSettings {
    let opening = spec.timeouts.connect + spec.timeouts.head;
    StdioSettings {
        isolation: spec.sharing(),
        restart: Restart::Always,
        connect_timeout: opening,
        idle_stop: if spec.stateful { FOR_EVER } else { IDLE },
        max_lifetime: FOR_EVER,
        max_processes: SESSIONS_MAX,
        max_per_principal: SESSIONS_MAX,
        warm: 0,
        ..StdioSettings::default()
    }
}

#[async_trait]
impl Launcher for RemoteLauncher {
    fn name(&self) -> &NamespaceName {
        &self.name
    }

    fn settings(&self) -> StdioSettings {
        settings(&self.reached.now().server.spec)
    }

    fn is(&self, server: ServerRef<'_>) -> bool {
        matches!(server, ServerRef::Remote(server) if self.reached.serves(server))
    }

    fn adopt(&self, server: ServerRef<'_>) -> bool {
        matches!(server, ServerRef::Remote(server) if self.reached.adopt(server, &*self.client))
    }

    fn has(&self, backend: &BackendId) -> bool {
        let now = self.reached.now();
        now.server.spec.backends.iter().any(|it| it.id == *backend)
    }

    /// Creates the link to a backend. No message is sent: the first message over the link opens the session.
    async fn launch(
        &self,
        place: LaunchRequirements<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError> {
        let now = self.reached.now();
        let spec = &now.server.spec;
        let own = personal_use(&spec.personal, self.name(), &self.personal, place)?;
        let replica = place.key.and_then(ProcessKey::replica);
        let backend = match replica {
            Some(id) => now.backends.get(id),
            None => {
                let hash = place.key.map_or(0, ProcessKey::hash);
                now.backends.pick(place.avoid, hash)
            }
        };
        let name = &self.name;
        let Some(backend) = backend else {
            let message = format!("the server of namespace {name} has no healthy backend");
            let error = CallError::new(CallErrorCode::WorkerUnavailable, message);
            return Err(error.retry_after(RETRY));
        };
        let LinkParts {
            limits,
            inbound,
            catalogue,
        } = parts;
        let id = backend.id().clone();
        let mut made = None;
        let transport = |incoming| {
            let reached = Arc::clone(&self.reached);
            let old = Channel::new(spec.transport);
            let runtime = self.runtime.clone();
            let opener = Opener {
                headers: place.headers.cloned(),
                principal: place.principal.cloned(),
                is_shared: replica.is_some(),
            };
            let session = Session::new(reached, backend, incoming, runtime, old, catalogue, opener);
            made = Some(Arc::clone(&session));
            Arc::new(SessionTransport(session)) as _
        };
        let link = Link::over(name.clone(), transport, &self.runtime, limits, inbound);
        let session = made.expect("the link was made with it");
        Ok((link, Box::new(RemoteSession { session, id, own })))
    }

    fn replica(&self, avoid: &[BackendId], hash: u64) -> Option<BackendId> {
        let picked = self.reached.now().backends.pick(avoid, hash);
        picked.map(|backend| backend.id().clone())
    }

    fn has_replica(&self, avoid: &[BackendId]) -> bool {
        self.reached.now().backends.can_pick(avoid)
    }

    fn spreads(&self) -> bool {
        true
    }

    fn further_backends(&self) -> usize {
        usize::try_from(self.reached.now().server.spec.retry.max).unwrap_or(usize::MAX)
    }

    fn needs_a_client(&self) -> bool {
        let now = self.reached.now();
        let spec = &now.server.spec;
        let own = matches!(spec.sharing(), Isolation::Session | Isolation::Principal);
        spec.personal.is_needed() || (own && !spec.headers.pass.is_empty())
    }

    fn is_outdated(&self, own: &PersonalUse) -> bool {
        let now = self.reached.now();
        is_outdated(&now.server.spec.personal, &self.name, &self.personal, own)
    }

    fn keeps_state(&self) -> bool {
        self.reached.now().server.spec.stateful
    }

    fn without_secrets(&self, text: &str) -> String {
        let now = self.reached.now();
        let text = now.server.without_secrets(text);
        now.server.spec.personal.hide(&self.personal, text)
    }
}

/// A session at a backend, and the principal's personal secrets with which it was opened.
struct RemoteSession {
    session: Arc<Session>,
    id: BackendId,
    own: Option<PersonalUse>,
}

#[async_trait]
impl Instance for RemoteSession {
    fn backend(&self) -> Option<&BackendId> {
        Some(&self.id)
    }

    fn take_personal(&mut self) -> Option<PersonalUse> {
        self.own.take()
    }

    fn how_ended(&self, _: Option<Exit>) -> String {
        "is gone at its backend".into()
    }

    fn leaves_calls(&self) -> Duration {
        LEFT
    }

    async fn stop(&self) {
        self.session.delete().await;
    }
}

/// HTTP client for a gateway without one: it offers no backends.
struct NoClient;

impl HttpClient for NoClient {
    fn backends(&self, _: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        Arc::new(Self)
    }

    fn current(&self, _: &NamespaceName) -> Option<Arc<dyn Backends>> {
        None
    }
}

impl Backends for NoClient {
    fn pick(&self, _: &[BackendId], _: u64) -> Option<Arc<dyn Backend>> {
        None
    }

    fn can_pick(&self, _: &[BackendId]) -> bool {
        false
    }

    fn get(&self, _: &BackendId) -> Option<Arc<dyn Backend>> {
        None
    }

    fn states(&self) -> Vec<BackendState> {
        Vec::new()
    }
}
