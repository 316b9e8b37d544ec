//! Log files of a running gateway: opened anew, deleted, on a full disk.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;

use crate::observability::audit;
use crate::support::{Gateway, eventually, tools};

async fn gateway() -> Gateway {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await
}

/// A call that is answered, whatever becomes of its audit line.
async fn call(gateway: &Gateway, request_id: &str) {
    let answer = gateway
        .request("POST", "/tools/add")
        .header("X-Namespace", "calc")
        .header("X-Request-Id", request_id)
        .json(&json!({"a": 1, "b": 2}))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
}

async fn audited(gateway: &Gateway, request_id: &str) {
    eventually(request_id, || async {
        audit(gateway)
            .iter()
            .any(|line| line["request_id"] == request_id)
            .then_some(())
    })
    .await;
}

/// The files of the audit log.
fn days(gateway: &Gateway) -> Vec<PathBuf> {
    let days = fs::read_dir(gateway.data_dir().join("logs")).unwrap();
    days.map(|day| day.unwrap().path()).collect()
}

/// Limits the size of each file that the gateway writes, which looks to the gateway like a full disk.
fn limit_files(gateway: &Gateway, bytes: Option<u64>) {
    let pid = Pid::from_raw(gateway.pid()).unwrap();
    let limits = Rlimit {
        current: bytes,
        ..getrlimit(Resource::Fsize)
    };
    prlimit(Some(pid), Resource::Fsize, limits).unwrap();
}

#[tokio::test]
async fn what_a_full_disk_loses_is_counted_told_once_and_does_not_spoil_what_follows() {
    const FILLER: u64 = 1 << 20;
    const LOST: usize = 20;
    let gateway = gateway().await;
    call(&gateway, "before").await;
    audited(&gateway, "before").await;
    // Far above the size of the gateway's own log, which has to have room.
    let today = days(&gateway).remove(0);
    let mut file = fs::File::options().append(true).open(&today).unwrap();
    let size = file.metadata().unwrap().len();
    let filler = "\n".repeat(usize::try_from(FILLER - size).unwrap());
    file.write_all(filler.as_bytes()).unwrap();
    limit_files(&gateway, Some(FILLER + 100));
    for number in 0..LOST {
        call(&gateway, &format!("lost-{number}")).await;
    }
    let counted = format!("tooldock_audit_dropped_total {LOST}\n");
    eventually("every lost record is counted", || async {
        gateway
            .metrics_text()
            .await
            .contains(&counted)
            .then_some(())
    })
    .await;
    assert_eq!(
        gateway.log().matches("the audit log loses records").count(),
        1
    );
    let text = fs::read_to_string(&today).unwrap();
    assert!(!text.ends_with('\n'), "a part of a line came through");

    limit_files(&gateway, None);
    call(&gateway, "after").await;
    audited(&gateway, "after").await;
    eventually("the end of it is told", || async {
        let told = format!("the audit log is written again; {LOST} records were lost");
        gateway.log().contains(&told).then_some(())
    })
    .await;
    assert!(gateway.metrics_text().await.contains(&counted));
}

#[tokio::test]
async fn a_deleted_audit_file_is_made_again_with_the_next_call() {
    let gateway = gateway().await;
    call(&gateway, "one").await;
    audited(&gateway, "one").await;
    fs::remove_dir_all(gateway.data_dir().join("logs")).unwrap();
    call(&gateway, "two").await;
    audited(&gateway, "two").await;
    assert_eq!(audit(&gateway).len(), 1);
}

#[tokio::test]
async fn sigusr1_opens_the_audit_file_anew_before_the_next_call() {
    let gateway = gateway().await;
    call(&gateway, "one").await;
    audited(&gateway, "one").await;
    let today = days(&gateway).remove(0);
    let moved = gateway.data_dir().join("moved");
    fs::rename(&today, &moved).unwrap();
    gateway.signal(Signal::USR1);
    eventually("a new file", || async { days(&gateway).pop() }).await;
    call(&gateway, "two").await;
    audited(&gateway, "two").await;
    let moved = fs::read_to_string(moved).unwrap();
    assert!(moved.contains("one") && !moved.contains("two"), "{moved}");
}
