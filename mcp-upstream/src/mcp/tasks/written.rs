//! Tasks as both eras write them.

use std::sync::Arc;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_sessions::interaction::Interaction;
use tooldock_sessions::tasks::{StoredTask, TaskOutcome, TaskRecord, TaskStatus};

use super::POLL_INTERVAL;
use super::running::TaskView;
use crate::format::{self, ResultFormat, ResultWriter};
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::mcp::modern::put_request;
use tooldock_engine::upstream::CallContext;

/// Key in the metadata of a result or a request of 2025-11-25 that names its task.
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Writes the response to the request that began a task.
pub(super) fn created(cx: &CallContext<'_>, id: &str, task: &StoredTask) -> Vec<u8> {
    let format = cx.result_format();
    let ResultFormat::Modern(modern) = &format else {
        let mut answer = ResultWriter::begin(id, &format, 256);
        put(answer.key("task"), &legacy(&task.record));
        return answer.end();
    };
    let mut out = Vec::with_capacity(512);
    format::begin(&mut out, id);
    out.extend_from_slice(b"{\"resultType\":\"task\"");
    for (key, value) in fields(&task.record, true) {
        out.push(b',');
        format::escape(&mut out, key.as_bytes());
        out.push(b':');
        put(&mut out, &value);
    }
    out.extend_from_slice(b",\"_meta\":{");
    modern.meta(&mut out);
    out.extend_from_slice(b"}}}");
    out
}

/// Writes the response to `tasks/get`.
pub(super) fn state(cx: &CallContext<'_>, id: &str, task: &TaskView) -> Vec<u8> {
    let format = cx.result_format();
    let modern = cx.client.is_modern();
    let size = task.outcome.as_ref().map_or(0, TaskOutcome::bytes);
    let mut answer = ResultWriter::begin(id, &format, 512 + size);
    for (key, value) in fields(&task.record, modern) {
        put(answer.key(key), &value);
    }
    if !modern {
        return answer.end();
    }
    if task.record.status == TaskStatus::InputRequired {
        requests(answer.key("inputRequests"), &task.questions);
    }
    match &task.outcome {
        Some(TaskOutcome::Result(result)) => {
            let whole = [MemberEdit::Set("resultType", "\"complete\"".into())];
            let result = spans::edit(result, &whole);
            answer.key("result").extend_from_slice(result.as_bytes());
        }
        Some(TaskOutcome::Error(error)) => {
            answer.key("error").extend_from_slice(error.as_bytes());
        }
        None => {}
    }
    answer.end()
}

/// Writes the response to `tasks/result` of 2025-11-25: the result of the tool, or its error.
pub(super) fn result(id: &str, task: &TaskRecord, outcome: &TaskOutcome) -> Vec<u8> {
    match outcome {
        TaskOutcome::Result(result) => format::raw_result(id, related(result, &task.id).as_bytes()),
        TaskOutcome::Error(error) => {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes()
        }
    }
}

/// Adds the metadata that names a task to a result, or to the parameters of a request.
pub(super) fn related(object: &str, task: &str) -> String {
    let object = if object.trim().is_empty() {
        "{}"
    } else {
        object
    };
    let related = json!({ "taskId": task }).to_string();
    let meta = spans::find(object, "_meta").filter(|meta| meta.starts_with('{'));
    let related = [MemberEdit::Set(RELATED, related.into())];
    let meta = spans::edit(meta.unwrap_or("{}"), &related);
    spans::edit(object, &[MemberEdit::Set("_meta", meta.into())])
}

/// Writes the response to `tasks/list`.
pub(super) fn list(cx: &CallContext<'_>, id: &str, tasks: &[TaskRecord]) -> Vec<u8> {
    let format = cx.result_format();
    let mut answer = ResultWriter::begin(id, &format, 256 * tasks.len());
    let all: Vec<_> = tasks.iter().map(legacy).collect();
    put(answer.key("tasks"), &Value::from(all));
    answer.end()
}

/// Writes the response to a request that only needs an acknowledgement, or, to a client of 2025-11-25, the task.
pub(super) fn acknowledged(cx: &CallContext<'_>, id: &str, task: &TaskView) -> Vec<u8> {
    match cx.client.is_modern() {
        true => ResultWriter::begin(id, &cx.result_format(), 0).end(),
        false => state(cx, id, task),
    }
}

fn legacy(task: &TaskRecord) -> Value {
    let fields = fields(task, false).into_iter();
    fields.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The fields of a task. The names of durations differ between the eras.
fn fields(task: &TaskRecord, modern: bool) -> Vec<(&'static str, Value)> {
    let (ttl, interval) = match modern {
        true => ("ttlMs", "pollIntervalMs"),
        false => ("ttl", "pollInterval"),
    };
    let mut fields = vec![
        ("taskId", Value::from(&*task.id)),
        ("status", task.status.as_str().into()),
        ("createdAt", date(task.created).into()),
        ("lastUpdatedAt", date(task.updated).into()),
        (ttl, task.ttl.into()),
        (interval, json!(POLL_INTERVAL.as_millis())),
    ];
    if let Some(message) = &task.message {
        fields.push(("statusMessage", message.as_str().into()));
    }
    fields
}

/// Writes open questions as the object `inputRequests`.
fn requests(out: &mut Vec<u8>, questions: &[Arc<Interaction>]) {
    out.push(b'{');
    let questions = questions.iter().filter_map(|it| it.question());
    for (position, question) in questions.enumerate() {
        if position > 0 {
            out.push(b',');
        }
        put_request(out, question);
    }
    out.push(b'}');
}

fn put(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, value).expect("a value serializes into memory");
}

/// A time in milliseconds of Unix time, as an ISO date.
fn date(millis: u64) -> String {
    let date = OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
    let date = date.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    date.format(&Rfc3339).unwrap_or_default()
}
