//! Masking of secrets: the secrets of a namespace's functions and servers are removed from responses that a model reads
//! (SCR-14).
//!
//! Exact copies are found, and copies escaped by Python's `repr` or JSON. A secret that a tool encodes in another way is not
//! found.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_base::error::CallError;
use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;
use tooldock_credentials::personal::Personal;

use crate::registry::{AggregateMember, Namespace, Registry, UpstreamKind};

/// The secret values of a namespace that are masked in responses.
#[derive(Default)]
pub struct HiddenValues(Redactor);

/// The principals whose personal values are masked in a response.
#[derive(Clone, Copy)]
enum Owners<'a> {
    /// The personal values of every principal are masked.
    All,
    /// Only the caller's personal values are masked. `None` for a caller without a principal, who has no personal values.
    Caller(Option<&'a str>),
}

impl Registry {
    /// The values to mask for a namespace: its secrets, and the personal values of every principal.
    pub fn hidden_values(&self, namespace: &Namespace) -> HiddenValues {
        self.hidden_for(namespace, Owners::All)
    }

    /// The values to mask in the response to a call: the namespace's secrets, and the personal values of the caller.
    pub fn hidden_values_of_call(
        &self,
        namespace: &Namespace,
        principal: Option<&str>,
    ) -> HiddenValues {
        self.hidden_for(namespace, Owners::Caller(principal))
    }

    fn hidden_for(&self, namespace: &Namespace, owners: Owners<'_>) -> HiddenValues {
        let mut values = Vec::new();
        self.collect(namespace, owners, &mut values);
        HiddenValues(Redactor::new(&values))
    }

    fn collect(&self, namespace: &Namespace, owners: Owners<'_>, values: &mut Vec<Secret>) {
        match &namespace.upstream {
            UpstreamKind::Worker(worker) => values.extend(worker.spec().hidden.iter().cloned()),
            UpstreamKind::External(server) => {
                values.extend(server.spec.secrets.iter().cloned());
                values.extend(self.personal_values(&server.spec.personal, owners));
            }
            UpstreamKind::Remote(server) => {
                values.extend(server.spec.secrets.iter().cloned());
                values.extend(self.personal_values(&server.spec.personal, owners));
            }
            UpstreamKind::Aggregate(aggregate) => {
                for member in &aggregate.members {
                    let served: Arc<Namespace>;
                    let member = match member {
                        AggregateMember::Own(own) => own,
                        AggregateMember::Served(name) => match self.namespace(name.as_str()) {
                            // A member that is itself an aggregate is skipped, so that the recursion ends.
                            Some(found) if !is_aggregate(&found) => {
                                served = found;
                                &served
                            }
                            _ => continue,
                        },
                    };
                    self.collect(member, owners, values);
                }
            }
            UpstreamKind::Empty | UpstreamKind::System | UpstreamKind::Failed(_) => {}
        }
    }

    fn personal_values(&self, settings: &Personal, owners: Owners<'_>) -> Vec<Secret> {
        match owners {
            Owners::All => settings.of_all(self.personal()),
            Owners::Caller(principal) => settings.of_principal(self.personal(), principal),
        }
    }
}

fn is_aggregate(namespace: &Namespace) -> bool {
    matches!(namespace.upstream, UpstreamKind::Aggregate(_))
}

/// JSON fields of MCP messages whose values are keywords, ids and numbers of the protocol. These values are not masked, so that
/// a secret that equals one of them does not change the meaning of a message.
const PROTOCOL_VALUES: [&str; 16] = [
    "jsonrpc",
    "id",
    "method",
    "code",
    "type",
    "role",
    "mimeType",
    "level",
    "isError",
    "progress",
    "total",
    "progressToken",
    "requestId",
    "taskId",
    "status",
    "resultType",
];

/// Further names of JSON fields in MCP messages. These names are not masked, but their values are.
const PROTOCOL_NAMES: [&str; 14] = [
    "params",
    "result",
    "error",
    "message",
    "data",
    "content",
    "text",
    "structuredContent",
    "_meta",
    "logger",
    "resource",
    "blob",
    "annotations",
    "statusMessage",
];

impl HiddenValues {
    /// Returns true if there are no values to mask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a copy of the text in which the values are masked.
    pub fn hide(&self, text: &str) -> String {
        let hidden = self.0.hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }

    /// Returns the error with the values masked in its message, cause and details.
    pub fn hide_in_error(&self, mut error: CallError) -> CallError {
        if self.is_empty() {
            return error;
        }
        error.message = self.hide(&error.message);
        if let Some(cause) = &mut error.cause {
            cause.detail = self.hide(&cause.detail);
        }
        let details = error.details.as_deref();
        let hidden = details.and_then(|details| self.hide_in_json(details.get().as_bytes()));
        if let Some(hidden) = hidden {
            let hidden = String::from_utf8(hidden).ok();
            error.details = hidden.and_then(|hidden| RawValue::from_string(hidden).ok());
        }
        error
    }

    /// Returns the JSON with the values masked: in texts, in names of fields, and in numbers that are written like a value.
    /// `None` if the JSON contains none of the values. Ids, types and other fields that the protocol defines are not changed.
    pub fn hide_in_json(&self, json: &[u8]) -> Option<Vec<u8>> {
        if !self.0.may_be_in_json(json) {
            return None;
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(json) else {
            // A text that is not valid JSON is masked as plain text.
            let hidden = self.0.hide(json.to_vec(), false);
            return (hidden != json).then_some(hidden);
        };
        self.hide_in(&mut value)
            .then(|| value.to_string().into_bytes())
    }

    /// Returns the JSON with the values masked, both plain and in the usual escapes of JSON. The JSON is searched but not parsed,
    /// for messages that are too large to be parsed on an I/O thread.
    pub fn hide_in_large_json(&self, json: &[u8]) -> Option<Vec<u8>> {
        if !self.0.may_be_in_json(json) {
            return None;
        }
        let hidden = self.0.hide(json.to_vec(), false);
        (hidden != json).then_some(hidden)
    }

    /// Masks the values in JSON; returns true if there were any.
    fn hide_in(&self, value: &mut Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) => false,
            Value::Number(number) => {
                let shown = number.to_string();
                let hidden = self.hide(&shown);
                let found = hidden != shown;
                if found {
                    *value = Value::String(hidden);
                }
                found
            }
            Value::String(text) => {
                let hidden = self.hide(text);
                let found = hidden != *text;
                *text = hidden;
                found
            }
            Value::Array(items) => {
                let mut found = false;
                for item in items {
                    found |= self.hide_in(item);
                }
                found
            }
            Value::Object(members) => {
                let mut found = false;
                for (name, mut member) in std::mem::take(members) {
                    let is_nested = member.is_object() || member.is_array();
                    let is_word = PROTOCOL_VALUES.contains(&&*name);
                    if !is_word || is_nested {
                        found |= self.hide_in(&mut member);
                    }
                    if is_word || PROTOCOL_NAMES.contains(&&*name) {
                        members.insert(name, member);
                        continue;
                    }
                    let shown = self.hide(&name);
                    found |= shown != name;
                    members.insert(shown, member);
                }
                found
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::error::CallErrorCode;

    use super::*;

    fn hidden(json: &str) -> Option<String> {
        let secrets = ["hunter2", "4711", "line one\nline \"two\"!", "a\"b\\c"];
        let secrets = secrets.map(Secret::new);
        let values = HiddenValues(Redactor::new(&secrets));
        let hidden = values.hide_in_json(json.as_bytes())?;
        Some(String::from_utf8(hidden).expect("was text"))
    }

    #[test]
    fn a_failure_is_told_without_values() {
        let values = HiddenValues(Redactor::new(&[Secret::new("hunter2")]));
        let mut error = CallError::new(CallErrorCode::InternalError, "no hunter2");
        let details = r#"{"traceback":"x = \"hunter2\"\n"}"#.to_owned();
        error.details = RawValue::from_string(details).ok();
        let hidden = values.hide_in_error(error);
        assert_eq!(hidden.message, "no [redacted]");
        let details = hidden.details.expect("details");
        assert_eq!(details.get(), r#"{"traceback":"x = \"[redacted]\"\n"}"#);
    }

    #[test]
    fn a_value_is_hidden_in_large_json_without_parsing_it() {
        let values = HiddenValues(Redactor::new(&["hunter2", "a\"b\\c"].map(Secret::new)));
        let hidden = values.hide_in_large_json(br#"{"data":"x hunter2 a\"b\\c"}"#);
        let hidden = String::from_utf8(hidden.expect("found")).expect("was text");
        assert_eq!(hidden, r#"{"data":"x [redacted] [redacted]"}"#);
        assert_eq!(values.hide_in_large_json(br#"{"data":"\n"}"#), None);
    }

    #[test]
    fn a_value_is_hidden_wherever_it_stands_in_json() {
        for (json, shown) in [
            (r#"{"a":["x hunter2"]}"#, r#"{"a":["x [redacted]"]}"#),
            (r#"{"hunter2":1}"#, r#"{"[redacted]":1}"#),
            ("4711", r#""[redacted]""#),
            (
                r#""line one\nline \"two\"!""#,
                r#""[redacted]\n[redacted]""#,
            ),
            (r#""a\"b\\c""#, r#""[redacted]""#),
            (r#""\u0068unter2""#, r#""[redacted]""#),
            ("hunter2 {", "[redacted] {"),
            (
                r#"{"id":4711,"error":{"code":4711,"message":"is 4711","data":4711}}"#,
                r#"{"error":{"code":4711,"data":"[redacted]","message":"is [redacted]"},"id":4711}"#,
            ),
            (
                r#"{"type":{"hunter2":"hunter2"}}"#,
                r#"{"type":{"[redacted]":"[redacted]"}}"#,
            ),
        ] {
            assert_eq!(hidden(json).as_deref(), Some(shown), "{json}");
        }
        for json in [
            r#"{"id":4711,"type":"hunter2"}"#,
            r#"{"b":1.50,"a":9007199254740993,"c":null}"#,
            "",
            "{",
        ] {
            assert_eq!(hidden(json), None, "{json}");
        }
    }
}
