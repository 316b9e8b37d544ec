//! `POST /output`: the last lines that the processes of a namespace printed, with tracebacks of its tools, in the format of the
//! log. Access is controlled as for `/reload`.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json as value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_base::names::NamespaceName;
use tooldock_process::child::output::{RecentLine, SHOWN_LINES, SHOWN_LINES_MAX};
use tooldock_workers::registry::{UpstreamKind, startup};

use super::json;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;

/// Maximum size of the text of all lines in one response, in bytes. Older lines are omitted.
const BYTES_MAX: usize = 64 * 1024;

/// The parameters of a `POST /output`.
#[derive(Debug, PartialEq, Eq)]
struct OutputWanted {
    namespace: NamespaceName,
    /// Maximum number of lines to show; the newest lines are shown.
    lines: usize,
}

impl OutputWanted {
    /// Reads the parameters from the body of a request. The error is a sentence that names the wrong key.
    fn read(body: &[u8]) -> Result<Self, &'static str> {
        let members: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|_| "the body must be a JSON object with namespace and lines")?;
        if members
            .keys()
            .any(|key| key != "namespace" && key != "lines")
        {
            return Err("the body has a member that is neither namespace nor lines");
        }
        let namespace = members.get("namespace").and_then(Value::as_str);
        let namespace = namespace.and_then(|name| name.parse().ok());
        let lines = match members.get("lines") {
            None | Some(Value::Null) => Some(SHOWN_LINES),
            Some(lines) => lines.as_u64(),
        };
        let lines = lines.filter(|lines| (1..=SHOWN_LINES_MAX).contains(lines));
        Ok(Self {
            namespace: namespace.ok_or("namespace must be the name of a namespace")?,
            lines: lines
                .and_then(|lines| usize::try_from(lines).ok())
                .ok_or("lines must be a whole number from 1 to 500")?,
        })
    }
}

/// Answers `POST /output` with the last lines that a namespace printed, oldest first.
pub(crate) async fn output(core: &Core, body: Bytes) -> Reply {
    let OutputWanted { namespace, lines } = match OutputWanted::read(&body) {
        Ok(wanted) => wanted,
        Err(error) => {
            let message = format!("The question is not understood: {error}");
            return error::rest_plain(StatusCode::BAD_REQUEST, "bad_request", &message);
        }
    };
    if core.registry.awaits(&namespace) {
        return error::rest_starting(&startup::starting(&namespace));
    }
    let Some(served) = core.registry.namespace(namespace.as_str()) else {
        let message = format!(
            "The core serves no namespace {namespace}; list_namespaces shows those there are, and reload_core serves a new one"
        );
        return error::rest_plain(StatusCode::NOT_FOUND, "namespace_not_found", &message);
    };
    let Some(output) = core.upstreams.of(&served).operations().output(&served) else {
        let message = match served.upstream {
            UpstreamKind::Remote(_) => {
                format!("{namespace} is reached over HTTP: the server has its output")
            }
            UpstreamKind::Aggregate(_) => {
                format!("{namespace} stands for several servers, which have their own output")
            }
            UpstreamKind::Failed(_) => format!(
                "{namespace} could not be loaded, and no process of it prints: reload_core says why, and so does test_tool"
            ),
            _ => format!("{namespace} has no tools, and no process that prints"),
        };
        return error::rest_plain(StatusCode::NOT_FOUND, "no_output", &message);
    };
    let kept = output.after(0);
    let mut bytes = 0;
    let newest = kept.iter().rev().take(lines).take_while(|line| {
        bytes += line.text.len();
        bytes <= BYTES_MAX
    });
    let mut shown: Vec<_> = newest.map(line).collect();
    shown.reverse();
    json(&value!({
        "namespace": namespace,
        "left_out": kept.len() - shown.len(),
        "lines": shown,
    }))
}

/// Returns a printed line as JSON, for operators and management tools.
pub(crate) fn line(line: &RecentLine) -> Value {
    let at = OffsetDateTime::from(line.at).format(&Rfc3339);
    value!({
        "number": line.number,
        "ts": at.unwrap_or_default(),
        "pid": line.pid,
        "stream": line.stream.as_str(),
        "text": &*line.text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_body_is_refused_in_words_and_the_number_of_lines_is_bounded() {
        let lines = |body: &str| OutputWanted::read(body.as_bytes()).map(|wanted| wanted.lines);
        for (body, read) in [
            (r#"{"namespace":"a"}"#, 50),
            (r#"{"namespace":"a","lines":null}"#, 50),
            (r#"{"namespace":"a","lines":500}"#, 500),
        ] {
            assert_eq!(lines(body), Ok(read), "{body}");
        }
        for (body, why) in [
            (r#"{"namespace":"a","lines":501}"#, "from 1 to 500"),
            (r#"{"namespace":"a","lines":0}"#, "from 1 to 500"),
            (r#"{"namespace":"a","lines":-1}"#, "from 1 to 500"),
            (r#"{"namespace":"a","lines":"5"}"#, "from 1 to 500"),
            (r#"{"lines":5}"#, "namespace must be"),
            (r#"{"namespace":7}"#, "namespace must be"),
            (
                r#"{"namespace":"a","line":5}"#,
                "neither namespace nor lines",
            ),
            ("[]", "JSON object"),
            ("", "JSON object"),
        ] {
            let error = lines(body).expect_err(body);
            assert!(error.contains(why), "{body}: {error}");
        }
    }
}
