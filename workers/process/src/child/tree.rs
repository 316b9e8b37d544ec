//! Finds and ends the processes of a tree, by reading `/proc`.
//!
//! `/proc/<pid>/stat` is scanned as a whole: the cheaper `/proc/<pid>/task/*/children` is missing from many kernels. The scan
//! is a snapshot of processes that change, so callers that must be sure repeat it until nothing is found.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use tooldock_base::gateway_process::{start_of, stat_field};

/// The variable that every process of a tree inherits. It identifies the tree when its guard, and with it every parent link,
/// is gone.
pub(super) const TAG_VARIABLE: &str = "TOOLDOCK_PROCESS";

/// Maximum time of ending a lost tree. Only a fork bomb or a process stuck in the kernel needs that long.
const LOST_TREE_LIMIT: Duration = Duration::from_secs(5);

/// All processes below `root`, nearest first, without `root` itself.
pub(super) fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in all_pids() {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root.as_raw_nonzero().get()];
    while let Some(pid) = next.pop() {
        // Removed, not looked up: a pid that was reused during the scan could otherwise close a circle.
        for child in children.remove(&pid).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            next.push(child);
        }
    }
    found
}

/// The first process of a tree, told apart from a later process with the same pid by its start time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    pid: Pid,
    started: u64,
}

impl Root {
    /// The process of that pid, which must not have been reaped yet.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self {
            pid: Pid::from_raw(pid)?,
            started: start_of(pid)?,
        })
    }

    fn still_runs(self) -> bool {
        start_of(self.pid.as_raw_nonzero().get()) == Some(self.started)
    }
}

/// Ends a tree whose guard died: the group of its first process, all its descendants, and all processes with its tag.
///
/// Blocks for a few milliseconds, at most [`LOST_TREE_LIMIT`].
pub(super) fn end_lost(root: Option<Root>, tag: &str) {
    // Not by tag alone: a process may overwrite its own environment (setproctitle does).
    if let Some(root) = root.filter(|root| root.still_runs()) {
        let below = descendants(root.pid);
        let _ = kill_process_group(root.pid, Signal::KILL);
        kill_each(&below);
    }
    let started = Instant::now();
    loop {
        let left: Vec<Pid> = all_pids()
            .filter(|pid| carries_tag(*pid, tag))
            .filter_map(Pid::from_raw)
            .collect();
        kill_each(&left);
        // As process 1 of a container the gateway becomes the parent of these processes and has to reap them; elsewhere this is a
        // harmless ECHILD. Only pids known to be ours are waited for: a wait for any child would steal exits from other owners.
        for pid in left.iter().copied().chain(root.map(|root| root.pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if left.is_empty() || started.elapsed() > LOST_TREE_LIMIT {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGKILL to each process; a process that is gone already is ignored.
pub(super) fn kill_each(pids: &[Pid]) {
    for pid in pids {
        let _ = kill_process(*pid, Signal::KILL);
    }
}

pub(super) fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process, unless it is gone.
fn parent_of(pid: i32) -> Option<i32> {
    stat_field(pid, 4)
}

fn carries_tag(pid: i32, tag: &str) -> bool {
    tag_of(pid).is_some_and(|it| it == tag)
}

/// The tag that a living process inherited. A zombie has no environment, and so no tag.
pub(super) fn tag_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let tag = variables.find_map(|variable| {
        variable
            .strip_prefix(TAG_VARIABLE.as_bytes())?
            .strip_prefix(b"=")
    })?;
    String::from_utf8(tag.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_no_later_process_with_its_pid() {
        let root = Root::of(std::process::id()).expect("it runs");
        assert!(root.still_runs());
        let earlier = Root {
            started: root.started - 1,
            ..root
        };
        assert!(!earlier.still_runs());
    }

    #[test]
    fn a_child_is_found_below_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep exists");
        let found = descendants(rustix::process::getpid());
        child.kill().expect("still running");
        child.wait().expect("is our child");
        let pid = i32::try_from(child.id()).expect("pids fit");
        assert!(found.contains(&Pid::from_raw(pid).expect("not zero")));
    }

    #[test]
    fn a_tagged_process_is_ended_and_an_untagged_one_is_not() {
        let tag = format!("test-{}-{:x}", std::process::id(), fastrand::u64(..));
        let sleep = |tag: &str| {
            std::process::Command::new("sleep")
                .arg("60")
                .env(TAG_VARIABLE, tag)
                .spawn()
                .expect("sleep exists")
        };
        let (mut ours, mut other) = (sleep(&tag), sleep("another"));
        end_lost(None, &tag);
        // It was reaped by `end_lost`, which is its parent here, so only the other child can still be asked.
        assert!(!carries_tag(i32::try_from(ours.id()).expect("fits"), &tag));
        assert!(other.try_wait().expect("is our child").is_none());
        other.kill().expect("still running");
        other.wait().expect("is our child");
        let _ = ours.wait();
    }
}
