//! What the waves did, as tables and charts.

use serde_json::json;

use super::wave::{Wave, Way};
use crate::chart::{Chart, ChartKind};
use crate::report::{Section, Table, cell, median};

pub(super) fn section(waves: &[Wave], missing: Vec<String>) -> Section {
    let mut kinds: Vec<(usize, Way)> = waves.iter().map(|wave| (wave.streams, wave.way)).collect();
    kinds.dedup();
    kinds.sort_by_key(|(streams, way)| (*streams, *way == Way::LeftOpen));
    kinds.dedup();
    let groups: Vec<(String, Vec<&Wave>)> = kinds
        .into_iter()
        .map(|(streams, way)| {
            let of_kind = |wave: &&Wave| (wave.streams, wave.way) == (streams, way);
            let name = format!("{streams} streams, {}", way.shown());
            (name, waves.iter().filter(of_kind).collect())
        })
        .collect();
    Section {
        tables: vec![table(&groups)],
        charts: charts(&groups),
        notes: notes(waves),
        failures: waves.iter().filter_map(Wave::fault).collect(),
        missing,
        samples: json!(waves),
        ..Section::default()
    }
}

fn table(groups: &[(String, Vec<&Wave>)]) -> Table {
    let mut table = Table::new([
        "sockets",
        "waves",
        "half back ms",
        "all back ms",
        "turned away",
        "queue full",
        "events",
        "lost",
        "doubled",
        "out of order",
        "last event ms",
        "CPU ms",
        "CPU us / stream",
        "p99 before us",
        "p99 meanwhile us",
        "unanswered",
    ]);
    for (name, waves) in groups {
        let middle = |of: fn(&Wave) -> f64| median(waves.iter().map(|wave| of(wave)));
        let sum =
            |of: fn(&Wave) -> usize| waves.iter().map(|wave| of(wave)).sum::<usize>().to_string();
        table.row([
            name.clone(),
            waves.len().to_string(),
            cell(middle(|wave| wave.half_back_ms), 0),
            cell(middle(|wave| wave.all_back_ms), 0),
            sum(|wave| wave.turned_away),
            cell(
                middle(|wave| wave.queue_full.map_or(f64::NAN, |full| full as f64)),
                0,
            ),
            sum(|wave| wave.deliveries.events),
            sum(|wave| wave.deliveries.lost),
            sum(|wave| wave.deliveries.doubled),
            sum(|wave| wave.deliveries.out_of_order + wave.deliveries.strange),
            cell(middle(|wave| wave.last_event_ms), 0),
            cell(middle(|wave| wave.cpu_ms), 0),
            cell(middle(Wave::cpu_us_a_stream), 0),
            cell(middle(|wave| wave.before.p99_us), 0),
            cell(middle(|wave| wave.meanwhile.p99_us), 0),
            sum(|wave| {
                usize::try_from(wave.meanwhile.wrong + wave.meanwhile.unanswered)
                    .unwrap_or(usize::MAX)
            }),
        ]);
    }
    table
}

fn charts(groups: &[(String, Vec<&Wave>)]) -> Vec<Chart> {
    let back = groups.iter().filter_map(|(name, waves)| {
        // The wave in the middle, so that the line is one that was.
        let mut sorted: Vec<&&Wave> = waves.iter().collect();
        sorted.sort_by(|one, other| one.all_back_ms.total_cmp(&other.all_back_ms));
        let middle = sorted.get(sorted.len() / 2)?;
        let percent = |(at, streams): &(f64, f64)| (*at, streams * 100.0 / middle.streams as f64);
        Some((name.clone(), middle.back.iter().map(percent).collect()))
    });
    let calls =
        |of: fn(&Wave) -> f64| move |waves: &Vec<&Wave>| median(waves.iter().map(|wave| of(wave)));
    let (before, meanwhile) = (
        calls(|wave| wave.before.p99_us / 1e3),
        calls(|wave| wave.meanwhile.p99_us / 1e3),
    );
    vec![
        Chart {
            file: "reconnect_storm".to_owned(),
            title: "Streams that are back after all were lost at once".to_owned(),
            kind: ChartKind::Timeline {
                unit: "% of the streams".to_owned(),
                series: back.collect(),
            },
        },
        Chart {
            file: "reconnect_storm_calls".to_owned(),
            title: "p99 of calls on other connections".to_owned(),
            kind: ChartKind::Bars {
                unit: "ms".to_owned(),
                log: true,
                series: vec!["before".to_owned(), "while all come back".to_owned()],
                groups: groups
                    .iter()
                    .map(|(name, waves)| (name.clone(), vec![before(waves), meanwhile(waves)]))
                    .collect(),
            },
        },
    ]
}

fn notes(waves: &[Wave]) -> Vec<String> {
    let mut notes = vec![
        "`turned away`: attempts to come back that were refused or failed; each comes again after 100 ms. `events`: what all \
         streams had together."
            .to_owned(),
        "Closing the sockets is part of `all back`; the clients share the cores with the gateway, and all of them connect at \
         once. `queue full`: how often one found the listener's queue full (`net.core.somaxconn` at most), in a wave; the kernel \
         tries again a second later, then after ever longer."
            .to_owned(),
        "`CPU ms`: of the gateway until all are back, with the calls and events meanwhile; `CPU us / stream`: without the calls, at \
         the price they had before."
            .to_owned(),
        "`p99 meanwhile`: calls on connections of their own, 1,000 a second, from the first socket lost until all are back, a \
         second at least; `unanswered`: those without an answer within ten seconds."
            .to_owned(),
    ];
    let turned_away = waves
        .iter()
        .find_map(|wave| wave.first_turned_away.as_ref());
    notes.extend(turned_away.map(|why| format!("The first that was turned away: {why}")));
    notes
}
