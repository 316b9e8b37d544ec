//! What one caller may see and call of a namespace. Whoever shows or runs tools asks here, and nowhere else.
//!
//! A view is what the namespace's policy allows, for a caller with that [`Access`]. What narrows a view further (a key
//! that opens some tools alone, a choice of tools in a session) is a field of [`Access`], which [`View::allows_tool`]
//! and [`View::fingerprint`] take in.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::config::Limits;
use tooldock_workers::registry::Namespace;

use super::list::{ToolEntry, ToolList};
use crate::caller::{Caller, Visibility};
use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::protocol::CacheScope;

/// What of a caller matters for what it may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// Its token, or another one of its listener, does not open every namespace.
    scoped: bool,
}

/// What a caller may see of a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    namespace: &'a Namespace,
    access: Access,
}

/// Equal for views that show the same tools of a list in the same words.
pub(super) type Fingerprint = ([u8; 32], CacheScope);

impl Access {
    /// The access of a caller.
    pub(crate) fn of(caller: &Caller) -> Self {
        let everywhere = matches!(caller.visibility, Visibility::All);
        Self {
            scoped: !everywhere || caller.profile.scoped_tokens,
        }
    }

    /// What it shows of a namespace.
    pub(crate) fn view(self, namespace: &Namespace) -> View<'_> {
        View {
            namespace,
            access: self,
        }
    }
}

impl<'a> View<'a> {
    /// What a caller may see of a namespace.
    pub(crate) fn of(caller: &Caller, namespace: &'a Namespace) -> Self {
        Access::of(caller).view(namespace)
    }

    /// Whether the tool may be shown and called.
    pub(crate) fn allows_tool(self, name: &str) -> bool {
        self.namespace.policy.allows_tool(name)
    }

    /// The tools of a list that may be shown.
    pub(crate) fn tools(self, list: &ToolList) -> impl Iterator<Item = &ToolEntry> {
        let all = list.entries().iter();
        all.filter(move |tool| self.allows_tool(tool.name()))
    }

    /// One tool of a list, if it may be shown.
    pub(crate) fn tool<'l>(self, list: &'l ToolList, name: &str) -> Option<&'l ToolEntry> {
        // Names first: matching patterns costs more than comparing.
        list.tool(name).filter(|_| self.allows_tool(name))
    }

    /// For whom lists and `server/discover` may be kept: for everybody where nothing stands between a caller and the
    /// namespace but being admitted (MOD-08).
    pub(crate) fn cache_scope(self) -> CacheScope {
        static USUAL: LazyLock<Limits> = LazyLock::new(Limits::default);
        let (usual, limits) = (&*USUAL, &self.namespace.limits);
        let open = !self.access.scoped
            && limits.principals == usual.principals
            && limits.tools_allow == usual.tools_allow
            && limits.tools_deny == usual.tools_deny
            && limits.within.is_none();
        match open {
            true => CacheScope::Public,
            false => CacheScope::Private,
        }
    }

    /// What lists that are written for this view depend on.
    pub(super) fn fingerprint(self) -> Fingerprint {
        (self.namespace.policy.fingerprint(), self.cache_scope())
    }

    /// A page of a server's list with what may be shown: entries are left out, those that stay keep their bytes. Where
    /// that depends on who asks, the page says so.
    pub(crate) fn of_page(self, result: Bytes) -> Bytes {
        let Some(object) = spans::raw(&result) else {
            return result;
        };
        let mut changes = Vec::new();
        let tools = spans::member(object, "tools");
        if let Some(shown) = tools.and_then(|tools| self.shown(tools)) {
            changes.push(MemberEdit::Set("tools", shown.into()));
        }
        let tells_scope = || spans::member(object, "cacheScope").is_some();
        if self.cache_scope() == CacheScope::Private && tells_scope() {
            changes.push(MemberEdit::Set("cacheScope", Cow::Borrowed("\"private\"")));
        }
        if changes.is_empty() {
            return result;
        }
        spans::edit(object.get(), &changes).into()
    }

    /// The entries that stay; `None` when all do.
    fn shown(self, tools: &RawValue) -> Option<String> {
        let all: Vec<&RawValue> = serde_json::from_str(tools.get()).ok()?;
        let may_stay = |tool: &&&RawValue| {
            let name = spans::member(tool, "name").and_then(jsonrpc::string);
            name.is_some_and(|name| self.allows_tool(&name))
        };
        let stay: Vec<_> = all.iter().filter(may_stay).map(|tool| tool.get()).collect();
        (stay.len() < all.len()).then(|| format!("[{}]", stay.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tooldock_workers::policy::ToolPolicy;

    use super::*;
    use crate::profile::Profile;
    use crate::testing::{caller, namespace};

    fn limited(change: impl Fn(&mut Limits)) -> Namespace {
        let mut limited = namespace("shared");
        limited.limits = Limits::default();
        change(&mut limited.limits);
        limited.policy = ToolPolicy::new(&limited.limits).expect("patterns");
        limited
    }

    fn page(text: &str, deny: &[&str], scoped: bool) -> String {
        let of = limited(|it| it.tools_deny = deny.iter().map(|it| (*it).to_owned()).collect());
        let view = Access { scoped }.view(&of);
        let shown = view.of_page(Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(shown.to_vec()).expect("UTF-8")
    }

    #[test]
    fn what_is_denied_is_left_out_and_the_rest_keeps_its_bytes() {
        let text = r#"{"tools":[{"name":"a", "x":1.50},{"name":"drop_b"}],"nextCursor":"c"}"#;
        assert_eq!(
            page(text, &["drop_*"], false),
            r#"{"tools":[{"name":"a", "x":1.50}],"nextCursor":"c"}"#
        );
        assert_eq!(page(text, &[], false), text);
    }

    #[test]
    fn a_list_that_is_not_everybodys_says_so() {
        let text = r#"{"tools":[],"cacheScope":"public"}"#;
        assert_eq!(page(text, &[], false), text);
        assert_eq!(
            page(text, &[], true),
            r#"{"tools":[],"cacheScope":"private"}"#
        );
        assert_eq!(page(r#"{"tools":[]}"#, &[], true), r#"{"tools":[]}"#);
    }

    #[test]
    fn a_tool_is_found_by_its_name_where_the_policy_allows_it() {
        let list = ToolList::of_page(r#"{"tools":[{"name":"add"},{"name":"drop_all"}]}"#);
        let limited = limited(|it| it.tools_deny = vec!["drop_*".into()]);
        let view = View::of(&caller(), &limited);
        let names: Vec<_> = view.tools(&list).map(ToolEntry::name).collect();
        assert_eq!(names, ["add"]);
        assert!(view.tool(&list, "add").is_some());
        assert!(view.tool(&list, "drop_all").is_none());
        assert!(view.tool(&list, "missing").is_none());
    }

    #[test]
    fn a_list_is_public_where_nobody_is_kept_out() {
        let open = limited(|_| {});
        let scope = |caller: &Caller| View::of(caller, &open).cache_scope();
        assert_eq!(scope(&caller()), CacheScope::Public);

        let mut scoped = caller();
        scoped.visibility = Visibility::Only(Arc::new(|_| true));
        assert_eq!(scope(&scoped), CacheScope::Private);

        let mut beside_scoped = caller();
        beside_scoped.profile = Arc::new(Profile {
            scoped_tokens: true,
            ..Profile::core()
        });
        assert_eq!(scope(&beside_scoped), CacheScope::Private);

        for change in [
            |limits: &mut Limits| limits.principals = vec!["ci".into()],
            |limits: &mut Limits| limits.tools_allow = vec!["get_*".into()],
            |limits: &mut Limits| limits.tools_deny = vec!["drop_*".into()],
            |limits: &mut Limits| limits.within = Some(Box::new(limits.lists())),
        ] {
            let filtered = limited(change);
            let scope = View::of(&caller(), &filtered).cache_scope();
            assert_eq!(scope, CacheScope::Private);
        }
    }
}
