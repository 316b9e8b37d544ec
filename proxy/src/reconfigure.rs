//! Reloads the configuration on SIGHUP: reads it again and applies the keys that can change while the gateway runs.
//! Namespaces are reloaded separately.
//!
//! A configuration that does not pass its checks changes nothing. Some keys cannot change in a running process (addresses,
//! threads, the data directory, …): if they differ, the log names them, and they take effect after a restart. New HTTP/2
//! connections keep the head limit and idle time of the start, because Pingora reads them only once.
//!
//! Long streams outlive the rules that admitted them. When the rules change, all streams are ended, so that their clients connect
//! again and are checked against the new rules. Changes of the namespaces' own lists of principals are handled by the service.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tooldock_base::answers::AnswerBudget;
use tooldock_base::precedence::DATA_FILE;
use tooldock_credentials::keys::KeyStore;
use tooldock_credentials::secrets::{SecretSource as _, SecretStore, Secrets};
use tooldock_filters::Admission;
use tooldock_process::sandbox::SandboxHost;
use tooldock_upstream::Service;
use tooldock_upstream::management::Management;
use tooldock_upstream::metrics::breakdown::Breakdown;
use tooldock_workers::external::check_servers_file;
use tooldock_workers::reload::{ReloadOutcome, Reloader};

use crate::check;
use crate::config::{ClientAuth, Effective, TlsConfig};
use crate::config_view::ConfigurationInForce;
use crate::connection::ConnectionLimits;
use crate::hooks;
use crate::logging;
use crate::metrics::StateMetrics;
use crate::replicas::{ClientTls, ReplicaLink};
use crate::rules;
use crate::rules::Rules;
use crate::sandbox;
use crate::tls::{PreparedTls, TlsListener, mutual};

/// Message about a configuration that cannot be used.
const REFUSED: &str = "the configuration on disk is invalid, and the one before it stays in force: the log and `tooldock check` \
                       say what is wrong";

/// The objects that a reload of the configuration may change.
pub(crate) struct Reconfigure {
    /// The configuration in force. It contains the sources from which the next one is loaded.
    pub(crate) current: Effective,
    pub(crate) rules: Arc<ArcSwap<Rules>>,
    pub(crate) connection_limits: Arc<ArcSwap<ConnectionLimits>>,
    pub(crate) certificates: Vec<Arc<TlsListener>>,
    /// The certificate for connections to `replicas.address`; `None` without TLS.
    pub(crate) replica_certificate: Option<Arc<TlsListener>>,
    /// The connections to other replicas, which use the certificate of this replica's listener for replicas.
    pub(crate) replicas: Option<Arc<ReplicaLink>>,
    pub(crate) reloader: Arc<Reloader>,
    /// The settings for sandboxes of processes that are started from now on.
    pub(crate) sandbox: Arc<SandboxHost>,
    pub(crate) secrets: Arc<SecretStore>,
    /// The API keys. Their scopes depend on the configuration.
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) service: Service,
    /// The limit on the memory that all answers together may use.
    pub(crate) answers: Arc<AnswerBudget>,
    /// The secrets that were last read without an error.
    pub(crate) last_secrets: Secrets,
    /// The management tools. Their tool `server_config` shows the configuration in force.
    pub(crate) management: Option<Arc<Management>>,
    /// The metrics by tool and by principal, which the configuration turns on and off.
    pub(crate) breakdown: Arc<Breakdown>,
    pub(crate) metrics: StateMetrics,
    /// The configuration in force, as shown by the web UI.
    pub(crate) shown: Arc<ConfigurationInForce>,
}

impl Reconfigure {
    /// Reads the configuration and the certificates again, and returns the outcome. Certificates are read even if the
    /// configuration is invalid: a mistake in it must not keep an expiring certificate in use.
    pub(crate) fn apply(&mut self) -> ReloadOutcome {
        let mut next = self.next();
        let mut certificates = match &next {
            Ok((next, _)) => self.read_certificates(next),
            Err(_) => self.read_certificates(&self.current),
        };
        // If new certificate authorities in the configuration cannot be used, the configuration is not used either: its entries
        // for client certificates must not be applied to certificates that the old authorities have issued.
        if let Ok((configured, _)) = &next
            && let Some(error) = self.needs_its_authorities(configured, &certificates.unusable)
        {
            next = Err(error);
            certificates = self.read_certificates(&self.current);
        }
        if next.is_err() {
            certificates.keep_authorities();
        }
        // The old authorities are retired first, then the configuration is applied, then the new certificates. So no client is
        // ever checked with new entries and old authorities, or vice versa. In between, client certificates of the old
        // authorities are refused.
        let retired = certificates
            .usable
            .iter()
            .map(PreparedTls::retire_authorities);
        let other_authorities = retired.fold(false, |one, other| one | other);
        let configured = next.is_ok();
        let whole = matches!(&next, Ok((next, _)) if next.data_file_problem().is_none());
        match next {
            Ok((next, admission)) => self.put_into_force(next, admission),
            Err(error) => {
                tracing::error!(%error, "the new configuration is invalid; the old one stays in force");
            }
        }
        let replica_certificate = self.read_replica_certificate();
        let (stores_readable, keys_problem) = self.read_stores();
        // Hooks get new values of secrets even if the new configuration is invalid.
        let hook_problems = hooks::put_into_force(
            &self.service,
            &self.current.config.hooks,
            &self.last_secrets,
        );
        let usable = certificates.unusable.is_empty()
            && hook_problems.is_empty()
            && replica_certificate.is_ok()
            && stores_readable
            && (whole || !configured);
        let mut problems = self.problems(configured, &certificates.unusable, replica_certificate);
        problems.extend(keys_problem.map(|error| {
            let message = format!("{error}; keys read before stay, and a restart would fail");
            ("API keys", message)
        }));
        problems.extend(hook_problems);
        self.reloader.set_configuration_problems(problems);
        self.put_certificates_into_force(certificates, other_authorities);
        self.metrics.reloaded(configured && usable);
        match (configured, usable) {
            (false, _) => ReloadOutcome::Rejected,
            (true, false) => ReloadOutcome::Partial,
            (true, true) => ReloadOutcome::Complete,
        }
    }

    /// Lists the settings on disk that are not in force, each with its file or key and the reason.
    fn problems(
        &self,
        configured: bool,
        certificates: &[(String, String)],
        replica_certificate: Result<(), String>,
    ) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if !configured {
            problems.push(("configuration", REFUSED.to_owned()));
        }
        if let Some(problem) = self.current.data_file_problem() {
            problems.push((DATA_FILE, problem.to_owned()));
        }
        for (listener, error) in certificates {
            let message = format!(
                "{listener}: the new certificate cannot be used; the one in force stays: {error}"
            );
            problems.push(("listeners", message));
        }
        if let Err(error) = replica_certificate {
            let message = format!("the files cannot be used; those read before stay: {error}");
            problems.push(("replicas.tls", message));
        }
        if configured && !self.current.waiting.is_empty() {
            let keys = self.current.waiting.join(", ");
            problems.push((
                "configuration",
                format!("{keys}: changed, but takes effect only at the next start"),
            ));
        }
        problems
    }

    /// Loads the configuration from the present content of its files, without applying it.
    fn next(&self) -> Result<(Effective, Admission), String> {
        let next = self.current.reload().map_err(|error| error.to_string())?;
        let admission = rules::admission(&next, self.keys.tables())?;
        Ok((next, admission))
    }

    /// Reads the certificates of all listeners from the files that a configuration names.
    fn read_certificates(&self, configured: &Effective) -> Certificates {
        let mut certificates = Certificates::default();
        let hosts = &configured.config.admission.hosts;
        for listener in &self.certificates {
            // A listener that is not in the new configuration is skipped: a reload does not remove listeners or their TLS.
            let Some(tls) = tls_of(configured, listener.name()) else {
                continue;
            };
            match listener.prepare(tls, hosts) {
                Ok(prepared) => certificates.usable.push(prepared),
                Err(error) => {
                    let name = listener.name().to_owned();
                    certificates.unusable.push((name, error));
                }
            }
        }
        certificates
    }

    /// Reads the stores of secrets and of API keys, and checks the file of external servers. If one cannot be read, the gateway
    /// continues with the values that were read before, but a restart would fail. Returns true if all three can be read, and
    /// the problem of the API keys. Problems of the secrets and of the file are recorded by the registry.
    fn read_stores(&mut self) -> (bool, Option<String>) {
        let secrets = self.secrets.read().map(|read| self.last_secrets = read);
        let keys = self.keys.list().map(drop);
        let secrets = secrets.err().map(|error| error.to_string());
        let keys = keys.err().map(|error| error.to_string());
        for error in [&secrets, &keys].into_iter().flatten() {
            tracing::error!("{error}; values read before stay, and a restart would fail");
        }
        // A fault of this file is not logged here: the reload of the namespaces logs it.
        let servers = check_servers_file(&self.current.data_dir);
        let readable = secrets.is_none() && keys.is_none() && servers.is_ok();
        (readable, keys)
    }

    /// Reads the files of `replicas.tls` again, and uses them for new connections from and to other replicas. The paths of the
    /// files are those of the start: a changed path takes effect after a restart.
    ///
    /// # Errors
    ///
    /// The reason why the files cannot be used.
    fn read_replica_certificate(&self) -> Result<(), String> {
        let config = &self.current;
        let (Some(listener), Some(files)) = (&self.replica_certificate, config.replica_tls())
        else {
            return Ok(());
        };
        let read = || -> Result<_, String> {
            let prepared = listener.prepare(&files, &[])?;
            let certificate = config.replica_certificate();
            certificate.map_or(Ok(()), |it| mutual::check(&it))?;
            let client = ClientTls::read(&config.config.replicas.tls);
            Ok((prepared, client.map_err(|error| error.to_string())?))
        };
        match read() {
            Ok((prepared, client)) => {
                prepared.retire_authorities();
                prepared.put_into_force();
                if let (Some(replicas), Some(client)) = (&self.replicas, client) {
                    replicas.set_tls(client);
                }
                self.metrics
                    .certificate(listener.name(), listener.not_after());
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the files of replicas.tls cannot be used; those read before stay");
                Err(error)
            }
        }
    }

    /// Returns the reason why a configuration cannot be used while the listeners in `unusable` keep their old certificates:
    /// such a listener requests client certificates, and the configuration changes their authorities or principals. `None` if
    /// the configuration can be used.
    fn needs_its_authorities(
        &self,
        next: &Effective,
        unusable: &[(String, String)],
    ) -> Option<String> {
        let (before, after) = (&self.current.config.admission, &next.config.admission);
        let other_entries = before.certificates != after.certificates;
        unusable.iter().find_map(|(name, error)| {
            let tls = tls_of(next, name)?;
            let asks = tls.client_auth != ClientAuth::None;
            let other_authorities = tls_of(&self.current, name)
                .is_none_or(|old| (&old.client_ca, old.client_auth) != (&tls.client_ca, tls.client_auth));
            (asks && (other_entries || other_authorities)).then(|| {
                format!(
                    "listener {name}: {error}; what client certificates stand for has changed, and cannot be put in force \
                     without the listener's new certificates"
                )
            })
        })
    }

    fn put_certificates_into_force(&self, certificates: Certificates, other_authorities: bool) {
        for prepared in certificates.usable {
            let name = prepared.listener().to_owned();
            prepared.put_into_force();
            tracing::info!(listener = name, "certificates read again");
        }
        for (name, error) in certificates.unusable {
            tracing::error!(
                listener = name,
                %error,
                "the new certificate cannot be used; those in force stay"
            );
        }
        for listener in &self.certificates {
            self.metrics
                .certificate(listener.name(), listener.not_after());
        }
        if other_authorities {
            tracing::info!(
                "the authorities of client certificates have changed: long streams end, and their clients are admitted again"
            );
            self.service.readmit_streams();
        }
    }

    fn put_into_force(&mut self, next: Effective, admission: Admission) {
        for warning in &next.warnings {
            tracing::warn!("{warning}");
        }
        if let Some(problem) = next.data_file_problem() {
            tracing::error!("{problem}");
        }
        check::log_unknown_namespaces(&next);
        let admission = admission.after(&self.rules.load().admission);
        self.rules.store(Arc::new(rules::rules(&next, admission)));
        let limits = rules::connection_limits(&next);
        self.connection_limits.store(Arc::new(limits));
        self.answers.set_total(rules::answers_total(&next));
        self.keys.set_scopes(next.scopes());
        self.keys.set_makers(next.config.admission.key_makers());
        let known = self.sandbox.facts();
        let sockets = known.sockets.clone().unwrap_or_default();
        self.sandbox
            .set(sandbox::facts(&next, known.support, sockets));
        self.reloader.set_namespaces(next.config.namespaces.clone());
        self.reloader.set_servers(next.config.upstreams.clone());
        self.reloader.set_aggregates(next.config.toolman.clone());
        if next.secrets != self.current.secrets {
            self.secrets.set_protection(next.secrets.protection());
        }
        if let Some(management) = &self.management {
            let (servers, aggregates) = (&next.config.upstreams, &next.config.toolman);
            management.workspace.set_configured(servers, aggregates);
            management.set_facts(crate::management::facts(&next));
            management.builder.reconfigure(next.config.builder.clone());
        }
        if !admit_alike(&self.current, &next) {
            tracing::info!(
                "the rules of admission have changed: long streams end, and their clients are admitted again"
            );
            self.service.readmit_streams();
        }
        self.breakdown.configure(next.config.observability.metrics);
        logging::set_level(next.config.observability.log.level);
        self.shown.set(next.clone());
        self.current = next;
        tracing::info!("configuration read again");
    }
}

/// The certificates read for the listeners from their present files.
#[derive(Default)]
struct Certificates {
    usable: Vec<PreparedTls>,
    /// Names of the listeners whose new certificates cannot be used, each with the reason. They keep their old certificates.
    unusable: Vec<(String, String)>,
}

impl Certificates {
    /// Discards certificates whose client authorities differ from those in force. Called if the new configuration is not used,
    /// because its entries for client certificates may belong to the new authorities.
    fn keep_authorities(&mut self) {
        let others = self.usable.extract_if(.., |it| it.has_other_authorities());
        let unusable = others.map(|prepared| {
            let why = "its client_ca has changed, and a configuration that cannot be used may belong to that";
            (prepared.listener().to_owned(), why.to_owned())
        });
        self.unusable.extend(unusable);
    }
}

/// The TLS settings of a listener in a configuration.
fn tls_of<'a>(configured: &'a Effective, listener: &str) -> Option<&'a TlsConfig> {
    let mut served = configured.served_listeners();
    let (_, found) = served.find(|(_, it)| it.name == listener)?;
    found.tls.as_ref()
}

/// Returns true if two configurations admit the same requests. Sizes, rates and times are not compared, because they do not
/// decide whether a stream is admitted.
fn admit_alike(one: &Effective, other: &Effective) -> bool {
    let (a, b) = (&one.config.admission, &other.config.admission);
    one.bearer == other.bearer
        && one.legacy_sse == other.legacy_sse
        && one.config.listeners == other.config.listeners
        && a.tokens == b.tokens
        && a.certificates == b.certificates
        && a.hosts == b.hosts
        && a.public_url.host() == b.public_url.host()
        && a.origins == b.origins
        && a.cidrs == b.cidrs
        && a.trusted_proxies == b.trusted_proxies
        && a.oauth == b.oauth
        && one.config.relay.scopes == other.config.relay.scopes
}
