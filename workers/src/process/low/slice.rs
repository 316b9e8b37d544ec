//! The time slice that a thread asks the kernel for.
#![allow(unsafe_code)]

use std::time::Duration;

/// Longer than the usual one, which is 0.7 to 3 ms, depending on the kernel and the number of cores. Since Linux 6.12 a
/// thread that wakes up is given the core of a thread with a longer slice at once. Where both slices are as long, it waits for
/// the end of the running one. Shares over time stay what the nice values say.
///
/// Not longer still: a thread that has just run more than its share is not given the core at once, whatever the slices are.
/// That thread waits until the slice ends: up to 60 ms were measured with slices of 100 ms.
const LONGER: Duration = Duration::from_millis(4);

/// Asks for a longer slice, for this thread and whatever it starts. The nice value is told again, since the same call of
/// the kernel sets it. Older kernels ignore the slice, and what is refused stays as it was.
pub(super) fn ask_for_longer(niceness: i32) {
    let mut attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: LONGER.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // No library has a safe form of this call.
    // SAFETY: the structure outlives the call; the kernel reads it, and may write the size that it knows to its `size`.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw mut attributes, 0);
    }
}
