//! What the soak found, as tables and a chart.

use serde_json::json;

use super::books::{Count, EXCUSED_FOR};
use super::growth::Growth;
use super::scene::Scene;
use super::watch::{Look, Watch};
use crate::chart::{Chart, ChartKind};
use crate::report::{Section, Table, cell, median, minutes, spread};

/// Points of a line in the chart.
const POINTS: usize = 400;

pub(super) fn section(lasted: std::time::Duration, scene: &Scene, watch: &Watch) -> Section {
    let counts = scene.books().counts();
    let growth = Growth::of(&watch.memory());
    let wrong: u64 = counts.values().map(|count| count.wrong).sum();
    let mut failures = scene.books().first_wrong();
    if wrong as usize > failures.len() {
        failures.push(format!("{wrong} wrong in all"));
    }
    failures.extend(left(watch));
    if growth.is_some_and(|growth| growth.lasts == Some(true)) {
        failures.push("the gateway's memory grows for good".to_owned());
    }
    Section {
        tables: vec![
            traffic(&counts),
            memory(watch, growth.as_ref()),
            held(watch),
            kills(scene),
        ],
        charts: vec![chart(watch)],
        notes: notes(lasted, watch, growth.as_ref()),
        failures,
        samples: json!({
            "counts": counts, "kills": scene.books().kills(), "growth": growth, "watch": watch,
        }),
        ..Section::default()
    }
}

fn left(watch: &Watch) -> Option<String> {
    let beyond = watch.after.beyond(&watch.before);
    (!beyond.is_empty()).then(|| format!("left when everybody had gone: {}", beyond.join(", ")))
}

fn traffic(counts: &std::collections::BTreeMap<&'static str, Count>) -> Table {
    let mut table = Table::new(["traffic", "right", "excused", "wrong", "left"]);
    for (name, count) in counts {
        let cells =
            [count.right, count.excused, count.wrong, count.left].map(|count| count.to_string());
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    table
}

fn memory(watch: &Watch, growth: Option<&Growth>) -> Table {
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
    let mib = |kib: f64| kib / 1024.0;
    let all = watch.memory();
    let third = |place: usize| cell(growth.map(|growth| mib(growth.thirds_kib[place])), 1);
    let lasts = match growth.and_then(|growth| growth.lasts) {
        None => "too short to say",
        Some(true) => "yes",
        Some(false) => "no",
    };
    table.row([
        cell(all.first().map(|(_, kib)| mib(*kib)), 1),
        third(0),
        third(1),
        third(2),
        cell(
            spread(all.iter().map(|(_, kib)| *kib)).map(|(_, most)| mib(most)),
            1,
        ),
        cell(growth.map(|growth| growth.slope_kib_a_minute), 1),
        cell(growth.map(Growth::mib_a_day), 1),
        lasts.to_owned(),
    ]);
    table
}

fn held(watch: &Watch) -> Table {
    let mut table = Table::new([
        "",
        "descriptors",
        "threads",
        "processes",
        "connections",
        "requests",
        "sessions",
        "bytes for streams",
    ])
    .captioned("What the gateway holds:");
    for (name, held) in [("before", &watch.before), ("after", &watch.after)] {
        table.row([
            name.to_owned(),
            held.descriptors.to_string(),
            held.threads.to_string(),
            held.children.to_string(),
            cell(held.connections, 0),
            cell(held.requests, 0),
            cell(held.sessions, 0),
            cell(held.log_bytes, 0),
        ]);
    }
    let most = |of: fn(&Look) -> usize| {
        watch
            .looks
            .iter()
            .map(of)
            .max()
            .unwrap_or_default()
            .to_string()
    };
    table.row([
        "most, meanwhile".to_owned(),
        most(|look| look.descriptors),
        most(|look| look.threads),
        most(|look| look.children),
    ]);
    table
}

fn kills(scene: &Scene) -> Table {
    let mut table = Table::new([
        "killed",
        "times",
        "right answer after ms",
        "at worst ms",
        "never",
    ])
    .captioned("Killed, and how long until a call that was sent after that had a right answer:");
    let kills = scene.books().kills();
    let mut names: Vec<_> = kills.iter().map(|kill| kill.namespace).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of_it = || kills.iter().filter(|kill| kill.namespace == name);
        let back = || of_it().filter_map(|kill| kill.back_ms);
        table.row([
            name.to_owned(),
            of_it().count().to_string(),
            cell(median(back()), 0),
            cell(spread(back()).map(|(_, most)| most), 0),
            of_it()
                .filter(|kill| kill.back_ms.is_none())
                .count()
                .to_string(),
        ]);
    }
    table
}

fn chart(watch: &Watch) -> Chart {
    let line = |of: fn(&Look) -> u64| -> Vec<(f64, f64)> {
        let step = watch.looks.len().div_ceil(POINTS).max(1);
        let looks = watch.looks.iter().step_by(step);
        looks
            .map(|look| (look.seconds, of(look) as f64 / 1024.0))
            .collect()
    };
    Chart {
        file: "soak".to_owned(),
        title: "Memory over the time of the soak".to_owned(),
        kind: ChartKind::Timeline {
            unit: "MiB".to_owned(),
            series: vec![
                (
                    "gateway, its own".to_owned(),
                    line(|look| look.memory.anonymous_kib),
                ),
                (
                    "gateway, with files".to_owned(),
                    line(|look| look.memory.resident_kib),
                ),
                (
                    "its workers and servers".to_owned(),
                    line(|look| look.children_kib),
                ),
            ],
        },
    }
}

fn notes(lasted: std::time::Duration, watch: &Watch, growth: Option<&Growth>) -> Vec<String> {
    let rest = match watch.rest_seconds {
        Some(seconds) => {
            format!("It held no more than before {seconds:.0} s after everybody had gone.")
        }
        None => "It never came back to what it held before.".to_owned(),
    };
    let mut notes = vec![
        format!("{} of traffic. {rest}", minutes(lasted)),
        format!(
            "`excused`: errors with the request's id and the code `worker_unavailable`, of a namespace whose process was killed \
             at most {} s before; any other error is `wrong`. `left`: the client went before its answer, or abandoned its session.",
            EXCUSED_FOR.as_secs()
        ),
        "Growth lasts if the median of the last third is above that of the first by more than 3 % and 1 MiB, and still rises by a \
         quarter of that after the second. The slope is that of the line with the least squares; what it comes to in a day means \
         little after minutes."
            .to_owned(),
    ];
    if growth.is_none_or(|growth| growth.lasts.is_none()) {
        notes.push("Too short to say whether growth lasts: that needs ten minutes.".to_owned());
    }
    if watch.audit_dropped > 0.0 {
        notes.push(format!(
            "{} audit lines were dropped: the disk did not keep up.",
            watch.audit_dropped
        ));
    }
    notes
}
