//! The request to a hook, and the reading of its answer. Both are raw JSON.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{HookEvent, HookSubject};
use tooldock_protocol::jsonrpc::{self, spans};

/// Maximum number of characters of a refusal's reason that clients see.
const REASON_MAX: usize = 500;
/// Reason that clients see if a hook gives none.
const NO_REASON: &str = "no reason is given";
/// Member of an answer that refuses the event.
const REFUSE: &str = "refuse";

/// Answer of a hook that does not refuse the event: the arguments, result or list go on, unchanged or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HookVerdict {
    /// The value goes on unchanged.
    Passed,
    /// The value goes on as the hook has changed it. Contains the new value as raw JSON.
    Changed(Bytes),
}

/// The answer of a hook.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HookAnswer {
    Verdict(HookVerdict),
    /// The event is refused, with this reason for the client.
    Refused(String),
}

/// Writes the request to a hook. `value`: the arguments, result or tools as raw JSON.
pub(super) fn request(event: HookEvent, subject: &HookSubject<'_>, value: &str) -> Bytes {
    let text = |text: &str| Value::from(text).to_string();
    let mut out = String::with_capacity(value.len() + 256);
    out.push_str("{\"on\":\"");
    out.push_str(event.as_str());
    out.push_str("\",\"namespace\":");
    out.push_str(&text(subject.namespace.as_str()));
    if event != HookEvent::List {
        out.push_str(",\"tool\":");
        out.push_str(&subject.tool.map_or_else(|| "null".to_owned(), text));
    }
    out.push_str(",\"principal\":");
    out.push_str(&subject.principal.map_or_else(|| "null".to_owned(), text));
    out.push_str(",\"request_id\":");
    out.push_str(&text(subject.request_id));
    out.push_str(",\"");
    out.push_str(event.member());
    out.push_str("\":");
    out.push_str(value);
    out.push('}');
    out.into()
}

/// Reads the answer of a hook.
///
/// # Errors
///
/// The reason why the answer is none, for the log. It quotes nothing of the answer, which may contain users' data.
pub(super) fn read(answer: &Bytes, event: HookEvent) -> Result<HookAnswer, String> {
    let member = event.member();
    let form = || format!("its answer is neither {{}} nor an object with {member} or refuse alone");
    let text = jsonrpc::text(answer).map_err(|_| "its answer is no JSON".to_owned())?;
    let object: &RawValue =
        serde_json::from_str(text).map_err(|_| "its answer is no JSON".to_owned())?;
    let members = spans::members(object.get()).ok_or_else(form)?;
    let (name, value) = match &*members {
        [] => return Ok(HookAnswer::Verdict(HookVerdict::Passed)),
        [(name, value)] => (&**name, *value),
        _ => return Err(form()),
    };
    if name == REFUSE {
        let reason = spans::raw(value.as_bytes()).and_then(jsonrpc::string);
        let reason = reason.ok_or_else(|| "its refuse is no text".to_owned())?;
        return Ok(HookAnswer::Refused(shown(&reason)));
    }
    if name != member {
        return Err(form());
    }
    check(event, value)?;
    let value = answer.slice_ref(value.as_bytes());
    Ok(HookAnswer::Verdict(HookVerdict::Changed(value)))
}

/// Checks that a value has the form that clients and servers need.
fn check(event: HookEvent, value: &str) -> Result<(), String> {
    let is_object = value.starts_with('{') && spans::members(value).is_some();
    match event {
        HookEvent::Call if is_object => Ok(()),
        HookEvent::Call => Err("its arguments are no object".to_owned()),
        HookEvent::Result => {
            let content = spans::find(value, "content").filter(|_| is_object);
            match content.is_some_and(|it| it.starts_with('[')) {
                true => Ok(()),
                false => Err("its result is no object with an array content".to_owned()),
            }
        }
        HookEvent::List => {
            let is_named = |tool: &str| {
                let name = spans::find(tool, "name");
                tool.starts_with('{') && name.is_some_and(|it| it.starts_with('"'))
            };
            match value.starts_with('[') && spans::items(value).all(is_named) {
                true => Ok(()),
                false => Err("its tools are no array of objects with a name".to_owned()),
            }
        }
    }
}

/// Returns a reason as clients see it: without control characters, and not longer than [`REASON_MAX`].
fn shown(reason: &str) -> String {
    let plain = reason.chars().map(|it| match it.is_control() {
        true => ' ',
        false => it,
    });
    let cut: String = plain.take(REASON_MAX).collect();
    match cut.trim() {
        "" => NO_REASON.to_owned(),
        reason => reason.to_owned(),
    }
}
