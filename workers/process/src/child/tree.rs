//! Finds and kills the processes of a tree by reading `/proc`.
//!
//! All `/proc/<pid>/stat` files are read, since the cheaper `/proc/<pid>/task/*/children` is missing in many kernels. Processes
//! may change during a scan, so callers that must find all of them repeat it until nothing is found.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use tooldock_base::gateway_process::{start_of, stat_field};

/// The environment variable that every process of a tree inherits. It identifies the tree's processes after the guard has ended
/// and they have other parents.
pub(super) const TAG_VARIABLE: &str = "TOOLDOCK_PROCESS";

/// Maximum time for killing a tree without a guard. Only a fork bomb or a process stuck in the kernel needs that long.
const LOST_TREE_LIMIT: Duration = Duration::from_secs(5);

/// All descendants of `root`, nearest first, without `root` itself.
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
        // The entry is removed, so that the loop ends even if a pid was reused during the scan and the parents form a cycle.
        for child in children.remove(&pid).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            next.push(child);
        }
    }
    found
}

/// The first process of a tree. Its start time distinguishes it from a later process with the same pid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    pid: Pid,
    started: u64,
}

impl Root {
    /// Identifies the process with this pid, which must not have been reaped yet.
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

/// Kills a tree whose guard has died: the process group of its first process, all its descendants, and all processes with its
/// tag.
///
/// Blocks for a few milliseconds, at most [`LOST_TREE_LIMIT`].
pub(super) fn end_lost(root: Option<Root>, tag: &str) {
    // The tag alone does not suffice: a process may overwrite its own environment, as setproctitle does.
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
        // If the gateway is process 1 of a container, it is the new parent of these processes and must reap them; otherwise the
        // call fails harmlessly with ECHILD. Waiting for any child would take exit statuses for which other code waits.
        for pid in left.iter().copied().chain(root.map(|root| root.pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if left.is_empty() || started.elapsed() > LOST_TREE_LIMIT {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGKILL to each process. Processes that have already ended are ignored.
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

/// The parent of a process; `None` if the process has ended.
fn parent_of(pid: i32) -> Option<i32> {
    stat_field(pid, 4)
}

fn carries_tag(pid: i32, tag: &str) -> bool {
    tag_of(pid).is_some_and(|it| it == tag)
}

/// The tag in the environment of a running process. A zombie has no environment, and so no tag.
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
