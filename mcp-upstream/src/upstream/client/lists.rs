//! Lists on their way down: `tools/list` as the policy allows it (entries are left out, those that stay keep their bytes),
//! and what answers for a server that takes too long.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tooldock_workers::policy::ToolPolicy;

use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::protocol::CacheScope;

/// How long a list may take that is known from before.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer to a list method; after [`PATIENCE`] the last good one, if there is one. A request that is given up so
/// makes its process suspect.
pub(super) async fn or_last_good<T, E>(
    attempt: impl Future<Output = Result<T, E>>,
    last_good: impl FnOnce() -> Option<T>,
) -> Result<T, E> {
    tokio::pin!(attempt);
    match timeout(PATIENCE, &mut attempt).await {
        Ok(outcome) => outcome,
        Err(_) => match last_good() {
            Some(known) => Ok(known),
            None => attempt.await,
        },
    }
}

/// The result with what may be listed. Where that depends on who asks, it says so.
pub(super) fn allowed(result: Bytes, policy: &ToolPolicy, scope: CacheScope) -> Bytes {
    let Some(object) = spans::raw(&result) else {
        return result;
    };
    let mut changes = Vec::new();
    if let Some(kept) = spans::member(object, "tools").and_then(|tools| kept(tools, policy)) {
        changes.push(MemberEdit::Set("tools", kept.into()));
    }
    if scope == CacheScope::Private && spans::member(object, "cacheScope").is_some() {
        changes.push(MemberEdit::Set("cacheScope", Cow::Borrowed("\"private\"")));
    }
    if changes.is_empty() {
        return result;
    }
    spans::edit(object.get(), &changes).into()
}

/// The entries that stay; `None` when all do.
fn kept(tools: &RawValue, policy: &ToolPolicy) -> Option<String> {
    let all: Vec<&RawValue> = serde_json::from_str(tools.get()).ok()?;
    let may_stay = |tool: &&&RawValue| {
        let name = spans::member(tool, "name").and_then(jsonrpc::string);
        name.is_some_and(|name| policy.allows_tool(&name))
    };
    let stay: Vec<_> = all.iter().filter(may_stay).map(|tool| tool.get()).collect();
    (stay.len() < all.len()).then(|| format!("[{}]", stay.join(",")))
}

#[cfg(test)]
mod tests {
    use tooldock_workers::config::Limits;

    use super::*;

    fn listed(text: &str, deny: &[&str], scope: CacheScope) -> String {
        let limits = Limits {
            tools_deny: deny.iter().map(|it| (*it).to_owned()).collect(),
            ..Limits::default()
        };
        let policy = ToolPolicy::new(&limits).expect("patterns");
        let kept = allowed(Bytes::copy_from_slice(text.as_bytes()), &policy, scope);
        String::from_utf8(kept.to_vec()).expect("UTF-8")
    }

    #[test]
    fn what_is_denied_is_left_out_and_the_rest_keeps_its_bytes() {
        let text = r#"{"tools":[{"name":"a", "x":1.50},{"name":"drop_b"}],"nextCursor":"c"}"#;
        assert_eq!(
            listed(text, &["drop_*"], CacheScope::Public),
            r#"{"tools":[{"name":"a", "x":1.50}],"nextCursor":"c"}"#
        );
        assert_eq!(listed(text, &[], CacheScope::Public), text);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_takes_too_long_is_the_last_good_one_if_there_is_one() {
        let slow = || async {
            tokio::time::sleep(PATIENCE * 2).await;
            Ok::<_, ()>("new")
        };
        let begun = tokio::time::Instant::now();
        assert_eq!(or_last_good(slow(), || Some("old")).await, Ok("old"));
        assert_eq!(begun.elapsed(), PATIENCE);
        assert_eq!(or_last_good(slow(), || None).await, Ok("new"));
        let quick = async { Err("no") };
        assert_eq!(or_last_good(quick, || Some("old")).await, Err("no"));
    }

    #[test]
    fn a_list_that_is_not_everybodys_says_so() {
        let text = r#"{"tools":[],"cacheScope":"public"}"#;
        assert_eq!(
            listed(text, &[], CacheScope::Private),
            r#"{"tools":[],"cacheScope":"private"}"#
        );
        assert_eq!(
            listed(r#"{"tools":[]}"#, &[], CacheScope::Private),
            r#"{"tools":[]}"#
        );
    }
}
