//! Figures of a run, and the assertions on them.

use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;

use super::Options;
use crate::stores::redis::tests::simulated::{Operation, Work};

/// Counts of requests and streams in one period of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) requests: usize,
    pub(super) forwards: usize,
    pub(super) unavailable: usize,
    /// Number of requests whose session was not found.
    pub(super) not_found: usize,
    pub(super) lost_calls: usize,
    /// Number of connections that broke before a response, for requests that were then repeated.
    pub(super) broken: usize,
    pub(super) given_up: usize,
    /// Number of calls with another number of events than two (progress and the response).
    pub(super) odd_calls: usize,
    pub(super) streams_broken: usize,
    pub(super) doubled_events: usize,
    adoptions: usize,
    last_adoption: Option<Instant>,
    /// Number of responses, indexed by the time that each took in milliseconds.
    answers: Vec<u32>,
}

impl Tally {
    pub(super) fn answered(&mut self, millis: usize) {
        let millis = millis.min(60_000);
        if self.answers.len() <= millis {
            self.answers.resize(millis + 1, 0);
        }
        self.answers[millis] += 1;
    }

    pub(super) fn adopted(&mut self, now: Instant) {
        self.adoptions += 1;
        self.last_adoption = Some(now);
    }

    /// Number of milliseconds within which `of_a_thousand` of a thousand requests were answered.
    fn within(&self, of_a_thousand: u64) -> usize {
        let all: u64 = self.answers.iter().map(|it| u64::from(*it)).sum();
        let mut seen = 0;
        let reached = |count: &u32| {
            seen += u64::from(*count);
            seen * 1000 >= all * of_a_thousand
        };
        self.answers.iter().position(reached).unwrap_or_default()
    }

    fn slowest(&self) -> usize {
        let slowest = self.answers.iter().rposition(|count| *count > 0);
        slowest.unwrap_or_default()
    }
}

/// Figures of one period of a run.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) time: Duration,
    pub(super) began: Instant,
    pub(super) work: Work,
    pub(super) tally: Tally,
    /// Duration of the longest sweep of a replica in this period, in milliseconds.
    pub(super) longest_sweep: u64,
}

/// Figures of a whole run.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) options: Options,
    /// The simulated faults in their order, and a digest of the traffic.
    pub(super) plan: Vec<String>,
    pub(super) parts: Vec<Part>,
    /// Number of clients whose final request was not answered.
    pub(super) unanswered: usize,
    /// Number of clients whose session was not found.
    pub(super) lost_sessions: usize,
    pub(super) live: usize,
    pub(super) live_twice: usize,
    pub(super) lost_events: usize,
    pub(super) doubled_events: usize,
    pub(super) pings: usize,
    /// Number of listening clients that were not notified of the most recent change of a namespace.
    pub(super) unheard_changes: usize,
    pub(super) listening: usize,
    /// Memory of the process with all sessions open, in bytes.
    pub(super) resident: u64,
}

impl Figures {
    /// Asserts that the faults have lost or duplicated no session and no event.
    pub(super) fn check(&self) {
        let Options { sessions, seed, .. } = self.options;
        let run = format!("seed {seed}, {:?}\n{}", self.plan, self.table());
        assert_eq!(self.unanswered, 0, "clients without an answer: {run}");
        assert_eq!(self.lost_sessions, 0, "lost sessions: {run}");
        assert_eq!(self.live_twice, 0, "sessions live at two replicas: {run}");
        assert_eq!(self.live, sessions, "live sessions: {run}");
        assert!(self.pings > 0, "no events: {run}");
        assert_eq!(self.lost_events, 0, "lost events: {run}");
        assert_eq!(self.doubled_events, 0, "doubled events: {run}");
        assert_eq!(
            self.unheard_changes, 0,
            "clients that missed a change: {run}"
        );
    }

    pub(super) fn part(&self, name: &str) -> &Part {
        let mut parts = self.parts.iter();
        parts.find(|it| it.name == name).expect(name)
    }

    /// The figures as a table.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{:?}\n", self.options);
        let mut line = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("memory");
            text.push('\n');
        };
        for part in &self.parts {
            let Part {
                name,
                time,
                began,
                work,
                tally,
                longest_sweep,
            } = part;
            let seconds = time.as_secs_f64();
            let busy = 100.0 * work.busy.as_secs_f64() / seconds;
            line(format_args!(
                "== {name}: {seconds:.0} s, store busy {busy:.0} %, longest queue {} ms, {} timeouts, {} refused",
                work.longest_queue.as_millis(),
                work.timeouts,
                work.refused
            ));
            let operations = Operation::ALL.iter().filter(|it| work.of(**it) > 0);
            let operations = operations.map(|it| format!("{it:?} {}", work.of(*it)));
            line(format_args!(
                "   operations: {}",
                operations.collect::<Vec<_>>().join(", ")
            ));
            let settled = tally.last_adoption.map(|it| it - *began);
            line(format_args!(
                "   requests: {}, forwarded {}, within {} ms (99 %), {} ms (99.9 %), slowest {} ms; 503 {}, 404 {}, lost \
                 calls {}, broken {}, given up {}, odd calls {}",
                tally.requests,
                tally.forwards,
                tally.within(990),
                tally.within(999),
                tally.slowest(),
                tally.unavailable,
                tally.not_found,
                tally.lost_calls,
                tally.broken,
                tally.given_up,
                tally.odd_calls
            ));
            line(format_args!(
                "   adopted {}, the last after {settled:?}; streams that broke {}; longest sweep {longest_sweep} ms",
                tally.adoptions, tally.streams_broken
            ));
        }
        line(format_args!(
            "{} live, {} live twice, {} sessions lost, {} unanswered; {} events told, {} lost, {} doubled; {} listen, {} \
             missed a change; {} MB resident",
            self.live,
            self.live_twice,
            self.lost_sessions,
            self.unanswered,
            self.pings,
            self.lost_events,
            self.doubled_events,
            self.listening,
            self.unheard_changes,
            self.resident / 1_000_000
        ));
        text
    }
}
