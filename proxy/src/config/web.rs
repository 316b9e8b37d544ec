//! Settings of the web UI that only environment variables set, and the listener of the web UI that `serve --dev` adds.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::{Effective, ListenerConfig, ProfileName};

/// Settings of the web UI that have no key in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebSettings {
    /// The user name with which browsers log in by `Authorization: Basic`.
    pub(crate) user: String,
    /// Path of the data directory on the host of the container. It is only displayed, and never opened.
    pub(crate) host_data_dir: String,
}

impl Default for WebSettings {
    fn default() -> Self {
        Self {
            user: "admin".to_owned(),
            host_data_dir: "./tooldock_data".to_owned(),
        }
    }
}

/// Returns the listener of the web UI that `serve --dev` adds to the default listeners. It has the usual port, or a free one if
/// another program uses that. A reload keeps the listener of the running process.
pub(super) fn trial_listener(before: Option<&Effective>) -> ListenerConfig {
    let profile = ProfileName::V1Web;
    let is_web = |it: &&ListenerConfig| it.profile == profile;
    if let Some(running) = before.and_then(|it| it.config.listeners.iter().find(is_web)) {
        return running.clone();
    }
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, profile.usual_port()));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let free = [usual, any].into_iter().find_map(|address| {
        let bound = TcpListener::bind(address).ok()?;
        bound.local_addr().ok()
    });
    ListenerConfig::new("web", free.unwrap_or(usual).into(), profile)
}
