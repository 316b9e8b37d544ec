//! Ends processes that a former gateway left behind: its guards were killed together with it, by `killall -9` or because the
//! machine ran out of memory. The next gateway on the same data directory does this.
//!
//! The processes are found by the tag that every process of a tree inherits in its environment. A process that overwrote its
//! own environment is not found.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tooldock_base::gateway_process::GatewayProcess;

use super::{guard, tree};

/// Pause between two searches for leftover processes.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time for ending the leftover processes. Only a fork bomb or a process stuck in the kernel needs that long.
const LIMIT: Duration = Duration::from_secs(5);

/// Maximum time that guards need to end the children of their gateway after it has ended.
pub const PATIENCE: Duration = guard::GRACE.saturating_add(Duration::from_secs(2));

/// Returns true if the gateway, or a descendant of it, has started the process `pid`.
pub fn has_started(gateway: GatewayProcess, pid: Pid) -> bool {
    let tags = format!("{gateway}-");
    let is_tagged =
        tree::tag_of(pid.as_raw_nonzero().get()).is_some_and(|tag| tag.starts_with(&tags));
    is_tagged
        || Pid::from_raw(gateway.pid()).is_some_and(|own| tree::descendants(own).contains(&pid))
}

/// Ends processes that a gateway left behind, unless the gateway still runs. During `patience`, its guards have the chance to end
/// them. Returns the number of processes that had to be killed.
///
/// Blocks for at most `patience` and some seconds more; returns at once if no process is left.
pub fn end_left_behind(gateway: GatewayProcess, patience: Duration) -> usize {
    let tags = format!("{gateway}-");
    let ours = namespace_of(std::process::id());
    let mut ended = Vec::new();
    let began = Instant::now();
    while !gateway.is_running() && began.elapsed() < patience + LIMIT {
        let left: Vec<i32> = tree::all_pids()
            .filter(|pid| tree::tag_of(*pid).is_some_and(|tag| tag.starts_with(&tags)))
            // Only processes of this process's PID namespace count: in a container, the pid in the tag may mean another process.
            .filter(|pid| u32::try_from(*pid).is_ok_and(|pid| namespace_of(pid) == ours))
            .collect();
        if left.is_empty() {
            break;
        }
        if began.elapsed() >= patience {
            let pids: Vec<Pid> = left.iter().copied().filter_map(Pid::from_raw).collect();
            tree::kill_each(&pids);
            ended.extend(left);
        }
        sleep(PAUSE);
    }
    ended.sort_unstable();
    ended.dedup();
    ended.len()
}

fn namespace_of(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper(tag: &str) -> Child {
        let mut command = Command::new("sleep");
        command.arg("60").env(tree::TAG_VARIABLE, tag);
        let child = command.spawn().expect("sleep exists");
        // A process shows its environment a moment after it was started.
        let environ = format!("/proc/{}/environ", child.id());
        while fs::read(&environ).expect("it runs").is_empty() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn what_a_dead_gateway_left_is_ended_and_nothing_else() {
        // A pid that no system assigns.
        let text = format!("{}.{}", i32::MAX, fastrand::u64(..));
        let dead: GatewayProcess = text.parse().expect("names a gateway");
        assert_eq!(dead.to_string(), text);
        assert_eq!(end_left_behind(dead, Duration::ZERO), 0);
        let mut left = sleeper(&format!("{dead}-1"));
        let mut others = [
            sleeper(&format!("{}-1", GatewayProcess::this())),
            sleeper(&format!("{dead}0-1")),
        ];
        let started = |of: GatewayProcess, child: &Child| {
            let pid = i32::try_from(child.id()).expect("a pid");
            has_started(of, Pid::from_raw(pid).expect("a pid"))
        };
        assert!(started(dead, &left), "by its tag");
        assert!(started(GatewayProcess::this(), &left), "by its parent");
        assert!(!started(dead, &others[0]));
        assert_eq!(end_left_behind(GatewayProcess::this(), Duration::ZERO), 0);
        assert_eq!(end_left_behind(dead, Duration::ZERO), 1);
        assert!(!left.wait().expect("is our child").success());
        for other in &mut others {
            assert!(other.try_wait().expect("is our child").is_none());
            other.kill().expect("still running");
            other.wait().expect("is our child");
        }
    }
}
