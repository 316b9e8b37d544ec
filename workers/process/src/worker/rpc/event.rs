//! Parsing of a worker's line about a running call: progress, a log message, a changed list, questions. This module changes no
//! state; open questions and sinks are handled in `rpc` and `question`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::frame::{Frame, is_object, slice};
use crate::worker::{AskMethod, LogLevel, Notice, Question};

/// Maximum length of the key of a worker's question, in characters.
const KEY_MAX: usize = 256;

/// A question that a worker sent, or the reason why it cannot be asked.
#[derive(Debug)]
pub(super) enum FrameQuestion {
    Question(Question),
    /// An invalid question with a key: the waiting function gets an error for this key.
    Refused {
        key: Arc<str>,
        why: &'static str,
    },
    /// An invalid question without a key: no error can be sent to the waiting function.
    Senseless,
}

/// Returns the params of a progress report; `None` if they are not a JSON object.
pub(super) fn progress(frame: &Frame<'_>, line: &Bytes) -> Option<Bytes> {
    object(frame.params?, line)
}

/// Returns the level and the params of a log message; `None` if they are not valid.
pub(super) fn log(frame: &Frame<'_>, line: &Bytes) -> Option<(LogLevel, Bytes)> {
    #[derive(Deserialize)]
    struct LogParams<'a> {
        #[serde(borrow)]
        level: Cow<'a, str>,
        // The JSON field `data` must be present, with any value, because clients do not accept a log message without it.
        #[serde(borrow, rename = "data")]
        _data: &'a RawValue,
    }
    let params = object(frame.params?, line)?;
    let level = serde_json::from_slice::<LogParams<'_>>(&params).ok()?.level;
    Some((level.parse().ok()?, params))
}

/// Returns the number of messages that the worker reports as dropped.
pub(super) fn dropped(frame: &Frame<'_>) -> Option<u64> {
    #[derive(Deserialize)]
    struct DroppedParams {
        count: u64,
    }
    let params = frame.params.filter(|params| is_object(params))?;
    let params: DroppedParams = serde_json::from_str(params.get()).ok()?;
    Some(params.count)
}

/// Returns the change that a function reports.
pub(super) fn notice(frame: &Frame<'_>) -> Option<Notice> {
    #[derive(Deserialize)]
    struct ResourceParams<'a> {
        #[serde(borrow)]
        uri: Cow<'a, str>,
    }
    let method = serde_json::from_str::<Cow<'_, str>>(frame.method?.get()).ok()?;
    Some(match &*method {
        "notifications/tools/list_changed" => Notice::ToolsChanged,
        "notifications/prompts/list_changed" => Notice::PromptsChanged,
        "notifications/resources/list_changed" => Notice::ResourcesChanged,
        "notifications/resources/updated" => {
            let params = frame.params.filter(|params| is_object(params))?;
            let params: ResourceParams<'_> = serde_json::from_str(params.get()).ok()?;
            Notice::ResourceUpdated {
                uri: params.uri.into(),
            }
        }
        _ => return None,
    })
}

/// The questions of a frame, each validated separately. `None` if it contains no list of questions.
pub(super) fn questions(frame: &Frame<'_>) -> Option<Vec<FrameQuestion>> {
    let list: Vec<&RawValue> = serde_json::from_str(frame.questions?.get()).ok()?;
    if list.is_empty() {
        return None;
    }
    Some(list.into_iter().map(question).collect())
}

fn question(raw: &RawValue) -> FrameQuestion {
    #[derive(Deserialize)]
    struct QuestionMembers<'a> {
        #[serde(borrow)]
        key: Cow<'a, str>,
        #[serde(borrow, default)]
        method: Option<&'a RawValue>,
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
    }
    if !is_object(raw) {
        return FrameQuestion::Senseless;
    }
    let Ok(members) = serde_json::from_str::<QuestionMembers<'_>>(raw.get()) else {
        return FrameQuestion::Senseless;
    };
    let key: Arc<str> = members.key.into();
    let refused = |why| FrameQuestion::Refused {
        key: Arc::clone(&key),
        why,
    };
    if key.is_empty() || key.chars().count() > KEY_MAX {
        return refused("the key of a question must have 1 to 256 characters");
    }
    let method = members
        .method
        .and_then(|method| serde_json::from_str::<Cow<'_, str>>(method.get()).ok())
        .and_then(|method| AskMethod::from_method(&method));
    let Some(method) = method else {
        return refused("a client cannot be asked this");
    };
    let params = match members.params {
        None => Bytes::from_static(b"{}"),
        // Copied, because a question may wait for minutes and must not keep the reader's larger buffer in memory.
        Some(params) if is_object(params) => Bytes::copy_from_slice(params.get().as_bytes()),
        Some(_) => return refused("the params of a question must be an object"),
    };
    FrameQuestion::Question(Question {
        key,
        method,
        params,
    })
}

fn object(value: &RawValue, line: &Bytes) -> Option<Bytes> {
    is_object(value).then(|| slice(line, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on<T>(line: &str, read: impl FnOnce(&Frame<'_>, &Bytes) -> T) -> T {
        let line = Bytes::copy_from_slice(line.as_bytes());
        let frame = Frame::parse(&line).expect("an object");
        read(&frame, &line)
    }

    #[test]
    fn a_log_message_keeps_its_bytes_and_needs_a_known_level_and_data() {
        let line = r#"{"op":"log","id":1,"params":{"level":"warning",  "data": null}}"#;
        let (level, params) = on(line, log).expect("a message");
        assert_eq!(level, LogLevel::Warning);
        assert_eq!(params, r#"{"level":"warning",  "data": null}"#);
        for params in [
            r#"{"level":"loud","data":1}"#,
            r#"{"level":"info"}"#,
            r#"{"data":1}"#,
            r#"{"level":3,"data":1}"#,
            r#"["info",1]"#,
            "null",
        ] {
            let line = format!(r#"{{"op":"log","id":1,"params":{params}}}"#);
            assert!(on(&line, log).is_none(), "{params}");
        }
        assert!(on(r#"{"op":"log","id":1}"#, log).is_none());
    }

    #[test]
    fn the_worker_says_how_many_messages_it_left_out() {
        let count = |params: &str| {
            let line = format!(r#"{{"op":"dropped","id":1,"params":{params}}}"#);
            dropped(&Frame::parse(line.as_bytes()).expect("a frame"))
        };
        assert_eq!(count(r#"{"count":3}"#), Some(3));
        for params in [r#"{"count":-1}"#, "[3]", "3", "{}"] {
            assert_eq!(count(params), None, "{params}");
        }
    }

    #[test]
    fn a_progress_report_is_an_object() {
        let line = r#"{"op":"progress","id":1,"params": {"progress": 1}}"#;
        assert_eq!(on(line, progress).expect("a report"), r#"{"progress": 1}"#);
        for line in [r#"{"op":"progress","params":[1]}"#, r#"{"op":"progress"}"#] {
            assert!(on(line, progress).is_none(), "{line}");
        }
    }

    #[test]
    fn four_notices_are_known_and_an_update_names_its_resource() {
        let read = |method: &str, params: &str| {
            let line = format!(r#"{{"op":"notify","id":1,"method":{method}{params}}}"#);
            on(&line, |frame, _| notice(frame))
        };
        for known in [
            Notice::ToolsChanged,
            Notice::PromptsChanged,
            Notice::ResourcesChanged,
        ] {
            let method = format!("{:?}", known.method());
            assert_eq!(read(&method, ""), Some(known));
        }
        let updated = r#""notifications/resources/updated""#;
        let uri = "a://b".into();
        assert_eq!(
            read(updated, r#","params":{"uri":"a:\/\/b"}"#),
            Some(Notice::ResourceUpdated { uri })
        );
        for params in [
            "",
            r#","params":{}"#,
            r#","params":{"uri":1}"#,
            r#","params":["a"]"#,
        ] {
            assert_eq!(read(updated, params), None, "{params}");
        }
        assert_eq!(read(r#""notifications/cancelled""#, ""), None);
        assert_eq!(read("1", ""), None);
    }

    #[test]
    fn each_question_is_judged_by_itself() {
        let long = "k".repeat(257);
        let line = format!(
            r#"{{"op":"ask","id":1,"questions":[
                {{"key":"a","method":"roots/list"}},
                {{"key":"b","method":"sampling/createMessage","params":{{"maxTokens": 5}}}},
                {{"key":"c","method":"tools/call","params":{{}}}},
                {{"key":"d","method":"elicitation/create","params":[]}},
                {{"key":"","method":"roots/list"}},
                {{"key":"{long}","method":"roots/list"}},
                {{"key":"e"}},
                {{"key":7,"method":"roots/list"}},
                ["f","roots/list"],
                null]}}"#
        )
        .replace('\n', " ");
        let asked = on(&line, |frame, _| questions(frame)).expect("a list");
        let told: Vec<_> = asked
            .iter()
            .map(|asked| match asked {
                FrameQuestion::Question(question) => (
                    Some(&*question.key),
                    Some((
                        question.method,
                        std::str::from_utf8(&question.params).unwrap(),
                    )),
                ),
                FrameQuestion::Refused { key, .. } => (Some(&**key), None),
                FrameQuestion::Senseless => (None, None),
            })
            .collect();
        assert_eq!(
            told,
            [
                (Some("a"), Some((AskMethod::Roots, "{}"))),
                (Some("b"), Some((AskMethod::Sample, r#"{"maxTokens": 5}"#))),
                (Some("c"), None),
                (Some("d"), None),
                (Some(""), None),
                (Some(&*long), None),
                (Some("e"), None),
                (None, None),
                (None, None),
                (None, None),
            ]
        );
        for line in [
            r#"{"op":"ask","id":1}"#,
            r#"{"op":"ask","id":1,"questions":[]}"#,
            r#"{"op":"ask","id":1,"questions":{"key":"a"}}"#,
        ] {
            assert!(on(line, |frame, _| questions(frame)).is_none(), "{line}");
        }
    }
}
