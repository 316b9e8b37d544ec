//! What was found out about reloads, as tables, charts and verdicts.

use serde::Serialize;
use serde_json::json;

use super::worker_start::WorkerStart;
use super::{CHANGING_PER_SECOND, OTHERS_PER_SECOND};
use crate::chart::{Chart, ChartKind};
use crate::load::open::OpenSample;
use crate::processes::Queued;
use crate::report::budget;
use crate::report::{Section, Table, cell, median, median_curve, spread};

/// What a reload meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Situation {
    NothingChanged,
    OneChanged,
    OneChangedUnderLoad,
}

impl Situation {
    const ALL: [Self; 3] = [
        Self::NothingChanged,
        Self::OneChanged,
        Self::OneChangedUnderLoad,
    ];

    fn name(self, namespaces: usize) -> String {
        match self {
            Self::NothingChanged => format!("none of {namespaces} changed"),
            Self::OneChanged => format!("one of {namespaces} changed, nobody calls"),
            Self::OneChangedUnderLoad => format!("one of {namespaces} changed, under load"),
        }
    }
}

/// Whom calls go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Who {
    Others,
    Changing,
}

impl Who {
    pub(super) const ALL: [Self; 2] = [Self::Others, Self::Changing];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Others => "others",
            Self::Changing => "the one that changes",
        }
    }

    fn per_second(self) -> f64 {
        match self {
            Self::Others => OTHERS_PER_SECOND,
            Self::Changing => CHANGING_PER_SECOND,
        }
    }
}

/// Everything measured.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) worker_start: Option<WorkerStart>,
    pub(super) namespaces: usize,
    /// Milliseconds to the answer of `POST /reload`.
    reloads: Vec<(Situation, f64)>,
    windows: Vec<Window>,
    failures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Window {
    who: Who,
    /// Whether there was a reload in it.
    during: bool,
    sample: OpenSample,
    /// Milliseconds the gateway's threads waited for a core in each second.
    queued_ms: f64,
}

impl Found {
    pub(super) fn reload(&mut self, situation: Situation, ms: f64) {
        self.reloads.push((situation, ms));
    }

    pub(super) fn window(&mut self, who: Who, during: bool, sample: OpenSample, queued_ms: f64) {
        if let Some(fault) = sample.fault() {
            let when = if during { "with" } else { "without" };
            self.fail(format!("calls of {} {when} a reload: {fault}", who.name()));
        }
        self.windows.push(Window {
            who,
            during,
            sample,
            queued_ms,
        });
    }

    pub(super) fn fail(&mut self, why: String) {
        if !self.failures.contains(&why) {
            self.failures.push(why);
        }
    }

    fn times(&self, situation: Situation) -> Vec<f64> {
        let of = self.reloads.iter().filter(|(known, _)| *known == situation);
        of.map(|(_, ms)| *ms).collect()
    }

    fn windows(&self, who: Who, during: bool) -> impl Iterator<Item = &Window> {
        let fits = move |window: &&Window| window.who == who && window.during == during;
        self.windows.iter().filter(fits)
    }

    fn of(&self, who: Who, during: bool) -> impl Iterator<Item = &OpenSample> {
        self.windows(who, during).map(|window| &window.sample)
    }

    /// One line of progress.
    pub(super) fn shown(&self) -> String {
        let of = |situation| cell(median(self.times(situation)), 0);
        format!(
            "nothing changed {} ms, one changed {} ms",
            of(Situation::NothingChanged),
            of(Situation::OneChanged)
        )
    }

    pub(super) fn section(self) -> Section {
        let starts = self.worker_start.as_ref();
        let start_ms = starts.and_then(|starts| median(starts.reload_ms.iter().copied()));
        let reload_ms = median(self.times(Situation::OneChangedUnderLoad));
        Section {
            tables: vec![self.times_table(), self.latency_table()],
            charts: vec![self.worst_chart(), self.curve_chart(), self.times_chart()],
            verdicts: vec![
                budget::WORKER_START.verdict(start_ms),
                budget::RELOAD.verdict(reload_ms),
            ],
            notes: self.notes(),
            missing: Vec::new(),
            samples: json!({
                "worker_start": self.worker_start,
                "reloads": self.reloads,
                "windows": self.windows,
            }),
            failures: self.failures,
        }
    }

    /// What takes how long: a name and its times.
    fn timed(&self) -> Vec<(String, Vec<f64>)> {
        let mut rows = Vec::new();
        if let Some(starts) = &self.worker_start {
            rows.push((
                "a new folder to the answer".to_owned(),
                starts.reload_ms.clone(),
            ));
            rows.push((
                "a new folder to its first call".to_owned(),
                starts.first_call_ms.clone(),
            ));
        }
        for situation in Situation::ALL {
            rows.push((situation.name(self.namespaces), self.times(situation)));
        }
        rows.retain(|(_, times)| !times.is_empty());
        rows
    }

    fn times_table(&self) -> Table {
        let header = ["POST /reload", "times", "ms", "least", "most"];
        let mut table = Table::new(header).captioned("From the request to its answer");
        for (name, times) in self.timed() {
            let range = spread(times.iter().copied());
            table.row([
                name,
                times.len().to_string(),
                cell(median(times), 0),
                cell(range.map(|(least, _)| least), 0),
                cell(range.map(|(_, most)| most), 0),
            ]);
        }
        table
    }

    fn latency_table(&self) -> Table {
        let header = [
            "calls to",
            "calls/s",
            "reload",
            "calls",
            "failed",
            "p50 us",
            "p99 us",
            "p99 / without",
            "worst us",
            "queued ms/s",
            "late",
        ];
        let mut table =
            Table::new(header).captioned("Calls while one namespace changes, and just before");
        let middle = |who, during, of: fn(&OpenSample) -> f64| median(self.of(who, during).map(of));
        for who in Who::ALL {
            for during in [false, true] {
                let sum = |of: fn(&OpenSample) -> u64| {
                    self.of(who, during).map(of).sum::<u64>().to_string()
                };
                let queued = self.windows(who, during).map(|window| window.queued_ms);
                let p99 = |during| middle(who, during, |sample| sample.p99_us);
                let times = p99(during)
                    .zip(p99(false))
                    .map(|(now, before)| now / before);
                table.row([
                    who.name().to_owned(),
                    cell(who.per_second(), 0),
                    if during { "with" } else { "without" }.to_owned(),
                    sum(|sample| sample.due),
                    sum(|sample| sample.wrong + sample.unanswered),
                    cell(middle(who, during, |sample| sample.p50_us), 0),
                    cell(p99(during), 0),
                    cell(times.filter(|_| during), 2),
                    cell(
                        spread(self.of(who, during).map(|sample| sample.max_us))
                            .map(|(_, most)| most),
                        0,
                    ),
                    cell(median(queued), 0),
                    sum(|sample| sample.late),
                ]);
            }
        }
        table
    }

    /// The worst of each tenth of a second, in the middle of all windows.
    fn worst_chart(&self) -> Chart {
        let mut series = Vec::new();
        for who in Who::ALL {
            for (during, when) in [(false, "without"), (true, "with")] {
                let worst = self.of(who, during).map(|sample| &sample.worst);
                let name = format!("{}, {when} a reload", who.name());
                series.push((name, median_curve(worst)));
            }
        }
        Chart {
            file: "reload".to_owned(),
            title: "The slowest call of each tenth of a second; the reload is asked at 0"
                .to_owned(),
            kind: ChartKind::Timeline {
                unit: "us".to_owned(),
                series,
            },
        }
    }

    fn curve_chart(&self) -> Chart {
        let series =
            [(false, "without a reload"), (true, "with a reload")].map(|(during, name)| {
                let curves = self.of(Who::Others, during).map(|sample| &sample.curve);
                (name.to_owned(), median_curve(curves))
            });
        Chart {
            file: "reload_others".to_owned(),
            title: "Latency of calls to namespaces that do not change".to_owned(),
            kind: ChartKind::Percentiles {
                unit: "us".to_owned(),
                series: series.to_vec(),
            },
        }
    }

    fn times_chart(&self) -> Chart {
        let groups = self
            .timed()
            .into_iter()
            .map(|(name, times)| (name, vec![median(times)]));
        Chart {
            file: "reload_times".to_owned(),
            title: "From `POST /reload` to its answer".to_owned(),
            kind: ChartKind::Bars {
                unit: "ms".to_owned(),
                log: false,
                series: vec!["tooldock".to_owned()],
                groups: groups.collect(),
            },
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "The budget of the reload is held against the one under load. Its time is nearly all the start of the new worker, \
             which competes with the load for the same cores."
                .to_owned(),
        ];
        notes.push(Queued::NOTE.to_owned());
        if let Some(ready) = self
            .worker_start
            .as_ref()
            .and_then(|starts| starts.spawn_to_ready_ms)
        {
            notes.push(format!(
                "Of a worker start, {ready:.0} ms pass between its process and its readiness, by the gateway's own count."
            ));
        }
        let changed = self
            .reloads
            .iter()
            .filter(|(situation, _)| *situation != Situation::NothingChanged)
            .count();
        if changed > 0 && self.failures.is_empty() {
            notes.push(format!(
                "After each of {changed} changes the new code answered the first call, and every other process was the one it \
                 had been."
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_held_against_the_reload_under_load() {
        let mut found = Found {
            namespaces: 200,
            ..Found::default()
        };
        found.reload(Situation::OneChanged, 100.0);
        for ms in [1500.0, 500.0, 700.0] {
            found.reload(Situation::OneChangedUnderLoad, ms);
        }
        assert_eq!(found.timed().len(), 2, "what was not measured has no row");
        let section = found.section();
        let [_, reload] = &section.verdicts[..] else {
            panic!("two verdicts");
        };
        assert_eq!(*reload, budget::RELOAD.verdict(Some(700.0)));
        assert_eq!(
            section.tables[0].rows[1][0],
            "one of 200 changed, under load"
        );
    }
}
