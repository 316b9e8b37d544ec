//! The results of stores, as tables, a chart and verdicts.

use crate::chart::Chart;
use crate::report::budget;
use crate::report::table::{figure, middle};
use crate::report::{Row, Section, Series, Table};

/// Calls of live sessions by store.
pub(super) const LIVE: &str = "calls of live sessions";
/// Calls that are answered by streams of events, by store.
pub(super) const EVENTS: &str = "calls answered by events";
/// Sessions that are opened and not closed, by store.
pub(super) const HELD: &str = "sessions";
/// Calls after a restart.
pub(super) const AFTER_START: &str = "calls after a restart";

pub(super) const FIRST: &str = "first call of each session after the restart";
pub(super) const SECOND: &str = "second call of each";

pub(super) fn tell(section: &mut Section) {
    let (live, events) = (section.of(LIVE), section.of(EVENTS));
    let (held, again) = (section.of(HELD), section.of(AFTER_START));
    let tables = vec![
        Table::of(
            &live.rows,
            &["sessions in"],
            [
                middle("calls/s", "per_second", 0),
                middle("p50 us", "p50_us", 0),
                middle("p99 us", "p99_us", 0),
                middle("CPU us", "cpu_us", 1),
                figure("CPU / memory", 3, |row| to_memory(live, row, "cpu_us")),
                figure("p50 / memory", 3, |row| to_memory(live, row, "p50_us")),
            ],
        )
        .captioned("Calls of a stdio server in live sessions"),
        Table::of(
            &events.rows,
            &["sessions in"],
            [
                middle("calls/s", "per_second", 0),
                middle("events/s", "events_per_second", 0),
                middle("p50 us", "p50_us", 0),
                middle("p99 us", "p99_us", 0),
                middle("CPU us", "cpu_us", 1),
                middle("CPU us / event", "event_cpu_us", 1),
                figure("CPU / memory", 3, |row| to_memory(events, row, "cpu_us")),
            ],
        )
        .captioned("Calls of a Python tool that are answered by a stream, whose events are stored"),
        Table::of(
            &held.rows,
            &["sessions in"],
            [
                middle("sessions", "sessions", 0),
                middle("opened/s", "per_second", 0),
                middle("CPU us each", "cpu_us", 1),
                middle("bytes each", "bytes", 0),
            ],
        )
        .captioned("Sessions of a stdio server that are opened and left"),
        Table::of(
            &again.rows,
            &["sessions on disk"],
            [
                middle("calls", "requests", 0),
                middle("p50 us", "p50_us", 0),
                middle("p99 us", "p99_us", 0),
                middle("CPU us", "cpu_us", 1),
            ],
        )
        .captioned("After a restart of the gateway"),
    ];
    let ratio = |store: &str| {
        let row = live.row(&[store])?;
        to_memory(live, row, "cpu_us")
    };
    let later = |row: &str| again.median(&[row], "p99_us");
    let added = later(FIRST).zip(later(SECOND));
    let added_ms = added.map(|(first, second)| (first - second) / 1e3);
    let verdicts = vec![
        budget::CALL_DISK.verdict(ratio("disk")),
        budget::CALL_REDIS.verdict(ratio("Redis")),
        budget::FIRST_CALL.verdict(added_ms),
    ];
    let chart = Chart::new("stores", "Calls in live sessions, CPU of the gateway", "us");
    let charts = vec![chart.bars(live.named(), &[("a call", "cpu_us")])];
    (section.tables, section.verdicts, section.charts) = (tables, verdicts, charts);
    section.note(
        "`bytes each`: growth of the gateway's own memory, of Redis' `used_memory`, or of the pages in use of `sessions.db`. \
         Sessions on disk and in Redis take the bytes of memory as well, while they are live.",
    );
    section.note("The CPU of Redis is not in `CPU us`, which is the gateway's.");
}

/// Ratio of a number to that of sessions in memory, within each repetition.
fn to_memory(series: &Series, row: &Row, number: &str) -> Option<f64> {
    row.ratio_to(series.row(&["memory"])?, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;

    #[test]
    fn stores_are_compared_with_memory() {
        let mut section = Section::default();
        for (store, cpu_us) in [("memory", 20.0), ("disk", 21.0), ("Redis", 30.0)] {
            section.add(LIVE, [store], Numbers::one("cpu_us", cpu_us));
        }
        for (row, p99_us) in [(FIRST, 3_000.0), (SECOND, 1_000.0)] {
            section.add(AFTER_START, [row], Numbers::one("p99_us", p99_us));
        }
        tell(&mut section);
        let measured = [Some(1.05), Some(1.5), Some(2.0)];
        let budgets = [&budget::CALL_DISK, &budget::CALL_REDIS, &budget::FIRST_CALL];
        for ((verdict, budget), measured) in section.verdicts.iter().zip(budgets).zip(measured) {
            assert_eq!(*verdict, budget.verdict(measured));
        }
    }
}
