//! `POST /output`: the last lines that the processes of a namespace printed, tracebacks of its tools among them, as the log
//! has them. Its controls are those of `/reload`.

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json as value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::process::output::RecentLine;
use tooldock_workers::registry::UpstreamKind;

use super::json;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;

/// The most bytes of text in one answer. The oldest lines are left out.
const BYTES_MAX: usize = 64 * 1024;

/// The body of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputWanted {
    /// The namespace.
    pub(crate) namespace: NamespaceName,
    /// The most lines, from the newest back.
    pub(crate) lines: usize,
}

/// Answers with the last lines, oldest first.
pub(crate) async fn output(core: &Core, body: Bytes) -> Reply {
    let OutputWanted { namespace, lines } = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => {
            let message = format!("The question is not understood: {error}");
            return error::rest_plain(StatusCode::BAD_REQUEST, "bad_request", &message);
        }
    };
    let Some(served) = core.registry.namespace(namespace.as_str()) else {
        let message = format!(
            "The core serves no namespace {namespace}; after reload_core it does, if it can"
        );
        return error::rest_plain(StatusCode::NOT_FOUND, "namespace_not_found", &message);
    };
    let Some(output) = core.upstreams.of(&served).output(&served) else {
        let message = match served.upstream {
            UpstreamKind::Remote(_) => {
                format!("{namespace} is reached over HTTP: the server has its output")
            }
            UpstreamKind::Aggregate(_) => {
                format!("{namespace} stands for several servers, which have their own output")
            }
            _ => format!("{namespace} has no process that prints; /ready says why"),
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

/// A line as operators and management tools are shown it.
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
