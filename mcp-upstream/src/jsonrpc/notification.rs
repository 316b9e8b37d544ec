//! Notifications: a server's as its client hears it, and the parameters of any.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::Message;
use super::spans::{self, Change};
use super::splice::{self, Edit, Names, SUBSCRIPTION_ID};

/// A notification of the server. Where it belongs to a call, the call's own progress token and subscription id are in
/// it again.
#[derive(Debug, Clone)]
pub(crate) struct Notification<'a> {
    /// Which one.
    pub(crate) method: &'a str,
    /// The span of its parameters.
    pub(crate) params: Option<Bytes>,
    /// All of it, on one line, unknown members included.
    pub(crate) message: Bytes,
}

/// A whole notification without the subscription it names; `None` where it names none.
pub(crate) fn untagged(message: &[u8]) -> Option<Vec<u8>> {
    let (text, params) = params(message)?;
    Names::of(Some(params)).ok()?.subscription?;
    let meta = spans::member(params, "_meta")?;
    let meta = spans::edit(meta.get(), &[Change::Remove(SUBSCRIPTION_ID)]);
    let change = match &*meta {
        "{}" => Change::Remove("_meta"),
        _ => Change::Set("_meta", meta.into()),
    };
    Some(replaced(text, params, spans::edit(params.get(), &[change])))
}

/// The text of a notification and the parameters in it, if it has some.
pub(crate) fn params(message: &[u8]) -> Option<(&str, &RawValue)> {
    let text = std::str::from_utf8(message).ok()?;
    match super::message(text) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modern_servers_words_name_no_subscription_to_the_owner_of_its_process() {
        let text = |meta: &str| {
            format!(
                r#"{{"jsonrpc":"2.0", "y":0, "method":"notifications/resources/updated","params":{{"n":1.50{meta},"uri":"a"}}}}"#
            )
        };
        for (said, told) in [
            (
                r#","_meta":{"io.modelcontextprotocol/subscriptionId": 65536 }"#,
                Some(""),
            ),
            (
                r#","_meta":{"k":1.0,"io.modelcontextprotocol/subscriptionId":7}"#,
                Some(r#","_meta":{"k":1.0}"#),
            ),
            (r#","_meta":{"k":1.0}"#, None),
        ] {
            let untagged = untagged(text(said).as_bytes());
            assert_eq!(untagged, told.map(|told| text(told).into_bytes()), "{said}");
        }
    }
}
