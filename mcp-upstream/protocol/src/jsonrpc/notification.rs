//! Notifications of servers in the form that clients receive, and the parameters of notifications.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::spans::{self, MemberEdit};
use super::splice::{self, Edit};
use super::{Key, Members, Message};

/// A notification of a server, for a client. If it belongs to a call, it contains the client's progress token and subscription
/// id, not those that the gateway used at the server.
#[derive(Debug, Clone)]
pub struct Notification<'a> {
    /// The method of the notification.
    pub method: &'a str,
    /// The parameters of the notification, as raw JSON; `None` if it has none.
    pub params: Option<Bytes>,
    /// The complete notification, on one line, including unknown members.
    pub message: Bytes,
}

/// Removes the subscription id from a notification. Returns `None` if it has none.
pub fn untagged(message: &[u8]) -> Option<Vec<u8>> {
    let members = members(message)?;
    members.name(Key::Subscription)?;
    let (params, meta) = (members.params()?, members.raw(Key::Meta)?);
    let meta = spans::edit(meta, &[MemberEdit::Remove(Key::Subscription.name())]);
    let change = match &*meta {
        "{}" => MemberEdit::Remove("_meta"),
        _ => MemberEdit::Set("_meta", meta.into()),
    };
    let edited = spans::edit(params.get(), &[change]);
    Some(replaced(members.message(), params, edited))
}

/// Parses a notification. Returns `None` if it is malformed or contains a repeated known key.
pub fn members(message: &[u8]) -> Option<Members<'_>> {
    match super::message(std::str::from_utf8(message).ok()?) {
        Ok(Message::Notification { members, .. }) => members.unique().is_ok().then_some(members),
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
