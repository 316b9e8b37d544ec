//! Values from the configuration that are passed to the management tools and to the web UI.

use std::path::PathBuf;
use std::sync::Arc;
use tooldock_filters::origin::OriginPattern;

use tooldock_base::data_dir::DataDir;
use tooldock_credentials::keys::KeyStore;
use tooldock_credentials::secrets::{SecretNames, SecretStore};
use tooldock_process::repositories;
use tooldock_upstream::management::{ManagedSecrets, ServerFacts};
use tooldock_upstream::{CertificateEnds, ConfigurationView, WebFacts};
use tooldock_workers::manage::Workspace;

use crate::config::{Effective, ProfileName};

/// Default name of the gateway's container in the commands that are shown to operators.
const CONTAINER: &str = "tooldock-manager";

/// The secrets and API keys as the management tools get them: names of secrets without their values, and the key store.
pub(crate) fn secrets(
    effective: &Effective,
    store: &Arc<SecretStore>,
    keys: Arc<KeyStore>,
) -> ManagedSecrets {
    let container = effective.secrets.container.as_deref();
    ManagedSecrets {
        names: SecretNames::of(Arc::clone(store)),
        container: container.unwrap_or(CONTAINER).to_owned(),
        keys,
    }
}

/// The facts that the tool `server_config` shows. No secret is among them.
pub(crate) fn facts(effective: &Effective) -> ServerFacts {
    let config = &effective.config;
    let port = |profile| {
        let mut listeners = config.listeners.iter();
        let found = listeners.find(|listener| listener.profile == profile);
        found
            .and_then(|listener| listener.address.port())
            .unwrap_or_default()
    };
    let origins = config
        .admission
        .origins
        .iter()
        .map(OriginPattern::to_string);
    ServerFacts {
        core_port: port(ProfileName::Core),
        manager_port: port(ProfileName::Manager),
        data_dir: effective.data_dir.display().to_string(),
        log_level: serde_json::to_value(config.observability.log.level)
            .ok()
            .and_then(|level| level.as_str().map(str::to_owned))
            .unwrap_or_default(),
        cors_origins: origins.collect::<Vec<_>>().join(","),
        mcp_session_ttl_hours: config.sessions.ttl.as_secs() / 3600,
    }
}

/// The facts about the process and its files that the web UI and the commands for operators show.
pub(crate) fn web_facts(
    effective: &Effective,
    data: &DataDir,
    certificates: Arc<dyn CertificateEnds>,
    configuration: Arc<dyn ConfigurationView>,
) -> WebFacts {
    WebFacts {
        configuration,
        certificates,
        data_dir: effective.data_dir.clone(),
        host_data_dir: effective.web.host_data_dir.clone(),
        logs: data.logs_dir(),
        log: crate::logging::recent(),
    }
}

/// Removes the files that killed managers left behind. Runs in the background: the gateway's start does not wait for it.
pub(crate) async fn clear_leftovers(workspace: Arc<Workspace>, repos: PathBuf) {
    repositories::clear_leftovers(repos).await;
    match workspace.clear_leftovers().await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(
            removed,
            "unfinished files of a manager that did not end by itself are removed"
        ),
        Err(error) => {
            tracing::warn!(%error, "unfinished files of an earlier manager may be left below tools/");
        }
    }
}
