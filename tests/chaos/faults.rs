//! Faults of the machine on which a gateway runs, and their repair.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::filler;
use crate::support::Gateway;
use crate::support::dice::Dice;
use crate::support::redis::Redis;

/// Mount option: size of the disk for the data directory. The disk has room for all that the gateway stores in a run.
const DISK: &str = "size=16m";
/// Paths of libfaketime, a library that changes a process's clock.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Fault of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A worker process is killed.
    KilledWorker,
    /// A worker process is stopped (SIGSTOP), and continues after the pause.
    StoppedWorker,
    /// A process of a stdio server is killed.
    KilledServer,
    /// A process of a stdio server is stopped (SIGSTOP), and continues after the pause.
    StoppedServer,
    /// The disk of the data directory is full during the pause.
    FullDisk,
    /// The gateway can open at most 3 more descriptors, for files and connections together, during the pause.
    NoDescriptors,
    /// The session store (Redis) is stopped and does not respond during the pause.
    SlowStore,
    /// The gateway's clock jumps 2 hours forward or back, and is set right after the pause.
    WrongClock,
}

/// Gateway, and the parts of its machine that can have faults; `None` for a part that this machine cannot disturb.
pub struct Machine<'a> {
    pub gateway: &'a Gateway,
    pub disk: Option<&'a SmallDisk>,
    pub clock: Option<&'a Clock>,
    pub redis: Option<&'a Redis>,
}

impl Machine<'_> {
    /// Returns the faults that are possible on this machine.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![
            Fault::KilledWorker,
            Fault::StoppedWorker,
            Fault::KilledServer,
            Fault::StoppedServer,
            Fault::NoDescriptors,
        ];
        faults.extend(self.disk.map(|_| Fault::FullDisk));
        faults.extend(self.clock.map(|_| Fault::WrongClock));
        faults.extend(self.redis.map(|_| Fault::SlowStore));
        faults
    }

    /// Causes a fault, and repairs it after `pause`.
    pub async fn fault(&self, fault: Fault, pause: Duration, dice: &mut Dice) {
        println!("chaos: {fault:?} for {pause:?}");
        let wait = || tokio::time::sleep(pause);
        let gateway = self.gateway.pid();
        match fault {
            Fault::KilledWorker | Fault::KilledServer => {
                if let Some(pid) = process(gateway, fault, dice) {
                    signal(pid, Signal::KILL);
                }
            }
            Fault::StoppedWorker | Fault::StoppedServer => {
                if let Some(pid) = process(gateway, fault, dice) {
                    signal(pid, Signal::STOP);
                    wait().await;
                    signal(pid, Signal::CONT);
                }
            }
            Fault::FullDisk => {
                let data = self.gateway.data_dir();
                fill(&filler(data));
                wait().await;
                fs::remove_file(filler(data)).expect("removed");
            }
            Fault::NoDescriptors => {
                let pid = Pid::from_raw(gateway);
                let open = self.gateway.descriptors() as u64;
                let room = dice.roll(4) as u64;
                let none = Rlimit {
                    current: Some(open + room),
                    maximum: getrlimit(Resource::Nofile).maximum,
                };
                let before = prlimit(pid, Resource::Nofile, none).expect("limited");
                wait().await;
                prlimit(pid, Resource::Nofile, before).expect("unlimited");
            }
            Fault::SlowStore => {
                if let Some(redis) = self.redis {
                    redis.signal(Signal::STOP);
                    wait().await;
                    redis.signal(Signal::CONT);
                }
            }
            Fault::WrongClock => {
                if let Some(clock) = self.clock {
                    clock.set(["+2h", "-2h"][dice.roll(2)]);
                    wait().await;
                    clock.set("+0");
                }
            }
        }
    }
}

fn signal(pid: Pid, signal: Signal) {
    // An error means that the process has already ended.
    let _ = kill_process(pid, signal);
}

/// Returns a random worker or server process of the gateway, as the fault needs; `None` if there is none.
fn process(gateway: i32, fault: Fault, dice: &mut Dice) -> Option<Pid> {
    let program = match fault {
        Fault::KilledWorker | Fault::StoppedWorker => "app.worker_main",
        _ => "marking.py",
    };
    let mut found = Vec::new();
    let mut parents = vec![gateway];
    while let Some(parent) = parents.pop() {
        for pid in children(parent) {
            parents.push(pid);
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(program) && !command.contains("__guard") {
                found.push(pid);
            }
        }
    }
    found.sort_unstable();
    let chosen = (!found.is_empty()).then(|| found[dice.roll(found.len())])?;
    Pid::from_raw(chosen)
}

fn children(parent: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task"));
    let lists = tasks.into_iter().flatten().flatten().map(|task| {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        list.split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect::<Vec<i32>>()
    });
    lists.flatten().collect()
}

/// Writes a file until its disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    let mut piece = vec![0; 64 * 1024];
    while !piece.is_empty() {
        if file.write_all(&piece).is_err() {
            piece.truncate(piece.len() / 2);
        }
    }
}

/// Small disk, mounted at a data directory until this value is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk at `folder`; returns `None` if this user may not mount.
    pub fn mounted(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", DISK, "tmpfs"])
            .arg(folder)
            .output();
        if !mounted.is_ok_and(|it| it.status.success()) {
            println!("chaos: skipped: a full disk, since this user may mount none");
            return None;
        }
        Some(Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        // The folder around the mount point could not be removed while the disk was mounted.
        let _ = self.0.parent().map(fs::remove_dir_all);
    }
}

/// Clock of a gateway's process, which tests can set.
pub struct Clock {
    library: &'static str,
    folder: tempfile::TempDir,
}

impl Clock {
    /// Returns a clock; `None` if libfaketime is not installed.
    pub fn found() -> Option<Self> {
        let Some(library) = FAKETIME.into_iter().find(|it| Path::new(it).exists()) else {
            println!("chaos: skipped: a wrong clock, since libfaketime is not installed");
            return None;
        };
        let folder = tempfile::TempDir::new().expect("a folder");
        let clock = Self { library, folder };
        clock.set("+0");
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }

    /// Sets the difference between this clock and the machine's clock, such as `+2h`.
    fn set(&self, difference: &str) {
        let new = self.file().with_extension("new");
        fs::write(&new, difference).expect("written");
        fs::rename(new, self.file()).expect("renamed");
    }

    /// Returns the environment variables that give a process this clock. The monotonic clock of the process stays right.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", self.library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
        ]
    }
}
