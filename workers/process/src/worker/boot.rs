//! Lines that a worker sends without a call: first its declarations, or the reason why it cannot start; later its reports.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::issue::Issue;
use tooldock_base::prompt::Prompt;
use tooldock_base::redactor::Redactor;
use tooldock_base::resource::{Resource, ResourceTemplate};
use tooldock_base::tool::Tool;

use super::blocked::{BlockedLoop, BlockingCall};
use super::{Declarations, SourceFile, WorkerSpec};
use crate::child::output::printable_text;

/// Prefix of a worker's lines that are messages to the gateway; other lines are output of its tools.
pub(super) const OP_PREFIX: &[u8] = b"{\"op\"";

/// A message that a worker sends without a call: on its standard output, or as the first line of a connection.
#[derive(Debug)]
pub(super) enum Announcement {
    Ready {
        generation: u64,
        declared: Declarations,
    },
    /// The worker cannot start; the error is the reason.
    Failed(CallError),
    /// The worker asks to be replaced, for the given reason.
    Recycle { reason: String },
    /// The worker's event loop is blocked by a function.
    Blocked(BlockedLoop),
    /// The worker's event loop is no longer blocked.
    Unblocked,
    /// Number of calls that waited for more than a second for a thread, since the previous such report.
    Waited { count: u64 },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadyLine {
    op: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    generation: Option<u64>,
    #[serde(default)]
    tools: Vec<Arc<Tool>>,
    #[serde(default)]
    resources: Vec<Arc<Resource>>,
    #[serde(default)]
    resource_templates: Vec<Arc<ResourceTemplate>>,
    #[serde(default)]
    prompts: Vec<Arc<Prompt>>,
    #[serde(default)]
    completions: bool,
    #[serde(default)]
    issues: Vec<IssueLine>,
    #[serde(default)]
    files: Vec<SourceFile>,
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    request: String,
    #[serde(default)]
    place: String,
    #[serde(default)]
    id: Option<u64>,
    #[serde(default, rename = "running_ms")]
    running_ms: u64,
    #[serde(default)]
    count: u64,
}

/// Maximum length of each logged text of a report (a tool's name, a request id, a source file), in characters.
const REPORTED_MAX: usize = 200;

#[derive(Deserialize)]
struct IssueLine {
    code: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    message: String,
}

/// Reads a message of the worker. `None` for other lines, for instance output of a tool.
///
/// A message that is not valid counts as a failed start, whether the worker's runtime sent it or a tool that imitates the
/// runtime.
pub(super) fn read(line: &[u8], spec: &WorkerSpec) -> Option<Announcement> {
    #[derive(Deserialize)]
    struct Op<'a> {
        #[serde(borrow)]
        op: std::borrow::Cow<'a, str>,
    }
    let op = serde_json::from_slice::<Op<'_>>(line).ok()?.op;
    const KNOWN: [&str; 6] = [
        "ready",
        "failed",
        "recycle",
        "blocked",
        "unblocked",
        "waited",
    ];
    if !KNOWN.contains(&&*op) {
        return None;
    }
    let senseless = |what: &str| {
        Announcement::Failed(CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!(
                "the worker of namespace {} announced itself wrongly: {what}",
                spec.namespace
            ),
        ))
    };
    let line = match serde_json::from_slice::<ReadyLine>(line) {
        Ok(line) => line,
        Err(error) => return Some(senseless(&error.to_string())),
    };
    // Errors of an import may quote a secret, and the caller of the reload sees them, so secrets are removed.
    let redactor = Redactor::new(&spec.hidden);
    let hide = |text: String| {
        let hidden = redactor.hide(text.into_bytes(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    };
    Some(match line.op.as_str() {
        "failed" => Announcement::Failed(failure(&line.code, hide(line.message), spec)),
        "recycle" => Announcement::Recycle {
            reason: hide(line.reason).chars().take(200).collect(),
        },
        "blocked" => {
            let shown = |text: String| {
                let text: String = hide(text).chars().take(REPORTED_MAX).collect();
                printable_text(&text)
            };
            let running = Duration::from_millis(line.running_ms);
            let now = Instant::now();
            Announcement::Blocked(BlockedLoop {
                subject: shown(line.subject),
                place: shown(line.place),
                request: line.request,
                call: line.id.map(|id| BlockingCall {
                    id,
                    began: now.checked_sub(running).unwrap_or(now),
                }),
            })
        }
        "unblocked" => Announcement::Unblocked,
        "waited" => Announcement::Waited { count: line.count },
        _ => {
            if line
                .namespace
                .is_some_and(|name| name != spec.namespace.as_str())
            {
                return Some(senseless("it serves another namespace"));
            }
            let Some(generation) = line.generation else {
                return Some(senseless("it names no generation"));
            };
            Announcement::Ready {
                generation,
                declared: Declarations {
                    tools: line.tools,
                    resources: line.resources,
                    resource_templates: line.resource_templates,
                    prompts: line.prompts,
                    completions: line.completions,
                    issues: line
                        .issues
                        .into_iter()
                        .map(|line| Issue {
                            message: hide(line.message.clone()),
                            ..issue(line)
                        })
                        .collect(),
                    files: line.files,
                },
            }
        }
    })
}

/// The error of a worker that reports a failed start. Only a missing dependency is permanent; after any other error the start is
/// retried.
fn failure(code: &str, message: String, spec: &WorkerSpec) -> CallError {
    let code = match CallErrorCode::from_worker(code) {
        CallErrorCode::DependencyError => CallErrorCode::DependencyError,
        _ => CallErrorCode::WorkerUnavailable,
    };
    let message = if message.is_empty() {
        format!("the worker of namespace {} could not start", spec.namespace)
    } else {
        message
    };
    CallError::new(code, message)
}

fn issue(line: IssueLine) -> Issue {
    // Error codes that the loader of the worker's runtime reports.
    const KNOWN: [&str; 11] = [
        "dependency_error",
        "duplicate_prompt",
        "duplicate_resource",
        "duplicate_tool",
        "exit_at_import",
        "import_error",
        "import_timeout",
        "invalid_prompt",
        "invalid_resource",
        "invalid_skill",
        "invalid_tool",
    ];
    Issue {
        code: KNOWN
            .into_iter()
            .find(|known| *known == line.code)
            .unwrap_or("worker_issue"),
        subject: line.subject,
        message: line.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(line: &str) -> Option<Announcement> {
        read(line.as_bytes(), &super::super::tests::spec())
    }

    #[test]
    fn a_ready_line_declares_tools_with_their_schemas_verbatim_and_issues_by_known_code() {
        let line = r#"{"op": "ready", "namespace": "demo", "generation": 7, "tools": [
            {"name": "t", "description": "d", "inputSchema": {"type": "object",  "x": 1.0}, "filename": "a.py"}],
            "issues": [{"code": "import_error", "subject": "b.py", "message": "no"}, {"code": "odd"}], "new": 1}"#;
        let Some(Announcement::Ready {
            generation,
            declared,
        }) = announced(line)
        else {
            panic!("not ready");
        };
        assert_eq!(generation, 7);
        assert_eq!(&*declared.tools[0].name, "t");
        assert_eq!(
            declared.tools[0].input_schema.get(),
            r#"{"type": "object",  "x": 1.0}"#
        );
        assert_eq!(declared.issues[0].code, "import_error");
        assert_eq!(declared.issues[1].code, "worker_issue");
    }

    #[test]
    fn a_ready_line_declares_resources_templates_prompts_and_completion() {
        let line = r#"{"op":"ready","namespace":"demo","generation":7,
            "tools":[{"name":"t","inputSchema":{},"context":true,"icons":[{"src":"a"}]},{"name":"u","inputSchema":{}}],
            "resources":[{"definition":{"uri":"a://b","name":"b"},"filename":"r.py","context":true}],
            "resourceTemplates":[{"definition":{"uriTemplate":"a://{x}","name":"x"},"filename":"r.py","context":false}],
            "prompts":[{"definition":{"name":"p"},"filename":"p.py","context":false}],"completions":true}"#;
        let Some(Announcement::Ready { declared, .. }) = announced(line) else {
            panic!("not ready");
        };
        assert!(declared.tools[0].context && !declared.tools[1].context);
        let icons = declared.tools[0].icons.as_ref().expect("given");
        assert_eq!(icons.get(), r#"[{"src":"a"}]"#);
        assert_eq!(&*declared.resources[0].uri, "a://b");
        assert!(declared.resources[0].context);
        assert_eq!(&*declared.resource_templates[0].uri_template, "a://{x}");
        assert_eq!(&*declared.prompts[0].name, "p");
        assert!(declared.completions);
    }

    #[test]
    fn a_failed_line_carries_its_message_and_only_a_dependency_keeps_its_code() {
        let failed = |line| match announced(line) {
            Some(Announcement::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        let error = failed(r#"{"op":"failed","code":"dependency_error","message":"pydantic < 2"}"#);
        assert_eq!(
            (error.code, &*error.message),
            (CallErrorCode::DependencyError, "pydantic < 2")
        );
        let error = failed(r#"{"op":"failed","code":"whatever"}"#);
        assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
        assert!(error.message.contains("demo"));
    }

    #[test]
    fn secrets_that_an_import_quotes_are_hidden_in_issues_and_failures() {
        let mut spec = super::super::tests::spec();
        spec.hidden = vec![tooldock_base::secret::Secret::new("hunter2")];
        let line = r#"{"op":"ready","namespace":"demo","generation":7,"issues":[
            {"code":"import_error","subject":"a.py","message":"ValueError: hunter2"}]}"#;
        let Some(Announcement::Ready { declared, .. }) = read(line.as_bytes(), &spec) else {
            panic!("not ready");
        };
        assert_eq!(declared.issues[0].message, "ValueError: [redacted]");
        let line = r#"{"op":"failed","code":"x","message":"no hunter2"}"#;
        let Some(Announcement::Failed(error)) = read(line.as_bytes(), &spec) else {
            panic!("not failed");
        };
        assert_eq!(error.message, "no [redacted]");
    }

    #[test]
    fn a_blocked_loop_is_told_with_its_call_and_fit_for_a_log_line() {
        let mut spec = super::super::tests::spec();
        spec.hidden = vec![tooldock_base::secret::Secret::new("hunter2")];
        let read = |line: &str| read(line.as_bytes(), &spec);
        let line = r#"{"op":"blocked","subject":"spin\n","request":"r-1","place":"hunter2.py:3 in spin","id":65536,
            "running_ms":2100}"#;
        let Some(Announcement::Blocked(blocked)) = read(line) else {
            panic!("not blocked");
        };
        assert_eq!(
            (&*blocked.subject, &*blocked.request, &*blocked.place),
            ("spin\\n", "r-1", "[redacted].py:3 in spin")
        );
        let call = blocked.call.expect("a call");
        assert_eq!(call.id, 65536);
        assert!(call.began.elapsed() >= Duration::from_millis(2100));
        let Some(Announcement::Blocked(blocked)) =
            read(r#"{"op":"blocked","place":"a.py:1 in f"}"#)
        else {
            panic!("not blocked");
        };
        assert_eq!(
            (blocked.call, &*blocked.named()),
            (None, "work that a call left behind")
        );
        assert!(matches!(
            read(r#"{"op":"unblocked"}"#),
            Some(Announcement::Unblocked)
        ));
        assert!(matches!(
            read(r#"{"op":"waited","count":3}"#),
            Some(Announcement::Waited { count: 3 })
        ));
    }

    #[test]
    fn lines_that_make_no_sense_are_output_or_a_failed_start() {
        for line in [
            "",
            "hello",
            "{\"op\":1}",
            "{\"op\":\"dance\"}",
            "{\"op\":\"ready\"",
            "[]",
        ] {
            assert!(announced(line).is_none(), "{line}");
        }
        for line in [
            r#"{"op":"ready","namespace":"demo","tools":[]}"#,
            r#"{"op":"ready","namespace":"other","generation":7}"#,
            r#"{"op":"ready","namespace":"demo","generation":7,"tools":[{"name":1}]}"#,
            r#"{"op":"ready","namespace":"demo","generation":7,"prompts":[{"definition":{}}]}"#,
        ] {
            assert!(
                matches!(announced(line), Some(Announcement::Failed(_))),
                "{line}"
            );
        }
    }
}
