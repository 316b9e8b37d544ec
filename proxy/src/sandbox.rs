//! Collects the facts about this gateway that are needed to sandbox tools: its files, its listeners, and the sandbox features of
//! the kernel.

use std::path::PathBuf;

use tooldock_base::config::SandboxMode;
use tooldock_process::child::confine::KernelSupport;
use tooldock_process::environment::find_program;
use tooldock_process::sandbox::HostFacts;

use crate::config::{Effective, ListenAddress, ProfileName};

/// Environment variables that contain paths of files with secrets. Sandboxed tools must not read these files.
const SECRET_VARIABLES: [&str; 5] = [
    "BEARER_TOKEN_FILE",
    "MANAGER_INTERNAL_TOKEN_FILE",
    "SECRETS_KEY_FILE",
    "SECRETS_KEY_NEW_FILE",
    "SESSION_KEY_FILE",
];

/// Collects the facts from a configuration. `sockets` is the folder for sockets whose paths must be short.
pub(crate) fn facts(effective: &Effective, support: KernelSupport, sockets: PathBuf) -> HostFacts {
    let config = &effective.config;
    let listeners = config.listeners.iter();
    let is_private = |profile| matches!(profile, ProfileName::Manager | ProfileName::Metrics);
    let of_listeners = listeners.clone().filter(|it| is_private(it.profile));
    let ports = of_listeners.filter_map(|it| match &it.address {
        ListenAddress::Tcp(address) => Some(address.port()),
        ListenAddress::Unix(_) => None,
    });
    let replicas = effective.replica_address().map(|(_, bound)| bound.port());
    let keys = listeners.clone().filter_map(|it| it.tls.as_ref());
    let keys = keys.flat_map(|tls| tls.certificates.iter().map(|pair| pair.key.clone()));
    let remote = config.upstreams.over_http();
    let remote = remote.filter_map(|server| server.config.tls.key.clone());
    let replica_keys = effective.replica_tls().into_iter();
    let replica_keys = replica_keys.flat_map(|tls| tls.certificates);
    let sockets_of_listeners = listeners.filter_map(|it| match &it.address {
        ListenAddress::Unix(path) if is_private(it.profile) => Some(path.clone()),
        ListenAddress::Unix(_) | ListenAddress::Tcp(_) => None,
    });
    let programs = std::env::current_exe()
        .into_iter()
        .chain(find_program("uv"));
    let variables = SECRET_VARIABLES.iter().filter_map(std::env::var_os);
    let files = effective.source.iter().cloned();
    let files = files
        .chain([effective.keys_file()])
        .chain(keys)
        .chain(remote)
        .chain(replica_keys.map(|pair| pair.key))
        .chain(sockets_of_listeners)
        .chain(variables.map(PathBuf::from));
    HostFacts {
        support,
        data: Some(effective.data_dir.clone()),
        sockets: Some(sockets),
        files: files
            .filter_map(|file| std::path::absolute(file).ok())
            .collect(),
        programs: programs.collect(),
        ports: ports.chain(replicas).filter(|port| *port != 0).collect(),
    }
}

/// Logs once, at the start, which features of the default sandbox are missing on this machine.
pub(crate) fn warn_of_missing(effective: &Effective, support: KernelSupport) {
    let mode = effective.config.namespaces.defaults.sandbox.mode;
    let missing = support.missing();
    if mode != SandboxMode::Off && !missing.is_empty() {
        tracing::warn!(
            "the sandbox of tools ({}) holds in part on this machine: {}",
            mode.as_str(),
            missing.join("; ")
        );
    }
}
