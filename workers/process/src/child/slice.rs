//! The time slices that threads ask the kernel for.
//!
//! Since Linux 6.12 a thread that wakes up is given the core of a thread with a longer slice at once. If both slices are
//! equal, the thread that wakes up waits for the end of the running slice, which is late for a call of a tool. So threads
//! that no call waits for ask for a longer slice. Shares over time still follow the nice values. Older kernels ignore slices,
//! and settings that the kernel refuses stay as they were.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// A slice that is longer than the usual one, which is 0.7 to 3 ms, depending on the kernel and the number of cores.
///
/// It is not longer still: a thread that has just run more than its share is not given the core at once, whatever the slices are.
/// That thread waits until the slice ends: up to 60 ms were measured with slices of 100 ms.
const LONGER: Duration = Duration::from_millis(4);
/// Value by which the kernel sets the usual slice.
const USUAL: Duration = Duration::ZERO;

/// Maximum number of listings of a process's threads. A thread that starts during a listing has the slice of the thread that
/// starts it, and is found by the next listing.
const LISTINGS: usize = 3;

/// The kernel's number for this thread.
const THIS_THREAD: libc::pid_t = 0;

/// Asks for a longer slice, for this thread and all that it starts from now on.
pub(super) fn lengthen_with_what_it_starts() {
    ask(THIS_THREAD, LONGER, Inheritance::Yes);
}

/// Asks for a longer slice for this thread alone. Threads and processes that it starts have the usual one.
pub(super) fn lengthen() {
    ask(THIS_THREAD, LONGER, Inheritance::No);
}

/// Asks for a longer slice for a process that has just started, and for all that it starts from now on.
pub(super) fn lengthen_of(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        ask(pid, LONGER, Inheritance::Yes);
    }
}

/// Gives all threads of a process the usual slice again. Processes below it keep theirs.
pub(super) fn restore_of(pid: u32) {
    let mut restored = BTreeSet::new();
    for _ in 0..LISTINGS {
        let mut threads = threads_of(pid);
        threads.retain(|thread| !restored.contains(thread));
        if threads.is_empty() {
            return;
        }
        for thread in &threads {
            ask(*thread, USUAL, Inheritance::Yes);
        }
        restored.extend(threads);
    }
}

fn threads_of(pid: u32) -> Vec<libc::pid_t> {
    fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .collect()
}

/// Inheritance of a thread's slice by threads and processes that it starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inheritance {
    Yes,
    No,
}

/// Asks for a slice, and leaves the policy and the nice value as they are, which the same call of the kernel sets. A thread
/// of a real-time policy has no slice.
fn ask(thread: libc::pid_t, slice: Duration, inherited: Inheritance) {
    let Some(mut attributes) = attributes_of(thread) else {
        return;
    };
    let policy = i32::try_from(attributes.sched_policy);
    if !matches!(policy, Ok(libc::SCHED_OTHER | libc::SCHED_BATCH)) {
        return;
    }
    attributes.sched_runtime = slice.as_nanos() as u64;
    if inherited == Inheritance::No {
        attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    // No library has a safe form of this call.
    // SAFETY: the structure outlives the call; the kernel reads it, and may write the size that it knows to its `size`.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            thread,
            &raw mut attributes,
            NO_FLAGS,
        );
    }
}

fn attributes_of(thread: libc::pid_t) -> Option<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: SIZE,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // No library has a safe form of this call.
    // SAFETY: the structure outlives the call, and the kernel writes at most `SIZE` bytes, which is its size, to it.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            thread,
            &raw mut attributes,
            SIZE,
            NO_FLAGS,
        )
    };
    (outcome == 0).then_some(attributes)
}

const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
/// Both calls of the kernel have an argument for flags that do not exist yet.
const NO_FLAGS: libc::c_uint = 0;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::thread;

    fn own() -> u64 {
        attributes_of(THIS_THREAD).unwrap().sched_runtime
    }

    /// The longer slice beside a usual one. Linux reports slices since 6.12, and 0 before.
    fn longer(usual: u64) -> u64 {
        match usual {
            0 => 0,
            _ => LONGER.as_nanos() as u64,
        }
    }

    #[test]
    fn only_the_thread_that_gives_way_has_a_longer_slice() {
        let usual = own();
        let (its_own, of_its_child) = thread::spawn(|| {
            lengthen();
            (own(), thread::spawn(own).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((its_own, of_its_child), (longer(usual), usual));
        assert_eq!(own(), usual);
    }

    #[test]
    fn a_longer_slice_leaves_the_policy_and_the_nice_value_as_they_are() {
        let before = attributes_of(THIS_THREAD).unwrap();
        let after = thread::spawn(|| {
            let niceness = rustix::process::nice(3).unwrap();
            lengthen_with_what_it_starts();
            let inherited = thread::spawn(own).join().unwrap();
            (niceness, attributes_of(THIS_THREAD).unwrap(), inherited)
        });
        let (niceness, after, inherited) = after.join().unwrap();
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, niceness);
        assert_eq!(inherited, longer(before.sched_runtime));
    }
}
