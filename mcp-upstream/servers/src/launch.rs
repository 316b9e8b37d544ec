//! Launchers, which open the connections of a server for its pool.
//!
//! The pools, the keeper and the link are the same for all MCP servers; only launchers differ. `ProcessLauncher` starts a
//! child process and connects its pipes. A session of a remote server is a connection like a process, so comments about
//! processes in `pool` and `process` apply to such sessions, too.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_credentials::personal::{Personal, PersonalValues};
use tooldock_credentials::secrets::PersonalSecrets;
use tooldock_process::child::Exit;
use tooldock_process::child::output::RecentLines;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::external::{
    ExternalServer, InstallStep, NotInstalled, ProcessHost, ServerProcess, StdioSettings, StdioSpec,
};
use tooldock_workers::remote::{BackendId, RemoteServer};
use tooldock_workers::server_settings::{Isolation, ListMode};

use super::key::ProcessKey;
use super::link::{Inbound, Link, LinkLimits, LinkRuntimes};
use super::pipes::Pipes;

/// Reference to a server in the registry, by which its pool is found.
#[derive(Clone, Copy)]
pub enum ServerRef<'a> {
    /// A server that runs as child processes.
    Process(&'a Arc<ExternalServer>),
    /// A server that is reached over HTTP.
    Remote(&'a Arc<RemoteServer>),
}

/// Limits, message handler and catalogue for the link of a new connection.
pub struct LinkParts {
    pub(crate) limits: LinkLimits,
    pub(crate) inbound: Arc<dyn Inbound>,
    /// The server's catalogue: its cached lists of tools, prompts and resources.
    pub(crate) catalogue: Arc<Catalogue>,
}

/// Requirements on a new connection: its backend, and the client for which it is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct LaunchRequirements<'a> {
    /// The key of the requests that use the connection; `None` for a spare, whose requests are not known yet. It may name the
    /// backend to connect to, and its hash identifies the client, for balancing by client.
    pub(crate) key: Option<&'a ProcessKey>,
    /// Backends that failed to open a connection. They are not chosen.
    pub(crate) avoid: &'a [BackendId],
    /// Headers of the only client that uses the connection. They are sent with the gateway's messages; a client's request has its
    /// own headers.
    pub(crate) headers: Option<&'a Arc<HeaderMap>>,
    /// The principal whose credentials are used; `None` for a connection that does not belong to one principal.
    pub(crate) principal: Option<&'a Arc<str>>,
}

/// A principal's personal values with which a connection was opened.
#[derive(Debug)]
pub struct PersonalUse {
    pub(crate) principal: Arc<str>,
    pub(crate) values: PersonalValues,
}

/// A failure of a process. Its texts may still contain secrets, so they must not be shown.
#[derive(Debug)]
pub struct Raw {
    pub(crate) error: CallError,
    /// The last output of the process on standard error, as it was written to the log.
    pub(crate) said: Option<String>,
}

impl From<CallError> for Raw {
    fn from(error: CallError) -> Self {
        Self { error, said: None }
    }
}

/// Opens the connections to one server.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Returns the namespace of the launcher's server.
    fn name(&self) -> &NamespaceName;

    /// Returns the server's settings for sharing and keeping connections.
    fn settings(&self) -> StdioSettings;

    /// Returns true if the launcher was made for this server object, or can continue to use its connections for this
    /// object. Objects are compared by address, not by value.
    fn is(&self, server: ServerRef<'_>) -> bool;

    /// Makes this version of the server the current one. Returns false if it was current already, or if the launcher cannot
    /// change versions.
    fn adopt(&self, _: ServerRef<'_>) -> bool {
        false
    }

    /// Returns true if the server has this backend.
    fn has(&self, _: &BackendId) -> bool {
        true
    }

    /// Returns true if [`Self::prepare`] must run before the first connection.
    fn prepares(&self) -> bool {
        false
    }

    /// Does the work that must precede the first connection, such as installing the server's package.
    ///
    /// # Errors
    ///
    /// The reason why no connection can be opened.
    async fn prepare(&self) -> Result<(), Raw> {
        Ok(())
    }

    /// Opens a connection. No MCP message is sent on it yet.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed.
    async fn launch(
        &self,
        place: LaunchRequirements<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError>;

    /// Chooses the backend for the next request on the connections that all clients share. `None` if the server has no backends,
    /// or no healthy one outside of the list. `hash` is equal for equal clients.
    fn replica(&self, _avoid: &[BackendId], _hash: u64) -> Option<BackendId> {
        None
    }

    /// Returns true if [`Self::replica`] would choose a backend. Calling this does not affect later choices.
    fn has_replica(&self, _avoid: &[BackendId]) -> bool {
        false
    }

    /// Returns the maximum number of other backends to try if the first backend does not open a connection.
    fn further_backends(&self) -> usize {
        0
    }

    /// Returns true if requests that may share a connection are spread over several backends, each with a shared connection.
    fn spreads(&self) -> bool {
        false
    }

    /// Returns true if connections are opened with headers or credentials of their clients. Then no connection is opened without
    /// a client, and a failure for one client does not affect the connections of others.
    fn needs_a_client(&self) -> bool {
        false
    }

    /// Returns true if the state of a session is stored only at its backend. The state is then lost with the session's
    /// connection, and no new connection is opened for the session.
    fn keeps_state(&self) -> bool {
        false
    }

    /// Returns true if these personal values, with which a connection was opened, have changed since.
    fn is_outdated(&self, _: &PersonalUse) -> bool {
        false
    }

    /// Returns the recent output of the server's processes; `None` for servers without processes.
    fn output(&self) -> Option<Arc<RecentLines>> {
        None
    }

    /// Counts a connection that was opened to replace an earlier one. `reason`: the reason why the earlier one ended.
    fn restarted(&self, _reason: &'static str) {}

    /// Removes secrets from a text of the server, so that it can be shown to clients.
    fn without_secrets(&self, text: &str) -> String;
}

/// The server at the other end of a connection: a process, or a session at a backend.
#[async_trait]
pub trait Instance: Send + Sync {
    /// Returns the process id; `None` for a session of a remote server.
    fn pid(&self) -> Option<u32> {
        None
    }

    /// Takes the personal values with which the connection was opened. A second call returns `None`.
    fn take_personal(&mut self) -> Option<PersonalUse> {
        None
    }

    /// Returns the backend of a remote server's session; `None` for a process.
    fn backend(&self) -> Option<&BackendId> {
        None
    }

    /// Waits for the process to exit. Never resolves for a connection without a process: only its link reports the end.
    async fn exited(&self) -> Exit {
        std::future::pending().await
    }

    /// Returns the last output of the process that was not a message, such as lines on standard error.
    async fn last_words(&self) -> Option<String> {
        None
    }

    /// Buffers the log output of the process. Called before a request that the server may not know and may complain about.
    fn hold_output(&self) {}

    /// Logs the buffered output. `refused`: true if the server did not know the request; the output is then only its complaint.
    fn release_output(&self, _refused: bool) {}

    /// Describes how the connection ended, as a phrase that follows the server's name. `exit`: the exit of the process, if known.
    fn how_ended(&self, exit: Option<Exit>) -> String;

    /// Returns the time that running calls get after the connection stopped accepting calls. Each call ends by itself within it.
    fn leaves_calls(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the process or session. When this is called, the link accepts no more calls.
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
    /// Returns the namespace of the server.
    #[inline]
    pub fn name(&self) -> &'a NamespaceName {
        match self {
            Self::Process(server) => &server.name,
            Self::Remote(server) => &server.name,
        }
    }

    /// Returns the server's settings that depend on the caller.
    #[inline]
    pub fn personal(self) -> &'a Personal {
        match self {
            Self::Process(server) => &server.spec.personal,
            Self::Remote(server) => &server.spec.personal,
        }
    }

    /// Returns the mode for correcting the server's lists.
    pub(crate) fn lists(self) -> ListMode {
        match self {
            Self::Process(server) => server.spec.settings.lists,
            Self::Remote(server) => server.spec.lists,
        }
    }

    /// Returns the mode for sharing the server's connections among clients.
    #[inline]
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Process(server) => server.spec.settings.isolation,
            Self::Remote(server) => server.spec.sharing(),
        }
    }
}

/// Creates the launcher for any server.
pub trait Launchers: Send + Sync {
    /// Returns the launcher for this server's connections.
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher>;
}

/// Creates the launchers of servers that run as child processes.
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

/// Launcher of one server, which runs as child processes.
struct ProcessLauncher {
    server: Arc<ExternalServer>,
    host: Arc<ProcessHost>,
    personal: Arc<PersonalSecrets>,
    /// The installation step of the server's package; `None` if there is no package, or if starting the server installs it.
    step: Option<InstallStep>,
    /// Recent output of the server's processes. It is kept when a process ends.
    output: Arc<RecentLines>,
}

impl ProcessLauncher {
    /// Creates the launcher for this server's processes.
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

    /// Installs the package. If the package manager fails or does not know the command, the server is started nevertheless, and
    /// its failing start shows the error.
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
        place: LaunchRequirements<'_>,
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
        let homes = LinkRuntimes::new(runtimes.pick().await, runtimes.all().await);
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

/// A running child process with the personal values with which it was started.
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

/// Returns the personal values with which a connection for `place` is opened; `None` for a server without personal values.
///
/// # Errors
///
/// `missing_credential` if the principal lacks a value.
pub(crate) fn personal_use(
    personal: &Personal,
    name: &NamespaceName,
    secrets: &PersonalSecrets,
    place: LaunchRequirements<'_>,
) -> Result<Option<PersonalUse>, CallError> {
    if !personal.is_needed() {
        return Ok(None);
    }
    let values = personal.values(name, secrets, place.principal.map(|it| &**it))?;
    let principal = place.principal.map_or_else(|| "".into(), Arc::clone);
    Ok(Some(PersonalUse { principal, values }))
}

/// Returns true if the principal's values have changed since the connection was opened, or if a value is missing now.
pub(crate) fn is_outdated(
    personal: &Personal,
    name: &NamespaceName,
    secrets: &PersonalSecrets,
    own: &PersonalUse,
) -> bool {
    let now = personal.values(name, secrets, Some(&own.principal));
    now.map_or(true, |now| now != own.values)
}
