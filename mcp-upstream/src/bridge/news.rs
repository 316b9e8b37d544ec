//! What changed at a server that several clients share, as each of them hears of it: the server's own notification, with
//! the subscription of whoever listens in it.
//!
//! A legacy server's names no subscription, so one is added for listeners; a modern server's names the gateway's, which
//! listeners get as their own and sessions do not get at all. Everything else keeps its bytes.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::json::{self, Change};
use crate::envelope::{self, Message};
use crate::stdio::splice::{self, Edit, Names, SUBSCRIPTION_ID};

/// The longest notification that is kept until everybody has heard it.
const LENGTH_MAX: usize = 64 * 1024;

/// A server's own notification of a change.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct News(Bytes);

impl News {
    /// `message` is all of it. `None`: it is too long to be kept.
    pub(crate) fn new(message: &[u8]) -> Option<Self> {
        // A copy: a view would keep all alive that was read with it.
        (message.len() <= LENGTH_MAX).then(|| Self(Bytes::copy_from_slice(message)))
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// As the clients of sessions hear it.
    pub(crate) fn for_session(&self) -> Cow<'_, [u8]> {
        untagged(&self.0).map_or(Cow::Borrowed(&self.0), Cow::Owned)
    }

    /// As a `subscriptions/listen` request of this id, raw JSON, hears it.
    pub(crate) fn for_listener(&self, id: &str) -> Vec<u8> {
        let tag = || Change::Set(SUBSCRIPTION_ID, Cow::Borrowed(id));
        match params(&self.0) {
            Some((text, params)) => splice::with_subscription_id(text, id).unwrap_or_else(|| {
                let meta = json::member(params, "_meta").map_or("{}", RawValue::get);
                let meta = Change::Set("_meta", json::edit(meta, &[tag()]).into());
                replaced(text, params, json::edit(params.get(), &[meta]))
            }),
            None => {
                let params = format!(r#"{{"_meta":{}}}"#, json::edit("{}", &[tag()]));
                let text = String::from_utf8_lossy(&self.0);
                json::edit(&text, &[Change::Set("params", params.into())]).into_bytes()
            }
        }
    }
}

/// A whole notification without the subscription it names; `None` where it names none.
pub(crate) fn untagged(message: &[u8]) -> Option<Vec<u8>> {
    let (text, params) = params(message)?;
    Names::of(Some(params)).ok()?.subscription?;
    let meta = json::member(params, "_meta")?;
    let meta = json::edit(meta.get(), &[Change::Remove(SUBSCRIPTION_ID)]);
    let change = match &*meta {
        "{}" => Change::Remove("_meta"),
        _ => Change::Set("_meta", meta.into()),
    };
    Some(replaced(text, params, json::edit(params.get(), &[change])))
}

/// The text of a notification and the parameters in it, if it has some.
pub(crate) fn params(message: &[u8]) -> Option<(&str, &RawValue)> {
    let text = std::str::from_utf8(message).ok()?;
    match envelope::message(text) {
        Ok(Message::Notification { params, .. }) => params.map(|params| (text, params)),
        _ => None,
    }
}

fn replaced(text: &str, params: &RawValue, new: String) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + new.len());
    let edit = Edit::new(text, params.get(), new);
    splice::splice(&mut out, text.as_bytes(), &mut [edit]);
    out
}

impl fmt::Debug for News {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("News").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(text: &str) -> News {
        News::new(text.as_bytes()).expect("short")
    }

    fn session(text: &str) -> String {
        String::from_utf8(news(text).for_session().into_owned()).expect("UTF-8")
    }

    fn listener(text: &str) -> String {
        String::from_utf8(news(text).for_listener("\"l\\u0031\"")).expect("UTF-8")
    }

    #[test]
    fn a_legacy_servers_words_pass_and_listeners_find_their_subscription_in_them() {
        let bare =
            r#"{ "x":1e400,"jsonrpc":"2.0", "m\u0065thod":"notifications/tools/list_changed" }"#;
        assert_eq!(session(bare), bare);
        assert_eq!(
            listener(bare),
            r#"{ "x":1e400,"jsonrpc":"2.0", "m\u0065thod":"notifications/tools/list_changed" ,"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l\u0031"}}}"#
        );
        let full = r#"{"jsonrpc":"2.0","params":{ "uri" : "a","n":1.50},"method":"notifications/resources/updated", "z":[]}"#;
        assert_eq!(session(full), full);
        assert_eq!(
            listener(full),
            r#"{"jsonrpc":"2.0","params":{ "uri" : "a","n":1.50,"_meta":{"io.modelcontextprotocol/subscriptionId":"l\u0031"}},"method":"notifications/resources/updated", "z":[]}"#
        );
    }

    #[test]
    fn a_modern_servers_words_name_the_listeners_subscription_and_none_to_sessions() {
        let text = |meta: &str| {
            format!(
                r#"{{"jsonrpc":"2.0", "y":0, "method":"notifications/resources/updated","params":{{"n":1.50{meta},"uri":"a"}}}}"#
            )
        };
        let ours = text(r#","_meta":{"io.modelcontextprotocol/subscriptionId": 65536 }"#);
        assert_eq!(session(&ours), text(""));
        let theirs = r#","_meta":{"io.modelcontextprotocol/subscriptionId": "l\u0031" }"#;
        assert_eq!(listener(&ours), text(theirs));
        let more = text(r#","_meta":{"k":1.0,"io.modelcontextprotocol/subscriptionId":7}"#);
        assert_eq!(session(&more), text(r#","_meta":{"k":1.0}"#));
    }

    #[test]
    fn words_beyond_a_bound_are_not_kept() {
        assert_eq!(News::new(&[b' '; LENGTH_MAX + 1]), None);
    }
}
