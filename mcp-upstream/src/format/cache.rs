//! How long and for whom results of 2026-07-28 may be cached (MOD-08).

use std::sync::LazyLock;

use tooldock_workers::config::Limits;
use tooldock_workers::registry::Namespace;

use crate::caller::{Caller, Visibility};
use crate::protocol::CacheScope;

/// Five minutes: what is served changes with a reload, and a client that listens hears of that at once; one that does
/// not is behind by no more than this.
pub(super) const TTL_MS: u64 = 300_000;

impl CacheScope {
    /// The scope of lists and of `server/discover`: public where nothing stands between a caller and the namespace
    /// but being admitted.
    pub(crate) fn of_lists(caller: &Caller, namespace: &Namespace) -> Self {
        static USUAL: LazyLock<Limits> = LazyLock::new(Limits::default);
        let usual = &*USUAL;
        let limits = &namespace.limits;
        let open = matches!(caller.visibility, Visibility::All)
            && !caller.profile.scoped_tokens
            && limits.principals == usual.principals
            && limits.tools_allow == usual.tools_allow
            && limits.tools_deny == usual.tools_deny
            && limits.within.is_none();
        if open { Self::Public } else { Self::Private }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profile::Profile;
    use crate::testing::{caller, namespace};

    #[test]
    fn a_list_is_public_where_nobody_is_kept_out() {
        let mut open = namespace("shared");
        open.limits = Limits::default();
        assert_eq!(CacheScope::of_lists(&caller(), &open), CacheScope::Public);

        let mut scoped = caller();
        scoped.visibility = Visibility::Only(Arc::new(|_| true));
        assert_eq!(CacheScope::of_lists(&scoped, &open), CacheScope::Private);

        let mut beside_scoped = caller();
        beside_scoped.profile = Arc::new(Profile {
            scoped_tokens: true,
            ..Profile::core()
        });
        let scope = CacheScope::of_lists(&beside_scoped, &open);
        assert_eq!(scope, CacheScope::Private);

        for change in [
            |limits: &mut Limits| limits.principals = vec!["ci".into()],
            |limits: &mut Limits| limits.tools_allow = vec!["get_*".into()],
            |limits: &mut Limits| limits.tools_deny = vec!["drop_*".into()],
            |limits: &mut Limits| limits.within = Some(Box::new(limits.lists())),
        ] {
            let mut filtered = namespace("shared");
            filtered.limits = Limits::default();
            change(&mut filtered.limits);
            let scope = CacheScope::of_lists(&caller(), &filtered);
            assert_eq!(scope, CacheScope::Private);
        }
    }
}
