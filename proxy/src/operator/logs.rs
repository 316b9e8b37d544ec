//! `tooldock logs`: prints the output of a namespace's processes and the gateway's records of its calls, in order of time.

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value;
use tooldock_process::child::output::printable_text;

use super::Outcome;
use super::client::{EventSource, GatewayClient, NamedEvent};
use super::gateway::RunningGateway;
use super::output;
use super::status::{list, word};
use crate::cli::LogsArgs;

/// Error code of the gateway for a namespace whose output is not recorded.
const NO_OUTPUT: &str = "no_output";

pub(super) async fn run(arguments: LogsArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    let namespace = arguments.namespace.as_ref().map(|name| name.as_str());
    let of_namespace: Vec<_> = namespace
        .map(|name| ("namespace", name))
        .into_iter()
        .collect();
    // The stream is opened before the stored records are read, so that no record between the two is lost.
    let mut records = match arguments.follow {
        true => Some(
            client
                .events(&["operator", "activity", "events"], &of_namespace)
                .await?,
        ),
        false => None,
    };
    let limit = arguments.lines.to_string();
    let mut query = vec![("limit", &*limit)];
    let printed = match namespace {
        Some(name) => {
            let path = ["operator", "namespaces", name, "output"];
            client.json_unless(NO_OUTPUT, &path, &query).await?
        }
        None => None,
    };
    query.extend(&of_namespace);
    let kept = client
        .json(Method::GET, &["operator", "activity"], &query)
        .await?;
    let lines = printed.as_ref().map(|it| list(&it["lines"]));
    let lines = lines.unwrap_or_default();
    let mut entries: Vec<LogEntry> = list(&kept["records"])
        .iter()
        .map(LogEntry::Record)
        .collect();
    entries.extend(
        lines
            .iter()
            .map(|line| LogEntry::Line(line, namespace.unwrap_or_default())),
    );
    entries.sort_by(|one, other| one.time().cmp(other.time()));
    let shown = entries.len().saturating_sub(usize::from(arguments.lines));
    for entry in &entries[shown..] {
        if !output::show(&entry.text(arguments.json)) {
            return Ok(());
        }
    }
    let Some(records) = &mut records else {
        return Ok(());
    };
    let seen = list(&kept["records"])
        .iter()
        .map(|it| word(&it["id"]).to_owned());
    let newest = lines.last().and_then(|line| line["number"].as_u64());
    let after = newest.unwrap_or_default().to_string();
    let lines = match (namespace, printed.is_some()) {
        (Some(name), true) => {
            let path = ["operator", "namespaces", name, "output", "events"];
            Some(client.events(&path, &[("after", &*after)]).await?)
        }
        _ => None,
    };
    let followed = Followed {
        client: &client,
        lines,
        seen: seen.collect(),
        namespace: namespace.unwrap_or_default(),
        as_json: arguments.json,
    };
    followed.show(records).await
}

/// The streams of `tooldock logs --follow`.
struct Followed<'a> {
    client: &'a GatewayClient,
    lines: Option<EventSource<'a>>,
    /// Ids of records that were already printed and may be sent again by the stream.
    seen: BTreeSet<String>,
    namespace: &'a str,
    as_json: bool,
}

impl Followed<'_> {
    /// Prints records as they arrive. Ends when standard output has been closed, or when the gateway ends a stream.
    async fn show(mut self, records: &mut EventSource<'_>) -> Outcome {
        loop {
            let of_lines = async {
                match &mut self.lines {
                    Some(lines) => lines.next().await,
                    None => std::future::pending().await,
                }
            };
            let (event, is_line) = tokio::select! {
                event = records.next() => (event?, false),
                event = of_lines => (event?, true),
            };
            let Some(event) = event else {
                return Err(self.client.gone("it has ended the stream"));
            };
            let Some(text) = self.text(&event, is_line) else {
                continue;
            };
            if !output::show(&text) {
                return Ok(());
            }
        }
    }

    fn text(&mut self, (name, data): &NamedEvent, is_line: bool) -> Option<String> {
        match &**name {
            "line" if is_line => Some(LogEntry::Line(data, self.namespace).text(self.as_json)),
            "record" if !self.seen.remove(word(&data["id"])) => {
                Some(LogEntry::Record(data).text(self.as_json))
            }
            "skipped" => {
                let count = &data["count"];
                eprintln!("tooldock: {count} records are not shown, since too many came at once");
                None
            }
            _ => None,
        }
    }
}

/// An entry in the output of `tooldock logs`.
enum LogEntry<'a> {
    /// A line of output of a process, and the name of its namespace.
    Line(&'a Value, &'a str),
    /// The gateway's record of a call or of a change.
    Record(&'a Value),
}

impl LogEntry<'_> {
    fn value(&self) -> &Value {
        match self {
            Self::Line(value, _) | Self::Record(value) => value,
        }
    }

    /// The entry's time as text. Comparing the texts sorts entries by time, up to the second.
    fn time(&self) -> &str {
        word(&self.value()["ts"])
    }

    fn text(&self, as_json: bool) -> String {
        if as_json {
            return output::json_line(self.value());
        }
        let time = self.time();
        let line = match self {
            Self::Line(line, namespace) => {
                let pid = line["pid"].as_u64();
                let pid = pid.map_or(String::new(), |pid| format!("[{pid}]"));
                let (stream, text) = (word(&line["stream"]), word(&line["text"]));
                format!("{time} {namespace}{pid} {stream}: {text}")
            }
            Self::Record(record) => {
                let subject = record["tool"].as_str().or(record["subject"].as_str());
                let method = record["method"]
                    .as_str()
                    .filter(|_| record["tool"].is_null());
                let principal = record["principal"].as_str();
                let parts = [
                    Some(word(&record["namespace"]).to_owned()),
                    method.map(str::to_owned),
                    subject.map(str::to_owned),
                    Some(word(&record["status"]).to_owned()),
                    record["latency_ms"].as_f64().map(|ms| format!("{ms} ms")),
                    principal.map(|it| format!("principal={it}")),
                    record["request_id"]
                        .as_str()
                        .map(|it| format!("request={it}")),
                ];
                let parts: Vec<_> = parts
                    .into_iter()
                    .flatten()
                    .filter(|it| !it.is_empty())
                    .collect();
                format!("{time} {}", parts.join(" "))
            }
        };
        printable_text(&line) + "\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_and_records_are_told_in_one_line_each() {
        let line = json!({"ts": "2026-01-01T00:00:00Z", "number": 1, "pid": 7, "stream": "stderr", "text": "a\u{1b}b"});
        let text = LogEntry::Line(&line, "calc").text(false);
        assert_eq!(text, "2026-01-01T00:00:00Z calc[7] stderr: a\\u{1b}b\n");
        let record = json!({"ts": "2026-01-01T00:00:01Z", "namespace": "calc", "tool": "add", "method": "tools/call",
            "status": "ok", "latency_ms": 3, "principal": "bearer", "request_id": "r1"});
        let text = LogEntry::Record(&record).text(false);
        assert_eq!(
            text,
            "2026-01-01T00:00:01Z calc add ok 3 ms principal=bearer request=r1\n"
        );
    }
}
