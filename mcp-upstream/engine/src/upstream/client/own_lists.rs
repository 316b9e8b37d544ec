//! Lists of servers that the gateway calls with the caller's credentials: each principal has separate lists.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tooldock_sessions::catalogue::Catalogue;

/// Maximum number of principals whose lists are cached for a namespace. When it is exceeded, all cached lists are dropped and
/// read again.
const PRINCIPALS_MAX: usize = 1_000;

/// Catalogues by principal, kept with the namespace.
#[derive(Default)]
pub(super) struct OwnLists(Mutex<HashMap<Arc<str>, PrincipalLists>>);

struct PrincipalLists {
    catalogue: Arc<Catalogue>,
    /// The version of the server's own catalogue when the principal's lists were read. The version counts every change that the
    /// server announces, on any connection.
    seen: u64,
}

impl OwnLists {
    /// A principal's catalogue. Its lists are read again when `base`, the server's own catalogue, has changed.
    pub(super) fn of(&self, principal: &Arc<str>, base: &Catalogue) -> Arc<Catalogue> {
        let version = base.version();
        // The lock is held only for a few instructions, without I/O.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= PRINCIPALS_MAX && !all.contains_key(principal) {
            all.clear();
        }
        let own = all
            .entry(Arc::clone(principal))
            .or_insert_with(|| PrincipalLists {
                catalogue: Arc::new(Catalogue::mended_by(Arc::clone(base.lists()))),
                seen: version,
            });
        if std::mem::replace(&mut own.seen, version) != version {
            own.catalogue.changed();
        }
        Arc::clone(&own.catalogue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_lists_until_the_server_tells_of_a_change() {
        let lists = OwnLists::default();
        let (ada, bob): (Arc<str>, Arc<str>) = ("ada".into(), "bob".into());
        let base = Catalogue::default();
        let first = lists.of(&ada, &base);
        assert!(Arc::ptr_eq(&first, &lists.of(&ada, &base)));
        assert!(!Arc::ptr_eq(&first, &lists.of(&bob, &base)));
        let before = first.version();
        base.changed();
        assert!(lists.of(&ada, &base).version() > before);
    }

    #[test]
    fn the_lists_of_few_principals_are_kept() {
        let lists = OwnLists::default();
        for number in 0..=PRINCIPALS_MAX {
            lists.of(&number.to_string().into(), &Catalogue::default());
        }
        assert_eq!(lists.0.lock().unwrap().len(), 1);
    }
}
