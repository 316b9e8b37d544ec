//! Implements traits of the service with functions of this crate: reloads, and limits on calls and requests.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tooldock_base::budget::Budget;
use tooldock_base::names::NamespaceName;
use tooldock_filters::{self as filters, Subject};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::replicas::{AnnouncedReload, Replicas};
use tooldock_upstream::engine::{CountedBy, ExhaustedLimit, Limiter};
use tooldock_upstream::{Pages, ReloadControl, Service};
use tooldock_workers::reload::{ReloadReport, Reloader};

use crate::rules::Rules;

/// Performs reloads that the service requests.
pub(super) struct Reload {
    pub(super) reloader: Arc<Reloader>,
    /// The other replicas, which are requested to reload, too.
    pub(super) replicas: Arc<Replicas>,
    /// The files of `/ui/`, which a reload also reads again; `None` without `/ui/`.
    pub(super) pages: Option<Arc<Pages>>,
}

#[async_trait]
impl ReloadControl for Reload {
    async fn reload(&self) -> Result<Arc<ReloadReport>, String> {
        if let Some(pages) = self.pages.clone() {
            // An unreadable directory does not stop the reload; it is logged.
            let _ = tokio::task::spawn_blocking(move || pages.refresh()).await;
        }
        let reloaded = self.reloader.reload().await;
        if let Err(error) = self.replicas.ask_reload().await {
            tracing::error!(%error, "the other replicas were not told to reload");
        }
        reloaded.map_err(|error| error.to_string())
    }
}

/// Sends the heartbeats of this replica, reloads when another replica has been reloaded, and passes announcements from other
/// replicas to the service. Runs until its future is dropped.
pub(super) async fn follow_replicas(
    replicas: Arc<Replicas>,
    reloader: Arc<Reloader>,
    service: Service,
) {
    let reload = |number| {
        let (reloader, replicas) = (Arc::clone(&reloader), Arc::clone(&replicas));
        tracing::info!("another replica was reloaded: this one reloads, too");
        tokio::spawn(async move {
            let counts = match reloader.reload().await {
                Ok(report) => Some((report.namespaces.len(), report.failed.len())),
                Err(error) => {
                    tracing::error!(%error, "the reload that another replica asked for failed");
                    None
                }
            };
            replicas.note_reload(AnnouncedReload { number, counts });
        });
    };
    let sources = || hex::encode(reloader.sources()).into();
    replicas
        .run(reload, |news| service.announce_from_replica(news), sources)
        .await;
}

/// Applies the limits on calls and requests in the rules that are in force.
pub(super) struct RuleLimiter(pub(super) Arc<ArcSwap<Rules>>);

impl Limiter for RuleLimiter {
    fn check(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
        tool: &str,
        counted: CountedBy,
    ) -> Result<Option<Budget>, ExhaustedLimit> {
        let subject = Subject {
            tool: Some(tool),
            ..subject(caller, namespace)
        };
        let counted = match counted {
            CountedBy::All => filters::CountedBy::All,
            CountedBy::Namespace => filters::CountedBy::Namespace,
        };
        let rules = self.0.load();
        let checked = rules.admission.check_tool_call(subject, counted);
        checked.map_err(exhausted)
    }

    fn check_request(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
    ) -> Result<(), ExhaustedLimit> {
        let rules = self.0.load();
        let checked = rules.admission.check_request(subject(caller, namespace));
        checked.map_err(exhausted)
    }
}

fn subject<'a>(caller: &'a Caller, namespace: &'a NamespaceName) -> Subject<'a> {
    Subject {
        principal: caller.principal_name(),
        client: caller.client,
        namespace: Some(namespace),
        tool: None,
        own: caller.key_limits(),
        key: caller.grant.as_ref().and_then(|it| Some(&**it.key_id()?)),
    }
}

fn exhausted(exhausted: filters::LimitExceeded) -> ExhaustedLimit {
    ExhaustedLimit {
        wait: exhausted.wait.duration(),
        budget: exhausted.budget,
    }
}
