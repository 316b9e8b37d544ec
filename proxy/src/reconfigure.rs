//! SIGHUP's part beside the namespaces: read the configuration again and put into force what can change while running.
//!
//! A configuration that does not pass its checks changes nothing of what it says. What cannot change live (addresses, threads,
//! the data directory, …) is named in the log and waits for a restart. New HTTP/2 connections keep the head limit and
//! idle time of the start: Pingora takes them once.
//!
//! Long streams outlive the rules that admitted them. When those change, all of them end so that their clients are
//! admitted again; what the namespaces say of their principals is looked after by the service.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tooldock_filters::Admission;
use tooldock_upstream::Service;
use tooldock_workers::reload::{ReloadOutcome, Reloader};

use crate::config::Effective;
use crate::edge::Limits;
use crate::gateway::Rules;
use crate::logging;
use crate::metrics::StateMetrics;
use crate::rules;
use crate::tls::TlsListener;

/// Everything a reload of the configuration may swap.
pub(crate) struct Reconfigure {
    /// The configuration in force. It knows how it was found, and the same way finds the next one.
    pub(crate) current: Effective,
    pub(crate) rules: Arc<ArcSwap<Rules>>,
    pub(crate) connection_limits: Arc<ArcSwap<Limits>>,
    pub(crate) certificates: Vec<Arc<TlsListener>>,
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) service: Service,
    pub(crate) metrics: StateMetrics,
}

impl Reconfigure {
    /// Reads the configuration and the certificates again, and says how that went. Certificates are read in any case: a
    /// mistake in the configuration must not keep an expiring one in use.
    pub(crate) fn apply(&mut self) -> ReloadOutcome {
        let configuration = self.reread();
        if let Err(error) = &configuration {
            tracing::error!(%error, "the new configuration is invalid; the old one stays in force");
        }
        let certificates = self.reread_certificates();
        self.metrics.reloaded(configuration.is_ok() && certificates);
        match (configuration, certificates) {
            (Err(_), _) => ReloadOutcome::Rejected,
            (Ok(()), false) => ReloadOutcome::Partial,
            (Ok(()), true) => ReloadOutcome::Complete,
        }
    }

    fn reread(&mut self) -> Result<(), String> {
        let next = self.current.reload().map_err(|error| error.to_string())?;
        let admission = rules::admission(&next)?;
        for warning in &next.warnings {
            tracing::warn!("{warning}");
        }
        self.put_into_force(&next, admission);
        logging::set_level(next.config.observability.log.level);
        self.current = next;
        tracing::info!("configuration read again");
        Ok(())
    }

    /// Whether all of them could be used.
    fn reread_certificates(&self) -> bool {
        let mut all = true;
        let mut other_authorities = false;
        let hosts = &self.current.config.admission.hosts;
        for listener in &self.certificates {
            let name = listener.name();
            // Listeners neither come nor go with a reload, nor does their TLS.
            let mut configured = self.current.served_listeners();
            let configured = configured.find(|(_, it)| it.name == name);
            let Some(tls) = configured.and_then(|(_, it)| it.tls.as_ref()) else {
                continue;
            };
            match listener.reload(tls, hosts) {
                Ok(replaced) => {
                    other_authorities |= replaced;
                    tracing::info!(listener = name, "certificates read again");
                }
                Err(error) => {
                    all = false;
                    tracing::error!(
                        listener = name,
                        %error,
                        "the new certificate cannot be used; those in force stay"
                    );
                }
            }
            self.metrics.certificate(name, listener.not_after());
        }
        if other_authorities {
            tracing::info!(
                "the authorities of client certificates have changed: long streams end, and their clients are admitted again"
            );
            self.service.readmit_streams();
        }
        all
    }

    fn put_into_force(&self, next: &Effective, admission: Admission) {
        self.rules.store(Arc::new(rules::rules(next, admission)));
        let limits = rules::connection_limits(next);
        self.connection_limits.store(Arc::new(limits));
        self.reloader.set_namespaces(next.config.namespaces.clone());
        self.reloader.set_servers(next.config.upstreams.clone());
        if !admit_alike(&self.current, next) {
            tracing::info!(
                "the rules of admission have changed: long streams end, and their clients are admitted again"
            );
            self.service.readmit_streams();
        }
    }
}

/// Whether two configurations let the same requests in. Sizes, rates and times are no part of it: they are not what a
/// stream was admitted by.
fn admit_alike(one: &Effective, other: &Effective) -> bool {
    let (a, b) = (&one.config.admission, &other.config.admission);
    one.bearer == other.bearer
        && one.legacy_sse == other.legacy_sse
        && one.config.listeners == other.config.listeners
        && a.tokens == b.tokens
        && a.certificates == b.certificates
        && a.hosts == b.hosts
        && a.origins == b.origins
        && a.cidrs == b.cidrs
        && a.trusted_proxies == b.trusted_proxies
}
