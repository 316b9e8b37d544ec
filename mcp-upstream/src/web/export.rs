//! `/api/activity/export`: records of the audit log as a file, one JSON object per line or as CSV.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::{io, mem};

use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::activity::{Filter, LogPosition, cursor, folder, page, reading};
use super::answer::{Answer, WebFailure};
use super::request::ApiRequest;
use crate::mcp::Core;
use crate::reply::{Head, Reply};

/// Default and maximum number of records in one file.
const RECORDS: usize = 10_000;
const RECORDS_MAX: usize = 100_000;
/// Size of a file at which it ends, in bytes.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of reads of the log for one file, each of at most 64 MiB.
const READS_MAX: usize = 16;
/// Number of records of one read.
const AT_ONCE: usize = 1000;
/// Header with the cursor of the next file, if there are more records.
const NEXT: HeaderName = HeaderName::from_static("x-next-cursor");

/// The columns of CSV, in order. Arguments are in JSON lines alone.
const COLUMNS: [&str; 17] = [
    "ts",
    "namespace",
    "via",
    "tool",
    "method",
    "subject",
    "status",
    "http_status",
    "latency_ms",
    "principal",
    "token_id",
    "client",
    "transport",
    "protocol_version",
    "session",
    "request_id",
    "id",
];

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExportFormat {
    JsonLines,
    Csv,
}

impl ExportFormat {
    fn of(request: &ApiRequest) -> Result<Self, WebFailure> {
        match request.parameter("format") {
            None | Some("jsonl") => Ok(Self::JsonLines),
            Some("csv") => Ok(Self::Csv),
            Some(_) => Err(WebFailure::invalid("format", "format must be jsonl or csv")),
        }
    }

    fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::JsonLines => "application/jsonl",
            Self::Csv => "text/csv; charset=utf-8",
        })
    }

    fn disposition(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::JsonLines => "attachment; filename=\"audit.jsonl\"",
            Self::Csv => "attachment; filename=\"audit.csv\"",
        })
    }

    fn head(self) -> String {
        match self {
            Self::JsonLines => String::new(),
            Self::Csv => COLUMNS.join(",") + "\r\n",
        }
    }

    fn push(self, text: &mut String, record: &Value) {
        match self {
            // Writing to a string cannot fail.
            Self::JsonLines => {
                let _ = writeln!(text, "{record}");
            }
            Self::Csv => {
                for (index, column) in COLUMNS.iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    push_cell(text, &record[column]);
                }
                text.push_str("\r\n");
            }
        }
    }
}

/// Writes a cell of CSV. Names come from clients: a text that a spreadsheet would compute gets an apostrophe before it.
fn push_cell(text: &mut String, value: &Value) {
    let cell = match value {
        Value::Null => return,
        Value::String(cell) => cell.clone(),
        other => other.to_string(),
    };
    let is_formula = value.is_string() && cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let needs_quotes = cell.contains(['"', ',', '\n', '\r']) || is_formula;
    if !needs_quotes {
        text.push_str(&cell);
        return;
    }
    text.push('"');
    if is_formula {
        text.push('\'');
    }
    text.push_str(&cell.replace('"', "\"\""));
    text.push('"');
}

/// Answers with a file of the records that fit the query, newest first.
pub(super) async fn export(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let filter = Filter::of(request)?;
    let format = ExportFormat::of(request)?;
    let limit = limit(request)?;
    let before = cursor(request)?;
    let folder = folder(core)?;
    let written = reading(move || written(&folder, before, &filter, format, limit)).await?;
    let (text, next) = written;
    let mut head = Head::new(StatusCode::OK)
        .with(CONTENT_TYPE, format.media_type())
        .with(CONTENT_DISPOSITION, format.disposition());
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next.to_string()).ok()) {
        head = head.with(NEXT, next);
    }
    let body = text.into();
    Ok(Reply::Full { head, body })
}

fn limit(request: &ApiRequest) -> Result<usize, WebFailure> {
    let Some(text) = request.parameter("limit") else {
        return Ok(RECORDS);
    };
    let limit = text.parse().ok();
    let limit = limit.filter(|limit| (1..=RECORDS_MAX).contains(limit));
    limit.ok_or_else(|| {
        let message = format!("limit must be a number from 1 to {RECORDS_MAX}");
        WebFailure::invalid("limit", message)
    })
}

/// The file, and the position of the next one if records may be left.
fn written(
    folder: &Path,
    before: Option<LogPosition>,
    filter: &Filter,
    format: ExportFormat,
    limit: usize,
) -> io::Result<(String, Option<LogPosition>)> {
    let mut text = format.head();
    let (mut next, mut left) = (before, limit);
    for _ in 0..READS_MAX.max(limit.div_ceil(AT_ONCE)) {
        let (records, position) = page(folder, mem::take(&mut next), filter, left.min(AT_ONCE))?;
        left -= records.len();
        for record in &records {
            format.push(&mut text, record);
        }
        next = position;
        if next.is_none() || left == 0 || text.len() >= BYTES_MAX {
            break;
        }
    }
    Ok((text, next))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_quoted_and_no_text_is_a_formula() {
        let mut text = String::new();
        let record = json!({"ts": "t", "tool": "=1+1", "subject": "a \"b\", c", "latency_ms": -1});
        ExportFormat::Csv.push(&mut text, &record);
        assert_eq!(text, "t,,,\"'=1+1\",,\"a \"\"b\"\", c\",,,-1,,,,,,,,\r\n");
    }

    #[test]
    fn a_file_ends_at_its_limit_and_the_next_goes_on_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines: String = (0..2500)
            .map(|number| format!("{{\"n\":{number}}}\n"))
            .collect();
        fs::write(folder.path().join("2026-11-23.jsonl"), lines).expect("written");
        let export = |before, limit| {
            let filter = Filter::default();
            written(
                folder.path(),
                before,
                &filter,
                ExportFormat::JsonLines,
                limit,
            )
            .expect("read")
        };
        let (first, next) = export(None, 1500);
        assert_eq!(first.lines().count(), 1500);
        assert!(first.contains("\"n\":2499}") && !first.contains("\"n\":999}"));
        let (rest, end) = export(next, 1500);
        assert_eq!((rest.lines().count(), end), (1000, None));
    }
}
