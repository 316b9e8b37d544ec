//! What the gateway holds, looked at once a second: memory, descriptors, threads, processes; and what of it is left when
//! everybody has gone.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::scene::Scene;
use crate::processes::{self, Memory};
use crate::servers::gateway::Gateway;

const EACH: Duration = Duration::from_secs(1);
/// Between two lines of progress.
const SAY: u64 = 30;

/// One look.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Look {
    pub(super) seconds: f64,
    pub(super) memory: Memory,
    /// Anonymous memory of all its workers and servers.
    pub(super) children_kib: u64,
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) children: usize,
}

/// What must be as it was when everybody has gone, by the gateway's own count or the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Held {
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) children: usize,
    pub(super) connections: f64,
    pub(super) requests: f64,
    pub(super) sessions: f64,
    pub(super) log_bytes: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Watch {
    #[serde(skip)]
    since: Instant,
    pub(super) looks: Vec<Look>,
    pub(super) before: Held,
    pub(super) after: Held,
    /// How long it took to come back to that, if it did.
    pub(super) rest_seconds: Option<f64>,
    pub(super) audit_dropped: f64,
}

impl Watch {
    pub(super) async fn start(gateway: &Gateway) -> anyhow::Result<Self> {
        // The connections and sessions of whoever called before are gone by then.
        sleep(EACH).await;
        let before = Held::now(gateway).await?;
        Ok(Self {
            since: Instant::now(),
            looks: Vec::new(),
            before,
            after: before,
            rest_seconds: None,
            audit_dropped: 0.0,
        })
    }

    /// Looks until it is over. A gateway that has ended is wrong and ends it all.
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
            // At once: of a long run that is broken off, this may be all there is.
            for wrong in scene.books().first_wrong().iter().skip(said) {
                say(wrong);
                said += 1;
            }
            match Look::now(gateway.id(), self.since.elapsed()) {
                Ok(look) => self.looks.push(look),
                Err(error) => {
                    scene.books().wrong("gateway", format!("{error:#}"));
                    return scene.stop();
                }
            }
            let count = self.looks.len() as u64;
            if let Some(look) = self.looks.last()
                && count.is_multiple_of(SAY)
            {
                let wrong: u64 = scene
                    .books()
                    .counts()
                    .values()
                    .map(|count| count.wrong)
                    .sum();
                say(&format!(
                    "{count} s: {:.1} MiB, {} descriptors, {} threads, {} processes, {wrong} wrong",
                    look.memory.anonymous_kib as f64 / 1024.0,
                    look.descriptors,
                    look.threads,
                    look.children
                ));
            }
        }
    }

    /// Waits until the gateway holds no more than before, with a limit.
    pub(super) async fn rest(&mut self, gateway: &Gateway, limit: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.after = Held::now(gateway).await?;
            if self.after.is_at_rest(&self.before) {
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

    /// Anonymous memory of the gateway: (seconds, KiB).
    pub(super) fn memory(&self) -> Vec<(f64, f64)> {
        let looks = self.looks.iter();
        looks
            .map(|look| (look.seconds, look.memory.anonymous_kib as f64))
            .collect()
    }
}

impl Look {
    fn now(process: u32, at: Duration) -> anyhow::Result<Self> {
        let children = processes::descendants(process);
        // One that has just ended has none.
        let of_each = children.iter().filter_map(|child| Memory::of(*child).ok());
        Ok(Self {
            seconds: at.as_secs_f64(),
            memory: Memory::of(process)?,
            children_kib: of_each.map(|memory| memory.anonymous_kib).sum(),
            descriptors: entries(process, "fd")?,
            threads: entries(process, "task")?,
            children: children.len(),
        })
    }
}

impl Held {
    async fn now(gateway: &Gateway) -> anyhow::Result<Self> {
        let number = async |series: &str| {
            let value = gateway.metric(series).await?;
            value.with_context(|| format!("no series {series}"))
        };
        let process = gateway.id();
        Ok(Self {
            connections: number("tooldock_connections").await?,
            requests: number("tooldock_requests_in_flight").await?,
            sessions: number("tooldock_sessions").await?,
            log_bytes: number("tooldock_stream_log_bytes").await?,
            descriptors: entries(process, "fd")?,
            threads: entries(process, "task")?,
            children: processes::descendants(process).len(),
        })
    }

    /// Whether nothing is left beyond what there was.
    fn is_at_rest(&self, before: &Self) -> bool {
        self.beyond(before).is_empty()
    }

    /// What there is more of than before, or, of processes, not as many.
    pub(super) fn beyond(&self, before: &Self) -> Vec<String> {
        let number = |held: &Self| {
            [
                ("descriptors", held.descriptors as f64),
                ("threads", held.threads as f64),
                ("connections", held.connections),
                ("requests in flight", held.requests),
                ("sessions", held.sessions),
                ("bytes kept for streams", held.log_bytes),
            ]
        };
        let pairs = number(self).into_iter().zip(number(before));
        let mut beyond: Vec<String> = pairs
            .filter(|((_, now), (_, then))| now > then)
            .map(|((what, now), (_, then))| format!("{now} {what} instead of {then}"))
            .collect();
        if self.children != before.children {
            beyond.push(format!(
                "{} processes instead of {}",
                self.children, before.children
            ));
        }
        beyond
    }
}

fn entries(process: u32, folder: &str) -> anyhow::Result<usize> {
    let folder = format!("/proc/{process}/{folder}");
    let entries =
        fs::read_dir(&folder).with_context(|| {
            format!("reading {folder}: has it ended, or is this not root, as the gateway shows it to root only?")
        })?;
    Ok(entries.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Held = Held {
        descriptors: 50,
        threads: 12,
        children: 14,
        connections: 1.0,
        requests: 0.0,
        sessions: 2.0,
        log_bytes: 0.0,
    };

    #[test]
    fn rest_is_no_more_of_anything_and_as_many_processes() {
        let fewer = Held {
            descriptors: 40,
            sessions: 0.0,
            ..BEFORE
        };
        assert!(fewer.is_at_rest(&BEFORE) && BEFORE.is_at_rest(&BEFORE));
        let more = Held {
            descriptors: 51,
            children: 13,
            ..BEFORE
        };
        assert_eq!(
            more.beyond(&BEFORE),
            ["51 descriptors instead of 50", "13 processes instead of 14"]
        );
    }

    #[test]
    fn a_look_at_this_process_finds_something_of_everything() {
        let look = Look::now(std::process::id(), Duration::ZERO).unwrap();
        assert!(look.descriptors >= 3 && look.threads >= 1 && look.memory.anonymous_kib > 0);
        assert!(Look::now(u32::MAX, Duration::ZERO).is_err());
    }
}
