//! The results of remote servers as tables, a chart and a verdict.

use super::{Case, Front, IDLE};
use crate::chart::Chart;
use crate::report::budget;
use crate::report::table::{figure, middle};
use crate::report::{Row, Section, Series, Table};

/// Series of calls, with a row for each front and case.
pub(super) const LOADS: &str = "calls";
/// Series of idle streams, with a row for each front.
pub(super) const STREAMS: &str = "idle streams";

pub(super) fn labels(front: Front, case: Case) -> [String; 2] {
    [front.name().to_owned(), case.to_string()]
}

pub(super) fn tell(section: &mut Section) {
    let (loads, streams) = (section.of(LOADS), section.of(STREAMS));
    let calls = Table::of(
        &loads.rows,
        &["in front", "call"],
        [
            middle("clients", "clients", 0),
            middle("calls/s", "per_second", 0),
            middle("p50 us", "p50_us", 0),
            middle("p99 us", "p99_us", 0),
            middle("CPU us", "cpu_us", 1),
            middle("in kernel %", "kernel_percent", 0),
            middle("CPU / n", "cpu_n", 2),
            figure("CPU / nginx", 2, |row| to_nginx(loads, row)),
            middle("server CPU us", "worker_cpu_us", 1),
        ],
    );
    let idle = Table::of(
        &streams.rows,
        &["in front"],
        [
            middle("session KiB", "session_kib", 2),
            middle("stream KiB", "stream_kib", 2),
        ],
    );
    let passed = loads.row(&labels(Front::PassThrough, Case::Small));
    let verdict = budget::REMOTE.verdict(passed.and_then(|row| to_nginx(loads, row)));
    let chart = chart(loads);
    section.tables = vec![
        calls.captioned("Calls of an HTTP server, one request in flight for each client; nginx has the checks that the gateway has"),
        idle.captioned(format!(
            "{IDLE} idle `GET` streams, each in a session of its own: growth of the front's own memory (`RssAnon`)"
        )),
    ];
    section.charts = vec![chart];
    section.verdicts = vec![verdict];
}

/// Ratio of a row's CPU time to that of nginx for the same call, within each repetition.
fn to_nginx(loads: &Series, row: &Row) -> Option<f64> {
    let case = row.labels.get(1)?.clone();
    let nginx = loads.row(&[Front::Nginx.name().to_owned(), case])?;
    row.ratio_to(nginx, "cpu_us")
}

fn chart(loads: &Series) -> Chart {
    let mut by_case = Section::default();
    for case in Case::ALL {
        for front in Front::ALL {
            let cpu_us = loads.median(&labels(front, case), "cpu_us");
            let numbers = crate::report::Numbers::default().with(front.name(), cpu_us);
            by_case.add("", [case.to_string()], numbers);
        }
    }
    let names = Front::ALL.map(|front| (front.name(), front.name()));
    Chart::new(
        "remote",
        "CPU time of a call to an HTTP server, without the server's",
        "us",
    )
    .bars(by_case.of("").named(), &names)
    .logarithmic()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;
    use crate::report::budget::Outcome;

    #[test]
    fn a_small_call_that_is_passed_on_is_judged_by_nginx_of_the_same_repetition() {
        let mut section = Section::default();
        for (repetition, of_nginx) in [10.0, 20.0, 30.0].into_iter().enumerate() {
            section.repetition = repetition;
            for (front, times) in [(Front::Nginx, 1.0), (Front::PassThrough, 1.5)] {
                let numbers = Numbers::one("cpu_us", of_nginx * times);
                section.add(LOADS, labels(front, Case::Small), numbers);
            }
        }
        tell(&mut section);
        assert_eq!(section.verdicts[0].measured, "1.50 x");
        assert_eq!(section.verdicts[0].outcome, Outcome::GoalReached);
        assert_eq!(section.tables[0].rows[1][9], "1.50");
    }

    #[test]
    fn a_run_that_found_nothing_measured_nothing() {
        let mut section = Section::default();
        tell(&mut section);
        assert_eq!(section.verdicts[0].outcome, Outcome::NotMeasured);
    }
}
