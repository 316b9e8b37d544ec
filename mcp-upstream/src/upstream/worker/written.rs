//! Lists of tools as they were last written. A namespace never changes, so neither does its list, until another one takes
//! its place: what is written for the first who asks is copied behind the ids of all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::Namespace;

use crate::format::{CacheScope, ResultFormat};

/// Longer ones are written each time.
const KEPT_MAX: usize = 256 * 1024;
/// Older sessions without output schemas, newer ones with them, modern clients with either cache hint.
const FORMS: usize = 4;

/// The written lists of the namespaces that are served.
#[derive(Default)]
pub(crate) struct WrittenLists {
    /// Those of a namespace that is gone stay until another list is written. Plain data, short sections.
    kept: Mutex<HashMap<NamespaceName, Kept>>,
}

struct Kept {
    /// Whose they are. It keeps the address from being another's.
    of: Weak<Namespace>,
    results: [Option<Bytes>; FORMS],
}

impl WrittenLists {
    /// The result in that form, if it was written.
    pub(super) fn get(
        &self,
        namespace: &Arc<Namespace>,
        format: &ResultFormat,
        scope: CacheScope,
    ) -> Option<Bytes> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let own = kept.get(&namespace.name)?;
        let same = std::ptr::eq(own.of.as_ptr(), Arc::as_ptr(namespace));
        own.results[form(format, scope)].clone().filter(|_| same)
    }

    /// Keeps one that was just written.
    pub(super) fn keep(
        &self,
        namespace: &Arc<Namespace>,
        format: &ResultFormat,
        scope: CacheScope,
        result: &[u8],
    ) {
        if result.len() > KEPT_MAX {
            return;
        }
        let result = Bytes::copy_from_slice(result);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, other| other.of.strong_count() > 0);
        let own = kept.entry(namespace.name.clone());
        let own = own.or_insert_with(|| Kept::new(namespace));
        if !std::ptr::eq(own.of.as_ptr(), Arc::as_ptr(namespace)) {
            *own = Kept::new(namespace);
        }
        own.results[form(format, scope)] = Some(result);
    }
}

impl Kept {
    fn new(namespace: &Arc<Namespace>) -> Self {
        Self {
            of: Arc::downgrade(namespace),
            results: [const { None }; FORMS],
        }
    }
}

/// What a list depends on beside its namespace.
fn form(format: &ResultFormat, scope: CacheScope) -> usize {
    match (format, scope) {
        // These have no cache hints.
        (ResultFormat::Legacy(_), _) => usize::from(format.has_structured_content()),
        (ResultFormat::Modern(_), CacheScope::Public) => 2,
        (ResultFormat::Modern(_), CacheScope::Private) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ModernFormat;
    use crate::protocol::ProtocolVersion;
    use crate::testing::namespace;

    #[test]
    fn a_list_is_kept_for_its_form_and_its_namespace_alone() {
        let lists = WrittenLists::default();
        let (one, same_name) = (Arc::new(namespace("ns")), Arc::new(namespace("ns")));
        let other = Arc::new(namespace("other"));
        let dresses = [
            (
                ResultFormat::Legacy(ProtocolVersion::V2025_03_26),
                CacheScope::Public,
            ),
            (
                ResultFormat::Legacy(ProtocolVersion::V2025_11_25),
                CacheScope::Public,
            ),
            (
                ResultFormat::Modern(ModernFormat::new(one.name.clone())),
                CacheScope::Public,
            ),
            (
                ResultFormat::Modern(ModernFormat::new(one.name.clone())),
                CacheScope::Private,
            ),
        ];
        for (at, (format, scope)) in dresses.iter().enumerate() {
            assert_eq!(lists.get(&one, format, *scope), None);
            lists.keep(&one, format, *scope, &[u8::try_from(at).expect("few")]);
        }
        for (at, (format, scope)) in dresses.iter().enumerate() {
            let kept = lists.get(&one, format, *scope);
            assert_eq!(kept.as_deref(), Some(&[u8::try_from(at).expect("few")][..]));
            assert_eq!(lists.get(&same_name, format, *scope), None);
            assert_eq!(lists.get(&other, format, *scope), None);
        }
    }

    #[test]
    fn nothing_is_kept_of_namespaces_that_are_gone_nor_what_is_too_long() {
        let lists = WrittenLists::default();
        let (old, new) = (Arc::new(namespace("ns")), Arc::new(namespace("ns")));
        let gone = Arc::new(namespace("gone"));
        let format = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
        let scope = CacheScope::Public;
        lists.keep(&gone, &format, scope, b"1");
        lists.keep(&old, &format, scope, b"2");
        drop(gone);
        lists.keep(&new, &format, scope, b"3");
        assert_eq!(lists.get(&old, &format, scope), None);
        assert_eq!(lists.get(&new, &format, scope).as_deref(), Some(&b"3"[..]));
        assert_eq!(lists.kept.lock().expect("not poisoned").len(), 1);
        lists.keep(&old, &format, scope, &vec![b' '; KEPT_MAX + 1]);
        assert_eq!(lists.get(&old, &format, scope), None);
    }
}
