//! The model of docs/scaling.md: operations of the store and hops, by formulas.

use std::fmt::Write as _;

use super::figures::{Figures, Part};
use super::run::PINGS;
use super::{Balancer, Options};
use crate::replicas::BEAT_EVERY;
use crate::stores::redis::tests::simulated::Operation;

/// The figures that the formulas give for a run.
pub(super) struct Model {
    replicas: f64,
    sessions: f64,
    /// The part of requests in a session that reach another replica than its home.
    forwarded: f64,
    /// The part of sessions that listen.
    listening: f64,
    /// The part of requests that are answered by a stream.
    streamed: f64,
}

impl Model {
    pub(super) fn of(options: &Options) -> Self {
        let replicas = options.replicas as f64;
        Self {
            replicas,
            sessions: options.sessions as f64,
            forwarded: match options.balancer {
                // The replica of the first request has the session, whatever the digest of its id says.
                Balancer::Random | Balancer::HashOfId => (replicas - 1.0) / replicas,
                Balancer::Sticky => 0.0,
            },
            listening: f64::from(options.listening) / 100.0,
            streamed: f64::from(options.streamed) / 100.0,
        }
    }

    /// Operations while all sessions are opened, confirmed, and listened to.
    fn opening(&self) -> Vec<(Operation, f64)> {
        let listening = self.sessions * self.listening;
        vec![
            (Operation::Insert, self.sessions),
            (Operation::Patch, self.sessions + listening),
            (Operation::Open, listening),
            (
                Operation::Load,
                self.forwarded * (self.sessions + listening),
            ),
        ]
    }

    /// Operations of so many requests in so many seconds.
    fn steady(&self, requests: f64, seconds: f64) -> Vec<(Operation, f64)> {
        let said = seconds * PINGS as f64 * self.listening;
        let streams = requests * self.streamed;
        vec![
            (Operation::Load, self.forwarded * requests),
            (Operation::Patch, streams),
            (Operation::Open, streams),
            (Operation::Append, 2.0 * streams + said),
        ]
    }

    /// Beats in so many seconds.
    fn beats(&self, seconds: f64) -> f64 {
        self.replicas * seconds / BEAT_EVERY.as_secs_f64()
    }

    /// What is expected of a part beside what was found.
    fn rows(&self, part: &Part) -> Vec<(String, f64, f64)> {
        let requests = part.tally.requests as f64;
        let operations = match &*part.name {
            "opening" => self.opening(),
            _ => self.steady(requests, part.time.as_secs_f64()),
        };
        let found = |operation| part.work.of(operation) as f64;
        let mut rows: Vec<_> = operations
            .into_iter()
            .map(|(operation, count)| (format!("{operation:?}"), count, found(operation)))
            .collect();
        let beats = self.beats(part.time.as_secs_f64());
        rows.push(("Beat".into(), beats, found(Operation::Beat)));
        let hops = self.forwarded * requests;
        rows.push(("Forwards".into(), hops, part.tally.forwards as f64));
        rows
    }

    /// Asserts that a run without faults went as the model says.
    pub(super) fn check(&self, figures: &Figures) {
        for part in ["opening", "steady"] {
            for (name, expected, found) in self.rows(figures.part(part)) {
                // Balancer and calls are drawn: some deviations of a count, and what is under way at either end.
                let margin = 6.0 * expected.sqrt() + 2.0 * self.replicas;
                let far = (found - expected).abs() > margin;
                assert!(!far, "{part}: {name}: {found} in place of {expected:.0}");
            }
        }
    }

    /// Expected and found, side by side.
    pub(super) fn table(&self, figures: &Figures) -> String {
        let mut text = String::new();
        for part in ["opening", "steady"] {
            for (name, expected, found) in self.rows(figures.part(part)) {
                let row = writeln!(
                    text,
                    "{part:<8} {name:<9} model {expected:>12.0} found {found:>12.0}"
                );
                row.expect("memory");
            }
        }
        text
    }
}
