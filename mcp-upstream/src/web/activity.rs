//! `/api/activity`: the audit log as a list, newest records first, and as a stream.
//!
//! The log files are read directly, without an index. A record is identified by the day of its file and the offset of its line.
//! This identification remains valid for as long as the file exists.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use time::format_description::well_known::Rfc3339;
use time::{Date, OffsetDateTime};
use tokio::time::MissedTickBehavior;
use tooldock_base::regular_file;
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use super::streams;
use crate::mcp::Core;

/// Maximum number of bytes of the log that are read for one page. A page that reaches it ends there, with a position from which
/// the next page continues.
const LOOK_MAX: u64 = 64 * 1024 * 1024;
/// Total size of a page's records in bytes at which the page ends.
pub(super) const FOUND_MAX: usize = 16 * 1024 * 1024;
/// Size of one read of a log file in bytes; also the maximum size of a line.
const CHUNK: u64 = 256 * 1024;
/// Interval of checks for new records.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of records that a stream sends per second.
const EVENTS_MAX: usize = 200;

/// Filter of records by the query's parameters.
#[derive(Debug, Default, Clone)]
pub(super) struct Filter {
    namespace: Option<String>,
    tool: Option<String>,
    status: Option<String>,
    principal: Option<String>,
    request_id: Option<String>,
    from: Option<OffsetDateTime>,
    to: Option<OffsetDateTime>,
}

impl Filter {
    pub(super) fn of(request: &ApiRequest) -> Result<Self, WebFailure> {
        let text = |name| request.parameter(name).map(str::to_owned);
        let time = |name| match request.parameter(name) {
            None => Ok(None),
            Some(text) => OffsetDateTime::parse(text, &Rfc3339)
                .map(Some)
                .map_err(|_| {
                    WebFailure::invalid(
                        name,
                        format!("{name} must be a time such as 2026-11-23T20:15:00Z"),
                    )
                }),
        };
        Ok(Self {
            namespace: text("namespace"),
            tool: text("tool"),
            status: text("status"),
            principal: text("principal"),
            request_id: text("request_id"),
            from: time("from")?,
            to: time("to")?,
        })
    }

    fn takes(&self, record: &Value) -> bool {
        let is = |wanted: &Option<String>, key: &str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| record[key] == wanted.as_str())
        };
        let subject = |wanted: &String| {
            let text = record["tool"].as_str().or(record["subject"].as_str());
            text.unwrap_or_default().contains(&**wanted)
        };
        let status = |wanted: &String| match wanted.as_str() {
            "error" => record["status"] != "ok",
            wanted => record["status"] == wanted,
        };
        let at = || {
            let text = record["ts"].as_str().unwrap_or_default();
            OffsetDateTime::parse(text, &Rfc3339).ok()
        };
        is(&self.namespace, "namespace")
            && is(&self.principal, "principal")
            && is(&self.request_id, "request_id")
            && self.tool.as_ref().is_none_or(subject)
            && self.status.as_ref().is_none_or(status)
            && self
                .from
                .is_none_or(|from| at().is_some_and(|at| at >= from))
            && self.to.is_none_or(|to| at().is_some_and(|at| at <= to))
    }
}

/// A position in the log: the day of a file, and the offset in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogPosition {
    day: Date,
    offset: u64,
}

impl LogPosition {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (day, offset) = text.rsplit_once('-')?;
        Some(Self {
            day: day_of(day)?,
            offset: offset.parse().ok()?,
        })
    }
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.day, self.offset)
    }
}

/// Reads a day such as `2026-11-23`; `None` for any other text.
fn day_of(text: &str) -> Option<Date> {
    let mut parts = text.splitn(3, '-');
    let year = parts.next()?.parse().ok()?;
    let month = parts.next()?.parse::<u8>().ok()?.try_into().ok()?;
    let day = Date::from_calendar_date(year, month, parts.next()?.parse().ok()?).ok()?;
    (day.to_string() == text).then_some(day)
}

fn file_of(folder: &Path, day: Date) -> PathBuf {
    folder.join(format!("{day}.jsonl"))
}

/// The folder of the audit log.
pub(super) fn folder(core: &Core) -> Result<PathBuf, WebFailure> {
    let facts = core
        .web
        .as_deref()
        .ok_or_else(WebFailure::without_management)?;
    Ok(facts.logs.clone())
}

/// Runs `read` on a thread for blocking work.
pub(super) async fn reading<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, WebFailure> {
    let done = tokio::task::spawn_blocking(read).await;
    let done = done.map_err(|_| {
        WebFailure::refused("The look into the audit log was interrupted; try again")
    })?;
    done.map_err(|error| WebFailure::refused(format!("The audit log cannot be read: {error}")))
}

/// The position before which the requested page begins; `None` for the end of the log.
pub(super) fn cursor(request: &ApiRequest) -> Result<Option<LogPosition>, WebFailure> {
    let position = request.parameter("cursor").map(LogPosition::parse);
    let wrong = || WebFailure::invalid("cursor", "cursor must be next_cursor of the page before");
    position.map(|it| it.ok_or_else(wrong)).transpose()
}

pub(super) async fn list(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let filter = Filter::of(request)?;
    let limit = request.limit()?;
    let before = cursor(request)?;
    let folder = folder(core)?;
    let (records, next) = reading(move || page(&folder, before, &filter, limit)).await?;
    let mut body = Map::new();
    body.insert("records".to_owned(), records.into());
    if let Some(next) = next {
        body.insert("next_cursor".to_owned(), next.to_string().into());
    }
    json_of(&body)
}

/// The records before a position, newest first, with the position at which the next page begins.
pub(super) fn page(
    folder: &Path,
    before: Option<LogPosition>,
    filter: &Filter,
    limit: usize,
) -> io::Result<(Vec<Value>, Option<LogPosition>)> {
    let mut days = days(folder)?;
    days.retain(|day| before.is_none_or(|before| *day <= before.day));
    let mut found = Vec::new();
    let (mut looked, mut found_bytes) = (0, 0);
    for day in days {
        let mut file = match regular_file::open(&file_of(folder, day)) {
            Ok(file) => file,
            Err(error) if is_no_log(&error) => continue,
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let mut end = match before {
            Some(before) if before.day == day => before.offset.min(length),
            _ => length,
        };
        while end > 0 {
            if looked >= LOOK_MAX {
                return Ok((found, Some(LogPosition { day, offset: end })));
            }
            let begin = end.saturating_sub(CHUNK);
            let chunk = bytes(&mut file, begin, end - begin)?;
            looked += chunk.len() as u64;
            // Bytes before the first line break belong to a line that begins in an earlier chunk of the file.
            let first = match (begin, memchr::memchr(b'\n', &chunk)) {
                (0, _) => 0,
                (_, Some(at)) if at + 1 < chunk.len() => at + 1,
                // A chunk without a complete line is skipped, since a line of the log cannot be as long as a chunk.
                _ => {
                    end = begin;
                    continue;
                }
            };
            let mut line_end = chunk.len();
            while line_end > first {
                let text = chunk[first..line_end].trim_ascii_end();
                let line = first + memchr::memrchr(b'\n', text).map_or(0, |at| at + 1);
                let place = LogPosition {
                    day,
                    offset: begin + line as u64,
                };
                let fitting = record(&chunk[line..line_end], place).filter(|it| filter.takes(it));
                if let Some(record) = fitting {
                    found.push(record);
                    found_bytes += line_end - line;
                }
                line_end = line;
                if found.len() == limit || found_bytes >= FOUND_MAX {
                    return Ok((found, Some(place)));
                }
            }
            end = begin + first as u64;
        }
    }
    Ok((found, None))
}

/// Returns true if there is no log file, or if the file at its path is not a regular file. Code of tools can create such files,
/// so they are ignored.
fn is_no_log(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
    )
}

fn bytes(file: &mut File, begin: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(begin))?;
    let mut held = Vec::new();
    file.take(length).read_to_end(&mut held)?;
    Ok(held)
}

/// The days that have log files, newest first.
fn days(folder: &Path) -> io::Result<Vec<Date>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let day = |entry: fs::DirEntry| day_of(entry.file_name().to_str()?.strip_suffix(".jsonl")?);
    let mut days: Vec<_> = entries.flatten().filter_map(day).collect();
    days.sort_unstable_by(|a, b| b.cmp(a));
    Ok(days)
}

fn record(line: &[u8], place: LogPosition) -> Option<Value> {
    let mut record: Value = serde_json::from_slice(line).ok()?;
    record
        .as_object_mut()?
        .insert("id".to_owned(), place.to_string().into());
    Some(record)
}

pub(super) async fn one(core: &Arc<Core>, id: &str) -> Answer {
    let place = LogPosition::parse(id)
        .ok_or_else(|| WebFailure::invalid("id", "id must be that of a record"))?;
    let folder = folder(core)?;
    let found = reading(move || {
        let mut file = match regular_file::open(&file_of(&folder, place.day)) {
            Ok(file) => file,
            Err(error) if is_no_log(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // The read begins one byte earlier, with the line break before the record. An offset in the middle of a line is not
        // valid.
        let begin = place.offset.saturating_sub(1);
        let held = bytes(&mut file, begin, CHUNK)?;
        let line = match place.offset {
            0 => Some(&*held),
            _ => held.strip_prefix(b"\n"),
        };
        let line = line.and_then(|line| line.split(|byte| *byte == b'\n').next());
        Ok(line.and_then(|line| record(line, place)))
    });
    match found.await? {
        Some(record) => json_of(&record),
        None => Err(WebFailure::not_found(
            "record_not_found",
            "The audit log has no such record; it may be past the days that are kept",
        )),
    }
}

pub(super) fn events(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let filter = Filter::of(request)?;
    let folder = folder(core)?;
    streams::open(core, caller, move |stream| async move {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut from = None;
        loop {
            tick.tick().await;
            let (folder, begun) = (folder.clone(), from);
            let Ok((records, place)) = reading(move || newer(&folder, begun)).await else {
                continue;
            };
            from = Some(place);
            let mut wanted: Vec<_> = records.into_iter().filter(|it| filter.takes(it)).collect();
            let skipped = wanted.len().saturating_sub(EVENTS_MAX);
            wanted.drain(..skipped);
            if skipped > 0 && !stream.event("skipped", &json!({ "count": skipped })) {
                return;
            }
            for record in wanted {
                if !stream.event("record", &record) {
                    return;
                }
            }
        }
    })
}

/// The records after a position, with the new end of the log. Without a position, returns no records and the current end.
fn newer(folder: &Path, from: Option<LogPosition>) -> io::Result<(Vec<Value>, LogPosition)> {
    const AT_ONCE: u64 = 4 * 1024 * 1024;
    let today = OffsetDateTime::now_utc().date();
    let Some(mut place) = from else {
        let length = fs::metadata(file_of(folder, today)).map_or(0, |it| it.len());
        return Ok((
            Vec::new(),
            LogPosition {
                day: today,
                offset: length,
            },
        ));
    };
    let mut records = Vec::new();
    if let Ok(mut file) = regular_file::open(&file_of(folder, place.day)) {
        // A file that became shorter was replaced, so it is read from its beginning.
        if file.metadata()?.len() < place.offset {
            place.offset = 0;
        }
        let held = bytes(&mut file, place.offset, AT_ONCE)?;
        let whole = memchr::memrchr(b'\n', &held).map_or(0, |at| at + 1);
        for line in held[..whole].split_inclusive(|byte| *byte == b'\n') {
            records.extend(record(line, place));
            place.offset += line.len() as u64;
        }
        if whole > 0 {
            return Ok((records, place));
        }
    }
    if place.day < today {
        place = LogPosition {
            day: today,
            offset: 0,
        };
    }
    Ok((records, place))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn log(lines: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for day in ["2026-11-22", "2026-11-23"] {
            let file = folder.path().join(format!("{day}.jsonl"));
            let mut file = File::create(file).expect("a file");
            for number in 0..lines {
                let padding = "x".repeat(number % 700);
                writeln!(file, r#"{{"ts":"{day}T00:00:00Z","n":{number},"tool":"t{}","status":"ok","padding":"{padding}"}}"#, number % 2).expect("written");
            }
        }
        fs::write(folder.path().join("other.jsonl"), "{}\n").expect("written");
        folder
    }

    fn numbers(records: &[Value]) -> Vec<u64> {
        records.iter().filter_map(|it| it["n"].as_u64()).collect()
    }

    #[test]
    fn pages_lead_through_all_days_newest_first() {
        // Each day spans several chunks.
        let folder = log(3000);
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let (records, next) =
                page(folder.path(), cursor, &Filter::default(), 500).expect("read");
            all.extend(records);
            cursor = next.map(|next| LogPosition::parse(&next.to_string()).expect("a place"));
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<u64> = (0..3000).rev().chain((0..3000).rev()).collect();
        assert_eq!(numbers(&all), expected);
        assert!(
            all[0]["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("2026-11-23-"))
        );
    }

    #[test]
    fn filters_choose_and_ids_name_whole_lines_only() {
        let folder = log(10);
        let filter = Filter {
            tool: Some("t1".to_owned()),
            to: Some(OffsetDateTime::parse("2026-11-22T12:00:00Z", &Rfc3339).expect("a time")),
            ..Filter::default()
        };
        let (records, next) = page(folder.path(), None, &filter, 100).expect("read");
        assert_eq!((numbers(&records), next), (vec![9, 7, 5, 3, 1], None));
        assert!(
            Filter {
                status: Some("error".to_owned()),
                ..Filter::default()
            }
            .takes(&json!({"status": "overloaded"}))
        );
        for text in [
            "2026-11-23",
            "../x-1",
            "2026-11-23--1",
            "2026-1-23-1",
            "x",
            "2026-11-23-1/..",
            "",
        ] {
            assert_eq!(LogPosition::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_new_is_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (records, place) = newer(folder.path(), None).expect("read");
        assert!(records.is_empty());
        let path = file_of(folder.path(), place.day);
        fs::write(&path, "{\"n\":1}\n{\"n\":2}\n{\"n\"").expect("written");
        let (records, place) = newer(folder.path(), Some(place)).expect("read");
        assert_eq!(numbers(&records), [1, 2]);
        let (records, _) = newer(folder.path(), Some(place)).expect("read");
        assert!(records.is_empty());
    }
}
