//! The results of the soak as tables and a chart.

use std::time::Duration;

use super::books::{Books, EXCUSED_FOR};
use super::growth::Growth;
use super::watch::{HELD, LOOKS, Watch};
use crate::chart::{Chart, Points};
use crate::report::table::{cell, middle, most, sum, times};
use crate::report::{Numbers, Section, Series, Table, minutes, spread};

const TRAFFIC: &str = "traffic";
const KILLS: &str = "kills";

pub(super) fn section(lasted: Duration, books: &Books, watch: &Watch) -> Section {
    let mut section = Section::default();
    for (name, count) in books.counts() {
        section.add(TRAFFIC, [name], Numbers::of(&count));
    }
    let mut kills = books.kills();
    kills.sort_by_key(|kill| kill.namespace);
    for kill in kills {
        let never = if kill.back_ms.is_none() { 1.0 } else { 0.0 };
        let numbers = Numbers::one("never", never).with("back_ms", kill.back_ms);
        section.add(KILLS, [kill.namespace], numbers);
    }
    watch.tell(&mut section);
    section.failures = books.first_wrong();
    let wrong = books.wrong_so_far();
    if wrong > section.failures.len() as u64 {
        section.fail(format!("{wrong} wrong in all"));
    }
    let left = watch.left();
    if !left.is_empty() {
        section.fail(format!("left when everybody had gone: {}", left.join(", ")));
    }
    let growth = Growth::of(&seen(section.of(LOOKS), "own_kib"));
    let lasts = growth.and_then(|growth| growth.lasts);
    if lasts == Some(true) {
        section.fail("the gateway's memory grows for good");
    }

    section.tables = vec![
        Table::of(
            &section.of(TRAFFIC).rows,
            &["traffic"],
            [
                sum("right", &["right"]),
                sum("excused", &["excused"]),
                sum("wrong", &["wrong"]),
                sum("left", &["left"]),
            ],
        ),
        memory(section.of(LOOKS), growth.as_ref()),
        held(section.of(HELD), section.of(LOOKS)),
        Table::of(
            &section.of(KILLS).rows,
            &["killed"],
            [
                times("times"),
                middle("right answer after ms", "back_ms", 0),
                most("at worst ms", "back_ms", 0),
                sum("never", &["never"]),
            ],
        )
        .captioned(
            "Killed, and how long until a call that was sent after that had a right answer:",
        ),
    ];
    section.charts = vec![chart(section.of(LOOKS))];
    section.note(match watch.rest_seconds {
        Some(seconds) => format!(
            "{} of traffic. It held no more than before {seconds:.0} s after everybody had gone.",
            minutes(lasted)
        ),
        None => format!(
            "{} of traffic. It never came back to what it held before.",
            minutes(lasted)
        ),
    });
    section.note(format!(
        "`excused`: errors with the request's id and the code `worker_unavailable`, of a namespace whose process was killed at \
         most {} s before; any other error is `wrong`. `left`: the client went before its answer, or abandoned its session.",
        EXCUSED_FOR.as_secs()
    ));
    section.note(
        "Growth lasts if the median of the last third is above that of the first by more than 3 % and 1 MiB, and still rises by a \
         quarter of that after the second. The slope is that of the line with the least squares; what it comes to in a day means \
         little after minutes.",
    );
    if lasts.is_none() {
        section.note("Too short to say whether growth lasts: that needs ten minutes.");
    }
    if watch.audit_dropped > 0.0 {
        section.note(format!(
            "{} audit lines were dropped: the disk did not keep up.",
            watch.audit_dropped
        ));
    }
    section
}

/// The points (seconds, number) of all readings.
fn seen(looks: &Series, name: &str) -> Points {
    let looks = looks.rows.first();
    looks.map_or_else(Points::new, |looks| looks.points("seconds", name))
}

fn memory(looks: &Series, growth: Option<&Growth>) -> Table {
    let mib = |kib: f64| kib / 1024.0;
    let third = |place: usize| cell(growth.map(|growth| mib(growth.thirds_kib[place])), 1);
    let lasts = match growth.and_then(|growth| growth.lasts) {
        None => "too short to say",
        Some(true) => "yes",
        Some(false) => "no",
    };
    let own = seen(looks, "own_kib");
    let most = spread(own.iter().map(|(_, kib)| *kib)).map(|(_, most)| mib(most));
    let mut table = Table::new([
        "MiB at the start",
        "first third",
        "second third",
        "last third",
        "most",
        "KiB a minute",
        "MiB a day",
        "growth that lasts",
    ])
    .captioned("Memory of the gateway's own (`RssAnon`), the first quarter of the time apart:");
    table.row([
        cell(own.first().map(|(_, kib)| mib(*kib)), 1),
        third(0),
        third(1),
        third(2),
        cell(most, 1),
        cell(growth.map(|growth| growth.slope_kib_a_minute), 1),
        cell(growth.map(Growth::mib_a_day), 1),
        lasts.to_owned(),
    ]);
    table
}

fn held(held: &Series, looks: &Series) -> Table {
    let columns = [
        most("descriptors", "descriptors", 0),
        most("threads", "threads", 0),
        most("processes", "processes", 0),
        most("connections", "connections", 0),
        most("requests", "requests in flight", 0),
        most("sessions", "sessions", 0),
        most("bytes for streams", "bytes kept for streams", 0),
    ];
    Table::of(held.rows.iter().chain(&looks.rows), &[""], columns)
        .captioned("What the gateway holds:")
}

fn chart(looks: &Series) -> Chart {
    /// Maximum number of points in a line.
    const POINTS: usize = 400;
    let lines = [
        ("gateway, its own", "own_kib"),
        ("gateway, with files", "resident_kib"),
        ("its workers and servers", "children_kib"),
    ];
    let lines = lines.map(|(said, name)| {
        let points = seen(looks, name);
        let step = points.len().div_ceil(POINTS).max(1);
        let points = points.into_iter().step_by(step);
        (
            said.to_owned(),
            points.map(|(at, kib)| (at, kib / 1024.0)).collect(),
        )
    });
    Chart::new("soak", "Memory over the time of the soak", "MiB").timeline(lines)
}
