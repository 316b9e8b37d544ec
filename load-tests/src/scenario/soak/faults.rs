//! Kills workers and servers one after another, as the kernel does when memory runs out.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::scene::{DUAL, ECHO, Scene};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, NAMESPACE};

/// Time between two kills. Each of the three processes is killed every ninety seconds: a worker that does not run for a minute
/// would be restarted later each time, and that is not measured here.
const EVERY: Duration = Duration::from_secs(30);
/// Time before the end in which no process is killed.
const LAST: Duration = Duration::from_secs(10);
const NAME: &str = "kills";

pub(super) async fn kill(gateway: &Gateway, scene: &Scene, echo: &EchoProgram, lasts: Duration) {
    let end = Instant::now() + lasts.saturating_sub(LAST);
    let mut turn = [NAMESPACE, ECHO, DUAL].into_iter().cycle();
    let mut next = Instant::now() + EVERY.min(lasts / 6);
    while scene.goes_on_after(Duration::from_millis(200)).await {
        if Instant::now() < next {
            continue;
        }
        if next > end {
            return;
        }
        next += EVERY.min(lasts / 6);
        let Some(namespace) = turn.next() else {
            return;
        };
        let process = match namespace {
            NAMESPACE => gateway.worker(NAMESPACE).ok().map(|(process, _)| process),
            ECHO => echo.run_below(gateway.id(), Era::Legacy).pop(),
            _ => echo.run_below(gateway.id(), Era::Dual).pop(),
        };
        // Recorded before the kill, so that calls that fail because of it are excused.
        scene.books().killed(namespace);
        if process.is_none_or(|process| !killed(process)) {
            scene
                .books()
                .wrong(NAME, format!("no process of {namespace} to kill"));
        }
    }
}

fn killed(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| kill_process(process, Signal::KILL).is_ok())
}
