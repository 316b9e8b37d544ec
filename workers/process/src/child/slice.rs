//! The time slices that threads request from the kernel's scheduler.
//!
//! Since Linux 6.12, a thread that wakes up immediately preempts a thread with a longer slice. If both slices are equal, it waits
//! until the running slice ends, which delays a call of a tool. So threads for which no call waits request a longer slice. Their
//! shares of computing time still depend on the nice values. Older kernels ignore slices. Settings that the kernel refuses are
//! not changed.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// Duration of the longer slice. The usual slice is 0.7 to 3 ms long, depending on the kernel and the number of cores.
///
/// The slice must not be much longer: a thread that has just used more than its share does not preempt another, whatever the
/// slices are, but waits until the running slice ends. With slices of 100 ms, waits of up to 60 ms were measured.
const LONGER: Duration = Duration::from_millis(4);
/// Value that stands for the usual slice in the system call.
const USUAL: Duration = Duration::ZERO;

/// Maximum number of times that the threads of a process are listed. A thread that starts during a listing inherits the slice of
/// the thread that starts it, and is found by the next listing.
const LISTINGS: usize = 3;

/// Thread id that stands for the calling thread in the system calls.
const THIS_THREAD: libc::pid_t = 0;

/// Requests a longer slice for this thread, and for all threads and processes that it starts from now on.
pub(super) fn lengthen_with_what_it_starts() {
    ask(THIS_THREAD, LONGER, Inheritance::Yes);
}

/// Requests a longer slice for this thread only. Threads and processes that it starts have the usual slice.
pub(super) fn lengthen() {
    ask(THIS_THREAD, LONGER, Inheritance::No);
}

/// Requests a longer slice for a process that has just started, and for everything that it starts from now on.
pub(super) fn lengthen_of(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        ask(pid, LONGER, Inheritance::Yes);
    }
}

/// Gives all threads of a process the usual slice again. Its child processes keep their slices.
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

/// Inheritance of a requested time slice: `Yes` if the threads and processes that the thread starts get it, too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inheritance {
    Yes,
    No,
}

/// Requests a slice for a thread. The scheduling policy and the nice value, which the same system call sets, are not changed. A
/// thread with a real-time policy has no slice and is skipped.
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
    // No library has a safe function for this system call.
    // SAFETY: the structure outlives the call; the kernel reads it, and may write the size that it supports to the field `size`.
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
    // No library has a safe function for this system call.
    // SAFETY: the structure outlives the call, and the kernel writes at most `SIZE` bytes, the size of the structure, to it.
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
/// Value of the argument `flags` of `sched_setattr` and `sched_getattr`; no flags are defined yet.
const NO_FLAGS: libc::c_uint = 0;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::thread;

    fn own() -> u64 {
        attributes_of(THIS_THREAD).unwrap().sched_runtime
    }

    /// The slice that is expected after lengthening. Kernels before Linux 6.12 report 0 for every slice.
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
