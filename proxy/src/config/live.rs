//! Configuration keys that cannot change in a running process: a reload logs them and keeps their present values.
//!
//! The present values are kept because the process would otherwise apply new rules to old objects, such as the rules of a new
//! address to the socket that is still open on the old one.

use super::{Config, ListenerConfig};

/// A configuration key, a function that returns true if two configurations have the same value, and a function that copies the
/// value of the first configuration into the second.
type Rule = (
    &'static str,
    fn(&Config, &Config) -> bool,
    fn(&Config, &mut Config),
);

/// Creates the rule of a key from the path of its field, which is also its spelling in the file.
macro_rules! fixed {
    ($head:ident $(. $tail:ident)*) => {
        (
            concat!(stringify!($head) $(, ".", stringify!($tail))*),
            |old, new| old.$head$(.$tail)* == new.$head$(.$tail)*,
            |old, new| new.$head$(.$tail)* = old.$head$(.$tail)*.clone(),
        )
    };
}

/// Keys whose sockets, threads and other objects are created only at the start of the process.
const FIXED: &[Rule] = &[
    ("listeners", same_sockets, |old, new| {
        new.listeners = old.listeners.clone()
    }),
    fixed!(data_dir),
    fixed!(threads),
    fixed!(work_stealing),
    fixed!(workers.python),
    fixed!(workers.base_requirements),
    fixed!(workers.base_env),
    fixed!(workers.ready_timeout),
    fixed!(workers.sync_timeout),
    fixed!(workers.backoff),
    fixed!(workers.crash_loop),
    fixed!(workers.idle_stop),
    fixed!(admission.limits.connections),
    fixed!(admission.limits.sessions_per_principal),
    fixed!(admission.limits.session_bytes_per_principal),
    fixed!(admission.limits.streams_per_principal),
    fixed!(sessions),
    fixed!(vault),
    fixed!(relay.socket),
    fixed!(relay.namespace),
    fixed!(relay.mode),
    fixed!(watcher),
    fixed!(keys),
    fixed!(replicas),
    fixed!(observability.access_log),
    fixed!(observability.log.format),
    fixed!(observability.audit),
    fixed!(observability.otlp),
];

/// Returns true if a change of this key takes effect only at the next start.
#[cfg(test)]
pub(super) fn waits_for_start(path: &str) -> bool {
    FIXED.iter().any(|(fixed, ..)| {
        let rest = path.strip_prefix(fixed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Returns the keys that cannot change in a running process and differ between two configurations.
fn diff_unreloadable(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = FIXED.iter().filter(|(_, same, _)| !same(old, new));
    changed.map(|(key, ..)| *key).collect()
}

/// Resets keys that cannot change in a running process to their values in `old`, and returns the keys that differed.
pub(super) fn keep_unreloadable(old: &Config, new: &mut Config) -> Vec<&'static str> {
    let changed = diff_unreloadable(old, new);
    for (key, _, keep) in FIXED {
        if changed.contains(key) {
            keep(old, new);
        }
    }
    changed
}

/// Returns true if both configurations open the same sockets, and use TLS on the same ones. Certificates, and other settings of
/// listeners, may differ.
fn same_sockets(old: &Config, new: &Config) -> bool {
    let same = |old: &ListenerConfig, new: &ListenerConfig| {
        old.name == new.name
            && old.address == new.address
            && old.mode == new.mode
            && old.profile == new.profile
            && old.proxy_protocol == new.proxy_protocol
            && old.tls.is_some() == new.tls.is_some()
    };
    old.listeners.len() == new.listeners.len()
        && old
            .listeners
            .iter()
            .zip(&new.listeners)
            .all(|(old, new)| same(old, new))
}

#[cfg(test)]
mod tests {
    use tooldock_base::config::Concurrency;

    use super::*;

    #[test]
    fn what_stays_until_a_restart_is_named_and_kept() {
        let old = Config::default();
        let mut new = old.clone();
        assert_eq!(diff_unreloadable(&old, &new), Vec::<&str>::new());
        assert!(new.listeners[0].address.set_port(9000));
        new.data_dir = "/elsewhere".into();
        new.workers.base_env = "/base".into();
        let changed = keep_unreloadable(&old, &mut new);
        assert_eq!(changed, ["listeners", "data_dir", "workers.base_env"]);
        assert_eq!(new, old);
    }

    #[test]
    fn limits_and_switches_change_live() {
        let old = Config::default();
        let mut new = old.clone();
        new.namespaces.defaults.max_concurrency = Concurrency::Calls(1);
        new.listeners[0].versions = Some(Vec::new());
        assert_eq!(keep_unreloadable(&old, &mut new), Vec::<&str>::new());
        assert_ne!(new, old);
    }
}
