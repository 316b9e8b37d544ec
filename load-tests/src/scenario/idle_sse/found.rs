//! The results of idle streams as tables, charts and verdicts.

use super::BEHIND_NGINX;
use crate::chart::Chart;
use crate::report::budget;
use crate::report::table::{figure, middle, sum};
use crate::report::{Row, Section, Series, Table, median};

/// Name of the row for calls before any stream was opened.
pub(super) const BEFORE: &str = "none, before";
pub(super) const AFTER: &str = "none, after";

/// Series with a row for each number of streams.
pub(super) const STREAMS: &str = "streams";
/// Series of calls during the streams.
pub(super) const CALLS: &str = "calls";

pub(super) fn behind_nginx() -> String {
    format!("{BEHIND_NGINX} behind nginx")
}

/// Adds the results to the section. The row with the largest number of streams, `most`, is judged.
pub(super) fn tell(section: &mut Section, most: usize) {
    let (streams, calls, most) = (section.of(STREAMS), section.of(CALLS), [most.to_string()]);
    let of = |name| streams.median(&most, name);
    let kib = of("session_kib").zip(of("stream_kib"));
    let verdicts = vec![
        budget::STREAM.verdict(kib.map(|(session, stream)| session + stream)),
        budget::FAN_OUT.verdict(of("event_ms")),
        budget::CALLS_BESIDE_STREAMS.verdict(calls.row(&most).and_then(|row| slower(calls, row))),
    ];
    let p99 = |name| calls.median(&[name], "p99_us");
    let drift = p99(AFTER)
        .zip(p99(BEFORE))
        .map(|(after, before)| after / before);
    (section.tables, section.charts, section.verdicts) =
        (tables(streams, calls), charts(streams, calls), verdicts);
    section.note(
        "KiB are the growth of the process's own memory (`RssAnon`); memory of sockets in the kernel is not in it. `left KiB`: \
         what is there beyond the session a second after its stream was closed; the stream and its last events are kept for the \
         client to come back to.",
    );
    section.note(
        "The readers of the streams are a thread of the load program, which takes part in the contest for the cores while an \
         event goes out: `event to all` is what the machine can do with both on it, `CPU ms` is the gateway's part.",
    );
    if let Some(drift) = drift {
        section.note(format!(
            "p99 without streams was {drift:.2} times as long after them as before: the ratios are worth no more than that."
        ));
    }
}

/// Ratio of the p99 of calls during streams to that without streams.
fn slower(calls: &Series, beside: &Row) -> Option<f64> {
    let without = [BEFORE, AFTER]
        .into_iter()
        .filter_map(|name| calls.row(&[name]));
    let without = median(without.flat_map(|row| row.all("p99_us")))?;
    let times = beside.median("p99_us")? / without;
    (![BEFORE, AFTER].contains(&beside.name())).then_some(times)
}

fn tables(streams: &Series, calls: &Series) -> Vec<Table> {
    let of_streams = [
        middle("session KiB", "session_kib", 2),
        middle("stream KiB", "stream_kib", 2),
        middle("left KiB", "left_kib", 2),
        middle("nginx KiB", "nginx_kib", 2),
        middle("event to all ms", "event_ms", 0),
        middle("CPU ms an event", "event_cpu_ms", 0),
    ];
    let of_calls = [
        middle("calls/s", "per_second", 0),
        middle("p50 us", "p50_us", 0),
        middle("p99 us", "p99_us", 0),
        middle("p99.9 us", "p999_us", 0),
        sum("late", &["late"]),
        figure("p99 to that without", 2, |row| slower(calls, row)),
    ];
    vec![
        Table::of(&streams.rows, &["streams"], of_streams),
        Table::of(&calls.rows, &["streams"], of_calls)
            .captioned("Tool calls on other connections, on a fixed schedule:"),
    ]
}

fn charts(streams: &Series, calls: &Series) -> Vec<Chart> {
    let named = || {
        streams.named().map(|(name, row)| match name.contains(' ') {
            true => (name, row),
            false => (format!("{name} streams"), row),
        })
    };
    let latency = calls.curves("curve").map(|(name, curve)| match &*name {
        BEFORE | AFTER => (name.replace("none", "no streams"), curve),
        count => (format!("beside {count} streams"), curve),
    });
    let memory = [
        ("session", "session_kib"),
        ("stream", "stream_kib"),
        ("nginx in front", "nginx_kib"),
    ];
    let events = [
        ("on the last stream after", "event_ms"),
        ("CPU time of the gateway", "event_cpu_ms"),
    ];
    vec![
        Chart::new("idle_sse", "Memory of an idle stream", "KiB").bars(named(), &memory),
        Chart::new("idle_sse_events", "One event to all streams", "ms").bars(named(), &events),
        Chart::new("idle_sse_calls", "Calls on other connections", "us").percentiles(latency),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;
    use crate::report::budget::Outcome;

    #[test]
    fn the_largest_number_of_streams_is_judged() {
        let mut section = Section::default();
        for (streams, ms) in [("5000", 10.0), ("19000", 130.0)] {
            let numbers = Numbers::one("session_kib", 1.0).with("stream_kib", 2.5);
            section.add(STREAMS, [streams], numbers.with("event_ms", ms));
        }
        section.add(STREAMS, [behind_nginx()], Numbers::one("nginx_kib", 20.0));
        tell(&mut section, 19_000);
        assert_eq!(section.verdicts[0].measured, "3.50 KiB");
        assert_eq!(section.verdicts[1].measured, "130 ms");
        assert_eq!(section.verdicts[2].outcome, Outcome::NotMeasured);
        let rows = &section.tables[0].rows;
        assert_eq!(rows[1], ["19000", "1.00", "2.50", "-", "-", "130", "-"]);
        assert_eq!(rows[2][..5], ["5000 behind nginx", "-", "-", "-", "20.00"]);
    }

    #[test]
    fn calls_beside_streams_are_compared_with_all_without() {
        let mut section = Section::default();
        for (name, p99) in [(BEFORE, 10.0), ("19000", 30.0), (AFTER, 20.0)] {
            section.add(CALLS, [name], Numbers::one("p99_us", p99));
        }
        tell(&mut section, 19_000);
        assert_eq!(section.verdicts[2].measured, "2.00 x");
        let slower: Vec<_> = section.tables[1].rows.iter().map(|row| &row[6]).collect();
        assert_eq!(slower, ["-", "2.00", "-"]);
        assert!(section.notes[2].contains("2.00 times as long after"));
    }
}
