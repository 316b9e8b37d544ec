//! The pools as a [`Connector`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::output::RecentLines;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::{ProtocolViolation, Request, ResponseOutcome};
use tooldock_servers::launch::ServerRef;
use tooldock_servers::link::{CallAccount, LinkCall, NotificationSink};
use tooldock_servers::metrics::LastGood;
use tooldock_servers::pool::process::tasks::Tasks;
use tooldock_servers::pool::process::{ListenerGuard, ProcessListener};
use tooldock_servers::pool::{Pools, Presence, ProcessLease, ServerCopy, served};
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;

use super::connector::{
    ConnectionKey, Connector, Era, EraSupport, Isolation, MissingResponse, OpenAs, Opener,
    RequestFate, SentRequest, ServerConnection, ServerInfo,
};
use crate::upstream::health::{LastRestart, ProcessCounts, ServerHealth};

/// Connector over the pools of the registry's servers.
pub struct PooledConnector(pub Arc<Pools>);

fn there(namespace: &Namespace) -> Result<ServerRef<'_>, CallError> {
    served(namespace).ok_or_else(|| {
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            "The namespace has no server",
        )
    })
}

#[async_trait]
impl Connector for PooledConnector {
    fn isolation(&self, namespace: &Namespace) -> Option<Isolation> {
        Some(served(namespace)?.isolation())
    }

    fn check_credentials(
        &self,
        namespace: &Namespace,
        principal: Option<&str>,
    ) -> Result<(), CallError> {
        let server = there(namespace)?;
        let own = server.personal();
        own.check(server.name(), self.0.personal(), principal)
    }

    fn is_personal(&self, namespace: &Namespace) -> bool {
        served(namespace).is_some_and(|server| server.personal().is_needed())
    }

    async fn speaks(
        &self,
        namespace: &Namespace,
        client: Era,
        opener: Opener,
    ) -> Result<EraSupport, CallError> {
        let server = there(namespace)?;
        self.0.server_era(server, client, opener).await
    }

    fn known_to_speak(&self, namespace: &Namespace, client: Era) -> Option<EraSupport> {
        let era = self.0.known_era(served(namespace)?, client)?;
        Some(era)
    }

    async fn lease(
        &self,
        namespace: &Namespace,
        key: &ConnectionKey,
        open: OpenAs,
    ) -> Result<Arc<dyn ServerConnection>, CallError> {
        let server = there(namespace)?;
        let key = key.clone();
        let leased = self.0.lease(server, key, open).await?;
        Ok(LeasedConnection::of(leased))
    }

    fn lease_at_once(
        &self,
        namespace: &Namespace,
        key: &ConnectionKey,
        era: Era,
    ) -> Option<Arc<dyn ServerConnection>> {
        let server = served(namespace)?;
        let leased = self.0.lease_at_once(server, key, era)?;
        Some(LeasedConnection::of(leased))
    }

    fn has_another(&self, namespace: &Namespace, tried: &[BackendId]) -> bool {
        served(namespace).is_some_and(|server| self.0.has_another(server, tried))
    }

    fn place_of_task(
        &self,
        namespace: &Namespace,
        era: Era,
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> Option<ConnectionKey> {
        let server = served(namespace)?;
        self.0.place_of_task(server, era, principal, task)
    }

    fn has_lost(&self, namespace: &Namespace, tag: &Arc<str>) -> bool {
        match served(namespace) {
            Some(ServerRef::Remote(server)) if server.spec.stateful => self.0.has_lost(server, tag),
            _ => false,
        }
    }

    fn copy(&self, namespace: &Namespace, key: &ConnectionKey, era: Era) -> ServerCopy {
        served(namespace).map_or(ServerCopy::Idle, |server| self.0.copy(server, key, era))
    }

    fn has_task(
        &self,
        namespace: &Namespace,
        at: (&ConnectionKey, Era),
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> bool {
        served(namespace).is_some_and(|server| self.0.has_task(server, at, principal, task))
    }

    fn end_session(&self, tag: &Arc<str>) {
        self.0.session_closed(tag);
    }

    fn session_returned(&self, tag: &Arc<str>) {
        self.0.session_returned(tag);
    }

    fn last_opening(&self, namespace: &Namespace, era: Era) -> Option<ServerInfo> {
        let opened = self.0.last_opened(served(namespace)?, era)?;
        Some(opened.server())
    }

    fn catalogue(&self, namespace: &Namespace) -> Result<Arc<Catalogue>, CallError> {
        self.0.catalogue(there(namespace)?)
    }

    fn unsubscribe(&self, namespace: &Namespace, key: &ConnectionKey, era: Era, uri: &str) {
        if let Some(server) = served(namespace) {
            self.0.unsubscribe(server, key, era, uri);
        }
    }

    fn fell_back(&self, namespace: &Namespace, what: LastGood) {
        if let Some(server) = served(namespace) {
            self.0.fell_back(server, what);
        }
    }

    fn violation(&self, namespace: &Namespace, violation: ProtocolViolation) {
        if let Some(server) = served(namespace) {
            self.0.violation(server, violation);
        }
    }

    fn presence(&self, namespace: &Namespace) -> Option<watch::Receiver<Presence>> {
        self.0.presence(served(namespace)?)
    }

    async fn settled(&self, namespace: &Namespace) {
        if let Some(server) = served(namespace) {
            self.0.settled(server).await;
        }
    }

    fn restart(&self, namespace: &Namespace) -> Result<(), CallError> {
        self.0.restart(there(namespace)?)
    }

    fn output(&self, namespace: &Namespace) -> Option<Arc<RecentLines>> {
        self.0.output(served(namespace)?)
    }

    fn health(&self, namespace: &Namespace) -> Option<ServerHealth> {
        let server = served(namespace)?;
        let state = self.0.state(server.name())?;
        let counts = state.processes;
        let catalogue = self.0.catalogue(server).ok();
        Some(ServerHealth {
            state: state.as_str(),
            error: state.error.as_ref().map(|error| error.code.as_str()),
            reason: state.reason.map(|reason| reason.to_string()),
            era: state.server.map(|era| match era {
                EraSupport::Legacy => "legacy",
                EraSupport::Modern | EraSupport::ModernAtLeast => "modern",
                EraSupport::Dual => "dual",
            }),
            breaker: matches!(server, ServerRef::Process(_)).then(|| state.breaker.as_str()),
            waiting: state.waiting,
            last_restart: state.last_restart.map(|(reason, ago)| LastRestart {
                reason,
                seconds_ago: ago.as_secs(),
            }),
            processes: ProcessCounts {
                serving: counts.serving,
                starting: counts.starting,
                installing: counts.installing,
                spare: counts.spare,
                stopping: counts.stopping,
            },
            lists: catalogue.map_or_else(Vec::new, |it| it.lists().reports()),
        })
    }
}

fn sent(mut call: LinkCall) -> SentRequest {
    let cancel = call.canceller();
    let answer = Box::pin(async move {
        let answer = call.answer().await;
        answer.map_err(|error| {
            let fate = match (call.is_session_gone(), call.is_unsent()) {
                (true, _) => RequestFate::SessionGone,
                _ if call.is_session_refused() => RequestFate::SessionRefused,
                (false, true) => RequestFate::Unsent,
                (false, false) => RequestFate::Sent,
            };
            MissingResponse { error, fate }
        })
    });
    SentRequest { answer, cancel }
}

/// A leased process as a [`ServerConnection`].
struct LeasedConnection {
    opening: ServerInfo,
    answered: AtomicBool,
    /// Guard of the registered listener. It is dropped before the lease, so that a listener never outlives its lease.
    listener: OnceLock<ListenerGuard>,
    leased: ProcessLease,
}

impl LeasedConnection {
    fn of(leased: ProcessLease) -> Arc<dyn ServerConnection> {
        Arc::new(Self {
            opening: leased.opened().server(),
            answered: AtomicBool::new(false),
            listener: OnceLock::new(),
            leased,
        })
    }
}

#[async_trait]
impl ServerConnection for LeasedConnection {
    fn opening(&self) -> &ServerInfo {
        &self.opening
    }

    fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<SentRequest, CallError> {
        self.leased.request(method, params, sink).map(sent)
    }

    fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        of_client: Option<&Arc<HeaderMap>>,
        account: Option<CallAccount>,
    ) -> Result<SentRequest, CallError> {
        self.leased
            .forward(request, sink, of_client, account)
            .map(sent)
    }

    fn notify(&self, message: &str) -> Result<(), CallError> {
        self.leased.forward_notification(message)
    }

    fn tried(&self) -> &[BackendId] {
        self.leased.tried()
    }

    fn backend(&self) -> Option<&BackendId> {
        self.leased.backend()
    }

    fn tasks(&self) -> &Tasks {
        self.leased.tasks()
    }

    fn hear(&self, listener: ProcessListener) {
        self.listener.get_or_init(|| self.leased.hear(listener));
    }

    async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError> {
        self.leased.subscribe(uri).await
    }

    async fn set_log_level(&self, level: LogLevel) -> Result<ResponseOutcome, CallError> {
        let asked = self.leased.set_log_level(level).await?;
        // `None`: no request was sent, because the process logs at that level already.
        Ok(asked.unwrap_or_else(|| ResponseOutcome::Result(Bytes::from_static(b"{}"))))
    }

    fn granted(&self, method: &str, params: Option<&RawValue>) {
        self.leased.granted(method, params);
    }

    fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Drop for LeasedConnection {
    fn drop(&mut self) {
        if self.answered.load(Ordering::Relaxed) {
            self.leased.answered();
        }
    }
}
