//! Signals that do not stop the gateway.

use std::fs;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::reload::PID;
use crate::support::{Gateway, eventually};

/// A field of `/proc/PID/status`.
fn status(pid: i32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_signal_without_a_meaning_ends_nobody_and_leaves_a_line() {
    let gateway = Gateway::with_tools([("stays", "pid.py", PID)])
        .start()
        .await;
    let pid = || async { gateway.call("stays", "pid", json!({})).await.1 };
    let worker = pid().await;
    for (signal, name) in [
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::IO, "SIGIO"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::POWER, "signal 30"),
        (Signal::STKFLT, "signal 16"),
    ] {
        gateway.signal(signal);
        eventually(name, || async {
            let line = format!("{name} ignored");
            gateway.log().contains(&line).then_some(())
        })
        .await;
    }
    let realtime = Command::new("sh")
        .args(["-c", &format!("kill -40 {}", gateway.pid())])
        .status()
        .unwrap();
    assert!(realtime.success());
    eventually("the realtime signal", || async {
        gateway.log().contains("signal 40 ignored").then_some(())
    })
    .await;
    gateway.signal(Signal::QUIT);
    eventually("SIGQUIT", || async {
        gateway
            .log()
            .contains("SIGQUIT: a gateway that is started with")
            .then_some(())
    })
    .await;
    gateway.signal(Signal::XFSZ);
    gateway.signal(Signal::PIPE);
    assert_eq!(pid().await, worker);
}

#[tokio::test]
async fn a_signal_for_the_gateway_does_not_end_a_guard_and_means_to_a_worker_what_it_always_does() {
    let gateway = Gateway::with_tools([("stays", "pid.py", PID)])
        .start()
        .await;
    let (_, worker) = gateway.call("stays", "pid", json!({})).await;
    let worker = i32::try_from(worker.as_i64().unwrap()).unwrap();
    let guard: i32 = status(worker, "PPid").parse().unwrap();
    assert_eq!(status(guard, "Name"), "guard");
    send(guard, Signal::USR1);
    send(guard, Signal::USR2);
    let ignored = u64::from_str_radix(&status(worker, "SigIgn"), 16).unwrap();
    let blocked = u64::from_str_radix(&status(worker, "SigBlk"), 16).unwrap();
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::TERM] {
        let bit = 1 << (signal.as_raw() - 1);
        assert_eq!((ignored & bit, blocked & bit), (0, 0), "{signal:?}");
    }
    eventually("the guard has taken both", || async {
        let pending = u64::from_str_radix(&status(guard, "ShdPnd"), 16).unwrap();
        (pending == 0).then_some(())
    })
    .await;
    let (_, now) = gateway.call("stays", "pid", json!({})).await;
    assert_eq!(now, worker);
}
