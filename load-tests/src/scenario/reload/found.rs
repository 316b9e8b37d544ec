//! The results of reloads as tables, charts and verdicts.

use super::CALLS;
use crate::chart::Chart;
use crate::processes::Queued;
use crate::report::budget;
use crate::report::table::{figure, least, middle, most, sum, times};
use crate::report::{Row, Section, Series, Table};

/// Rows of [`TOOK`]: the measured time spans.
pub(super) const TO_ANSWER: &str = "a new folder to the answer";
pub(super) const TO_FIRST_CALL: &str = "a new folder to its first call";
pub(super) const NOTHING_CHANGED: &str = "none of 200 changed";
pub(super) const ONE_CHANGED: &str = "one of 200 changed, nobody calls";
pub(super) const UNDER_LOAD: &str = "one of 200 changed, under load";

/// Labels of calls with and without a reload in their window.
pub(super) const WITH: &str = "with";
pub(super) const WITHOUT: &str = "without";

/// Series of milliseconds from the request to reload.
pub(super) const TOOK: &str = "from POST /reload";
/// Series of calls, with a row for each target, with and without a reload.
pub(super) const WATCHED: &str = "calls";

pub(super) fn tell(section: &mut Section) {
    let (took, calls) = (section.of(TOOK), section.of(WATCHED));
    let changes = [ONE_CHANGED, UNDER_LOAD]
        .iter()
        .filter_map(|name| took.row(&[name]));
    let changes: usize = changes.map(Row::times).sum();
    let verdicts = vec![
        budget::WORKER_START.verdict(took.median(&[TO_ANSWER], "ms")),
        budget::RELOAD.verdict(took.median(&[UNDER_LOAD], "ms")),
    ];
    (section.tables, section.charts, section.verdicts) = (
        vec![took_table(took), calls_table(calls)],
        charts(took, calls),
        verdicts,
    );
    section.note(
        "The budget of the reload is held against the one under load. Its time is nearly all the start of the new worker, which \
         competes with the load for the same cores.",
    );
    section.note(Queued::NOTE);
    if changes > 0 && section.failures.is_empty() {
        section.note(format!(
            "After each of {changes} changes the new code answered the first call, and every other process was the one it had \
             been."
        ));
    }
}

fn took_table(took: &Series) -> Table {
    let columns = [
        times("times"),
        middle("ms", "ms", 0),
        least("least", "ms", 0),
        most("most", "ms", 0),
    ];
    Table::of(&took.rows, &["POST /reload"], columns).captioned("From the request to its answer")
}

fn calls_table(calls: &Series) -> Table {
    let slower = |row: &Row| match &row.labels[..] {
        [who, per_second, when] if when == WITH => {
            let without = calls.row(&[who, per_second, WITHOUT])?;
            Some(row.median("p99_us")? / without.median("p99_us")?)
        }
        _ => None,
    };
    let columns = [
        sum("calls", &["due"]),
        sum("failed", &["wrong", "unanswered"]),
        middle("p50 us", "p50_us", 0),
        middle("p99 us", "p99_us", 0),
        figure("p99 / without", 2, slower),
        most("worst us", "max_us", 0),
        middle("queued ms/s", "queued_ms", 0),
        sum("late", &["late"]),
    ];
    Table::of(&calls.rows, &["calls to", "calls/s", "reload"], columns)
        .captioned("Calls while one namespace changes, and just before")
}

fn charts(took: &Series, calls: &Series) -> Vec<Chart> {
    let when = |row: &Row| row.labels.last().map_or("", String::as_str).to_owned() + " a reload";
    let worst = calls.rows.iter();
    let worst = worst.map(|row| (format!("{}, {}", row.name(), when(row)), row.curve("worst")));
    let others = calls.rows.iter().filter(|row| row.name() == CALLS[0].0);
    let others = others.map(|row| (when(row), row.curve("curve")));
    let title = "The slowest call of each tenth of a second; the reload is asked at 0";
    let of_others = "Latency of calls to namespaces that do not change";
    let times = "From `POST /reload` to its answer";
    vec![
        Chart::new("reload", title, "us").timeline(worst),
        Chart::new("reload_others", of_others, "us").percentiles(others),
        Chart::new("reload_times", times, "ms").bars(took.named(), &[("tooldock", "ms")]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;

    #[test]
    fn the_budget_is_held_against_the_reload_under_load() {
        let mut section = Section::default();
        section.add(TOOK, [ONE_CHANGED], Numbers::one("ms", 100.0));
        for ms in [1500.0, 500.0, 700.0] {
            section.add(TOOK, [UNDER_LOAD], Numbers::one("ms", ms));
        }
        tell(&mut section);
        assert_eq!(section.verdicts[1], budget::RELOAD.verdict(Some(700.0)));
        let rows = &section.tables[0].rows;
        assert_eq!(rows.len(), 2, "what was not measured has no row");
        assert_eq!(rows[1], [UNDER_LOAD, "3", "700", "500", "1500"]);
        let changes = |note: &String| note.starts_with("After each of 4 changes");
        assert!(section.notes.iter().any(changes));
    }

    #[test]
    fn calls_with_a_reload_are_compared_with_those_without() {
        let mut section = Section::default();
        for (when, p99) in [(WITHOUT, 10.0), (WITH, 25.0)] {
            let numbers = Numbers::one("p99_us", p99);
            section.add(WATCHED, ["others", "600", when], numbers);
        }
        let rows = calls_table(section.of(WATCHED)).rows;
        assert_eq!([&rows[0][7], &rows[1][7]], ["-", "2.50"]);
    }
}
