//! `/api/log`: the last lines of the gateway's own log, and a stream of new lines.

use std::sync::Arc;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_process::child::output::{RecentLine, RecentLines};
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use super::server_process::follow;
use crate::mcp::Core;

/// The levels of log lines, from the most to the least severe.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Filter of log lines by the query's parameters.
#[derive(Debug)]
struct LineFilter {
    /// Position in `LEVELS` of the least severe level that is shown.
    rank: usize,
    /// Text that a shown line must contain, in lower case.
    text: String,
}

impl LineFilter {
    fn of(request: &ApiRequest) -> Result<Self, WebFailure> {
        let rank = match request.parameter("level") {
            None => LEVELS.len(),
            Some(level) => {
                let rank = LEVELS.iter().position(|known| *known == level);
                rank.ok_or_else(|| {
                    let known = LEVELS.join(", ");
                    WebFailure::invalid("level", format!("level must be one of {known}"))
                })?
            }
        };
        let text = request.wanted();
        Ok(Self { rank, text })
    }

    /// Converts a log line to the form of the API; `None` if the filter excludes it.
    fn line_json(&self, line: &RecentLine) -> Option<Value> {
        let (level, text) = line.text.split_once(' ').unwrap_or(("", &line.text));
        let level = level.to_lowercase();
        let rank = LEVELS.iter().position(|known| *known == level);
        let is_wanted = rank.unwrap_or_default() <= self.rank
            && (self.text.is_empty() || text.to_lowercase().contains(&self.text));
        let at = OffsetDateTime::from(line.at).format(&Rfc3339);
        is_wanted.then(|| {
            json!({
                "number": line.number,
                "ts": at.unwrap_or_default(),
                "level": level,
                "text": text.trim_start(),
            })
        })
    }
}

fn log(core: &Core) -> Result<Arc<RecentLines>, WebFailure> {
    let facts = core.web.as_deref();
    let facts = facts.ok_or_else(WebFailure::without_management)?;
    Ok(Arc::clone(&facts.log))
}

/// Responds with the last lines of the log, oldest first.
pub(super) fn lines(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let filter = LineFilter::of(request)?;
    let limit = request.limit()?;
    let kept = log(core)?.after(0);
    let newest = kept.last().map_or(0, |line| line.number);
    let shown: Vec<_> = kept.iter().filter_map(|it| filter.line_json(it)).collect();
    let last = &shown[shown.len().saturating_sub(limit)..];
    json_of(&json!({"lines": last, "total": shown.len(), "newest": newest}))
}

/// Responds with a stream of log lines as they are written. With `after`, the stored lines after that number are sent first.
pub(super) fn events(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let filter = LineFilter::of(request)?;
    follow(core, caller, request, log(core)?, move |kept| {
        filter.line_json(kept)
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tooldock_process::child::output::Stream;

    use super::*;

    #[test]
    fn lines_are_chosen_by_their_level_and_text() {
        let line = |text: &str| RecentLine {
            number: 1,
            at: SystemTime::UNIX_EPOCH,
            pid: None,
            stream: Stream::Stderr,
            text: text.into(),
        };
        let filter = |level: &str, text: &str| LineFilter {
            rank: LEVELS.iter().position(|it| *it == level).expect("a level"),
            text: text.to_owned(),
        };
        let warning = line("WARN tooldock::serve: Disk is full");
        let shown = filter("warn", "disk").line_json(&warning).expect("wanted");
        assert_eq!(
            (&shown["level"], &shown["text"]),
            (&json!("warn"), &json!("tooldock::serve: Disk is full"))
        );
        assert_eq!(filter("error", "").line_json(&warning), None);
        assert_eq!(filter("trace", "cpu").line_json(&warning), None);
        // A line without a level is shown at every level.
        assert!(filter("error", "").line_json(&line("odd line")).is_some());
    }
}
