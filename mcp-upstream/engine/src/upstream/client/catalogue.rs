//! The tools of a server: read for callers that need them before a call, with the last good list as fallback for a slow server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};
use tooldock_base::error::CallError;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{Era, ServerInfo};
use tooldock_servers::metrics::LastGood;
use tooldock_servers::pool::{ProcessLease, served};
use tooldock_sessions::catalogue::{
    Catalogue, ListReading, PageSource, ReadingOutcome, ToolList, late,
};
use tooldock_workers::registry::{Namespace, UpstreamKind};
use tooldock_workers::server_settings::ListMode;

use super::ExternalServers;
use super::lease::server_of;
use super::own_lists::OwnLists;
use crate::upstream::Client;

/// Maximum number of times that the tools are read again because they changed during the reading, or because the reading of
/// another caller failed.
const TRIES: usize = 2;
/// Maximum wait for a server's list, after which the last good list is used in its place.
const PATIENCE: Duration = Duration::from_secs(10);

/// Namespace and principal whose lists are read.
#[derive(Clone, Copy)]
pub(super) struct ListOwner<'a> {
    pub(super) namespace: &'a Arc<Namespace>,
    /// The caller's principal, for servers that the gateway calls with the caller's credentials.
    pub(super) principal: Option<&'a Arc<str>>,
}

/// Pages of a server's lists, read over its connection.
struct ConnectionPages<'a>(&'a ProcessLease);

#[async_trait]
impl PageSource for ConnectionPages<'_> {
    fn server(&self) -> ServerInfo {
        self.0.opened().clone()
    }

    async fn page(
        &self,
        method: &'static str,
        params: &RawValue,
    ) -> Result<ResponseOutcome, CallError> {
        self.0.request(method, Some(params), None)?.await
    }
}

impl ExternalServers {
    /// The catalogue of the namespace's server; the principal's own catalogue, if the gateway calls the server with the
    /// caller's credentials.
    ///
    /// # Errors
    ///
    /// When the server is no longer served, or could not be started.
    pub(super) fn catalogue(
        &self,
        namespace: &Namespace,
        principal: Option<&Arc<str>>,
    ) -> Result<Arc<Catalogue>, CallError> {
        let server = server_of(namespace)?;
        if server.personal().is_needed() {
            let base = self.pools.catalogue(server)?;
            base.set_lists(list_mode(namespace));
            let Some(principal) = principal else {
                return Ok(base);
            };
            let lists = namespace.attached.get::<OwnLists>().unwrap_or_else(|| {
                namespace.attached.set(Arc::new(OwnLists::default()));
                // A concurrent caller may have stored its lists first; then these are used.
                namespace.attached.get().unwrap_or_default()
            });
            return Ok(lists.of(principal, &base));
        }
        if let Some(catalogue) = namespace.attached.get() {
            return Ok(catalogue);
        }
        let catalogue = self.pools.catalogue(server)?;
        catalogue.set_lists(list_mode(namespace));
        namespace.attached.set(Arc::clone(&catalogue));
        Ok(catalogue)
    }

    /// The tools of a namespace's server, including those that a view hides. Concurrent callers share one reading.
    ///
    /// # Errors
    ///
    /// The reason why the tools cannot be read.
    pub(super) async fn tools(
        self: &Arc<Self>,
        whose: ListOwner<'_>,
        catalogue: &Arc<Catalogue>,
    ) -> ReadingOutcome {
        let namespace = whose.namespace;
        let version = catalogue.version();
        // All readings together have a single deadline.
        let end = Instant::now() + namespace.limits.timeout;
        let mut tries = 0;
        loop {
            if let Some(current) = catalogue.current() {
                return Ok(current);
            }
            tries += 1;
            let (reading, is_own) = self.reading(whose, catalogue);
            let outcome = timeout_at(end, reading.outcome()).await;
            match outcome.unwrap_or_else(|_| Err(late(&namespace.name))) {
                // The reading may have begun before the change that this caller was notified of, so the tools are read again.
                Ok(read) if read.version() < version && tries < TRIES => {}
                Ok(read) => return Ok(read),
                Err(_) if !is_own && !reading.is_slow() && tries < TRIES => {}
                Err(error) => return self.last_tools(namespace, catalogue).ok_or(error),
            }
        }
    }

    /// The tools for a call that cannot wait long: if the list is late, the last known tools.
    ///
    /// # Errors
    ///
    /// The reason why no tools are known.
    pub(super) async fn tools_soon(
        self: &Arc<Self>,
        whose: ListOwner<'_>,
        catalogue: &Arc<Catalogue>,
    ) -> ReadingOutcome {
        let namespace = whose.namespace;
        if let Some(current) = catalogue.current() {
            return Ok(current);
        }
        let (reading, _) = self.reading(whose, catalogue);
        let until = reading.patience(namespace.limits.timeout);
        let outcome = timeout_at(until, self.tools(whose, catalogue)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(late(&namespace.name)));
        outcome.or_else(|error| catalogue.known().ok_or(error))
    }

    /// The current reading of the tools, or a new one if there is none. The returned flag is true if this call began the reading.
    fn reading(
        self: &Arc<Self>,
        whose: ListOwner<'_>,
        catalogue: &Arc<Catalogue>,
    ) -> (Arc<ListReading>, bool) {
        let (reading, begun) = catalogue.begin();
        let is_own = begun.is_some();
        if let Some(begun) = begun {
            let (external, namespace) = (Arc::clone(self), Arc::clone(whose.namespace));
            let principal = whose.principal.cloned();
            let catalogue = Arc::clone(catalogue);
            // At most one task per catalogue reads the tools, and it ends at the time limit of a call.
            tokio::spawn(async move {
                let whose = ListOwner {
                    namespace: &namespace,
                    principal: principal.as_ref(),
                };
                let read = external.read_tools(whose, &catalogue);
                let outcome = timeout(namespace.limits.timeout, read).await;
                begun.end(outcome.unwrap_or_else(|_| Err(late(&namespace.name))));
            });
        }
        (reading, is_own)
    }

    /// Reads the tools from the shared process, which lists tools for all clients, even if calls use other processes. For a
    /// server that the gateway calls with the caller's credentials, reads them from the principal's process.
    async fn read_tools(
        self: &Arc<Self>,
        whose: ListOwner<'_>,
        catalogue: &Catalogue,
    ) -> ReadingOutcome {
        let namespace = whose.namespace;
        let target = self.target_of_lists(namespace, whose.principal).await?;
        let leased = self.lease(namespace, &Client::Plain, target).await?;
        let pages = ConnectionPages(&leased.process);
        let list = catalogue.read(&namespace.name, &pages).await?;
        leased.process.answered();
        Ok(list)
    }

    /// The last known tools, for a server that cannot list them now.
    fn last_tools(&self, namespace: &Namespace, catalogue: &Catalogue) -> Option<Arc<ToolList>> {
        // Returns `None` if the pool reports that the server's last responses are outdated.
        let server = served(namespace)?;
        self.pools.last_opened(server, Era::Legacy)?;
        let last = catalogue.known()?;
        self.pools.fell_back(server, LastGood::List);
        Some(last)
    }
}

/// Mode for mending the lists of a namespace's server.
fn list_mode(namespace: &Namespace) -> ListMode {
    match &namespace.upstream {
        UpstreamKind::External(server) => server.spec.settings.lists,
        UpstreamKind::Remote(server) => server.spec.lists,
        _ => ListMode::default(),
    }
}

/// Waits for the response to a list method; after [`PATIENCE`], returns the last good list if there is one. If a request is
/// abandoned for that reason, its process is checked, since it may be stuck.
pub(super) async fn or_last_good<T, E>(
    attempt: impl Future<Output = Result<T, E>>,
    last_good: impl FnOnce() -> Option<T>,
) -> Result<T, E> {
    tokio::pin!(attempt);
    match timeout(PATIENCE, &mut attempt).await {
        Ok(outcome) => outcome,
        Err(_) => match last_good() {
            Some(known) => Ok(known),
            None => attempt.await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_that_takes_too_long_is_the_last_good_one_if_there_is_one() {
        let slow = || async {
            tokio::time::sleep(PATIENCE * 2).await;
            Ok::<_, ()>("new")
        };
        let begun = tokio::time::Instant::now();
        assert_eq!(or_last_good(slow(), || Some("old")).await, Ok("old"));
        assert_eq!(begun.elapsed(), PATIENCE);
        assert_eq!(or_last_good(slow(), || None).await, Ok("new"));
        let quick = async { Err("no") };
        assert_eq!(or_last_good(quick, || Some("old")).await, Err("no"));
    }
}
