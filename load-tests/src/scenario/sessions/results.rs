//! What was found out about sessions, as tables and charts.

use serde::Serialize;
use serde_json::json;

use super::{PINGED, PINGS_PER_SECOND};
use crate::chart::{Chart, ChartKind};
use crate::load::open::OpenSample;
use crate::processes::Memory;
use crate::report::{Section, Table, cell, median, median_curve};

/// Which sessions there are beside those that do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Others {
    None,
    All,
}

impl Others {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "no others",
            Self::All => "all others held",
        }
    }
}

/// Sessions opened and closed at once.
#[derive(Debug, Serialize)]
pub(super) struct Churn {
    pub(super) per_second: f64,
    /// Of the gateway, for opening and closing one.
    pub(super) cpu_us: f64,
    pub(super) client_cpu_us: f64,
    pub(super) other_cores: f64,
    /// From `initialize` to its answer.
    pub(super) opening_p50_us: f64,
    pub(super) opening_p99_us: f64,
}

/// Sessions that were opened and left.
#[derive(Debug, Serialize)]
pub(super) struct Held {
    pub(super) namespace: String,
    pub(super) sessions: usize,
    pub(super) per_second: f64,
    /// Of the gateway, for opening one.
    pub(super) cpu_us: f64,
    pub(super) other_cores: f64,
    pub(super) before: Memory,
    pub(super) after: Memory,
    pub(super) moments: Vec<Moment>,
}

/// A look at the gateway while sessions are opened.
#[derive(Debug, Serialize)]
pub(super) struct Moment {
    pub(super) seconds: f64,
    pub(super) opened: usize,
    pub(super) anonymous_kib: u64,
}

impl Held {
    pub(super) fn bytes_each(&self) -> f64 {
        let (before, after) = (self.before.anonymous_kib, self.after.anonymous_kib);
        (after as f64 - before as f64) * 1024.0 / self.sessions as f64
    }

    /// Sessions opened a second between two looks.
    fn rates(&self) -> Vec<(f64, f64)> {
        let pairs = self.moments.windows(2).filter_map(|pair| {
            let [one, next] = pair else { return None };
            let seconds = next.seconds - one.seconds;
            let opened = next.opened.checked_sub(one.opened)?;
            (seconds > 0.0).then(|| (next.seconds, opened as f64 / seconds))
        });
        pairs.collect()
    }
}

/// Everything measured.
#[derive(Debug, Default)]
pub(super) struct Found {
    repetitions: Vec<Repetition>,
    held: Vec<Held>,
    /// Sessions there are in the end, as the gateway counts them.
    pub(super) alive: Option<f64>,
    failures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Repetition {
    others: Others,
    churn: Churn,
    pings: OpenSample,
    nginx_cpu_us: Option<f64>,
}

impl Found {
    pub(super) fn repetition(
        &mut self,
        others: Others,
        churn: Churn,
        pings: OpenSample,
        nginx_cpu_us: Option<f64>,
    ) {
        if let Some(fault) = pings.fault() {
            self.fail(format!("pings, {}: {fault}", others.name()));
        }
        self.repetitions.push(Repetition {
            others,
            churn,
            pings,
            nginx_cpu_us,
        });
    }

    pub(super) fn held(&mut self, held: Held) {
        self.held.push(held);
    }

    pub(super) fn fail(&mut self, why: String) {
        if !self.failures.contains(&why) {
            self.failures.push(why);
        }
    }

    fn with(&self, others: Others) -> impl Iterator<Item = &Repetition> {
        self.repetitions
            .iter()
            .filter(move |taken| taken.others == others)
    }

    fn median(&self, others: Others, of: impl Fn(&Repetition) -> Option<f64>) -> Option<f64> {
        median(self.with(others).filter_map(of))
    }

    pub(super) fn section(mut self) -> Section {
        // With each that came first of its namespace.
        let expected: usize = self.held.iter().map(|held| held.sessions + 1).sum();
        match self.alive {
            Some(alive) if alive == expected as f64 => {}
            Some(alive) => self.fail(format!("{alive} sessions in the end instead of {expected}")),
            None => self.fail("the gateway does not count its sessions".to_owned()),
        }
        Section {
            tables: vec![self.held_table(), self.used_table()],
            charts: vec![self.ping_chart(), self.rate_chart(), self.memory_chart()],
            verdicts: Vec::new(),
            notes: self.notes(expected),
            missing: Vec::new(),
            samples: json!({"repetitions": self.repetitions, "held": self.held, "alive": self.alive}),
            failures: self.failures,
        }
    }

    fn held_table(&self) -> Table {
        let header = [
            "idle sessions of",
            "sessions",
            "opened/s",
            "CPU us each",
            "bytes each",
            "gateway MiB before",
            "gateway MiB after",
        ];
        let mut table = Table::new(header).captioned("Sessions that are opened and left");
        for held in &self.held {
            let mib = |memory: &Memory| memory.anonymous_kib as f64 / 1024.0;
            table.row([
                kind(held).to_owned(),
                held.sessions.to_string(),
                cell(held.per_second, 0),
                cell(held.cpu_us, 1),
                cell(held.bytes_each(), 0),
                cell(mib(&held.before), 1),
                cell(mib(&held.after), 1),
            ]);
        }
        table
    }

    fn used_table(&self) -> Table {
        let header = [
            "other sessions",
            "opened and closed/s",
            "CPU us",
            "CPU / nginx",
            "opening p50 us",
            "opening p99 us",
            "ping p50 us",
            "ping p99 us",
            "ping CPU us",
            "ping CPU / nginx",
            "wrong",
        ];
        let caption = format!(
            "Sessions opened and closed at full speed; {PINGS_PER_SECOND:.0} pings a second spread over {PINGED} sessions"
        );
        let mut table = Table::new(header).captioned(caption);
        for others in [Others::None, Others::All] {
            let of =
                |of: fn(&Repetition) -> f64| cell(self.median(others, |taken| Some(of(taken))), 1);
            let ratio = |of: fn(&Repetition) -> f64| {
                cell(
                    self.median(others, |taken| Some(of(taken) / taken.nginx_cpu_us?)),
                    2,
                )
            };
            let wrong: u64 = self
                .with(others)
                .map(|taken| taken.pings.wrong + taken.pings.unanswered)
                .sum();
            table.row([
                self.count_of(others),
                cell(self.median(others, |taken| Some(taken.churn.per_second)), 0),
                of(|taken| taken.churn.cpu_us),
                ratio(|taken| taken.churn.cpu_us),
                of(|taken| taken.churn.opening_p50_us),
                of(|taken| taken.churn.opening_p99_us),
                of(|taken| taken.pings.p50_us),
                of(|taken| taken.pings.p99_us),
                of(|taken| taken.pings.cpu_us),
                ratio(|taken| taken.pings.cpu_us),
                wrong.to_string(),
            ]);
        }
        table
    }

    fn count_of(&self, others: Others) -> String {
        match others {
            Others::None => "none".to_owned(),
            Others::All => {
                let all: usize = self.held.iter().map(|held| held.sessions).sum();
                all.to_string()
            }
        }
    }

    fn ping_chart(&self) -> Chart {
        let series = [Others::None, Others::All].map(|others| {
            let curves = self.with(others).map(|taken| &taken.pings.curve);
            (
                format!("{} other sessions", self.count_of(others)),
                median_curve(curves),
            )
        });
        Chart {
            file: "sessions".to_owned(),
            title: format!("Latency of {PINGS_PER_SECOND:.0} pings a second"),
            kind: ChartKind::Percentiles {
                unit: "us".to_owned(),
                series: series.to_vec(),
            },
        }
    }

    fn rate_chart(&self) -> Chart {
        let series = self
            .held
            .iter()
            .map(|held| (kind(held).to_owned(), held.rates()));
        Chart {
            file: "sessions_opening".to_owned(),
            title: "Sessions opened a second, while there are more and more of them".to_owned(),
            kind: ChartKind::Timeline {
                unit: "sessions/s".to_owned(),
                series: series.collect(),
            },
        }
    }

    fn memory_chart(&self) -> Chart {
        let series = self.held.iter().map(|held| {
            let points = held
                .moments
                .iter()
                .map(|moment| (moment.seconds, moment.anonymous_kib as f64 / 1024.0));
            (kind(held).to_owned(), points.collect())
        });
        Chart {
            file: "sessions_memory".to_owned(),
            title: "Memory of the gateway while sessions are opened".to_owned(),
            kind: ChartKind::Timeline {
                unit: "MiB".to_owned(),
                series: series.collect(),
            },
        }
    }

    fn notes(&self, expected: usize) -> Vec<String> {
        let mut notes = vec![
            "bytes each: growth of the gateway's own memory (`RssAnon`) a second after the last was opened; idle sessions have \
             no connection, so the kernel holds nothing for them."
                .to_owned(),
            "The rows without and with other sessions are two gateways of one run, asked in turn.".to_owned(),
        ];
        if self.alive == Some(expected as f64) {
            notes.push(format!(
                "{expected} sessions were there in the end as they should be; none expired, none was pushed out."
            ));
        }
        notes
    }
}

fn kind(held: &Held) -> &'static str {
    if held.namespace == super::STDIO_NAMESPACE {
        "a stdio server"
    } else {
        "a namespace without server"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(moments: &[(f64, usize)]) -> Held {
        let memory = |anonymous_kib| Memory {
            resident_kib: 0,
            anonymous_kib,
        };
        let moments = moments.iter().map(|&(seconds, opened)| Moment {
            seconds,
            opened,
            anonymous_kib: 2048,
        });
        Held {
            namespace: "empty".to_owned(),
            sessions: 1000,
            per_second: 1.0,
            cpu_us: 1.0,
            other_cores: 0.0,
            before: memory(1000),
            after: memory(2000),
            moments: moments.collect(),
        }
    }

    #[test]
    fn a_session_costs_what_the_gateway_has_grown_by() {
        assert_eq!(held(&[]).bytes_each(), 1024.0);
    }

    #[test]
    fn rates_are_between_looks() {
        let held = held(&[(1.0, 100), (1.5, 200), (1.5, 210), (2.5, 310)]);
        assert_eq!(held.rates(), [(1.5, 200.0), (2.5, 100.0)]);
    }

    #[test]
    fn a_session_that_is_missing_in_the_end_is_a_failure() {
        let found = |alive| Found {
            alive,
            held: vec![held(&[])],
            ..Found::default()
        };
        assert!(found(Some(1001.0)).section().failures.is_empty());
        for alive in [Some(1000.0), Some(1002.0), None] {
            assert_eq!(found(alive).section().failures.len(), 1, "{alive:?}");
        }
    }
}
