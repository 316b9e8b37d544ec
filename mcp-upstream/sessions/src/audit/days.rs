//! Audit files: one per UTC day, `YYYY-MM-DD.jsonl`. When a day begins, files that are older than the retention are deleted.

use std::fs;
use std::path::PathBuf;

use time::{Date, Month};

use crate::log_file::{LogFile, LogTarget, Losses};

/// The folder of the daily audit files, and the file that is open.
#[derive(Debug)]
pub(super) struct DailyFiles {
    dir: PathBuf,
    retention_days: u32,
    current: Option<(Date, LogFile)>,
    losses: Losses,
}

impl DailyFiles {
    pub(super) fn new(dir: PathBuf, retention_days: u32, losses: Losses) -> Self {
        Self {
            dir,
            retention_days,
            current: None,
            losses,
        }
    }

    /// Appends a line to the audit file of the given day.
    pub(super) fn append(&mut self, day: Date, line: &[u8]) {
        self.of(day).append(line);
    }

    /// Passes all buffered lines to the operating system.
    pub(super) fn flush(&mut self) {
        if let Some((_, file)) = &mut self.current {
            file.flush();
        }
    }

    /// Closes today's file and opens it again, since log rotation may have renamed it.
    pub(super) fn reopen(&mut self, today: Date) {
        self.of(today).reopen();
    }

    /// Called while there is nothing to write: closes the open file if its day has passed or the file was removed, and deletes
    /// files that are older than the retention.
    pub(super) fn idle(&mut self, today: Date) {
        match &mut self.current {
            Some((day, file)) if *day == today => file.close_if_replaced(),
            Some(_) => {
                self.current = None;
                self.clean(today);
            }
            None => {}
        }
    }

    /// Deletes audit files that are older than the retention. Other files in the folder are not deleted.
    pub(super) fn clean(&mut self, today: Date) {
        if self.retention_days == 0 {
            return;
        }
        let keep = i64::from(self.retention_days) - 1;
        let oldest = today.saturating_sub(time::Duration::days(keep));
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        let mut failed = None;
        for entry in entries.flatten() {
            let day = entry.file_name().to_str().and_then(day_of);
            if day.is_some_and(|day| day < oldest)
                && let Err(error) = fs::remove_file(entry.path())
            {
                failed = Some((entry.path(), error));
            }
        }
        if let Some((path, error)) = failed {
            tracing::warn!(%error, path = %path.display(), "an audit file past its retention cannot be deleted");
        }
    }

    /// Returns the open file of a day. If another day's file was open, it is closed, and files that are older than the retention
    /// are deleted.
    fn of(&mut self, day: Date) -> &mut LogFile {
        match self.current.take_if(|(current, _)| *current != day) {
            Some((_, mut before)) => {
                before.flush();
                self.clean(day);
            }
            None if self.current.is_none() => self.clean(day),
            None => {}
        }
        let (dir, losses) = (&self.dir, &self.losses);
        let (_, file) = self.current.get_or_insert_with(|| {
            let target = LogTarget::Regular(dir.join(format!("{day}.jsonl")));
            (day, LogFile::new(target, losses.clone()))
        });
        file
    }
}

/// Parses the day from a file name of the form `YYYY-MM-DD.jsonl`; `None` for any other name.
fn day_of(name: &str) -> Option<Date> {
    let day = name.strip_suffix(".jsonl")?;
    let mut parts = day.split('-');
    let (year, month, date) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || (year.len(), month.len(), date.len()) != (4, 2, 2) {
        return None;
    }
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    Date::from_calendar_date(year.parse().ok()?, month, date.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(days: i64) -> Date {
        time::OffsetDateTime::UNIX_EPOCH.date() + time::Duration::days(20_000 + days)
    }

    fn names(dir: &std::path::Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("a folder")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_day_opens_a_new_file_and_deletes_those_past_retention() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("notes.txt"), "mine").expect("written");
        fs::write(dir.path().join("2024-13-01.jsonl"), "no day").expect("written");
        let mut files = DailyFiles::new(dir.path().to_owned(), 2, Losses::for_tests());
        for today in 0..4 {
            files.append(day(today), b"{}\n");
        }
        files.flush();
        assert_eq!(
            names(dir.path()),
            [
                "2024-10-06.jsonl",
                "2024-10-07.jsonl",
                "2024-13-01.jsonl",
                "notes.txt"
            ]
        );
    }

    #[test]
    fn zero_days_keep_everything() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = DailyFiles::new(dir.path().to_owned(), 0, Losses::for_tests());
        for today in [0, 400] {
            files.append(day(today), b"{}\n");
        }
        files.flush();
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn a_day_that_is_over_is_closed_without_a_record_of_the_next() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = DailyFiles::new(dir.path().to_owned(), 1, Losses::for_tests());
        files.append(day(0), b"{}\n");
        files.flush();
        files.idle(day(0));
        assert_eq!(names(dir.path()).len(), 1);
        files.idle(day(1));
        assert!(names(dir.path()).is_empty() && files.current.is_none());
    }
}
