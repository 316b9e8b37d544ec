//! Servers for tests: one that is a real process, started by the real guard, and one that a test plays in memory behind the
//! real pools.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use tokio::runtime::Handle;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;
use tooldock_process::child::Exit;
use tooldock_workers::external::{ExternalServer, StdioSettings, StdioSpec};

use crate::key::{ConnectionKey, ProcessKey};
use crate::launch::{Instance, LaunchRequirements, Launcher, Launchers, LinkParts, ServerRef};
use crate::link::{Incoming, Link, LinkEnd, LinkRuntimes, Transport, TransportFailure};
use crate::pipes::Pipes;

/// Script of a server that speaks either era and misbehaves on request; its first lines say how.
pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/pool/tests/server.py");

/// Returns the path of the guard that the workspace's tests start.
pub fn guard() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let target = test.ancestors().nth(2).expect("target/debug/deps/test");
    let guard = target.join("tooldock-test-guard");
    assert!(
        guard.exists(),
        "run `cargo build -p tooldock-process --bins`, which builds {}",
        guard.display()
    );
    guard
}

/// Waits for a future, and panics when it takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("in time")
}

/// A server that a test plays.
pub trait PlayedServer: Send + Sync + 'static {
    /// Opens a connection for requests with this key.
    ///
    /// # Errors
    ///
    /// When the server does not start.
    fn connect(
        self: Arc<Self>,
        key: ConnectionKey,
        new: NewConnection,
    ) -> Result<Arc<Link>, CallError>;
}

/// Launchers of servers that are all played by the same test.
pub struct PlayedLaunchers(Arc<dyn PlayedServer>);

/// A connection that a pool opens to a played server.
pub struct NewConnection {
    name: NamespaceName,
    parts: LinkParts,
}

/// The server's end of a connection in memory.
pub trait ServerEnd: Send + Sync + 'static {
    /// Receives a message of the gateway, while the gateway sends it.
    fn message(self: Arc<Self>, text: String);

    /// Called when the gateway has closed the connection.
    fn closed(&self);
}

/// Sends the messages of a server in memory. It does not keep the connection open.
#[derive(Clone)]
pub struct Speaker(Incoming);

/// The settings and the name of a server that a test plays, for the registry.
pub fn played_server(name: &str, settings: StdioSettings) -> Arc<ExternalServer> {
    let spec = StdioSpec {
        sandbox: Default::default(),
        program: "/nonexistent".into(),
        args: Vec::new(),
        personal: Default::default(),
        env: Vec::new(),
        secrets: Vec::new(),
        cwd: "/".into(),
        settings,
    };
    Arc::new(ExternalServer::new(name.parse().expect("a name"), spec))
}

impl NewConnection {
    /// Opens the connection over pipes, whose other ends the test has.
    pub fn over_pipes(self, pipes: Pipes) -> Arc<Link> {
        let LinkParts {
            limits, inbound, ..
        } = self.parts;
        Link::open(self.name, pipes, LinkRuntimes::here(), limits, inbound).expect("pipes")
    }

    /// Opens the connection in memory.
    pub fn in_memory(self, server: impl FnOnce(Speaker) -> Arc<dyn ServerEnd>) -> Arc<Link> {
        let LinkParts {
            limits, inbound, ..
        } = self.parts;
        let transport = |incoming| {
            let server = server(Speaker(incoming));
            Arc::new(InMemory(Mutex::new(Some(server)))) as _
        };
        let runtime = Handle::current();
        Link::over(self.name, transport, &runtime, limits, inbound)
    }
}

impl Speaker {
    /// Sends a message to the gateway.
    pub fn say(&self, text: &str) {
        self.0.message(Bytes::copy_from_slice(text.as_bytes()));
    }

    /// Ends the connection, as a server does that crashes.
    pub fn hang_up(&self) {
        self.0.close(LinkEnd::Disconnected);
    }
}

/// Transport that passes messages to a server in memory; `None` once the gateway has closed the connection.
struct InMemory(Mutex<Option<Arc<dyn ServerEnd>>>);

impl InMemory {
    fn pass(&self, message: &Bytes) {
        let server = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(server) = server {
            server.message(String::from_utf8_lossy(message).trim_end().to_owned());
        }
    }
}

impl Transport for InMemory {
    fn request(
        &self,
        _: u64,
        message: Bytes,
        _: TransportFailure,
        _: Option<Arc<HeaderMap>>,
    ) -> Result<(), CallError> {
        self.pass(&message);
        Ok(())
    }

    fn send(&self, message: Bytes) -> Result<(), CallError> {
        self.pass(&message);
        Ok(())
    }

    fn give_up(&self, _: u64, words: Option<Bytes>) {
        if let Some(words) = words {
            self.pass(&words);
        }
    }

    fn end(&self) {
        let server = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = server {
            server.closed();
        }
    }
}

impl PlayedLaunchers {
    /// Creates the launchers of servers that `player` plays.
    pub fn of<S: PlayedServer>(player: &Arc<S>) -> Arc<dyn Launchers> {
        Arc::new(Self(Arc::clone(player) as _))
    }
}

impl Launchers for PlayedLaunchers {
    fn launcher(&self, server: ServerRef<'_>) -> Arc<dyn Launcher> {
        let ServerRef::Process(server) = server else {
            unreachable!("a played server is configured as a process");
        };
        Arc::new(PlayedLauncher {
            server: Arc::clone(server),
            player: Arc::clone(&self.0),
        })
    }
}

struct PlayedLauncher {
    server: Arc<ExternalServer>,
    player: Arc<dyn PlayedServer>,
}

#[async_trait]
impl Launcher for PlayedLauncher {
    fn name(&self) -> &NamespaceName {
        &self.server.name
    }

    fn settings(&self) -> StdioSettings {
        self.server.spec.settings
    }

    fn is(&self, server: ServerRef<'_>) -> bool {
        matches!(server, ServerRef::Process(server) if Arc::ptr_eq(&self.server, server))
    }

    async fn launch(
        &self,
        place: LaunchRequirements<'_>,
        parts: LinkParts,
    ) -> Result<(Arc<Link>, Box<dyn Instance>), CallError> {
        let key = match place.key.expect("no spares are kept") {
            ProcessKey::Shared => ConnectionKey::Shared,
            ProcessKey::Replica(backend) => ConnectionKey::Replica(backend.clone()),
            ProcessKey::Session(tag) => ConnectionKey::Session(Arc::clone(tag)),
            ProcessKey::Principal(name) => ConnectionKey::Principal(Arc::clone(name)),
            ProcessKey::Exclusive(_) => ConnectionKey::Exclusive,
        };
        let name = self.server.name.clone();
        let new = NewConnection { name, parts };
        let link = Arc::clone(&self.player).connect(key, new)?;
        Ok((link, Box::new(PlayedInstance)))
    }

    fn without_secrets(&self, text: &str) -> String {
        text.to_owned()
    }
}

struct PlayedInstance;

#[async_trait]
impl Instance for PlayedInstance {
    fn how_ended(&self, _: Option<Exit>) -> String {
        "ended".to_owned()
    }

    async fn stop(&self) {}
}
