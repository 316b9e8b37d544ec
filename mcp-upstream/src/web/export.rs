//! `/api/activity/export`: records of the audit log as a file, one JSON object per line or as CSV.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::activity::{FOUND_MAX, Filter, LogPosition, cursor, folder, page, reading};
use super::answer::{Answer, WebFailure};
use super::request::ApiRequest;
use crate::mcp::Core;
use crate::reply::{Head, Reply};

/// Default and maximum number of records in one exported file.
const RECORDS: usize = 10_000;
const RECORDS_MAX: usize = 100_000;
/// Size of an exported file in bytes at which the file ends.
const BYTES_MAX: usize = FOUND_MAX;
/// Maximum number of reads of the audit log for one file. Each read covers at most 64 MiB of the log.
const READS_MAX: usize = 16;
/// Minimum number of records that one read of the audit log requests, unless the file needs fewer.
const AT_ONCE: usize = 1000;
/// Maximum number of concurrent exports, each of which needs memory and a thread. Further ones are refused.
static WRITERS: Semaphore = Semaphore::const_new(2);
/// Response header with the cursor at which the next file begins; absent if there are no more records.
const NEXT: HeaderName = HeaderName::from_static("x-next-cursor");

/// The columns of an exported CSV file, in order. Arguments are exported only in the format of JSON lines.
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

/// Format of an exported file.
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

/// Writes a cell of CSV. Text that a spreadsheet would evaluate as a formula gets a leading apostrophe, since clients choose
/// names freely.
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

/// Responds with a file of the records that match the query, newest first.
pub(super) async fn export(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let format = ExportFormat::of(request)?;
    let file = ExportFile {
        filter: Filter::of(request)?,
        format,
        limit: limit(request)?,
        reads: READS_MAX,
    };
    let before = cursor(request)?;
    let folder = folder(core)?;
    let permit = permit()?;
    // Dropped together with the request. The reads of the log end when it is dropped, that is, when the client disconnects.
    let client = Arc::new(());
    let watched = Arc::downgrade(&client);
    let written = reading(move || {
        // The permit is released when the reads end. They may continue for one page after the client has disconnected.
        let _permit = permit;
        file.written(&folder, before, &watched)
    })
    .await;
    drop(client);
    let (text, next) = written?;
    let mut head = Head::new(StatusCode::OK)
        .with(CONTENT_TYPE, format.media_type())
        .with(CONTENT_DISPOSITION, format.disposition());
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next.to_string()).ok()) {
        head = head.with(NEXT, next);
    }
    let body = text.into();
    Ok(Reply::Full { head, body })
}

/// Returns a permit to write an export.
///
/// # Errors
///
/// 429 if the maximum number of exports are running.
fn permit() -> Result<SemaphorePermit<'static>, WebFailure> {
    WRITERS.try_acquire().map_err(|_| {
        WebFailure::rate_limited("Other exports are being written; try again in a few seconds.")
    })
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

/// An exported file that a client has requested.
struct ExportFile {
    filter: Filter,
    format: ExportFormat,
    /// Maximum number of records in the file.
    limit: usize,
    /// Maximum number of reads of the audit log for the file.
    reads: usize,
}

impl ExportFile {
    /// Writes the file, with the records before a position. Returns the position at which the next file begins, if records may
    /// remain. Ends early if `client` is dropped.
    fn written(
        &self,
        folder: &Path,
        before: Option<LogPosition>,
        client: &Weak<()>,
    ) -> io::Result<(String, Option<LogPosition>)> {
        let mut text = self.format.head();
        let (mut next, mut left) = (before, self.limit);
        // Number of records per read, large enough for the permitted number of reads to reach the limit of records.
        let at_once = AT_ONCE.max(self.limit.div_ceil(self.reads));
        for _ in 0..self.reads {
            if client.strong_count() == 0 {
                break;
            }
            let (records, position) = page(folder, next, &self.filter, left.min(at_once))?;
            left -= records.len();
            next = position;
            for record in &records {
                self.format.push(&mut text, record);
                if text.len() >= BYTES_MAX {
                    // The next file begins with the records before this one.
                    let place = record["id"].as_str().and_then(LogPosition::parse);
                    return Ok((text, place));
                }
            }
            if next.is_none() || left == 0 {
                break;
            }
        }
        Ok((text, next))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http::header::RETRY_AFTER;
    use serde_json::json;

    use super::super::answer::sealed;
    use super::*;

    fn exported(
        folder: &Path,
        before: Option<LogPosition>,
        limit: usize,
    ) -> (String, Option<LogPosition>) {
        let client = Arc::new(());
        let file = lines(limit, READS_MAX);
        let watched = Arc::downgrade(&client);
        file.written(folder, before, &watched).expect("read")
    }

    fn lines(limit: usize, reads: usize) -> ExportFile {
        ExportFile {
            filter: Filter::default(),
            format: ExportFormat::JsonLines,
            limit,
            reads,
        }
    }

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
        let (first, next) = exported(folder.path(), None, 1500);
        assert_eq!(first.lines().count(), 1500);
        assert!(first.contains("\"n\":2499}") && !first.contains("\"n\":999}"));
        let (rest, end) = exported(folder.path(), next, 1500);
        assert_eq!((rest.lines().count(), end), (1000, None));
    }

    #[test]
    fn a_file_ends_at_the_record_that_fills_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let padding = "x".repeat(200_000);
        let lines: String = (0..120)
            .map(|number| format!("{{\"n\":{number},\"padding\":\"{padding}\"}}\n"))
            .collect();
        fs::write(folder.path().join("2026-11-23.jsonl"), lines).expect("written");
        let (first, next) = exported(folder.path(), None, RECORDS_MAX);
        assert!((BYTES_MAX..BYTES_MAX + 201_000).contains(&first.len()));
        let (rest, end) = exported(folder.path(), next, RECORDS_MAX);
        assert_eq!(end, None);
        let numbers: Vec<_> = (first + &rest)
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["n"].as_u64())
            .collect();
        assert_eq!(numbers, (0..120).rev().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_takes_no_more_reads_than_permitted_and_none_for_a_client_that_left() {
        // A read ends after 64 MiB without a record, and the hole in this file has none.
        const READ: u64 = 64 * 1024 * 1024;
        let folder = tempfile::tempdir().expect("a folder");
        let log = fs::File::create(folder.path().join("2026-11-23.jsonl")).expect("a file");
        log.set_len(3 * READ).expect("a long file");
        let file = lines(RECORDS_MAX, 2);
        let client = Arc::new(());
        let read = file.written(folder.path(), None, &Arc::downgrade(&client));
        let (text, next) = read.expect("read");
        assert_eq!(text, "");
        let place = next.map(|it| it.to_string());
        assert_eq!(place, Some(format!("2026-11-23-{READ}")));
        let read = file.written(folder.path(), next, &Weak::new());
        assert_eq!(read.expect("read"), (String::new(), next));
    }

    #[test]
    fn a_third_file_at_the_same_time_is_refused_until_another_is_written() {
        let (first, _second) = (permit().expect("free"), permit().expect("free"));
        let refused = permit().expect_err("none is free");
        assert_eq!(refused.code(), "rate_limited");
        let reply = sealed(Err(refused));
        assert_eq!(reply.head().status, StatusCode::TOO_MANY_REQUESTS);
        let mut headers = reply.head().headers.iter();
        assert!(headers.any(|(name, value)| *name == RETRY_AFTER && value == "5"));
        drop(first);
        assert!(permit().is_ok());
    }
}
