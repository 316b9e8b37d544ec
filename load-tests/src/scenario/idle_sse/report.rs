//! What was found, as tables, charts and verdicts.

use serde_json::json;

use super::held::{Found, Held};
use crate::chart::{Chart, ChartKind};
use crate::load::open::OpenSample;
use crate::report::{Section, Table, budget, cell, median, median_curve};

pub(super) fn section(found: &Found) -> Section {
    let failures = found.direct.iter().filter(|held| held.lost > 0);
    let failures = failures.map(|held| {
        format!(
            "{} of {} streams ended by themselves",
            held.lost, held.streams
        )
    });
    let faults = all_calls(found)
        .filter_map(|(name, sample)| Some(format!("calls {name}: {}", sample.fault()?)));
    let most = found.direct.last();
    Section {
        tables: vec![streams(found), calls(found)],
        charts: charts(found),
        verdicts: vec![
            budget::STREAM.verdict(most.map(|held| held.session_kib + held.stream_kib)),
            budget::FAN_OUT.verdict(most.and_then(|held| median(held.fan_out_ms.iter().copied()))),
            budget::CALLS_BESIDE_STREAMS.verdict(most.and_then(|held| slower(found, held))),
        ],
        notes: notes(found),
        missing: found.missing.iter().cloned().collect(),
        failures: failures.chain(faults).collect(),
        samples: json!(found),
    }
}

/// Samples without a stream, before and after.
fn without(found: &Found) -> impl Iterator<Item = &OpenSample> {
    found.before.iter().chain(&found.after)
}

/// All samples of calls, each with the name of its row.
fn all_calls(found: &Found) -> impl Iterator<Item = (String, &OpenSample)> {
    let held = found.direct.iter().flat_map(|held| {
        held.calls
            .iter()
            .map(|sample| (format!("beside {} streams", held.streams), sample))
    });
    let before = found
        .before
        .iter()
        .map(|sample| ("before".to_owned(), sample));
    let after = found
        .after
        .iter()
        .map(|sample| ("after".to_owned(), sample));
    before.chain(held).chain(after)
}

fn p99<'a>(samples: impl IntoIterator<Item = &'a OpenSample>) -> Option<f64> {
    median(samples.into_iter().map(|sample| sample.p99_us))
}

/// p99 of calls beside streams, in that without any.
fn slower(found: &Found, held: &Held) -> Option<f64> {
    Some(p99(&held.calls)? / p99(without(found))?)
}

fn streams(found: &Found) -> Table {
    let mut table = Table::new([
        "streams",
        "session KiB",
        "stream KiB",
        "left KiB",
        "nginx KiB",
        "event to all ms",
        "CPU ms an event",
    ]);
    let last = found.direct.len().saturating_sub(1);
    for (place, held) in found.direct.iter().enumerate() {
        table.row([
            held.streams.to_string(),
            cell(held.session_kib, 2),
            cell(held.stream_kib, 2),
            cell((place == last).then_some(found.left_kib), 2),
            cell(None, 2),
            cell(median(held.fan_out_ms.iter().copied()), 0),
            cell(held.fan_out_cpu_ms, 0),
        ]);
    }
    if let Some(behind) = &found.behind_nginx {
        table.row([
            format!("{} behind nginx", behind.streams),
            cell(None, 2),
            cell(None, 2),
            cell(None, 2),
            cell(behind.nginx_kib, 2),
            cell(median(behind.fan_out_ms.iter().copied()), 0),
            cell(behind.fan_out_cpu_ms, 0),
        ]);
    }
    table
}

fn calls(found: &Found) -> Table {
    let mut table = Table::new([
        "streams",
        "calls/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "late",
        "p99 to that without",
    ])
    .captioned("Tool calls on other connections, on a fixed schedule:");
    let mut row = |name: String, samples: &[&OpenSample], slower: Option<f64>| {
        let middle = |of: fn(&OpenSample) -> f64| median(samples.iter().map(|sample| of(sample)));
        table.row([
            name,
            cell(middle(|sample| sample.per_second), 0),
            cell(middle(|sample| sample.p50_us), 0),
            cell(middle(|sample| sample.p99_us), 0),
            cell(middle(|sample| sample.p999_us), 0),
            samples
                .iter()
                .map(|sample| sample.late)
                .sum::<u64>()
                .to_string(),
            cell(slower, 2),
        ]);
    };
    row("none, before".to_owned(), &refs(&found.before), None);
    for held in &found.direct {
        row(
            held.streams.to_string(),
            &refs(&held.calls),
            slower(found, held),
        );
    }
    row("none, after".to_owned(), &refs(&found.after), None);
    table
}

fn refs(samples: &[OpenSample]) -> Vec<&OpenSample> {
    samples.iter().collect()
}

fn charts(found: &Found) -> Vec<Chart> {
    let mut memory: Vec<(String, Vec<Option<f64>>)> = found
        .direct
        .iter()
        .map(|held| {
            (
                format!("{} streams", held.streams),
                vec![Some(held.session_kib), Some(held.stream_kib), None],
            )
        })
        .collect();
    let mut events: Vec<(String, Vec<Option<f64>>)> = found
        .direct
        .iter()
        .map(|held| {
            let name = format!("{} streams", held.streams);
            (
                name,
                vec![
                    median(held.fan_out_ms.iter().copied()),
                    Some(held.fan_out_cpu_ms),
                ],
            )
        })
        .collect();
    if let Some(behind) = &found.behind_nginx {
        let name = format!("{} behind nginx", behind.streams);
        memory.push((name.clone(), vec![None, None, Some(behind.nginx_kib)]));
        events.push((
            name,
            vec![
                median(behind.fan_out_ms.iter().copied()),
                Some(behind.fan_out_cpu_ms),
            ],
        ));
    }
    let curve = |samples: &[&OpenSample]| median_curve(samples.iter().map(|sample| &sample.curve));
    let none: Vec<&OpenSample> = without(found).collect();
    let beside = found.direct.iter().map(|held| {
        let name = format!("beside {} streams", held.streams);
        (name, curve(&refs(&held.calls)))
    });
    vec![
        Chart {
            file: "idle_sse".to_owned(),
            title: "Memory of an idle stream".to_owned(),
            kind: ChartKind::Bars {
                unit: "KiB".to_owned(),
                log: false,
                series: ["session", "stream", "nginx in front"]
                    .map(str::to_owned)
                    .to_vec(),
                groups: memory,
            },
        },
        Chart {
            file: "idle_sse_events".to_owned(),
            title: "One event to all streams".to_owned(),
            kind: ChartKind::Bars {
                unit: "ms".to_owned(),
                log: false,
                series: ["on the last stream after", "CPU time of the gateway"]
                    .map(str::to_owned)
                    .to_vec(),
                groups: events,
            },
        },
        Chart {
            file: "idle_sse_calls".to_owned(),
            title: "Calls on other connections".to_owned(),
            kind: ChartKind::Percentiles {
                unit: "us".to_owned(),
                series: std::iter::once(("no streams".to_owned(), curve(&none)))
                    .chain(beside)
                    .collect(),
            },
        },
    ]
}

fn notes(found: &Found) -> Vec<String> {
    let mut notes = vec![
        "KiB are the growth of the process's own memory (`RssAnon`); memory of sockets in the kernel is not in it. `left KiB`: what \
         is there beyond the session a second after its stream was closed; the stream and its last events are kept for the client \
         to come back to."
            .to_owned(),
        "The readers of the streams are a thread of the load program, which takes part in the contest for the cores while an event \
         goes out: `event to all` is what the machine can do with both on it, `CPU ms` is the gateway's part."
            .to_owned(),
    ];
    if let (Some(before), Some(after)) = (p99(&found.before), p99(&found.after)) {
        let drift = after / before;
        notes.push(format!(
            "p99 without streams was {drift:.2} times as long after them as before: the ratios are worth no more than that."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::budget::Outcome;

    fn held(streams: usize, fan_out_ms: &[f64]) -> Held {
        Held {
            streams,
            session_kib: 1.0,
            stream_kib: 2.5,
            fan_out_ms: fan_out_ms.to_vec(),
            fan_out_cpu_ms: 20.0,
            calls: Vec::new(),
            lost: 0,
        }
    }

    #[test]
    fn the_largest_number_of_streams_is_judged() {
        let found = Found {
            direct: vec![held(5_000, &[10.0]), held(19_000, &[300.0, 130.0, 110.0])],
            ..Found::default()
        };
        let section = section(&found);
        assert_eq!(section.verdicts[0].measured, "3.50 KiB");
        assert_eq!(section.verdicts[1].measured, "130 ms");
        assert_eq!(section.verdicts[2].outcome, Outcome::NotMeasured);
        assert_eq!(section.tables[0].rows.len(), 2);
        assert!(section.failures.is_empty());
    }

    #[test]
    fn a_stream_that_ended_fails_the_run() {
        let mut lost = held(5_000, &[]);
        lost.lost = 3;
        let found = Found {
            direct: vec![lost],
            ..Found::default()
        };
        assert_eq!(
            section(&found).failures,
            ["3 of 5000 streams ended by themselves"]
        );
    }
}
