//! All connections to one process: one in each of the proxy's runtimes.
//!
//! Waking a task of another runtime is a system call, and a call would need one for its request and one for its response. So a
//! call uses the connection of its own runtime, where that connection's writer and reader run as well. All connections belong
//! to a single process: the end of one connection ends all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;
use tokio::time::sleep;

use super::io::ConnectError;
use super::{AnnouncementSender, Link, RpcCloseReason, SETTLE, WorkerConnection, connect};
use crate::metrics::NamespaceMetrics;
use crate::worker::WorkerSpec;

/// Maximum number of connections to one process. If there are more runtimes, some share a connection.
const CONNECTIONS_MAX: usize = 16;

/// Owner of all connections to one process. Dropping it closes the connections and ends their tasks.
#[derive(Debug)]
pub(in crate::worker) struct Connections {
    links: Arc<Links>,
    /// The owned connections; at least one.
    connections: Vec<WorkerConnection>,
}

/// All connections to one process, for use by calls.
#[derive(Debug)]
pub(in crate::worker) struct Links {
    /// Number of connections; at least one.
    connections: usize,
    /// Pairs of a runtime and the connection that its calls use: first the runtimes in which a connection was opened, then those
    /// that share the connection of another runtime.
    by_runtime: Box<[(runtime::Id, Arc<Link>)]>,
}

impl Connections {
    /// Connects in each of the runtimes that still exist. Dropping the future closes the connections.
    ///
    /// # Errors
    ///
    /// When a connection cannot be opened, or no runtime remains.
    pub(in crate::worker) async fn make(
        runtimes: &[Handle],
        spec: &Arc<WorkerSpec>,
        metrics: &Arc<NamespaceMetrics>,
        announced: &AnnouncementSender,
    ) -> Result<Self, ConnectError> {
        let closed = watch::Sender::new(None);
        let mut connections: Vec<WorkerConnection> = Vec::new();
        let mut by_runtime = Vec::new();
        for runtime in runtimes.iter().take(CONNECTIONS_MAX) {
            let connection = connect(
                runtime.clone(),
                Arc::clone(spec),
                Arc::clone(metrics),
                announced.clone(),
                closed.clone(),
            );
            match connection.await {
                Ok(connection) => {
                    by_runtime.push((runtime.id(), Arc::clone(&connection.link)));
                    connections.push(connection);
                }
                // A runtime that has ended makes no calls, so it needs no connection.
                Err(ConnectError::RuntimeGone) => {}
                Err(error) => return Err(error),
            }
        }
        if connections.is_empty() {
            return Err(ConnectError::RuntimeGone);
        }
        let shared = connections.iter().map(|it| Arc::clone(&it.link)).cycle();
        let others = runtimes.iter().skip(CONNECTIONS_MAX).map(Handle::id);
        by_runtime.extend(others.zip(shared));
        let links = Links {
            connections: connections.len(),
            by_runtime: by_runtime.into(),
        };
        Ok(Self {
            links: Arc::new(links),
            connections,
        })
    }

    /// The connections, for use by calls.
    pub(in crate::worker) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Asks the process to end.
    pub(in crate::worker) fn send_shutdown(&self) {
        if let Some(first) = self.connections.first() {
            first.send_shutdown();
        }
    }
}

impl Links {
    /// The connection of the current runtime; the first one if the current runtime has none.
    pub(in crate::worker) fn here(&self) -> &Arc<Link> {
        let (_, first) = &self.by_runtime[0];
        if self.by_runtime.len() == 1 {
            return first;
        }
        let Ok(runtime) = Handle::try_current().map(|runtime| runtime.id()) else {
            return first;
        };
        let mut all = self.by_runtime.iter();
        all.find(|(id, _)| *id == runtime)
            .map_or(first, |(_, link)| link)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        let connections = &self.by_runtime[..self.connections];
        connections.iter().map(|(_, link)| link)
    }

    /// Waits until one of the connections is over.
    pub(in crate::worker) async fn closed(&self) -> RpcCloseReason {
        let (_, first) = &self.by_runtime[0];
        first.closed().await
    }

    /// Closes all connections for calls. If it is called again, the first reason is kept.
    pub(in crate::worker) fn close(&self, reason: &RpcCloseReason) {
        for link in self.all() {
            link.close(reason.clone());
        }
    }

    /// The time limit of the abandoned call (its caller no longer waits) with this id and request. Both are needed: two
    /// connections may use the same id.
    pub(in crate::worker) fn limit_of_abandoned(&self, id: u64, request: &str) -> Option<Duration> {
        self.all()
            .find_map(|link| link.limit_of_abandoned(id, request))
    }

    /// Waits until no call has been pending for a moment.
    pub(in crate::worker) async fn drained(&self) {
        loop {
            for link in self.all() {
                link.idle().await;
            }
            let begun = self.begun();
            sleep(SETTLE).await;
            if self.all().all(|link| link.pending() == 0) && begun == self.begun() {
                return;
            }
        }
    }

    /// Number of calls begun so far on all connections.
    fn begun(&self) -> u64 {
        self.all().map(|link| link.begun()).sum()
    }
}
