//! Low priority for processes that compete with calls of tools for the processor.
//!
//! A nice value alone only determines shares of computing time. It does not bound latency: before a thread that has just received
//! a message may run on a core, the kernel may let the running process finish its time slice of some milliseconds, whatever its
//! nice value. The call is then late. So processes of low priority are also kept off half of the cores, where the kernel can then
//! find an idle core for the thread. On the other cores, the thread can usually preempt such a process at once
//! ([`super::slice`]).
//!
//! A process has low priority from its first instruction on, because it inherits the priority of the thread that starts it.

use std::io;
use std::thread;

use rustix::process::nice;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::slice;

/// Nice value of processes of low priority. They get a tenth of the time of other processes on the same core, so they finish on
/// a busy machine, too.
const NICENESS: i32 = 10;

/// Starts a command with a low priority, which its descendants inherit.
///
/// # Errors
///
/// The errors of starting a thread or a process.
pub(super) async fn spawn(mut command: Command) -> io::Result<Child> {
    let runtime = Handle::current();
    let (tell, started) = oneshot::channel();
    thread::Builder::new().name("low".into()).spawn(move || {
        take();
        let _runtime = runtime.enter();
        let child = command.spawn();
        // `command` contains a copy of the child's end of the socket, which would keep the socket open after the child's end.
        drop(command);
        // If the receiver is gone, the child is dropped; its guard detects that the control socket is closed, and ends.
        let _ = tell.send(child);
    })?;
    let gone = |_| Err(io::Error::other("the thread that starts it has ended"));
    started.await.unwrap_or_else(gone)
}

/// Gives this thread, and everything that it starts from now on, a low priority. Settings that the kernel refuses are not
/// changed.
fn take() {
    let _ = nice(NICENESS);
    slice::lengthen_with_what_it_starts();
    if let Ok(allowed) = sched_getaffinity(None)
        && let Some(kept) = second_half(&allowed)
    {
        let _ = sched_setaffinity(None, &kept);
    }
}

/// The second half of the cores, rounded up; `None` if there is only one core.
fn second_half(allowed: &CpuSet) -> Option<CpuSet> {
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let left_to_calls = allowed.count() as usize / 2;
    cores.by_ref().take(left_to_calls).for_each(drop);
    let mut kept = CpuSet::new();
    cores.for_each(|core| kept.set(core));
    (left_to_calls > 0).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: impl IntoIterator<Item = usize>) -> CpuSet {
        let mut set = CpuSet::new();
        cores.into_iter().for_each(|core| set.set(core));
        set
    }

    #[test]
    fn low_priority_keeps_off_half_of_the_cores() {
        assert_eq!(second_half(&set([0, 1])), Some(set([1])));
        assert_eq!(second_half(&set([2, 5, 9])), Some(set([5, 9])));
        assert_eq!(second_half(&set(0..64)), Some(set(32..64)));
    }

    #[test]
    fn the_only_core_is_shared() {
        assert_eq!(second_half(&set([3])), None);
    }
}
