//! A view: the tools of a namespace that one caller may see and call. All code that shows or calls tools uses a view.
//!
//! A view contains the tools that both the namespace's policy and the scopes of the caller's credential allow. If a further
//! restriction is added, it must become a field of [`Access`], and [`View::allows_tool`] and [`View::fingerprint`] must use it.
//!
//! Scopes contain the names that tools have in their own namespace. An aggregate shows its members' tools under other names, so
//! scopes are not applied in the view of an aggregate, but in the views of its members.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::config::{Limits, PinMode};
use tooldock_base::grant::Grant;
use tooldock_base::scope::ToolScope;
use tooldock_protocol::jsonrpc;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::version::CacheScope;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::list::{ToolEntry, ToolList};
use crate::caller::{Caller, Visibility};

/// The properties of a caller on which its views depend.
#[derive(Debug, Clone)]
pub struct Access {
    /// True if clients of the same listener may get different lists, because credentials give access to certain namespaces
    /// only or have scopes; then lists are private to the caller.
    scoped: bool,
    /// The tools that the credential's scopes allow; `None` for a credential without scopes, which allows every tool.
    grant: Option<Arc<Grant>>,
}

/// The tools of a namespace that a caller may see and call.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    namespace: &'a Namespace,
    scoped: bool,
    /// The tools that the credential's scopes allow; `None` if all are allowed.
    tools: Option<&'a ToolScope>,
}

/// Error: the page is not a JSON object with an array of tools, or contains a repeated key.
struct InvalidPage;

/// Fingerprint of a view. It is equal for views that show the same tools of a list in the same form.
pub(super) type Fingerprint = ([u8; 32], Option<[u8; 32]>, CacheScope);

impl Access {
    /// Copies from a caller the properties on which its views depend.
    pub fn of(caller: &Caller) -> Self {
        Self {
            scoped: is_scoped(caller),
            grant: caller.grant.clone(),
        }
    }

    /// Creates the view of a namespace for a caller with these properties.
    pub fn view<'a>(&'a self, namespace: &'a Namespace) -> View<'a> {
        View::new(namespace, self.scoped, self.grant.as_deref())
    }
}

/// Returns true if this caller may get other lists than other callers on the same listener.
fn is_scoped(caller: &Caller) -> bool {
    let everywhere = matches!(caller.visibility, Visibility::All);
    !everywhere || caller.grant.is_some() || caller.profile.scoped_tokens
}

impl<'a> View<'a> {
    /// Creates the view of a namespace for a caller.
    pub fn of(caller: &'a Caller, namespace: &'a Namespace) -> Self {
        Self::new(namespace, is_scoped(caller), caller.grant.as_deref())
    }

    fn new(namespace: &'a Namespace, scoped: bool, grant: Option<&'a Grant>) -> Self {
        let is_aggregate = matches!(namespace.upstream, UpstreamKind::Aggregate(_));
        Self {
            namespace,
            scoped,
            tools: grant.filter(|_| !is_aggregate).map(|it| &*it.tools),
        }
    }

    /// Returns true if the scopes of the caller's credential allow the tool. The namespace's policy is not checked.
    pub fn opens_tool(self, name: &str) -> bool {
        let policy = &self.namespace.policy;
        self.tools
            .is_none_or(|scope| policy.check_scope(scope, name).is_ok())
    }

    /// Returns true if the caller may see and call the tool.
    pub fn allows_tool(self, name: &str) -> bool {
        self.namespace.policy.allows_tool(name) && self.opens_tool(name)
    }

    /// Returns true if the caller may see and call every tool of the namespace, whatever its name.
    pub fn allows_every_tool(self) -> bool {
        let opened = self.tools.is_none_or(ToolScope::is_admin);
        opened && self.namespace.policy.allows_every_tool() && !self.is_pinned()
    }

    /// Returns true if the namespace is a server whose tools an operator must approve. A tool that is in no list must then not be
    /// called.
    fn is_pinned(self) -> bool {
        let is_server = matches!(
            self.namespace.upstream,
            UpstreamKind::External(_) | UpstreamKind::Remote(_)
        );
        is_server && self.namespace.limits.pins == PinMode::Enforce
    }

    /// Returns true if the caller may be told why a tool is missing: the file that could not be loaded, and the error. Only
    /// callers whose scopes allow every tool may, and only for names that the policy does not hide.
    pub fn may_explain_missing(self, name: &str) -> bool {
        self.tools.is_none_or(ToolScope::is_admin) && self.namespace.policy.allows_tool(name)
    }

    /// The tools of a list that the caller may see.
    pub fn tools(self, list: &ToolList) -> impl Iterator<Item = &ToolEntry> {
        let all = list.entries().iter();
        all.filter(move |tool| self.allows_tool(tool.name()))
    }

    /// Finds a tool of a list by name; `None` if it does not exist or the caller may not see it.
    pub fn tool<'l>(self, list: &'l ToolList, name: &str) -> Option<&'l ToolEntry> {
        // The name is looked up first, since matching the policy's patterns costs more.
        list.tool(name).filter(|_| self.allows_tool(name))
    }

    /// The cache scope of lists and of `server/discover`: public if all admitted callers see the same tools of the namespace,
    /// else private (MOD-08).
    pub fn cache_scope(self) -> CacheScope {
        static USUAL: LazyLock<Limits> = LazyLock::new(Limits::default);
        let (usual, limits) = (&*USUAL, &self.namespace.limits);
        let open = !self.scoped
            && limits.principals == usual.principals
            && limits.tools_allow == usual.tools_allow
            && limits.tools_deny == usual.tools_deny
            && limits.within.is_none();
        match open {
            true => CacheScope::Public,
            false => CacheScope::Private,
        }
    }

    /// Fingerprint of all properties that influence how lists are written for this view.
    pub(super) fn fingerprint(self) -> Fingerprint {
        let opened = self.tools.map(ToolScope::fingerprint);
        (
            self.namespace.policy.fingerprint(),
            opened,
            self.cache_scope(),
        )
    }

    /// Removes hidden tools from a page of a server's list. The entries that remain keep their bytes. If the page depends on the
    /// caller, its cache scope becomes private. Returns `None` if some tools are hidden and the page cannot be filtered safely:
    /// if a key is repeated, a client may read the value that was not filtered.
    pub fn of_page(self, result: Bytes) -> Option<Bytes> {
        match self.changed(&result) {
            Ok(Some(changed)) => Some(changed.into()),
            Ok(None) => Some(result),
            Err(InvalidPage) => self.allows_every_tool().then_some(result),
        }
    }

    /// The page without hidden tools; `None` if nothing changes.
    fn changed(self, page: &[u8]) -> Result<Option<String>, InvalidPage> {
        let object = spans::raw(page).ok_or(InvalidPage)?.get();
        let members = spans::members(object).ok_or(InvalidPage)?;
        let value = |name| {
            let mut all = members.iter();
            all.find_map(|(key, value)| (*key == name).then_some(*value))
        };
        let mut changes = Vec::new();
        if let Some(tools) = value("tools") {
            let all: Vec<&RawValue> = serde_json::from_str(tools).map_err(|_| InvalidPage)?;
            if let Some(shown) = self.shown(&all) {
                changes.push(MemberEdit::Set("tools", shown.into()));
            }
        }
        if self.cache_scope() == CacheScope::Private && value("cacheScope").is_some() {
            changes.push(MemberEdit::Set("cacheScope", Cow::Borrowed("\"private\"")));
        }
        Ok((!changes.is_empty()).then(|| spans::edit(object, &changes)))
    }

    /// The entries that the caller may see, as a JSON list; `None` if it may see all.
    fn shown(self, all: &[&RawValue]) -> Option<String> {
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

    use tooldock_base::policy::ToolPolicy;

    use super::*;
    use crate::profile::Profile;
    use crate::testing::{caller, caller_with_scopes, namespace};

    fn limited(change: impl Fn(&mut Limits)) -> Namespace {
        let mut limited = namespace("shared");
        limited.limits = Limits::default();
        change(&mut limited.limits);
        limited.policy = ToolPolicy::new(&limited.limits).expect("patterns");
        limited
    }

    fn shown(text: &str, deny: &[&str], scoped: bool) -> Option<String> {
        let of = limited(|it| it.tools_deny = deny.iter().map(|it| (*it).to_owned()).collect());
        let access = Access {
            scoped,
            grant: None,
        };
        let view = access.view(&of);
        let shown = view.of_page(Bytes::copy_from_slice(text.as_bytes()))?;
        Some(String::from_utf8(shown.to_vec()).expect("UTF-8"))
    }

    fn page(text: &str, deny: &[&str], scoped: bool) -> String {
        shown(text, deny, scoped).expect("readable")
    }

    #[test]
    fn a_page_that_may_hide_a_denied_tool_is_not_shown() {
        for text in [
            r#"{"tools":[{"name":"drop_all"}],"_meta":{},"_meta":{}}"#,
            r#"{"tools":[],"tools":[{"name":"drop_all"}]}"#,
            r#"{"tools":[],"\u0074ools":[{"name":"drop_all"}]}"#,
            r#"{"tools":{"0":{"name":"drop_all"}}}"#,
            r#"[{"name":"drop_all"}]"#,
        ] {
            assert_eq!(shown(text, &["drop_*"], false), None, "{text}");
            // A view that hides nothing leaves a server's page unchanged.
            assert_eq!(shown(text, &[], false).as_deref(), Some(text));
        }
        let twice = r#"{"tools":[{"name":"a","name":"drop_all"}]}"#;
        assert_eq!(page(twice, &["drop_*"], false), r#"{"tools":[]}"#);
        assert_eq!(page("{}", &["drop_*"], false), "{}");
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
        let caller = caller();
        let view = View::of(&caller, &limited);
        let names: Vec<_> = view.tools(&list).map(ToolEntry::name).collect();
        assert_eq!(names, ["add"]);
        assert!(view.tool(&list, "add").is_some());
        assert!(view.tool(&list, "drop_all").is_none());
        assert!(view.tool(&list, "missing").is_none());
    }

    #[test]
    fn scopes_narrow_a_view_beside_the_policy() {
        let limited = limited(|it| it.tools_deny = vec!["project_get".into()]);
        let reader = caller_with_scopes(&["read"]);
        let view = View::of(&reader, &limited);
        let shown = |name| (view.opens_tool(name), view.allows_tool(name));
        assert_eq!(shown("project_list"), (true, true));
        assert_eq!(shown("project_get"), (true, false));
        assert_eq!(shown("project_create"), (false, false));
        assert!(!view.allows_every_tool());
        assert_eq!(view.cache_scope(), CacheScope::Private);
        let page = r#"{"tools":[{"name":"project_list"},{"name":"project_create"}]}"#;
        let page = view.of_page(Bytes::from_static(page.as_bytes()));
        assert_eq!(
            page.as_deref(),
            Some(&br#"{"tools":[{"name":"project_list"}]}"#[..])
        );
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
