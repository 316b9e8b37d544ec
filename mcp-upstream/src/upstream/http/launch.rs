//! Connections to remote servers: a session at the backend that the pool of backends picks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::external::{Isolation, ProcessHost, Restart, StdioSettings};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::process::Exit;
use tooldock_workers::remote::{BackendId, RemoteServer, RemoteSpec};

use super::port::{Backend, BackendState, Backends, HttpClient};
use super::session::{Session, SessionTransport};
use super::sse::Channel;
use crate::stdio::launch::{
    Instance, Launcher, Launchers, LinkParts, Place, ProcessLaunchers, ServerRef,
};
use crate::stdio::link::Link;

/// Sessions of one server at once: as many as the gateway may hold itself.
const SESSIONS_MAX: usize = 100_000;
/// How long a session that nobody uses is kept at its backend …
const IDLE: Duration = Duration::from_secs(600);
/// … unless its state lives there alone: then for as long as its client's.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long calls may go on that were under way when their session took no more of them. They have limits of their own.
const LEFT: Duration = Duration::from_secs(3600);
/// When to ask again for a server none of whose backends is healthy.
const RETRY: Duration = Duration::from_secs(1);

/// Opens the connections of all servers, child processes and remote ones.
pub(crate) struct AllLaunchers {
    processes: ProcessLaunchers,
    client: Arc<dyn HttpClient>,
    runtime: Handle,
}

impl AllLaunchers {
    pub(crate) fn new(host: &Arc<ProcessHost>, client: Option<Arc<dyn HttpClient>>) -> Arc<Self> {
        Arc::new(Self {
            processes: ProcessLaunchers(Arc::clone(host)),
            client: client.unwrap_or_else(|| Arc::new(NoClient)),
            runtime: host.control.clone(),
        })
    }
}

impl Launchers for AllLaunchers {
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher> {
        match server {
            ServerRef::Process(_) => self.processes.launcher(server),
            ServerRef::Remote(server) => Arc::new(RemoteLauncher {
                settings: settings(&server.spec),
                backends: self.client.backends(server),
                server: Arc::clone(server),
                runtime: self.runtime.clone(),
            }),
        }
    }
}

/// Opens sessions at the backends of one server.
struct RemoteLauncher {
    server: Arc<RemoteServer>,
    settings: StdioSettings,
    backends: Arc<dyn Backends>,
    runtime: Handle,
}

/// How the pool keeps the sessions of a server.
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
        &self.server.name
    }

    fn settings(&self) -> &StdioSettings {
        &self.settings
    }

    fn is(&self, server: ServerRef<'_>) -> bool {
        matches!(server, ServerRef::Remote(server) if Arc::ptr_eq(&self.server, server))
    }

    /// Nothing is sent yet: the first message opens the session.
    async fn launch(
        &self,
        place: Place<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError> {
        let backend = match place.replica {
            Some(id) => self.backends.get(id),
            None => self.backends.pick(place.avoid, place.hash),
        };
        let name = &self.server.name;
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
            let server = Arc::clone(&self.server);
            let old = Channel::new(self.server.spec.transport);
            let runtime = self.runtime.clone();
            let opener = place.headers.cloned();
            let session = Session::new(server, backend, incoming, runtime, old, catalogue, opener);
            made = Some(Arc::clone(&session));
            Arc::new(SessionTransport(session)) as _
        };
        let link = Link::over(name.clone(), transport, &self.runtime, limits, inbound);
        let session = made.expect("the link was made with it");
        Ok((link, Box::new(RemoteSession { session, id })))
    }

    fn replica(&self, avoid: &[BackendId], hash: u64) -> Option<BackendId> {
        let picked = self.backends.pick(avoid, hash);
        picked.map(|backend| backend.id().clone())
    }

    fn spreads(&self) -> bool {
        true
    }

    fn further_backends(&self) -> usize {
        usize::try_from(self.server.spec.retry.max).unwrap_or(usize::MAX)
    }

    fn needs_a_client(&self) -> bool {
        let spec = &self.server.spec;
        let own = matches!(spec.sharing(), Isolation::Session | Isolation::Principal);
        own && !spec.headers.pass.is_empty()
    }

    fn keeps_state(&self) -> bool {
        self.server.spec.stateful
    }

    fn without_secrets(&self, text: &str) -> String {
        self.server.without_secrets(text)
    }
}

/// A session as its keeper has it.
struct RemoteSession {
    session: Arc<Session>,
    id: BackendId,
}

#[async_trait]
impl Instance for RemoteSession {
    fn backend(&self) -> Option<&BackendId> {
        Some(&self.id)
    }

    fn how_ended(&self, _: Option<Exit>) -> String {
        format!("is gone at backend {}", self.id)
    }

    fn leaves_calls(&self) -> Duration {
        LEFT
    }

    async fn stop(&self) {
        self.session.delete().await;
    }
}

/// Where there is no HTTP client: no backend is healthy.
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

    fn get(&self, _: &BackendId) -> Option<Arc<dyn Backend>> {
        None
    }

    fn states(&self) -> Vec<BackendState> {
        Vec::new()
    }
}
