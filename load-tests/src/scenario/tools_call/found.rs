//! What was measured: every sample, and medians over the repetitions.

use serde::Serialize;

use super::case::{Case, Client, Server};
use crate::load::Sample;
use crate::load::one_by_one::Latencies;
use crate::processes::Memory;
use crate::report::median;

/// In front of a server stands nothing.
pub(super) const NOTHING: &str = "nothing";

/// Everything found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Found {
    pub(super) rows: Vec<Row<Loaded>>,
    /// With one client.
    pub(super) alone: Vec<Row<Alone>>,
    /// A gateway without tools.
    pub(super) idle: Option<Memory>,
    #[serde(skip)]
    pub(super) fronts: Vec<String>,
    #[serde(skip)]
    pub(super) missing: Vec<String>,
    /// What a peer did not do.
    #[serde(skip)]
    pub(super) findings: Vec<String>,
    #[serde(skip)]
    pub(super) failures: Vec<String>,
}

/// One case of one front.
#[derive(Debug, Serialize)]
pub(super) struct Row<S> {
    pub(super) front: String,
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) samples: Vec<S>,
}

/// Under load from many clients, once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Loaded {
    pub(super) repetition: usize,
    pub(super) clients: usize,
    #[serde(flatten)]
    pub(super) sample: Sample,
    /// What a request cost nginx shortly before.
    pub(super) nginx_cpu_us: Option<f64>,
    /// Answers that were wrong or missing, warm-up included. They are not among the requests.
    pub(super) wrong: u64,
    pub(super) first_wrong: Option<String>,
    /// Memory right after the load, shared pages counted once.
    pub(super) front_kib: u64,
    pub(super) servers: usize,
    pub(super) servers_kib: u64,
}

/// With one client, once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Alone {
    /// The server by itself, measured just before.
    pub(super) direct: Latencies,
    pub(super) through: Latencies,
    /// CPU time of what is in front, and of the servers, for one call.
    pub(super) cpu_us: f64,
    pub(super) server_cpu_us: f64,
}

impl Found {
    pub(super) fn load(&mut self, front: &str, case: Case, loaded: Loaded) {
        Row::of(&mut self.rows, front, case).samples.push(loaded);
    }

    pub(super) fn call_alone(&mut self, front: &str, case: Case, alone: Alone) {
        Row::of(&mut self.alone, front, case).samples.push(alone);
    }

    /// Once, however often it happens.
    pub(super) fn finding(&mut self, text: String) {
        if !self.findings.contains(&text) {
            self.findings.push(text);
        }
    }

    pub(super) fn row(&self, front: &str, case: Case) -> Option<&Row<Loaded>> {
        let is = |row: &&Row<Loaded>| row.front == front && row.case == case;
        self.rows.iter().find(is)
    }

    pub(super) fn row_alone(&self, front: &str, server: Server) -> Option<&Row<Alone>> {
        let is = |row: &&Row<Alone>| row.front == front && row.case.server == server;
        self.alone.iter().find(is)
    }
}

impl<S> Row<S> {
    fn of<'r>(rows: &'r mut Vec<Self>, front: &str, case: Case) -> &'r mut Self {
        let known = rows
            .iter()
            .position(|row| row.front == front && row.case == case);
        let at = known.unwrap_or_else(|| {
            rows.push(Self {
                front: front.to_owned(),
                case,
                samples: Vec::new(),
            });
            rows.len() - 1
        });
        &mut rows[at]
    }

    pub(super) fn median(&self, of: impl Fn(&S) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(of))
    }
}

impl Loaded {
    /// CPU time of a request in units of nginx's.
    pub(super) fn ratio(&self) -> Option<f64> {
        Some(self.sample.cpu_us / self.nginx_cpu_us?)
    }

    /// What another row has of the same repetition.
    fn in_its_repetition<'r>(&self, other: &'r Row<Self>) -> Option<&'r Self> {
        let mut samples = other.samples.iter();
        samples.find(|other| other.repetition == self.repetition)
    }

    /// Of what is in front and of the servers together.
    fn all_cpu_us(&self) -> f64 {
        self.sample.cpu_us + self.sample.worker_cpu_us.unwrap_or_default()
    }
}

impl Row<Loaded> {
    /// What stands at the pipes of a server has no cost of its own.
    pub(super) fn cpu_us(&self) -> Option<f64> {
        self.in_front(|loaded| Some(loaded.sample.cpu_us))
    }

    /// CPU time of what is in front that was spent in the kernel, in hundredths of it.
    pub(super) fn kernel_percent(&self) -> Option<f64> {
        self.in_front(|loaded| Some(loaded.sample.kernel_share? * 100.0))
    }

    pub(super) fn server_cpu_us(&self) -> Option<f64> {
        self.median(|loaded| loaded.sample.worker_cpu_us)
    }

    pub(super) fn ratio(&self) -> Option<f64> {
        self.in_front(Loaded::ratio)
    }

    /// CPU time in that of another row, each within its repetition: of what is in front alone, or with the servers.
    pub(super) fn ratio_to(&self, other: &Self, with_servers: bool) -> Option<f64> {
        let of = |loaded: &Loaded| match with_servers {
            true => loaded.all_cpu_us(),
            false => loaded.sample.cpu_us,
        };
        self.median(|loaded| Some(of(loaded) / of(loaded.in_its_repetition(other)?)))
    }

    /// Calls a second, in those of another row, each within its repetition.
    pub(super) fn rate_to(&self, other: &Self) -> Option<f64> {
        self.median(|loaded| {
            let other = loaded.in_its_repetition(other)?;
            Some(loaded.sample.per_second / other.sample.per_second)
        })
    }

    fn in_front(&self, of: impl Fn(&Loaded) -> Option<f64>) -> Option<f64> {
        (self.case.client != Client::Pipes).then(|| self.median(of))?
    }
}

impl Row<Alone> {
    pub(super) fn added_p50_us(&self) -> Option<f64> {
        self.median(|alone| Some(alone.through.p50_us - alone.direct.p50_us))
    }

    pub(super) fn added_p99_us(&self) -> Option<f64> {
        self.median(|alone| Some(alone.through.p99_us - alone.direct.p99_us))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::servers::echo::Era;

    pub(in super::super) const STDIO: Case = Case::new(Server::Stdio(Era::Legacy), Client::Session);

    pub(in super::super) fn loaded(repetition: usize, cpu_us: f64, nginx: Option<f64>) -> Loaded {
        Loaded {
            repetition,
            clients: 64,
            sample: Sample {
                requests: 1000,
                per_second: 500.0,
                p50_us: cpu_us * 10.0,
                p99_us: cpu_us * 20.0,
                cpu_us,
                kernel_share: Some(0.25),
                worker_cpu_us: Some(2.0),
                client_cpu_us: 1.0,
                other_cores: 0.25,
                closed: 0,
                curve: vec![(50.0, cpu_us)],
            },
            nginx_cpu_us: nginx,
            wrong: 0,
            first_wrong: None,
            front_kib: 2048,
            servers: 1,
            servers_kib: 1024,
        }
    }

    pub(in super::super) fn alone(direct: f64, through: f64) -> Alone {
        let of = |p50_us: f64| Latencies {
            calls: 100,
            sent: 110,
            p50_us,
            p99_us: p50_us * 10.0,
            curve: vec![(50.0, p50_us)],
        };
        Alone {
            direct: of(direct),
            through: of(through),
            cpu_us: 5.0,
            server_cpu_us: 1.0,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        let mut found = Found::default();
        // The machine was twice as slow in the second one; the gateway was not.
        for (repetition, (cpu, nginx)) in [(18.0, 9.0), (36.0, 18.0), (27.0, 9.0)]
            .into_iter()
            .enumerate()
        {
            found.load("a", STDIO, loaded(repetition, cpu, Some(nginx)));
            found.load("b", STDIO, loaded(repetition, nginx, None));
        }
        let (a, b) = (
            found.row("a", STDIO).unwrap(),
            found.row("b", STDIO).unwrap(),
        );
        assert_eq!((a.ratio(), b.ratio()), (Some(2.0), None));
        assert_eq!(a.ratio_to(b, false), Some(2.0));
        assert_eq!(a.ratio_to(b, true), Some(38.0 / 20.0));
        assert!(found.row("c", STDIO).is_none());
    }

    #[test]
    fn added_latency_is_a_difference_within_a_repetition() {
        let mut found = Found::default();
        for (direct, through) in [(10.0, 13.0), (50.0, 51.0), (10.0, 12.0)] {
            found.call_alone("a", STDIO, alone(direct, through));
        }
        let row = found.row_alone("a", STDIO.server).unwrap();
        assert_eq!(
            (row.added_p50_us(), row.added_p99_us()),
            (Some(2.0), Some(20.0))
        );
    }

    #[test]
    fn nothing_in_front_costs_nothing() {
        let mut found = Found::default();
        let pipes = Case::new(STDIO.server, Client::Pipes);
        found.load(NOTHING, pipes, loaded(0, 0.0, Some(1.0)));
        let row = found.row(NOTHING, pipes).unwrap();
        assert_eq!(
            (row.cpu_us(), row.ratio(), row.server_cpu_us()),
            (None, None, Some(2.0))
        );
        assert_eq!(row.kernel_percent(), None);
    }
}
