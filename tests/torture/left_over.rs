//! Possible leftovers of a session: processes, descriptors, memory, counts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use crate::support::{Gateway, eventually_within};

/// A variable of the servers, and so of everything they start. Its value tells one gateway's from another's.
pub const MARK: &str = "STRAY_MARK";

/// From the end of the last session to nothing: the longest call, the time sessions and processes live on unused, and
/// the whole ladder, on a machine that has other things to do.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// The pids that carry a mark, under any parent, with their command lines.
pub fn marked(mark: &str) -> BTreeMap<i32, String> {
    let wanted = format!("{MARK}={mark}");
    let carries = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|it| {
            it.split(|byte| *byte == 0)
                .any(|it| it == wanted.as_bytes())
        })
    };
    let command = |pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&words).replace('\0', " "))
    };
    pids().filter(carries).map(command).collect()
}

/// Children of a process that have ended and are not reaped: they have no environment any more.
fn zombies(parent: i32) -> usize {
    let is_one = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        let mut fields = after_name.split_ascii_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(parent.to_string().as_str())
    };
    pids().filter(is_one).count()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").expect("proc is mounted");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The memory a process has to itself, in KiB: without pages of files, which its guards share.
pub fn own_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number
        .and_then(|it| it.parse().ok())
        .expect("a number of KiB")
}

/// The gateway's counts, all external servers together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub live: u64,
    pub started: u64,
    pub reaped: u64,
    pub killed: u64,
}

impl Counted {
    pub async fn by(gateway: &Gateway) -> Self {
        let text = gateway.metrics_text().await;
        let sum = |name: &str| {
            let name = format!("tooldock_server_processes_{name}{{");
            let lines = text.lines().filter(|line| line.starts_with(&name));
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .sum()
        };
        Self {
            live: sum("live"),
            started: sum("started_total"),
            reaped: sum("reaped_total"),
            killed: sum("killed_total"),
        }
    }
}

/// All leftovers at one moment.
#[derive(Debug)]
pub struct LeftOver {
    pub counted: Counted,
    pub processes: BTreeMap<i32, String>,
    pub zombies: usize,
    pub descriptors: usize,
    pub memory: u64,
}

impl LeftOver {
    pub async fn of(gateway: &Gateway, mark: &str) -> Self {
        Self {
            counted: Counted::by(gateway).await,
            processes: marked(mark),
            zombies: zombies(gateway.pid()),
            descriptors: gateway.descriptors(),
            memory: own_memory(gateway.pid()),
        }
    }

    fn is_settled(&self, descriptors: usize) -> bool {
        self.processes.is_empty()
            && self.zombies == 0
            && self.counted.live == 0
            && self.counted.started == self.counted.reaped
            && self.descriptors <= descriptors
    }

    /// Waits until nothing is left and no more descriptors than `descriptors` are open.
    pub async fn settled(gateway: &Gateway, mark: &str, descriptors: usize) -> Self {
        let settle = eventually_within(SETTLE_LIMIT * 2, "settled", || async {
            let now = Self::of(gateway, mark).await;
            now.is_settled(descriptors).then_some(now)
        });
        match tokio::time::timeout(SETTLE_LIMIT, settle).await {
            Ok(settled) => settled,
            Err(_) => panic!(
                "left after {SETTLE_LIMIT:?}, with {descriptors} descriptors allowed: {} {:#?}",
                Self::of(gateway, mark).await,
                marked(mark)
            ),
        }
    }
}

impl fmt::Display for LeftOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted {
            live,
            started,
            reaped,
            killed,
        } = self.counted;
        write!(
            f,
            "{} processes, {} zombies, {} descriptors, {:.1} MiB; counted: {live} live, {started} started, \
             {reaped} reaped, {killed} of them killed",
            self.processes.len(),
            self.zombies,
            self.descriptors,
            self.memory as f64 / 1024.0
        )
    }
}
