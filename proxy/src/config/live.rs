//! Which keys a running process cannot change, so that a reload can say so.

use super::{Config, ListenerConfig};

/// A key and whether two configurations agree on it.
type Rule = (&'static str, fn(&Config, &Config) -> bool);

/// Sockets, threads and what is built once from them.
const FIXED: &[Rule] = &[
    ("listeners", same_listeners),
    ("data_dir", |old, new| old.data_dir == new.data_dir),
    ("threads", |old, new| old.threads == new.threads),
    ("work_stealing", |old, new| {
        old.work_stealing == new.work_stealing
    }),
    ("workers.python", |old, new| {
        old.workers.python == new.workers.python
    }),
    ("workers.base_requirements", |old, new| {
        old.workers.base_requirements == new.workers.base_requirements
    }),
    ("workers.base_env", |old, new| {
        old.workers.base_env == new.workers.base_env
    }),
    ("observability.log.format", |old, new| {
        old.observability.log.format == new.observability.log.format
    }),
];

/// The keys that differ and keep their old value until the next start.
pub(crate) fn diff_unreloadable(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = FIXED.iter().filter(|(_, same)| !same(old, new));
    changed.map(|(key, _)| *key).collect()
}

/// Sockets stay as they are; a listener's switches and the content of its certificate files may change.
fn same_listeners(old: &Config, new: &Config) -> bool {
    let sockets = |config: &Config| {
        let socket = |l: &ListenerConfig| (l.name.clone(), l.address, l.profile, l.tls.clone());
        config.listeners.iter().map(socket).collect::<Vec<_>>()
    };
    sockets(old) == sockets(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_until_a_restart_is_named() {
        let old = Config::default();
        let mut new = old.clone();
        assert_eq!(diff_unreloadable(&old, &new), Vec::<&str>::new());
        new.listeners[0].address.set_port(9000);
        new.data_dir = "/elsewhere".into();
        new.workers.base_env = "/base".into();
        assert_eq!(
            diff_unreloadable(&old, &new),
            ["listeners", "data_dir", "workers.base_env"]
        );
    }

    #[test]
    fn limits_and_switches_change_live() {
        let old = Config::default();
        let mut new = old.clone();
        new.namespaces.defaults.max_concurrency = 1;
        new.listeners[0].versions = Some(Vec::new());
        assert_eq!(diff_unreloadable(&old, &new), Vec::<&str>::new());
    }
}
