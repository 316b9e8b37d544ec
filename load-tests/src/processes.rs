//! Reads facts about processes from `/proc`: CPU time to the nanosecond, memory, descendants.

mod queue;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use serde::Serialize;

pub(crate) use queue::Queued;

/// The CPU time of each thread of some processes at one moment, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CpuTimes(BTreeMap<u32, u64>);

impl CpuTimes {
    /// Reads the CPU time of all threads that the processes have now.
    pub(crate) fn of(processes: &[u32]) -> anyhow::Result<Self> {
        let mut times = BTreeMap::new();
        for process in processes {
            let folder = format!("/proc/{process}/task");
            let tasks = fs::read_dir(&folder)
                .with_context(|| format!("reading {folder}: has it ended?"))?;
            for task in tasks {
                let task = task.context(folder.clone())?;
                let Some(thread) = parsed(&task.file_name().to_string_lossy()) else {
                    continue;
                };
                match fs::read_to_string(task.path().join("schedstat")) {
                    Ok(text) => times.insert(thread, run_time(&text).context("schedstat")?),
                    // The thread has ended since the folder was read.
                    Err(error) if is_gone(&error) => None,
                    Err(error) => {
                        return Err(error)
                            .context("schedstat: needs a kernel with CONFIG_SCHED_INFO");
                    }
                };
            }
        }
        Ok(Self(times))
    }

    /// Reads the CPU time of processes of which the first must exist; others may have ended.
    pub(crate) fn of_first(processes: &[u32]) -> anyhow::Result<Self> {
        let (first, others) = processes.split_first().context("no process")?;
        let mut times = Self::of(&[*first])?;
        times.0.extend(Self::of_those_left(others).0);
        Ok(times)
    }

    /// Reads the CPU time of those processes that still exist.
    pub(crate) fn of_those_left(processes: &[u32]) -> Self {
        let each = processes
            .iter()
            .filter_map(|process| Self::of(&[*process]).ok());
        Self(each.flat_map(|times| times.0).collect())
    }

    /// The nanoseconds since `earlier`. A new thread counts from its start; the time of a thread that ended meanwhile
    /// is lost.
    pub(crate) fn since(&self, earlier: &Self) -> u64 {
        let of_thread =
            |(thread, now): (&u32, &u64)| now.saturating_sub(*earlier.0.get(thread).unwrap_or(&0));
        self.0.iter().map(of_thread).sum()
    }
}

/// The first field, time on a CPU. The other fields are waiting time and time slices.
fn run_time(schedstat: &str) -> Option<u64> {
    parsed(schedstat.split_ascii_whitespace().next()?)
}

/// The busy time of all CPUs together since the start of the machine, in nanoseconds. It has the resolution of a clock
/// tick, usually 10 ms; time that the hypervisor gave to other machines counts as busy.
pub(crate) fn machine_busy() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks = busy_ticks(&stat).context("/proc/stat: no line of all CPUs")?;
    Ok(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

/// Sums user, nice, system, irq, softirq and steal of the first line; user includes guests.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = fields.split_ascii_whitespace().map_while(parsed).collect();
    let idle = fields.get(3)?.checked_add(*fields.get(4)?)?;
    fields.iter().take(8).sum::<u64>().checked_sub(idle)
}

/// Clock ticks that some processes spent in user and kernel mode, including ended threads. Coarse: only usable for a ratio over
/// a complete measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    user: u64,
    kernel: u64,
}

/// Minimum number of ticks for a ratio. The ratio of 50 ticks is good to 0.07, of 100 ticks to 0.05 (the standard
/// deviation is at most one half divided by the root of their number); a window of the default second has about 60 to
/// 150.
const TICKS_MIN: u64 = 50;

impl Ticks {
    /// Reads the ticks of those processes that still exist.
    pub(crate) fn of(processes: &[u32]) -> Self {
        let each = processes.iter().filter_map(|process| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            Self::parse(&stat)
        });
        each.fold(Self::default(), |sum, one| Self {
            user: sum.user + one.user,
            kernel: sum.kernel + one.kernel,
        })
    }

    /// Parses fields 14 and 15, `utime` and `stime`.
    fn parse(stat: &str) -> Option<Self> {
        let [user, kernel] = fields(stat, 14)?;
        Some(Self { user, kernel })
    }

    /// The fraction of the time since `earlier` that was spent in the kernel; `None` if there were too few ticks.
    pub(crate) fn kernel_share_since(self, earlier: Self) -> Option<f64> {
        let user = self.user.saturating_sub(earlier.user);
        let kernel = self.kernel.saturating_sub(earlier.kernel);
        (user + kernel >= TICKS_MIN).then(|| kernel as f64 / (user + kernel) as f64)
    }
}

/// CPU time of children of these processes, and of their descendants, that have ended and been waited for, in
/// nanoseconds. Each has the resolution of a clock tick.
pub(crate) fn time_of_ended_children(processes: &[u32]) -> u64 {
    let each = processes.iter().filter_map(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        ended_ticks(&stat)
    });
    each.sum::<u64>() * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Parses fields 16 and 17, `cutime` and `cstime`.
fn ended_ticks(stat: &str) -> Option<u64> {
    Some(fields::<2>(stat, 16)?.iter().sum())
}

/// Parses fields of `/proc/PID/stat` from the one with the number `first`, counted from 1. The second field is a name in
/// brackets that may contain brackets and spaces.
fn fields<const COUNT: usize>(stat: &str, first: usize) -> Option<[u64; COUNT]> {
    let after_name = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let fields: Option<Vec<u64>> = after_name.skip(first - 3).take(COUNT).map(parsed).collect();
    fields?.try_into().ok()
}

/// Path of the program that a process runs; `None` once it has ended.
pub(crate) fn program(process: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/exe")).ok()
}

/// Returns true for the errors of a process that has ended: `ENOENT` when its file is opened, `ESRCH` when it is read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Memory of a process, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// Resident memory (`VmRSS`), including pages of the binary.
    pub(crate) resident_kib: u64,
    /// Anonymous memory of the process (`RssAnon`), without files.
    pub(crate) anonymous_kib: u64,
}

impl Memory {
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let file = format!("/proc/{process}/status");
        let status = fs::read_to_string(&file).context(file)?;
        Self::parse(&status).context("VmRSS and RssAnon")
    }

    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            resident_kib: kib(status, "VmRSS:")?,
            anonymous_kib: kib(status, "RssAnon:")?,
        })
    }
}

/// Memory of several processes in KiB, where each shared page counts once (`Pss`). Ended processes count as zero.
///
/// Only root can read the gateway's `Pss`; for other users its resident memory counts, which is more.
pub(crate) fn proportional_kib(processes: &[u32]) -> u64 {
    let each = processes.iter().filter_map(|process| {
        match fs::read_to_string(format!("/proc/{process}/smaps_rollup")) {
            Ok(rollup) => pss_kib(&rollup),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some(Memory::of(*process).ok()?.resident_kib)
            }
            Err(_) => None,
        }
    });
    each.sum()
}

fn pss_kib(rollup: &str) -> Option<u64> {
    kib(rollup, "Pss:")
}

/// The number in the line of this name.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    parsed(line.trim().strip_suffix("kB")?.trim())
}

/// All descendants of a process.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let process = parsed(&entry.file_name().to_string_lossy())?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((process, parent(&stat)?))
        })
        .collect();
    below(of, &parents)
}

fn below(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&current) = found.get(next) {
        let children = parents
            .iter()
            .filter(|(child, parent)| *parent == current && !found.contains(child));
        let children: Vec<u32> = children.map(|(child, _)| *child).collect();
        found.extend(children);
        next += 1;
    }
    found.remove(0);
    found
}

fn parent(stat: &str) -> Option<u32> {
    let [parent] = fields(stat, 4)?;
    u32::try_from(parent).ok()
}

/// The arguments of a process; empty once it has ended.
pub(crate) fn arguments(process: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let arguments = bytes
        .split(|byte| *byte == 0)
        .filter(|argument| !argument.is_empty());
    arguments
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times<const N: usize>(threads: [(u32, u64); N]) -> CpuTimes {
        CpuTimes(threads.into())
    }

    #[test]
    fn deltas_are_per_thread() {
        let before = times([(1, 100), (2, 50), (3, 7)]);
        // 2 ended and took its time with it, 4 is new.
        assert_eq!(times([(1, 160), (3, 7), (4, 9)]).since(&before), 60 + 9);
    }

    #[test]
    fn a_thread_id_used_again_does_not_count_backwards() {
        assert_eq!(times([(1, 5)]).since(&times([(1, 100)])), 0);
    }

    #[test]
    fn own_cpu_time_grows_with_work() {
        let own = [std::process::id()];
        let before = CpuTimes::of(&own).unwrap();
        let mut sum = 0u64;
        while CpuTimes::of(&own).unwrap().since(&before) < 1_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error_not_zero() {
        assert!(CpuTimes::of(&[u32::MAX]).is_err());
        assert!(CpuTimes::of_first(&[u32::MAX]).is_err() && CpuTimes::of_first(&[]).is_err());
        let with_ended = CpuTimes::of_first(&[std::process::id(), u32::MAX]).unwrap();
        assert!(!with_ended.0.is_empty());
        assert!(Memory::of(u32::MAX).is_err());
    }

    #[test]
    fn schedstat_begins_with_the_run_time() {
        assert_eq!(run_time("148729 104004 1\n"), Some(148_729));
        assert_eq!(run_time(""), None);
    }

    #[test]
    fn the_machine_is_busy_where_it_is_not_idle() {
        let stat = "cpu  10 1 5 1000 200 2 3 4 7 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(10 + 1 + 5 + 2 + 3 + 4));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5\n"), None);
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        assert!(machine_busy().unwrap() > 0);
    }

    #[test]
    fn memory_is_read_in_kib() {
        let status = "Name:\tx\nVmRSS:\t   15564 kB\nRssAnon:\t    4200 kB\nRssFile:\t 1 kB\n";
        assert_eq!(
            Memory::parse(status),
            Some(Memory {
                resident_kib: 15564,
                anonymous_kib: 4200
            })
        );
        assert_eq!(Memory::parse("Name:\tx\n"), None);
    }

    #[test]
    fn memory_of_several_is_what_they_hold_together() {
        let rollup = "55f0-7ffd ---p 00000000 00:00 0    [rollup]\nRss:  4 kB\nPss:      1234 kB\nPss_Anon: 7 kB\n";
        assert_eq!(pss_kib(rollup), Some(1234));
        let own = proportional_kib(&[std::process::id(), u32::MAX]);
        assert!(
            own > 0 && own <= Memory::of(std::process::id()).unwrap().resident_kib,
            "{own}"
        );
    }

    #[test]
    fn a_name_with_brackets_does_not_hide_the_parent() {
        assert_eq!(parent("77 (a) b (c) S 12 77 77 0"), Some(12));
    }

    #[test]
    fn times_of_ended_children_are_the_sixteenth_and_seventeenth_field() {
        let stat = "77 (a) b) S 12 77 77 0 -1 4194304 100 200 0 0 5 6 7 8 20 0 1 0 2354631";
        assert_eq!(ended_ticks(stat), Some(7 + 8));
        assert_eq!(ended_ticks("77 (a) S 12"), None);
    }

    #[test]
    fn the_share_of_the_kernel_is_a_ratio_of_ticks_between_two_moments() {
        let stat = "77 (a) b) S 12 77 77 0 -1 4194304 100 200 0 0 50 6 7 8 20 0 1 0 2354631";
        let ticks = |user, kernel| Ticks { user, kernel };
        assert_eq!(Ticks::parse(stat), Some(ticks(50, 6)));
        assert_eq!(Ticks::parse("77 (a) S 12"), None);
        assert_eq!(ticks(95, 21).kernel_share_since(ticks(50, 6)), Some(0.25));
        assert_eq!(ticks(80, 16).kernel_share_since(ticks(50, 6)), None);
        assert_eq!(ticks(50, 6).kernel_share_since(ticks(50, 6)), None);
        // A process that is gone takes its ticks with it.
        assert_eq!(ticks(10, 2).kernel_share_since(ticks(50, 6)), None);
        assert_eq!(Ticks::of(&[u32::MAX]), Ticks::default());
    }

    #[test]
    fn descendants_include_grandchildren_only_of_that_process() {
        assert_eq!(below(1, &[(2, 1), (3, 2), (4, 9), (9, 9)]), [2, 3]);
    }
}
