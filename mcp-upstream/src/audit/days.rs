//! One file per UTC day, `YYYY-MM-DD.jsonl`; older ones are deleted when a day begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use time::{Date, Month};

/// How often a failing disk is mentioned in the log.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// The folder of daily files and the one that is open.
#[derive(Debug)]
pub(super) struct DailyFiles {
    dir: PathBuf,
    retention_days: u32,
    open: Option<(Date, BufWriter<File>)>,
    complained: Option<Instant>,
}

impl DailyFiles {
    pub(super) fn new(dir: PathBuf, retention_days: u32) -> Self {
        Self {
            dir,
            retention_days,
            open: None,
            complained: None,
        }
    }

    /// Appends a line to the file of its day.
    pub(super) fn append(&mut self, day: Date, line: &[u8]) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != day) {
            self.flush();
            match self.open_day(day) {
                Ok(file) => {
                    self.open = Some((day, file));
                    self.clean(day);
                }
                Err(error) => return self.complain(&error),
            }
        }
        if let Some((_, file)) = &mut self.open
            && let Err(error) = file.write_all(line)
        {
            self.give_up_file(&error);
        }
    }

    /// Hands everything to the operating system.
    pub(super) fn flush(&mut self) {
        if let Some((_, file)) = &mut self.open
            && let Err(error) = file.flush()
        {
            self.give_up_file(&error);
        }
    }

    /// Deletes the files past their retention. Other files in the folder are left alone.
    pub(super) fn clean(&mut self, today: Date) {
        if self.retention_days == 0 {
            return;
        }
        let keep = i64::from(self.retention_days) - 1;
        let oldest = today.saturating_sub(time::Duration::days(keep));
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        for entry in entries.flatten() {
            let day = entry.file_name().to_str().and_then(day_of);
            if day.is_some_and(|day| day < oldest)
                && let Err(error) = fs::remove_file(entry.path())
            {
                self.complain(&error);
            }
        }
    }

    fn open_day(&self, day: Date) -> io::Result<BufWriter<File>> {
        fs::create_dir_all(&self.dir)?;
        let path = self.dir.join(format!("{day}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(BufWriter::with_capacity(64 * 1024, file))
    }

    /// A file that failed is opened anew with the next record; what it still buffered is lost, not kept growing.
    fn give_up_file(&mut self, error: &io::Error) {
        if let Some((_, file)) = self.open.take() {
            let _ = file.into_parts();
        }
        self.complain(error);
    }

    fn complain(&mut self, error: &io::Error) {
        if self
            .complained
            .is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL)
        {
            self.complained = Some(Instant::now());
            tracing::error!(%error, dir = %self.dir.display(), "the audit log cannot be written; requests go on without it");
        }
    }
}

/// The day a file name stands for.
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
        let mut files = DailyFiles::new(dir.path().to_owned(), 2);
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
        let mut files = DailyFiles::new(dir.path().to_owned(), 0);
        for today in [0, 400] {
            files.append(day(today), b"{}\n");
        }
        files.flush();
        assert_eq!(names(dir.path()).len(), 2);
    }
}
