//! The results of the waves as tables and charts.

use crate::chart::Chart;
use crate::report::table::{middle, sum, times};
use crate::report::{Numbers, Section, Series, Table};

use super::wave::Wave;

/// Creates the section; its series has a row for each number of streams and way of losing them.
pub(super) fn section(waves: &[Wave]) -> Section {
    const WAVES: &str = "waves";
    let mut section = Section::default();
    for wave in waves {
        section.add(WAVES, [wave.name()], numbers(wave));
        if let Some(fault) = wave.fault() {
            section.fail(fault);
        }
    }
    section.tables = vec![table(section.of(WAVES))];
    section.charts = charts(section.of(WAVES));
    section.notes = NOTES.map(str::to_owned).to_vec();
    let turned_away = waves
        .iter()
        .find_map(|wave| wave.first_turned_away.as_ref());
    if let Some(why) = turned_away {
        section.note(format!("The first that was turned away: {why}"));
    }
    section
}

fn numbers(wave: &Wave) -> Numbers {
    let ms = |us: f64| us / 1e3;
    Numbers::of(wave)
        .with("cpu_us_a_stream", wave.cpu_us_a_stream())
        .with("before_p99_ms", ms(wave.before.p99_us))
        .with("meanwhile_p99_ms", ms(wave.meanwhile.p99_us))
}

fn table(series: &Series) -> Table {
    let columns = [
        times("waves"),
        middle("half back ms", "half_back_ms", 0),
        middle("all back ms", "all_back_ms", 0),
        sum("turned away", &["turned_away"]),
        middle("queue full", "queue_full", 0),
        sum("events", &["deliveries.events"]),
        sum("lost", &["deliveries.lost"]),
        sum("doubled", &["deliveries.doubled"]),
        sum(
            "out of order",
            &["deliveries.out_of_order", "deliveries.strange"],
        ),
        middle("last event ms", "last_event_ms", 0),
        middle("CPU ms", "cpu_ms", 0),
        middle("CPU us / stream", "cpu_us_a_stream", 0),
        middle("p99 before us", "before.p99_us", 0),
        middle("p99 meanwhile us", "meanwhile.p99_us", 0),
        sum("unanswered", &["meanwhile.wrong", "meanwhile.unanswered"]),
    ];
    Table::of(&series.rows, &["sockets"], columns)
}

fn charts(waves: &Series) -> Vec<Chart> {
    let back = waves.curves("back").map(|(name, back)| {
        let back = back
            .into_iter()
            .map(|(percent, seconds)| (seconds, percent));
        (name, back.collect())
    });
    let title = "Streams that are back after all were lost at once";
    let calls = [
        ("before", "before_p99_ms"),
        ("while all come back", "meanwhile_p99_ms"),
    ];
    vec![
        Chart::new("reconnect_storm", title, "% of the streams").timeline(back),
        Chart::new(
            "reconnect_storm_calls",
            "p99 of calls on other connections",
            "ms",
        )
        .bars(waves.named(), &calls)
        .logarithmic(),
    ]
}

const NOTES: [&str; 4] = [
    "`turned away`: attempts to come back that were refused or failed; each comes again after 100 ms. `events`: what all streams \
     had together.",
    "Closing the sockets is part of `all back`; the clients share the cores with the gateway, and all of them connect at once. \
     `queue full`: how often one found the listener's queue full (`net.core.somaxconn` at most), in a wave; the kernel tries \
     again a second later, then after ever longer.",
    "`CPU ms`: of the gateway until all are back, with the calls and events meanwhile; `CPU us / stream`: without the calls, at \
     the price they had before.",
    "`p99 meanwhile`: calls on connections of their own, 1,000 a second, from the first socket lost until all are back, a second \
     at least; `unanswered`: those without an answer within ten seconds.",
];
