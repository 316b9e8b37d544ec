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

/// Who refuses what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Gateway(Kind),
    /// The HTTP library with nothing but a filter that answers 401.
    BareFilter,
}

impl By {
    /// In the order of the tables; measured like that and the other way round in turns, the bare filter and the gateway's
    /// 401 always next to each other.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        KINDS.into_iter().flat_map(|kind| {
            let bare = (kind == UNAUTHORIZED).then_some(Self::BareFilter);
            std::iter::once(Self::Gateway(kind)).chain(bare)
        })
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Gateway(kind) => format!("{} {}", kind.status, kind.what),
            Self::BareFilter => "401 of a bare filter".to_owned(),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Gateway(kind) => kind.reason,
            Self::BareFilter => "bare_filter",
        }
    }
}

/// Refusals at full speed, once.
#[derive(Debug)]
struct Refused {
    repetition: usize,
    by: By,
    sample: Sample,
    /// What a request cost nginx shortly before.
    nginx_cpu_us: Option<f64>,
}

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
    refused: Vec<Refused>,
    good: Vec<(Beside, Watched)>,
    missing: Vec<String>,
    failures: Vec<String>,
}

impl Found {
    pub(super) fn refused(
        &mut self,
        repetition: usize,
        by: By,
        sample: Sample,
        nginx_cpu_us: Option<f64>,
    ) {
        self.refused.push(Refused {
            repetition,
            by,
            sample,
            nginx_cpu_us,
        });
    }

    pub(super) fn missing(&mut self, what: &str) {
        self.missing.push(what.to_owned());
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

    fn by(&self, by: By) -> impl Iterator<Item = &Refused> {
        self.refused.iter().filter(move |refused| refused.by == by)
    }

    fn median_by(&self, by: By, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.by(by).map(|refused| of(&refused.sample)))
    }

    /// CPU time of a refusal in units of nginx's, each within its repetition.
    fn ratios(&self, by: By) -> Vec<f64> {
        let ratio = |refused: &Refused| Some(refused.sample.cpu_us / refused.nginx_cpu_us?);
        self.by(by).filter_map(ratio).collect()
    }

    /// CPU time of the gateway's 401 in that of the bare filter's, each within its repetition.
    fn to_bare_filter(&self) -> Option<f64> {
        median(self.by(By::Gateway(UNAUTHORIZED)).filter_map(|refused| {
            let same = |bare: &&Refused| bare.repetition == refused.repetition;
            let bare = self.by(By::BareFilter).find(same)?;
            Some(refused.sample.cpu_us / bare.sample.cpu_us)
        }))
    }

    fn beside(&self, beside: Beside) -> impl Iterator<Item = &Watched> {
        let of = self.good.iter().filter(move |(known, _)| *known == beside);
        of.map(|(_, watched)| watched)
    }

    fn good_median(&self, beside: Beside, of: impl Fn(&Watched) -> f64) -> Option<f64> {
        median(self.beside(beside).map(of))
    }

    pub(super) fn section(self) -> Section {
        let refused = By::all().filter(|by| self.by(*by).next().is_some());
        let refused: Vec<By> = refused.collect();
        let good = Beside::ALL
            .into_iter()
            .filter(|beside| self.beside(*beside).next().is_some());
        let good: Vec<Beside> = good.collect();
        Section {
            tables: vec![self.refusals_table(&refused), self.good_table(&good)],
            charts: vec![self.refusals_chart(&refused), self.good_chart(&good)],
            verdicts: vec![budget::REFUSAL.verdict(self.to_bare_filter())],
            notes: self.notes(),
            samples: self.samples(),
            missing: self.missing,
            failures: self.failures,
        }
    }

    fn refusals_table(&self, all: &[By]) -> Table {
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
        for &by in all {
            let ratios = self.ratios(by);
            let range = spread(ratios.iter().copied());
            table.row([
                by.name(),
                cell(self.median_by(by, |sample| sample.per_second), 0),
                cell(self.median_by(by, |sample| sample.p50_us), 0),
                cell(self.median_by(by, |sample| sample.p99_us), 0),
                cell(self.median_by(by, |sample| sample.cpu_us), 1),
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

    fn refusals_chart(&self, all: &[By]) -> Chart {
        let groups = all.iter().map(|&by| {
            let ratio = median(self.ratios(by));
            (by.name(), vec![ratio])
        });
        Chart {
            file: "refuse".to_owned(),
            title: "CPU time of a refusal, in that of nginx `return 200`".to_owned(),
            kind: ChartKind::Bars {
                unit: "n".to_owned(),
                log: false,
                series: vec!["a refusal".to_owned()],
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
        if self.by(By::BareFilter).next().is_some() {
            notes.push(
                "The bare filter is `proxy/bin/bare_filter.rs`: Pingora with the gateway's threads, buffers and allocator, \
                 and a `request_filter` that answers everybody with the bytes of the gateway's 401 (the run fails where they \
                 differ in more than request id and date). It checks, counts, limits and logs nothing. Which of the two is \
                 measured first changes with each repetition."
                    .to_owned(),
            );
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
        let refused = self.refused.iter().map(|refused| {
            let status = match refused.by {
                By::Gateway(kind) => kind.status,
                By::BareFilter => UNAUTHORIZED.status,
            };
            json!({
                "repetition": refused.repetition, "status": status, "reason": refused.by.reason(),
                "sample": refused.sample, "nginx_cpu_us": refused.nginx_cpu_us,
            })
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
    use crate::report::budget::Outcome;

    fn sample(cpu_us: f64) -> Sample {
        Sample {
            requests: 1000,
            per_second: 500.0,
            p50_us: 10.0,
            p99_us: 20.0,
            cpu_us,
            kernel_share: None,
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
        for (repetition, (cpu, nginx)) in [(14.0, 7.0), (28.0, 14.0), (21.0, 7.0)]
            .into_iter()
            .enumerate()
        {
            let by = By::Gateway(UNAUTHORIZED);
            found.refused(repetition, by, sample(cpu), Some(nginx));
        }
        found.refused(1, By::Gateway(RATE_LIMITED), sample(1.0), None);
        let section = found.section();
        let [wrong_token, limit] = &section.tables[0].rows[..] else {
            panic!("a row for each kind that was measured");
        };
        assert_eq!(wrong_token[5..], ["2.00", "2.00-3.00"]);
        assert_eq!(limit[5..], ["-", "-"], "no ratio without nginx");
        assert_eq!(section.verdicts[0].outcome, Outcome::NotMeasured);
        assert!(section.failures.is_empty());
    }

    #[test]
    fn a_401_is_compared_with_the_bare_filter_within_its_repetition() {
        let mut found = Found::default();
        for (repetition, (gateway, bare)) in [
            (12.0, Some(10.0)),
            (28.0, Some(20.0)),
            (13.0, Some(10.0)),
            (90.0, None),
        ]
        .into_iter()
        .enumerate()
        {
            let by = By::Gateway(UNAUTHORIZED);
            found.refused(repetition, by, sample(gateway), Some(10.0));
            if let Some(bare) = bare {
                found.refused(repetition, By::BareFilter, sample(bare), Some(10.0));
            }
        }
        let section = found.section();
        assert_eq!(section.verdicts[0].measured, "1.30 x");
        assert_eq!(section.verdicts[0].outcome, Outcome::Hit);
        let rows = section.tables[0].rows.iter();
        let names: Vec<&str> = rows.map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["401 wrong token", "401 of a bare filter"]);
    }

    #[test]
    fn a_bare_filter_that_is_not_there_is_named() {
        let mut found = Found::default();
        found.missing("a bare filter");
        let section = found.section();
        assert_eq!(section.missing, ["a bare filter"]);
        assert_eq!(section.verdicts[0].outcome, Outcome::NotMeasured);
    }

    #[test]
    fn the_same_failure_is_told_once() {
        let mut found = Found::default();
        found.fail("401: status 500".to_owned());
        found.fail("401: status 500".to_owned());
        assert_eq!(found.section().failures.len(), 1);
    }
}
