//! What was found out about refusals, as tables, charts and a verdict.

use serde::Serialize;
use serde_json::json;

use super::GOOD_PER_SECOND;
use super::kind::{KINDS, Kind, RATE_LIMITED, UNAUTHORIZED};
use crate::chart::{Chart, ChartKind};
use crate::load::Sample;
use crate::load::open::OpenSample;
use crate::processes::Queued;
use crate::report::budget;
use crate::report::{Section, Table, cell, median, median_curve, spread};

/// What a bare filter of the HTTP library cost in units of nginx's `return 200` when a prototype was measured: it is not
/// part of the gateway, so it cannot be measured beside it.
const BARE_FILTER_N: f64 = 1.45;

/// What good calls stand beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// The same load on nginx: the machine is as busy, the gateway is not attacked.
    Nginx,
    Refused(Kind),
}

impl Beside {
    pub(super) const ALL: [Self; 4] = [
        Self::Nothing,
        Self::Nginx,
        Self::Refused(UNAUTHORIZED),
        Self::Refused(RATE_LIMITED),
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Nothing => "alone".to_owned(),
            Self::Nginx => "beside that load on nginx".to_owned(),
            Self::Refused(kind) => format!("beside {} at full speed", kind.status),
        }
    }
}

/// One window of good calls.
#[derive(Debug, Serialize)]
pub(super) struct Watched {
    pub(super) sample: OpenSample,
    /// What came beside them.
    pub(super) attack: Option<Sample>,
    /// Milliseconds the gateway's threads waited for a core in each second.
    pub(super) queued_ms: f64,
}

/// Everything measured.
#[derive(Debug, Default)]
pub(super) struct Found {
    refused: Vec<(Kind, Sample, Option<f64>)>,
    good: Vec<(Beside, Watched)>,
    failures: Vec<String>,
}

impl Found {
    pub(super) fn refused(&mut self, kind: Kind, sample: Sample, nginx_cpu_us: Option<f64>) {
        self.refused.push((kind, sample, nginx_cpu_us));
    }

    pub(super) fn good(&mut self, beside: Beside, watched: Watched) {
        if let Some(fault) = watched.sample.fault() {
            self.fail(format!("good calls {}: {fault}", beside.name()));
        }
        self.good.push((beside, watched));
    }

    pub(super) fn fail(&mut self, why: String) {
        if !self.failures.contains(&why) {
            self.failures.push(why);
        }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &(Kind, Sample, Option<f64>)> {
        self.refused
            .iter()
            .filter(move |(known, ..)| *known == kind)
    }

    fn kind_median(&self, kind: Kind, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.of_kind(kind).map(|(_, sample, _)| of(sample)))
    }

    /// CPU time of a refusal in units of nginx's, each within its repetition.
    fn ratios(&self, kind: Kind) -> Vec<f64> {
        let ratio =
            |(_, sample, nginx): &(Kind, Sample, Option<f64>)| Some(sample.cpu_us / (*nginx)?);
        self.of_kind(kind).filter_map(ratio).collect()
    }

    fn beside(&self, beside: Beside) -> impl Iterator<Item = &Watched> {
        let of = self.good.iter().filter(move |(known, _)| *known == beside);
        of.map(|(_, watched)| watched)
    }

    fn good_median(&self, beside: Beside, of: impl Fn(&Watched) -> f64) -> Option<f64> {
        median(self.beside(beside).map(of))
    }

    pub(super) fn section(self) -> Section {
        let refused = KINDS
            .into_iter()
            .filter(|kind| self.of_kind(*kind).next().is_some());
        let refused: Vec<Kind> = refused.collect();
        let good = Beside::ALL
            .into_iter()
            .filter(|beside| self.beside(*beside).next().is_some());
        let good: Vec<Beside> = good.collect();
        Section {
            tables: vec![self.refusals_table(&refused), self.good_table(&good)],
            charts: vec![self.refusals_chart(&refused), self.good_chart(&good)],
            verdicts: vec![budget::REFUSAL.verdict(None)],
            notes: self.notes(),
            missing: Vec::new(),
            samples: self.samples(),
            failures: self.failures,
        }
    }

    fn refusals_table(&self, kinds: &[Kind]) -> Table {
        let header = [
            "refusal",
            "refused/s",
            "p50 us",
            "p99 us",
            "CPU us",
            "CPU / nginx",
            "range",
        ];
        let mut table = Table::new(header).captioned("Refusals at full speed");
        for &kind in kinds {
            let ratios = self.ratios(kind);
            let range = spread(ratios.iter().copied());
            table.row([
                format!("{} {}", kind.status, kind.what),
                cell(self.kind_median(kind, |sample| sample.per_second), 0),
                cell(self.kind_median(kind, |sample| sample.p50_us), 0),
                cell(self.kind_median(kind, |sample| sample.p99_us), 0),
                cell(self.kind_median(kind, |sample| sample.cpu_us), 1),
                cell(median(ratios), 2),
                range.map_or_else(
                    || cell(None, 2),
                    |(least, most)| format!("{least:.2}-{most:.2}"),
                ),
            ]);
        }
        table
    }

    fn good_table(&self, all: &[Beside]) -> Table {
        let header = [
            "good calls",
            "others/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "worst us",
            "p99 / alone",
            "p99 / beside nginx",
            "queued ms/s",
            "late",
            "wrong",
        ];
        let caption = format!("{GOOD_PER_SECOND:.0} good calls a second of an async Python tool");
        let mut table = Table::new(header).captioned(caption);
        let p99 = |beside| self.good_median(beside, |watched| watched.sample.p99_us);
        for &beside in all {
            let times = |other: Option<f64>| Some(p99(beside)? / other?);
            let of = |of: fn(&Watched) -> f64| cell(self.good_median(beside, of), 0);
            let sum = |of: fn(&OpenSample) -> u64| {
                let each = self.beside(beside).map(|watched| of(&watched.sample));
                each.sum::<u64>().to_string()
            };
            let others = self
                .beside(beside)
                .filter_map(|watched| watched.attack.as_ref());
            let attacked = matches!(beside, Beside::Refused(_));
            table.row([
                beside.name(),
                cell(median(others.map(|attack| attack.per_second)), 0),
                of(|watched| watched.sample.p50_us),
                of(|watched| watched.sample.p99_us),
                of(|watched| watched.sample.p999_us),
                of(|watched| watched.sample.max_us),
                cell(times(p99(Beside::Nothing)), 2),
                cell(times(p99(Beside::Nginx)).filter(|_| attacked), 2),
                of(|watched| watched.queued_ms),
                sum(|sample| sample.late),
                sum(|sample| sample.wrong + sample.unanswered),
            ]);
        }
        table
    }

    fn refusals_chart(&self, kinds: &[Kind]) -> Chart {
        let groups = kinds.iter().map(|&kind| {
            let ratio = median(self.ratios(kind));
            (format!("{} {}", kind.status, kind.what), vec![ratio])
        });
        Chart {
            file: "refuse".to_owned(),
            title: "CPU time of a refusal, in that of nginx `return 200`".to_owned(),
            kind: ChartKind::Bars {
                unit: "n".to_owned(),
                log: false,
                series: vec!["tooldock".to_owned()],
                groups: groups.collect(),
            },
        }
    }

    fn good_chart(&self, all: &[Beside]) -> Chart {
        let series = all.iter().map(|&beside| {
            let curves = self.beside(beside).map(|watched| &watched.sample.curve);
            (beside.name(), median_curve(curves))
        });
        Chart {
            file: "refuse_good".to_owned(),
            title: format!("Latency of {GOOD_PER_SECOND:.0} good calls a second"),
            kind: ChartKind::Percentiles {
                unit: "us".to_owned(),
                series: series.collect(),
            },
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(ratio) = median(self.ratios(UNAUTHORIZED)) {
            notes.push(format!(
                "The budget of a 401 is 1.3 times a bare filter of the HTTP library, which is not part of the gateway and not \
                 measured here. A prototype's took about {BARE_FILTER_N} n, so the budget is about {:.2} n and the goal {:.2} n; \
                 the 401 above is {:.2} times that filter. An estimate, not a verdict.",
                1.3 * BARE_FILTER_N,
                1.15 * BARE_FILTER_N,
                ratio / BARE_FILTER_N
            ));
        }
        notes.push(
            "The attacker has its own thread and connections. All share the cores: what an attack on the gateway adds to the \
             latency of good calls is the difference from the row with the same number of connections at nginx, which answers \
             more of them a second."
                .to_owned(),
        );
        notes.push(Queued::NOTE.to_owned());
        notes
    }

    fn samples(&self) -> serde_json::Value {
        let refused = self.refused.iter().map(|(kind, sample, nginx_cpu_us)| {
            json!({"status": kind.status, "reason": kind.reason, "sample": sample, "nginx_cpu_us": nginx_cpu_us})
        });
        let good = self
            .good
            .iter()
            .map(|(beside, watched)| json!({"beside": beside.name(), "watched": watched}));
        json!({"refused": refused.collect::<Vec<_>>(), "good": good.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_us: f64) -> Sample {
        Sample {
            requests: 1000,
            per_second: 500.0,
            p50_us: 10.0,
            p99_us: 20.0,
            cpu_us,
            worker_cpu_us: None,
            client_cpu_us: 1.0,
            other_cores: 0.0,
            closed: 0,
            curve: vec![(50.0, 10.0)],
        }
    }

    #[test]
    fn a_refusal_is_compared_with_nginx_within_its_repetition() {
        let mut found = Found::default();
        // The machine was twice as slow in the second one; the gateway was not.
        for (cpu, nginx) in [(14.0, 7.0), (28.0, 14.0), (21.0, 7.0)] {
            found.refused(UNAUTHORIZED, sample(cpu), Some(nginx));
        }
        found.refused(RATE_LIMITED, sample(1.0), None);
        let section = found.section();
        let [wrong_token, limit] = &section.tables[0].rows[..] else {
            panic!("a row for each kind that was measured");
        };
        assert_eq!(wrong_token[5..], ["2.00", "2.00-3.00"]);
        assert_eq!(limit[5..], ["-", "-"], "no ratio without nginx");
        assert!(
            section.notes[0].contains("1.38 times"),
            "{:?}",
            section.notes
        );
        assert!(section.failures.is_empty());
    }

    #[test]
    fn the_same_failure_is_told_once() {
        let mut found = Found::default();
        found.fail("401: status 500".to_owned());
        found.fail("401: status 500".to_owned());
        assert_eq!(found.section().failures.len(), 1);
    }
}
