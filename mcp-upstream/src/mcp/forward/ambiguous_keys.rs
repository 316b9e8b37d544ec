//! Keys that one reader takes for another's: `Name` beside `name`.
//!
//! What goes by a name here is read by its exact spelling, and members nobody here knows pass as they are. Some servers
//! read keys whatever their case, the last one winning (Go's `encoding/json` does): for them `Name` would be the tool,
//! and `Method` another message than the one that was judged. So a key that differs from a known name only in case is
//! refused. Only the levels are looked at whose names mean something to the protocol.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::memchr;
use tooldock_workers::json;

use crate::jsonrpc::{RequestError, splice};
use crate::stdio::process::tasks::RELATED_TASK;

/// Longer raw keys are none of the names: the longest, each of its letters as `\u` and four digits.
const RAW_MAX: usize = 6 * RELATED_TASK.len();

/// An object of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Message,
    Params,
    Meta,
    RelatedTask,
}

impl Level {
    /// What means something there.
    const fn known(self) -> &'static [&'static str] {
        match self {
            Self::Message => &["jsonrpc", "id", "method", "params", "result", "error"],
            Self::Params => &[
                "name",
                "arguments",
                "uri",
                "cursor",
                "_meta",
                "requestId",
                "progressToken",
                "requestState",
                "inputResponses",
                "level",
                "task",
                "ref",
                "argument",
                "taskId",
            ],
            Self::Meta => &["progressToken", RELATED_TASK],
            Self::RelatedTask => &["taskId"],
        }
    }

    /// The object below it that is looked at, too.
    const fn below(self) -> Option<(&'static str, Self)> {
        match self {
            Self::Message => Some(("params", Self::Params)),
            Self::Params => Some(("_meta", Self::Meta)),
            Self::Meta => Some((RELATED_TASK, Self::RelatedTask)),
            Self::RelatedTask => None,
        }
    }

    /// The known name that a key is, decoded. `quoted` is raw JSON.
    fn name(self, quoted: &str) -> Result<Option<&'static str>, RequestError> {
        let inner = quoted.strip_prefix('"');
        let raw = inner.and_then(|it| it.strip_suffix('"'));
        let raw = raw.unwrap_or_default();
        if raw.is_empty() || raw.len() > RAW_MAX {
            return Ok(None);
        }
        let plain = raw.is_ascii() && !raw.contains('\\');
        if plain {
            let known = self.known().iter().copied();
            let mut alike = known.filter(|known| raw.eq_ignore_ascii_case(known));
            return match alike.next() {
                Some(known) if raw == known => Ok(Some(known)),
                Some(known) => Err(self.refused(raw, known)),
                None => Ok(None),
            };
        }
        // What cannot be decoded is none of them.
        let Ok(key) = serde_json::from_str::<Cow<'_, str>>(quoted) else {
            return Ok(None);
        };
        let mut known = self.known().iter().copied();
        match known.find(|known| known.chars().map(folded).eq(key.chars().map(folded))) {
            Some(known) if key == known => Ok(Some(known)),
            Some(known) => Err(self.refused(&key, known)),
            None => Ok(None),
        }
    }

    fn too_many(self) -> RequestError {
        let more = format!("has more than {MEMBERS_MAX} members");
        match self {
            Self::Message => RequestError::Shape(format!("the message {more}").into()),
            Self::Params => RequestError::InvalidParams(format!("params {more}").into()),
            Self::Meta | Self::RelatedTask => {
                RequestError::InvalidParams(format!("params._meta {more}").into())
            }
        }
    }

    fn refused(self, key: &str, known: &str) -> RequestError {
        let differs = format!("{key:?} differs from {known} only in case");
        match self {
            Self::Message => RequestError::Shape(differs.into()),
            Self::Params => RequestError::InvalidParams(format!("params: {differs}").into()),
            Self::Meta | Self::RelatedTask => {
                RequestError::InvalidParams(format!("params._meta: {differs}").into())
            }
        }
    }
}

/// A character without its case, as far as readers go: beside the letters of ASCII those that become one of them, the long
/// s, the Kelvin sign, and both Turkish i.
fn folded(character: char) -> char {
    match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        '\u{130}' | '\u{131}' => 'i',
        other => other.to_ascii_lowercase(),
    }
}

/// What was seen of the parameters of a message on the way, so that they are not read again for it.
#[derive(Debug, Default)]
pub(super) struct KeyScan<'a> {
    /// They may name a task.
    pub(super) names_task: bool,
    /// They may hold one of the names that are unique on a link ([`splice::Names`]).
    pub(super) may_name: bool,
    /// Keys and values, raw.
    members: Vec<(&'a str, &'a str)>,
}

impl<'a> KeyScan<'a> {
    /// The members of the parameters, decoded keys and raw values. `None` where a key is there twice, or cannot be
    /// decoded: which of them another reader takes is not known.
    pub(super) fn members(&self) -> Option<Vec<(Cow<'a, str>, &'a str)>> {
        /// So few are compared with each other.
        const FEW: usize = 8;
        let members: Option<Vec<_>> = self
            .members
            .iter()
            .map(|(key, value)| Some((string(key)?, *value)))
            .collect();
        let members = members?;
        let mut keys = members.iter().map(|(key, _)| key);
        let unique = if members.len() <= FEW {
            let earlier = |at: usize, key| members[..at].iter().any(|(other, _)| other == key);
            !keys.enumerate().any(|(at, key)| earlier(at, key))
        } else {
            let mut seen = HashSet::new();
            keys.all(|key| seen.insert(key))
        };
        unique.then_some(members)
    }
}

/// The text of a raw JSON string. `None` for any other value.
pub(super) fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// Members that a message, its `params`, and `_meta` in them may have: they are noted here or where they are rewritten, so
/// that a body full of empty names would take many times its size.
const MEMBERS_MAX: usize = 1024;

/// Refuses a message that holds a key which differs from a known name only in case. `message` has been read as JSON.
///
/// # Errors
///
/// Names the key: `Shape` for one of the message itself, `InvalidParams` for one below, or for too many of them.
pub(super) fn check(message: &str) -> Result<KeyScan<'_>, RequestError> {
    let mut text = Text {
        text: message,
        at: 0,
        seen: KeyScan::default(),
    };
    text.object(Level::Message)?;
    Ok(text.seen)
}

/// The same for a message that has no answer. Refusing it is refusing its POST, for which all reasons are one.
///
/// # Errors
///
/// As for [`check`], but always `Shape`.
pub(crate) fn check_unanswered(message: &str) -> Result<(), RequestError> {
    check(message).map(drop).map_err(|failure| match failure {
        RequestError::InvalidParams(reason) => RequestError::Shape(reason),
        other => other,
    })
}

/// JSON that is known to be some, read once from its beginning. Anything else is refused, or read somehow and ends.
struct Text<'a> {
    text: &'a str,
    at: usize,
    seen: KeyScan<'a>,
}

impl<'a> Text<'a> {
    /// Reads an object and looks at its keys; any other value is passed over.
    fn object(&mut self, level: Level) -> Result<(), RequestError> {
        self.space();
        if self.peek() != Some(b'{') {
            return self.value();
        }
        self.at += 1;
        let mut members = 0;
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {}
                Some(b',') => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.at += 1;
                    return Ok(());
                }
            }
            let start = self.at;
            self.value()?;
            let text: &'a str = self.text;
            let key = text.get(start..self.at).unwrap_or_default();
            let name = level.name(key)?;
            self.space();
            // The colon.
            self.at += 1;
            let begin = self.at;
            self.seen.names_task |= matches!(name, Some("taskId" | RELATED_TASK));
            match level.below() {
                Some((below, level)) if name == Some(below) => self.object(level)?,
                _ => self.value()?,
            }
            members += 1;
            if members > MEMBERS_MAX {
                return Err(level.too_many());
            }
            if level == Level::Params {
                let value = text.get(begin..self.at).unwrap_or_default();
                let value = value.trim_ascii();
                self.seen.members.push((key, value));
                match name {
                    Some("progressToken" | "requestId") => self.seen.may_name = true,
                    Some("_meta") => self.seen.may_name |= splice::may_have(value),
                    _ => {}
                }
            }
        }
    }

    /// Passes over a value, with the white space before it.
    fn value(&mut self) -> Result<(), RequestError> {
        let end = json::value_end(self.text, self.at);
        self.at = end.map_err(|_| RequestError::Shape("the message cannot be read".into()))?;
        Ok(())
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The code of the refusal, and what it says.
    fn refusal(message: &str) -> Option<(i32, String)> {
        let (code, reason) = match check(message) {
            Ok(_) => return None,
            Err(RequestError::Shape(reason)) => (-32600, reason),
            Err(RequestError::InvalidParams(reason)) => (-32602, reason),
            Err(other) => panic!("{other:?}"),
        };
        Some((code, reason.into_owned()))
    }

    #[test]
    fn there_is_an_end_to_the_members_that_are_noted() {
        let object = |members: usize| {
            let members = vec!["\"\":1"; members].join(",");
            format!("{{{members}}}")
        };
        for (whole, code, what) in [
            ("MANY", -32600, "the message has"),
            (r#"{"params":MANY,"id":1}"#, -32602, "params has"),
            (r#"{"params":{"_meta":MANY}}"#, -32602, "params._meta has"),
        ] {
            let message = |members: usize| whole.replace("MANY", &object(members));
            assert_eq!(refusal(&message(MEMBERS_MAX)), None);
            let (refused, reason) = refusal(&message(MEMBERS_MAX + 1)).expect("refused");
            assert_eq!(refused, code);
            assert!(reason.contains(what) && reason.contains("1024"), "{reason}");
        }
    }

    #[test]
    fn what_differs_from_a_known_name_only_in_case_is_refused_wherever_it_stands() {
        for (message, code, key, known) in [
            (r#"{"method":"a","Method":"b"}"#, -32600, "Method", "method"),
            (r#"{ "ID" :1,"id":2}"#, -32600, "ID", "id"),
            (
                r#"{"x":[{"y":"}"}],"JSONRPC":1}"#,
                -32600,
                "JSONRPC",
                "jsonrpc",
            ),
            (
                r#"{"id":1,"result":{},"Params":{}}"#,
                -32600,
                "Params",
                "params",
            ),
            (r#"{"params":{"Name":"denied"}}"#, -32602, "Name", "name"),
            (
                r#"{"params":{"name":"ok","NAME":"no"}}"#,
                -32602,
                "NAME",
                "name",
            ),
            (
                r#"{"params":{"arguments":{"a":1},"URI":""}}"#,
                -32602,
                "URI",
                "uri",
            ),
            (
                r#"{"params":{"RequestId":1}}"#,
                -32602,
                "RequestId",
                "requestId",
            ),
            (r#"{"params":{"_META":{}}}"#, -32602, "_META", "_meta"),
            (
                r#"{"params":{"_meta":{"a":{},"ProgressToken":1}}}"#,
                -32602,
                "ProgressToken",
                "progressToken",
            ),
            (r#"{"params":{"TaskID":"t"}}"#, -32602, "TaskID", "taskId"),
            (
                r#"{"params":{"_meta":{"io.modelcontextprotocol/Related-Task":{}}}}"#,
                -32602,
                "io.modelcontextprotocol/Related-Task",
                "io.modelcontextprotocol/related-task",
            ),
            (
                r#"{"params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskid":"t"}}}}"#,
                -32602,
                "taskid",
                "taskId",
            ),
        ] {
            let (got, reason) = refusal(message).unwrap_or_else(|| panic!("{message}"));
            assert_eq!(got, code, "{message}");
            let differs = format!("{key:?} differs from {known} only in case");
            assert!(reason.ends_with(&differs), "{reason}");
        }
    }

    #[test]
    fn keys_are_compared_as_they_are_meant() {
        for key in [
            "requeſtId",
            "requestState".replace('S', "\u{17f}").as_str(),
            "progressTo\u{212a}en",
            "progressTo\u{212a}En",
            r"\u004eame",
            r"n\u0041me",
            r"cur\u017for",
            r"tas\u212A",
            r"progre\u017f\u017fTo\u212aen",
            "ur\u{131}",
            r"UR\u0130",
        ] {
            let message = format!(r#"{{"params":{{"x":1,"{key}":2}}}}"#);
            assert_eq!(refusal(&message).map(|it| it.0), Some(-32602), "{message}");
        }
        // The known names themselves, however they are spelled.
        let fine = r#"{"m\u0065thod":"x","p\u0061rams":{"n\u0061me":"a","\u005fmeta":{"progress\u0054oken":1}}}"#;
        assert_eq!(refusal(fine), None);
        let below = fine.replace(r"progress\u0054oken", r"progress\u0074oken");
        assert_eq!(refusal(&below).map(|it| it.0), Some(-32602));
    }

    #[test]
    fn what_is_read_of_the_parameters_is_seen_however_it_is_spelled() {
        for (params, names_task, may_name) in [
            (
                r#"{"name":"n","arguments":{"taskId":"t","progressToken":1}}"#,
                false,
                false,
            ),
            (r#"{"t\u0061skId":"t","_meta":{}}"#, true, false),
            (
                r#"{"_meta":{"io.modelcontextprotocol\/related-t\u0061sk":{}}}"#,
                true,
                true,
            ),
            (r#"{"_meta": {"progress\u0054oken":1} }"#, false, true),
            (r#"{"_meta":{"progressToken":1},"_meta":{}}"#, false, true),
            (r#"{"requestId":1}"#, false, true),
            (r#"[{"taskId":1}]"#, false, false),
        ] {
            let message = format!(r#"{{"method":"m","params":{params}}}"#);
            let seen = check(&message).expect("nothing alike");
            let noted = (seen.names_task, seen.may_name);
            assert_eq!(noted, (names_task, may_name), "{params}");
        }
    }

    fn members(params: &str) -> Option<Vec<(String, String)>> {
        let message = format!(r#"{{"method":"m","params":{params},"id":1}}"#);
        let members = check(&message).expect("nothing alike").members()?;
        Some(
            members
                .into_iter()
                .map(|(key, value)| (key.into_owned(), value.to_owned()))
                .collect(),
        )
    }

    #[test]
    fn members_are_found_once_each_with_their_values_untouched() {
        let many: Vec<_> = (0..20).map(|key| format!(r#""k{key}":{key}"#)).collect();
        let many = many.join(",");
        for twice in [
            r#"{"a":1,"\u0061":2}"#.to_owned(),
            r#"{"a":1,"b":{},"a":2}"#.to_owned(),
            r#"{"\ud800":1}"#.to_owned(),
            format!(r#"{{{many},"k\u0033":1}}"#),
        ] {
            assert_eq!(members(&twice), None, "{twice}");
        }
        assert_eq!(members(&format!("{{{many}}}")).map(|it| it.len()), Some(20));
        let spelled = r#"{ "n\u0061me" : "\u0041, }" , "arguments":{"a":[1.50 ]} ,"x": "\\" }"#;
        let found = [
            ("name", r#""\u0041, }""#),
            ("arguments", r#"{"a":[1.50 ]}"#),
            ("x", r#""\\""#),
        ];
        let found = found.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(members(spelled), Some(found.to_vec()));
        assert_eq!(members("[]"), Some(Vec::new()));
    }

    #[test]
    fn what_the_protocol_does_not_know_there_passes() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"n","arguments":{"Name":1,"NAME":2,"_meta":{"ProgressToken":1}}}}"#,
            r#"{"Name":1,"Meta":{"Method":1},"result":{"Method":1,"Id":2}}"#,
            r#"{"params":{"Method":1,"Id":2,"names":3,"nam":4,"":5,"\ud800ame":6,"é":7,"\"":8}}"#,
            r#"{"params":{"x":"\"Name\":","y":"{\"Name\":1}","z":["Name",{"Name":1}]}}"#,
            r#"{"params":{"_meta":{"Name":1,"io.modelcontextprotocol/logLevel":"info"}}}"#,
            r#"{"params":[{"Name":1}]}"#,
            r#"{"params":{},"x":{"params":{"Name":1}}}"#,
            "{}",
            "[]",
            "3",
        ] {
            assert_eq!(refusal(message), None, "{message}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic_or_go_on_for_ever(text in r#"[{}\[\]",:\\ nNſ]{0,40}"#) {
            let _ = check(&text);
        }

        #[test]
        fn members_are_those_that_the_parser_finds(
            keys in prop::collection::vec(r#"[a-cé"\\ ]{0,3}"#, 0..4),
            value in r#"[a-zé\\"{}\[\],: ]{0,10}"#,
        ) {
            let value = serde_json::json!([value, { value.as_str(): 1 }]).to_string();
            let entry = |key: &String| format!("{} : {value} ", serde_json::json!(key));
            let all: Vec<_> = keys.iter().map(entry).collect();
            let params = format!("{{{}}}", all.join(" ,"));
            let message = format!(r#"{{"params":{params}}}"#);
            let seen = check(&message).expect("nothing alike");
            let raw: &serde_json::value::RawValue = serde_json::from_str(&params).expect("JSON");
            let parsed = crate::jsonrpc::entries(raw).map(|entries| {
                entries.into_iter().map(|(key, value)| (key, value.get())).collect::<Vec<_>>()
            });
            prop_assert_eq!(seen.members(), parsed);
        }

        #[test]
        fn a_key_is_found_behind_any_value(value in r#"[a-zé\\"{}\[\],: ]{0,20}"#) {
            let value = serde_json::Value::from(value).to_string();
            let message = format!(r#"{{"a":[{value},{{"b":{value}}}],"params":{{{value}:{value},"Name":0}}}}"#);
            prop_assert!(check(&message).is_err());
        }
    }
}
