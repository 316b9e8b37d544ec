//! The lines that the gateway writes to a worker. JSON of clients and functions is copied once, into the outbox, and not
//! parsed.

use bytes::{BufMut, BytesMut};
use tooldock_base::error::CallError;

use crate::worker::{Operation, WorkerCall};

/// Id of requests whose response is ignored. Calls never have this id.
pub(super) const NO_REPLY: u64 = 0;

/// Number of bytes that are reserved for the names and punctuation around a call's variable parts.
const CALL_OVERHEAD: usize = 96;

/// Appends a call: `{"id":…,"op":"tools.call","tool":"…","arguments":{…},"request":"…","caller":{…}}` and a newline.
pub(super) fn call(buffer: &mut BytesMut, id: u64, call: &WorkerCall) {
    buffer.reserve(call.size() + CALL_OVERHEAD);
    buffer.put_slice(b"{\"id\":");
    number(buffer, id);
    match &call.operation {
        Operation::CallTool { tool, arguments } => {
            buffer.put_slice(b",\"op\":\"tools.call\",\"tool\":");
            string(buffer, tool);
            member(buffer, b",\"arguments\":", arguments);
        }
        Operation::ReadResource { uri } => {
            buffer.put_slice(b",\"op\":\"resources.read\",\"uri\":");
            string(buffer, uri);
        }
        Operation::GetPrompt { prompt, arguments } => {
            buffer.put_slice(b",\"op\":\"prompts.get\",\"prompt\":");
            string(buffer, prompt);
            member(buffer, b",\"arguments\":", arguments);
        }
        Operation::Complete { params } => {
            buffer.put_slice(b",\"op\":\"completion.complete\"");
            member(buffer, b",\"params\":", params);
        }
        Operation::ListSkills { uri } => {
            buffer.put_slice(b",\"op\":\"skills.list\"");
            if let Some(uri) = uri {
                buffer.put_slice(b",\"uri\":");
                string(buffer, uri);
            }
        }
    }
    if !call.request.is_empty() {
        buffer.put_slice(b",\"request\":");
        string(buffer, &call.request);
    }
    if let Some(trace) = &call.trace {
        buffer.put_slice(b",\"traceparent\":");
        string(buffer, &trace.parent);
        if let Some(state) = &trace.state {
            buffer.put_slice(b",\"tracestate\":");
            string(buffer, state);
        }
    }
    if let Some(caller) = &call.caller {
        member(buffer, b",\"caller\":", caller);
    }
    buffer.put_slice(b"}\n");
}

/// Appends the answer to a question of a call: `{"op":"answer","target":…,"key":"…","result":{…}}`, or `error`.
pub(super) fn answer(
    buffer: &mut BytesMut,
    target: u64,
    key: &str,
    outcome: Result<&[u8], &CallError>,
) {
    buffer.put_slice(b"{\"op\":\"answer\",\"target\":");
    number(buffer, target);
    buffer.put_slice(b",\"key\":");
    string(buffer, key);
    match outcome {
        Ok(result) => member(buffer, b",\"result\":", result),
        Err(error) => {
            buffer.put_slice(b",\"error\":{\"code\":");
            string(buffer, error.code.as_str());
            buffer.put_slice(b",\"message\":");
            string(buffer, &error.message);
            if let Some(details) = &error.details {
                member(buffer, b",\"details\":", details.get().as_bytes());
            }
            buffer.put_u8(b'}');
        }
    }
    buffer.put_slice(b"}\n");
}

/// Appends the request to cancel a call.
pub(super) fn cancel(buffer: &mut BytesMut, target: u64) {
    buffer.put_slice(b"{\"op\":\"cancel\",\"target\":");
    number(buffer, target);
    buffer.put_slice(b"}\n");
}

/// Appends a heartbeat request, which the worker answers.
pub(super) fn ping(buffer: &mut BytesMut) {
    buffer.put_slice(b"{\"id\":");
    number(buffer, NO_REPLY);
    buffer.put_slice(b",\"op\":\"ping\"}\n");
}

/// Appends the request that asks the worker to end.
pub(super) fn shutdown(buffer: &mut BytesMut) {
    buffer.put_slice(b"{\"id\":");
    number(buffer, NO_REPLY);
    buffer.put_slice(b",\"op\":\"shutdown\"}\n");
}

/// Appends a JSON field with an object as its value. Empty bytes in `json` are written as `{}`.
fn member(buffer: &mut BytesMut, name: &[u8], json: &[u8]) {
    buffer.put_slice(name);
    if json.is_empty() {
        buffer.put_slice(b"{}");
    } else {
        on_one_line(buffer, json);
    }
}

/// Copies JSON text with its line breaks replaced by spaces. In valid JSON only whitespace contains raw line breaks; in other
/// text the replacement prevents one frame from becoming two.
fn on_one_line(buffer: &mut BytesMut, mut json: &[u8]) {
    while let Some(at) = memchr::memchr2(b'\r', b'\n', json) {
        buffer.put_slice(&json[..at]);
        buffer.put_u8(b' ');
        json = &json[at + 1..];
    }
    buffer.put_slice(json);
}

fn number(buffer: &mut BytesMut, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("one digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    buffer.put_slice(&digits[at..]);
}

fn string(buffer: &mut BytesMut, text: &str) {
    serde_json::to_writer(buffer.writer(), text).expect("a string into memory");
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tooldock_base::error::CallErrorCode;
    use tooldock_base::trace::PassedTrace;

    use super::*;

    fn lines(write: impl FnOnce(&mut BytesMut)) -> Vec<String> {
        let mut buffer = BytesMut::new();
        write(&mut buffer);
        let text = String::from_utf8(buffer.to_vec()).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn asked(operation: Operation, caller: Option<&'static str>) -> WorkerCall {
        WorkerCall {
            operation,
            caller: caller.map(|caller| Bytes::from_static(caller.as_bytes())),
            maker: Default::default(),
            request: "".into(),
            max_result: 100,
            time_limit: None,
            answers: None,
            trace: None,
        }
    }

    fn tool(tool: &str, arguments: &'static str) -> Operation {
        Operation::CallTool {
            tool: tool.into(),
            arguments: Bytes::from_static(arguments.as_bytes()),
        }
    }

    #[test]
    fn a_call_is_one_line_whatever_its_name_and_whitespace() {
        let written = lines(|buffer| {
            let odd = asked(tool("a\"b\n", "{\r\n \"x\":\n\"\\n\"}"), None);
            call(buffer, 9_007_199_254_740_991, &odd);
            call(buffer, 10, &asked(tool("t", ""), None));
            cancel(buffer, 10);
            shutdown(buffer);
        });
        assert_eq!(
            written,
            [
                r#"{"id":9007199254740991,"op":"tools.call","tool":"a\"b\n","arguments":{   "x": "\n"}}"#,
                r#"{"id":10,"op":"tools.call","tool":"t","arguments":{}}"#,
                r#"{"op":"cancel","target":10}"#,
                r#"{"id":0,"op":"shutdown"}"#,
            ]
        );
    }

    #[test]
    fn a_call_names_its_request() {
        let written = lines(|buffer| {
            let mut named = asked(tool("t", "{}"), Some("{}"));
            named.request = "r\"1".into();
            call(buffer, 1, &named);
            let trace = PassedTrace {
                parent: "00-a".into(),
                state: Some("v=\"1\"".into()),
                is_own: true,
            };
            named.trace = Some(trace.into());
            call(buffer, 2, &named);
        });
        assert_eq!(
            written,
            [
                r#"{"id":1,"op":"tools.call","tool":"t","arguments":{},"request":"r\"1","caller":{}}"#,
                r#"{"id":2,"op":"tools.call","tool":"t","arguments":{},"request":"r\"1","traceparent":"00-a","tracestate":"v=\"1\"","caller":{}}"#,
            ]
        );
    }

    #[test]
    fn every_operation_has_its_own_members_and_the_caller_goes_with_it() {
        let written = lines(|buffer| {
            let caller = Some("{\"era\":\n\"legacy\"}");
            call(buffer, 1, &asked(tool("t", "{}"), caller));
            let uri = "a://\"b\"".into();
            call(buffer, 2, &asked(Operation::ReadResource { uri }, caller));
            let get = Operation::GetPrompt {
                prompt: "p".into(),
                arguments: Bytes::from_static(b"{\"a\":\"1\"}"),
            };
            call(buffer, 3, &asked(get, None));
            let params = Bytes::from_static(b"{\"ref\":{}}");
            call(buffer, 4, &asked(Operation::Complete { params }, None));
            let uri = Some("skill://a/SKILL.md".into());
            call(buffer, 5, &asked(Operation::ListSkills { uri: None }, None));
            call(buffer, 6, &asked(Operation::ListSkills { uri }, None));
        });
        assert_eq!(
            written,
            [
                r#"{"id":1,"op":"tools.call","tool":"t","arguments":{},"caller":{"era": "legacy"}}"#,
                r#"{"id":2,"op":"resources.read","uri":"a://\"b\"","caller":{"era": "legacy"}}"#,
                r#"{"id":3,"op":"prompts.get","prompt":"p","arguments":{"a":"1"}}"#,
                r#"{"id":4,"op":"completion.complete","params":{"ref":{}}}"#,
                r#"{"id":5,"op":"skills.list"}"#,
                r#"{"id":6,"op":"skills.list","uri":"skill://a/SKILL.md"}"#,
            ]
        );
    }

    #[test]
    fn an_answer_is_one_line_with_a_result_or_an_error() {
        let mut error = CallError::new(CallErrorCode::AskFailed, "a\n\"b\"");
        error.details = Some(serde_json::from_str("{\"x\":\n1}").expect("JSON"));
        let written = lines(|buffer| {
            answer(buffer, 7, "k\n1", Ok(b"{\"action\":\n\"accept\"}"));
            answer(buffer, 7, "k", Err(&error));
        });
        assert_eq!(
            written,
            [
                r#"{"op":"answer","target":7,"key":"k\n1","result":{"action": "accept"}}"#,
                r#"{"op":"answer","target":7,"key":"k","error":{"code":"ask_failed","message":"a\n\"b\"","details":{"x": 1}}}"#,
            ]
        );
    }
}
