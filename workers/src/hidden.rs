//! The secrets that the functions and servers of a namespace know: hidden in answers that go through a chat (SCR-14).
//!
//! Only exact copies are found. A tool that encodes a secret before it answers cannot be helped from here.

use std::sync::Arc;

use serde_json::Value;

use crate::aggregate::AggregateMember;
use crate::process::output::Redactor;
use crate::registry::{Namespace, Registry, UpstreamKind};
use crate::secrets::Secret;

/// The values of a namespace that must not show.
pub struct HiddenValues(Redactor);

impl Registry {
    /// What must not show of a namespace's secrets, every principal's personal values included.
    pub fn hidden_values(&self, namespace: &Namespace) -> HiddenValues {
        let mut values = Vec::new();
        self.collect(namespace, &mut values);
        HiddenValues(Redactor::new(&values))
    }

    fn collect(&self, namespace: &Namespace, values: &mut Vec<Secret>) {
        match &namespace.upstream {
            UpstreamKind::Worker(worker) => values.extend(worker.spec().hidden.iter().cloned()),
            UpstreamKind::External(server) => {
                values.extend(server.spec.secrets.iter().cloned());
                values.extend(server.spec.personal.of_all(self.personal()));
            }
            UpstreamKind::Remote(server) => {
                values.extend(server.spec.secrets.iter().cloned());
                values.extend(server.spec.personal.of_all(self.personal()));
            }
            UpstreamKind::Aggregate(aggregate) => {
                for member in &aggregate.members {
                    let served: Arc<Namespace>;
                    let member = match member {
                        AggregateMember::Own(own) => own,
                        AggregateMember::Served(name) => match self.namespace(name.as_str()) {
                            // An aggregate in an aggregate is none of its members: this ends.
                            Some(found) if !is_aggregate(&found) => {
                                served = found;
                                &served
                            }
                            _ => continue,
                        },
                    };
                    self.collect(member, values);
                }
            }
            UpstreamKind::Empty | UpstreamKind::System | UpstreamKind::Failed(_) => {}
        }
    }
}

fn is_aggregate(namespace: &Namespace) -> bool {
    matches!(namespace.upstream, UpstreamKind::Aggregate(_))
}

impl HiddenValues {
    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        let hidden = self.0.hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }

    /// JSON without them: in texts, names of members, and numbers that are written like one. `None` where none is in it.
    pub fn hide_in_json(&self, json: &[u8]) -> Option<Vec<u8>> {
        let Ok(mut value) = serde_json::from_slice::<Value>(json) else {
            // No JSON, then: a text.
            let hidden = self.0.hide(json.to_vec(), false);
            return (hidden != json).then_some(hidden);
        };
        self.hide_in(&mut value)
            .then(|| value.to_string().into_bytes())
    }

    /// Hides them in a value, and says whether there were any.
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
                    let shown = self.hide(&name);
                    found |= shown != name;
                    found |= self.hide_in(&mut member);
                    members.insert(shown, member);
                }
                found
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(json: &str) -> Option<String> {
        let secrets = ["hunter2", "4711", "line one\nline \"two\"!", "a\"b\\c"];
        let secrets = secrets.map(Secret::new);
        let values = HiddenValues(Redactor::new(&secrets));
        let hidden = values.hide_in_json(json.as_bytes())?;
        Some(String::from_utf8(hidden).expect("was text"))
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
        ] {
            assert_eq!(hidden(json).as_deref(), Some(shown), "{json}");
        }
        for json in [r#"{"b":1.50,"a":9007199254740993,"c":null}"#, "", "{"] {
            assert_eq!(hidden(json), None, "{json}");
        }
    }
}
