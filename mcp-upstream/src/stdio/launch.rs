//! What opens the connections of a server: the seam below the pools.
//!
//! The pools, the keeper and the link are the same for every server that speaks MCP. Where a connection comes from is
//! decided here: [`ProcessLauncher`] starts a child process and takes its pipes. A session of a remote server is a
//! connection like a process, so what `pool` and `process` say of processes is true of those sessions, too.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::external::{
    ExternalServer, InstallStep, Isolation, ListMode, NotInstalled, ProcessHost, ServerProcess,
    StdioSettings, StdioSpec,
};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::personal::{Personal, PersonalSecrets, PersonalValues};
use tooldock_workers::process::Exit;
use tooldock_workers::process::output::RecentLines;
use tooldock_workers::remote::{BackendId, RemoteServer};

use super::link::{Homes, Inbound, Link, LinkLimits};
use super::process::failure::Raw;
use super::wire::Pipes;
use crate::catalogue::Catalogue;

/// A server of the registry, as its pool is found by.
#[derive(Clone, Copy)]
pub(crate) enum ServerRef<'a> {
    /// One that runs as child processes.
    Process(&'a Arc<ExternalServer>),
    /// One that is reached over HTTP.
    Remote(&'a Arc<RemoteServer>),
}

/// What makes the link of a connection.
pub(crate) struct LinkParts {
    pub(crate) limits: LinkLimits,
    pub(crate) inbound: Arc<dyn Inbound>,
    /// What the server offers, as far as that is known.
    pub(crate) catalogue: Arc<Catalogue>,
}

/// Where a connection is to lead.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place<'a> {
    /// The backend it is for, of a server that has several.
    pub(crate) replica: Option<&'a BackendId>,
    /// Backends that were tried in vain.
    pub(crate) avoid: &'a [BackendId],
    /// The same for the same client, as far as clients are told apart.
    pub(crate) hash: u64,
    /// What of its one client's headers goes with all that is no request of a client.
    pub(crate) headers: Option<&'a Arc<HeaderMap>>,
    /// Whose connection it is, where it is one principal's: with that principal's credentials.
    pub(crate) principal: Option<&'a Arc<str>>,
}

/// The personal values that a connection was opened with.
#[derive(Debug)]
pub(crate) struct PersonalUse {
    pub(crate) principal: Arc<str>,
    pub(crate) values: PersonalValues,
}

/// Opens connections to one server.
#[async_trait]
pub(crate) trait Launcher: Send + Sync {
    /// The server's namespace.
    fn name(&self) -> &NamespaceName;

    /// How its connections are shared and kept.
    fn settings(&self) -> StdioSettings;

    /// Whether it opens the connections of that server, which is not merely one like it: the one it goes by, or another
    /// version of that whose connections may be the same.
    fn is(&self, server: ServerRef<'_>) -> bool;

    /// Goes by that version of its server from now on. False: it does already.
    fn adopt(&self, _: ServerRef<'_>) -> bool {
        false
    }

    /// Whether connections may lead to that backend.
    fn has(&self, _: &BackendId) -> bool {
        true
    }

    /// Whether something is to be done before the first connection, by [`Self::prepare`].
    fn prepares(&self) -> bool {
        false
    }

    /// Does what comes before the first connection.
    ///
    /// # Errors
    ///
    /// Why there can be no connection.
    async fn prepare(&self) -> Result<(), Raw> {
        Ok(())
    }

    /// Connects. Nothing of MCP has been said then.
    ///
    /// # Errors
    ///
    /// Why not.
    async fn launch(
        &self,
        place: Place<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError>;

    /// Of a server with several backends: the one for the next request that many clients share a connection for.
    /// `hash` is the same for the same client.
    fn replica(&self, _avoid: &[BackendId], _hash: u64) -> Option<BackendId> {
        None
    }

    /// How many further backends are tried where one does not open a connection.
    fn further_backends(&self) -> usize {
        0
    }

    /// Whether what many clients share is spread over several backends.
    fn spreads(&self) -> bool {
        false
    }

    /// Whether connections are opened with headers or credentials of the clients they are for. Then the gateway opens none before a
    /// client comes, and one that is not opened says nothing about those of other clients.
    fn needs_a_client(&self) -> bool {
        false
    }

    /// Whether what a session's connection knows lives at its backend alone: it is lost with the connection, and no other
    /// takes its place.
    fn keeps_state(&self) -> bool {
        false
    }

    /// Whether a connection that was opened with these personal values would be opened with others now.
    fn is_outdated(&self, _: &PersonalUse) -> bool {
        false
    }

    /// What its processes printed lately; `None` where it has none.
    fn output(&self) -> Option<Arc<RecentLines>> {
        None
    }

    /// A connection took the place of one that had ended so.
    fn restarted(&self, _reason: &'static str) {}

    /// A text that quotes the server, fit for others.
    fn without_secrets(&self, text: &str) -> String;
}

/// What a connection leads to.
#[async_trait]
pub(crate) trait Instance: Send + Sync {
    /// The pid of a process.
    fn pid(&self) -> Option<u32> {
        None
    }

    /// The personal values it was opened with, once.
    fn take_personal(&mut self) -> Option<PersonalUse> {
        None
    }

    /// The backend of a session.
    fn backend(&self) -> Option<&BackendId> {
        None
    }

    /// Waits for its end, where that shows elsewhere than on the link.
    async fn exited(&self) -> Exit {
        std::future::pending().await
    }

    /// What it said last beside its messages.
    async fn last_words(&self) -> Option<String> {
        None
    }

    /// Holds back what it prints: it is asked something that it may not know.
    fn hold_output(&self) {}

    /// Lets go of what was held back. `refused`: it does not know the question, and what it printed says no more.
    fn release_output(&self, _refused: bool) {}

    /// How its end reads, to follow its name. `exit` says how it ended, if that is known.
    fn how_ended(&self, exit: Option<Exit>) -> String;

    /// How long calls go on that were under way when it took no more of them: each hears of its own end.
    fn leaves_calls(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends it. The link takes no calls any more.
    async fn stop(&self);
}

impl<'a> From<&'a Arc<ExternalServer>> for ServerRef<'a> {
    fn from(server: &'a Arc<ExternalServer>) -> Self {
        Self::Process(server)
    }
}

impl<'a> From<&'a Arc<RemoteServer>> for ServerRef<'a> {
    fn from(server: &'a Arc<RemoteServer>) -> Self {
        Self::Remote(server)
    }
}

impl<'a> ServerRef<'a> {
    /// Its namespace.
    pub(crate) fn name(&self) -> &'a NamespaceName {
        match self {
            Self::Process(server) => &server.name,
            Self::Remote(server) => &server.name,
        }
    }

    /// What of it depends on who calls.
    pub(crate) fn personal(self) -> &'a Personal {
        match self {
            Self::Process(server) => &server.spec.personal,
            Self::Remote(server) => &server.spec.personal,
        }
    }

    /// Whether the server's lists are mended.
    pub(crate) fn lists(self) -> ListMode {
        match self {
            Self::Process(server) => server.spec.settings.lists,
            Self::Remote(server) => server.spec.lists,
        }
    }

    /// How its connections are shared.
    pub(crate) fn isolation(self) -> Isolation {
        match self {
            Self::Process(server) => server.spec.settings.isolation,
            Self::Remote(server) => server.spec.sharing(),
        }
    }
}

/// Knows how the connections of any server are opened.
pub(crate) trait Launchers: Send + Sync {
    /// What opens those of this one.
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher>;
}

/// Starts the processes of servers that are child processes.
pub(crate) struct ProcessLaunchers {
    pub(crate) host: Arc<ProcessHost>,
    pub(crate) personal: Arc<PersonalSecrets>,
}

impl Launchers for ProcessLaunchers {
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher> {
        match server {
            ServerRef::Process(server) => Arc::new(ProcessLauncher::new(server, self)),
            ServerRef::Remote(_) => unreachable!("a remote server is no child process"),
        }
    }
}

/// Starts child processes.
struct ProcessLauncher {
    server: Arc<ExternalServer>,
    host: Arc<ProcessHost>,
    personal: Arc<PersonalSecrets>,
    /// `None`: nothing is to be installed, or the start does that.
    step: Option<InstallStep>,
    /// Kept here, so that the lines outlive the processes.
    output: Arc<RecentLines>,
}

impl ProcessLauncher {
    /// Of that server.
    fn new(server: &Arc<ExternalServer>, all: &ProcessLaunchers) -> Self {
        Self {
            server: Arc::clone(server),
            host: Arc::clone(&all.host),
            personal: Arc::clone(&all.personal),
            step: InstallStep::of(&server.spec),
            output: all.host.output.of(&server.name),
        }
    }

    fn spec(&self) -> &StdioSpec {
        &self.server.spec
    }

    fn broken(&self) -> CallError {
        let name = &self.server.name;
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("the pipes of the server of namespace {name} cannot be used"),
        )
    }
}

#[async_trait]
impl Launcher for ProcessLauncher {
    fn name(&self) -> &NamespaceName {
        &self.server.name
    }

    fn settings(&self) -> StdioSettings {
        self.server.spec.settings
    }

    fn is(&self, server: ServerRef<'_>) -> bool {
        matches!(server, ServerRef::Process(server) if Arc::ptr_eq(&self.server, server))
    }

    fn prepares(&self) -> bool {
        self.step.is_some()
    }

    /// Installs the package. A tool that fails or does not understand is not the end: the start shows what is wrong.
    async fn prepare(&self) -> Result<(), Raw> {
        let Some(step) = &self.step else {
            return Ok(());
        };
        let name = &self.server.name;
        let limit = self.settings().install_timeout;
        tracing::info!(
            namespace = %name,
            "the package of the server of namespace {name} is installed, for at most {}",
            humantime_serde::re::humantime::format_duration(limit)
        );
        let began = Instant::now();
        match step.run(&self.server, &self.host, limit).await {
            Ok(()) => {
                tracing::info!(
                    namespace = %name,
                    seconds = began.elapsed().as_secs_f32(),
                    "the package of the server of namespace {name} has been installed"
                );
                Ok(())
            }
            Err(error @ NotInstalled::Failed { .. }) => {
                tracing::warn!(
                    namespace = %name,
                    "installing the package of the server of namespace {name} failed, the server is started all the \
                     same: {error}"
                );
                Ok(())
            }
            Err(NotInstalled::TooLong { limit, last }) => {
                let limit = humantime_serde::re::humantime::format_duration(limit);
                let message = format!(
                    "the server of namespace {name} was not started: its package was not installed within {limit} \
                     (configuration key install_timeout)"
                );
                Err(Raw {
                    error: CallError::new(CallErrorCode::WorkerUnavailable, message),
                    said: last,
                })
            }
        }
    }

    async fn launch(
        &self,
        place: Place<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError> {
        let own = personal_use(&self.spec().personal, self.name(), &self.personal, place)?;
        let child = match &own {
            None => ServerProcess::spawn(&self.server, &self.host).await?,
            Some(own) => {
                let server = self.server.with_personal(own.values.clone());
                ServerProcess::spawn(&server, &self.host).await?
            }
        };
        let runtimes = &self.host.runtimes;
        let homes = Homes::new(runtimes.pick().await, runtimes.all().await);
        let pipes = child.take_pipes().ok_or_else(|| self.broken())?;
        let pipes = Pipes {
            stdin: pipes.stdin,
            stdout: pipes.stdout,
        };
        let LinkParts {
            limits, inbound, ..
        } = parts;
        let name = self.server.name.clone();
        let link = Link::open(name, pipes, homes, limits, inbound).map_err(|_| self.broken())?;
        Ok((link, Box::new(ChildProcess { child, own })))
    }

    fn needs_a_client(&self) -> bool {
        self.spec().personal.is_needed()
    }

    fn is_outdated(&self, own: &PersonalUse) -> bool {
        is_outdated(&self.spec().personal, self.name(), &self.personal, own)
    }

    fn output(&self) -> Option<Arc<RecentLines>> {
        Some(Arc::clone(&self.output))
    }

    fn restarted(&self, reason: &'static str) {
        self.host.servers().restarted(&self.server.name, reason);
    }

    fn without_secrets(&self, text: &str) -> String {
        let text = self.server.without_secrets(text);
        self.spec().personal.hide(&self.personal, text)
    }
}

/// A child process as its keeper has it.
struct ChildProcess {
    child: ServerProcess,
    own: Option<PersonalUse>,
}

#[async_trait]
impl Instance for ChildProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.child.pid())
    }

    fn take_personal(&mut self) -> Option<PersonalUse> {
        self.own.take()
    }

    async fn exited(&self) -> Exit {
        self.child.exited().await
    }

    async fn last_words(&self) -> Option<String> {
        self.child.last_words().await
    }

    fn hold_output(&self) {
        self.child.hold_output();
    }

    fn release_output(&self, refused: bool) {
        self.child.release_output(refused);
    }

    fn how_ended(&self, exit: Option<Exit>) -> String {
        match exit {
            Some(Exit::Code(code)) => format!("exited with status {code}"),
            Some(Exit::Signal(signal)) => format!("was ended by signal {signal}"),
            Some(Exit::Lost) => "ended".to_owned(),
            None => "closed its pipes".to_owned(),
        }
    }

    async fn stop(&self) {
        self.child.stop().await;
    }
}

/// The personal values that a connection of that place is opened with; `None` for a server that has none.
///
/// # Errors
///
/// `missing_credential`, where the principal lacks one.
pub(crate) fn personal_use(
    personal: &Personal,
    name: &NamespaceName,
    secrets: &PersonalSecrets,
    place: Place<'_>,
) -> Result<Option<PersonalUse>, CallError> {
    if !personal.is_needed() {
        return Ok(None);
    }
    let values = personal.values(name, secrets, place.principal.map(|it| &**it))?;
    let principal = place.principal.map_or_else(|| "".into(), Arc::clone);
    Ok(Some(PersonalUse { principal, values }))
}

/// Whether a principal has other values by now, or lacks one.
pub(crate) fn is_outdated(
    personal: &Personal,
    name: &NamespaceName,
    secrets: &PersonalSecrets,
    own: &PersonalUse,
) -> bool {
    let now = personal.values(name, secrets, Some(&own.principal));
    now.map_or(true, |now| now != own.values)
}
