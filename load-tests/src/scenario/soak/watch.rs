//! Reads the gateway's resources once a second: memory, descriptors, threads, processes; and compares them before and
//! after the run.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::scene::Scene;
use crate::processes::{self, Memory};
use crate::report::table::cell;
use crate::report::{Numbers, Section};
use crate::servers::gateway::Gateway;

/// Series of resources before and after the run, and of every reading meanwhile.
pub(super) const HELD: &str = "held";
pub(super) const MEANWHILE: &str = "most, meanwhile";
const EACH: Duration = Duration::from_secs(1);
/// Number of readings between two lines of progress.
const SAY: usize = 30;
/// Resources that the kernel counts of the process; after the run they must not exceed their number before it.
const OF_PROCESS: [(&str, &str); 2] = [("descriptors", "fd"), ("threads", "task")];
/// Resources in the gateway's own metrics; after the run they must not exceed their number before it.
const OF_GATEWAY: [(&str, &str); 4] = [
    ("connections", "tooldock_connections"),
    ("requests in flight", "tooldock_requests_in_flight"),
    ("sessions", "tooldock_sessions"),
    ("bytes kept for streams", "tooldock_stream_log_bytes"),
];
/// Number of processes, which must be equal before and after.
const PROCESSES: &str = "processes";

pub(super) struct Watch {
    since: Instant,
    before: Numbers,
    after: Numbers,
    looks: Vec<Numbers>,
    /// Seconds until the gateway returned to its initial state; `None` if it did not.
    pub(super) rest_seconds: Option<f64>,
    pub(super) audit_dropped: f64,
}

impl Watch {
    pub(super) async fn start(gateway: &Gateway) -> anyhow::Result<Self> {
        // Connections and sessions of earlier calls have ended by then.
        sleep(EACH).await;
        let before = held(gateway).await?;
        Ok(Self {
            since: Instant::now(),
            after: before.clone(),
            before,
            looks: Vec::new(),
            rest_seconds: None,
            audit_dropped: 0.0,
        })
    }

    /// Reads once a second until the run is over. If the gateway has ended, counts that as wrong and stops the run.
    pub(super) async fn each_second(
        &mut self,
        gateway: &Gateway,
        scene: &Scene,
        say: impl Fn(&str),
    ) {
        let mut each = interval(EACH);
        each.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = 0;
        while !scene.is_over() {
            each.tick().await;
            // Printed immediately: it may be the only output of a long run that is aborted.
            for wrong in scene.books().first_wrong().iter().skip(said) {
                say(wrong);
                said += 1;
            }
            let look = match look(gateway.id()) {
                Ok(look) => look.with("seconds", self.since.elapsed().as_secs_f64()),
                Err(error) => {
                    scene.books().wrong("gateway", format!("{error:#}"));
                    return scene.stop();
                }
            };
            self.looks.push(look);
            let count = self.looks.len();
            if let Some(look) = self.looks.last()
                && count.is_multiple_of(SAY)
            {
                let of = |name| cell(look.get(name), 0);
                say(&format!(
                    "{count} s: {} MiB, {} descriptors, {} threads, {} processes, {} wrong",
                    of("own_mib"),
                    of("descriptors"),
                    of("threads"),
                    of(PROCESSES),
                    scene.books().wrong_so_far()
                ));
            }
        }
    }

    /// Waits until the gateway's resources are at most those of before the run, for at most `limit`.
    pub(super) async fn rest(&mut self, gateway: &Gateway, limit: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.after = held(gateway).await?;
            if self.left().is_empty() {
                self.rest_seconds = Some(start.elapsed().as_secs_f64());
                break;
            }
            if start.elapsed() >= limit {
                break;
            }
            sleep(EACH).await;
        }
        let dropped = gateway.metric("tooldock_audit_dropped_total").await?;
        self.audit_dropped = dropped.unwrap_or_default();
        Ok(())
    }

    /// Adds the resources before and after the run, and every reading, to the section.
    pub(super) fn tell(&self, section: &mut Section) {
        section.add(HELD, ["before"], self.before.clone());
        section.add(HELD, ["after"], self.after.clone());
        for look in &self.looks {
            section.add(HELD, [MEANWHILE], look.clone());
        }
    }

    /// Resources whose number is higher than before, and processes if their number differs.
    pub(super) fn left(&self) -> Vec<String> {
        beyond(&self.after, &self.before)
    }
}

fn beyond(now: &Numbers, before: &Numbers) -> Vec<String> {
    let names = OF_PROCESS.iter().chain(&OF_GATEWAY).map(|(name, _)| *name);
    let left = names.chain([PROCESSES]).filter_map(|name| {
        let (now, then) = (now.get(name)?, before.get(name)?);
        let is_left = now > then || (name == PROCESSES && now != then);
        is_left.then(|| format!("{now} {name} instead of {then}"))
    });
    left.collect()
}

/// Reads the resources of the process and those in the gateway's metrics.
async fn held(gateway: &Gateway) -> anyhow::Result<Numbers> {
    let mut held = look(gateway.id())?;
    for (name, series) in OF_GATEWAY {
        let value = gateway.metric(series).await?;
        held = held.with(name, value.with_context(|| format!("no series {series}"))?);
    }
    Ok(held)
}

fn look(process: u32) -> anyhow::Result<Numbers> {
    let memory = Memory::of(process)?;
    let children = processes::descendants(process);
    // A child that has just ended has no memory.
    let of_each = children.iter().filter_map(|child| Memory::of(*child).ok());
    let children_kib: u64 = of_each.map(|memory| memory.anonymous_kib).sum();
    let mib = |kib: u64| kib as f64 / 1024.0;
    let mut look = Numbers::one("own_mib", mib(memory.anonymous_kib))
        .with("resident_mib", mib(memory.resident_kib))
        .with("children_mib", mib(children_kib))
        .with(PROCESSES, children.len() as f64);
    for (name, folder) in OF_PROCESS {
        let folder = format!("/proc/{process}/{folder}");
        let entries = fs::read_dir(&folder).with_context(|| {
            format!("reading {folder}: has it ended, or is this not root, as the gateway shows it to root only?")
        })?;
        look = look.with(name, entries.count() as f64);
    }
    Ok(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_no_more_of_anything_and_as_many_processes() {
        let held = |descriptors, processes, sessions| {
            let numbers = Numbers::one("descriptors", descriptors).with(PROCESSES, processes);
            numbers.with("sessions", sessions)
        };
        let before = held(50.0, 14.0, 2.0);
        assert!(beyond(&before, &before).is_empty());
        assert!(beyond(&held(40.0, 14.0, 0.0), &before).is_empty(), "fewer");
        assert_eq!(
            beyond(&held(51.0, 13.0, 3.0), &before),
            [
                "51 descriptors instead of 50",
                "3 sessions instead of 2",
                "13 processes instead of 14"
            ]
        );
    }

    #[test]
    fn a_look_at_this_process_finds_something_of_everything() {
        let found = look(std::process::id()).unwrap();
        let of = |name| found.get(name).unwrap();
        assert!(of("descriptors") >= 3.0 && of("threads") >= 1.0 && of("own_mib") > 0.0);
        assert!(look(u32::MAX).is_err());
    }
}
