//! Notifications: a server's in the form that its client gets, and the parameters of any notification.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::spans::{self, MemberEdit};
use super::splice::{self, Edit};
use super::{Key, Members, Message};

/// A notification of a server. If it belongs to a call, it has the progress token and the subscription id of the client's call.
#[derive(Debug, Clone)]
pub struct Notification<'a> {
    /// The method of the notification.
    pub method: &'a str,
    /// The span of the parameters.
    pub params: Option<Bytes>,
    /// The complete message, on one line, with unknown members.
    pub message: Bytes,
}

/// A complete notification without its subscription id; `None` if it has none.
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

/// The members of a notification without repeated keys.
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
