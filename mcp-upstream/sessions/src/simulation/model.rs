//! Model of docs/scaling.md: formulas for operations of the store and for hops.

use std::fmt::Write as _;

use super::figures::{Figures, Part};
use super::run::PINGS;
use super::{Balancer, Options};
use crate::replicas::BEAT_EVERY;
use crate::stores::redis::tests::simulated::Operation;

/// Parameters of the formulas for a run.
pub(super) struct Model {
    replicas: f64,
    sessions: f64,
    /// Share of requests that reach a replica other than the one that has their session.
    forwarded: f64,
    /// Share of sessions that listen to a general stream.
    listening: f64,
    /// Share of requests that are answered by a stream.
    streamed: f64,
}

impl Model {
    pub(super) fn of(options: &Options) -> Self {
        let replicas = options.replicas as f64;
        Self {
            replicas,
            sessions: options.sessions as f64,
            forwarded: match options.balancer {
                // The session is live in the replica that received its first request, not in the one that the digest of its id
                // selects.
                Balancer::Random | Balancer::HashOfId => (replicas - 1.0) / replicas,
                Balancer::Sticky => 0.0,
            },
            listening: f64::from(options.listening) / 100.0,
            streamed: f64::from(options.streamed) / 100.0,
        }
    }

    /// Expected store operations while all sessions are opened and confirmed, and streams are opened.
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

    /// Expected store operations of `requests` requests in `seconds` seconds.
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

    /// Expected number of beats in `seconds` seconds.
    fn beats(&self, seconds: f64) -> f64 {
        self.replicas * seconds / BEAT_EVERY.as_secs_f64()
    }

    /// Expected and measured counts of a period of the run, by name.
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

    /// Asserts that the counts of a run without faults agree with the model.
    pub(super) fn check(&self, figures: &Figures) {
        for part in ["opening", "steady"] {
            for (name, expected, found) in self.rows(figures.part(part)) {
                // The balancer and the calls are random: the margin allows a few standard deviations of a count, and the
                // operations that are in progress at the begin and at the end of the period.
                let margin = 6.0 * expected.sqrt() + 2.0 * self.replicas;
                let far = (found - expected).abs() > margin;
                assert!(!far, "{part}: {name}: {found} in place of {expected:.0}");
            }
        }
    }

    /// Table of the expected and the measured counts.
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
