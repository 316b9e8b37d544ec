//! Replicas on machines whose clocks differ.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{LATEST, announce, both_up, holds, member, ping, replica};
use crate::support::programs::run;
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, tools};

/// C source of a library that, preloaded into a process, sets its real-time clock 5 minutes ahead.
const AHEAD: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && clock == CLOCK_REALTIME) time->tv_sec += 300;
    return failed;
}
"#;

fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("ahead.c"), folder.join("ahead.so"));
    std::fs::write(&source, AHEAD).expect("written");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl"));
    library
}

#[tokio::test]
async fn replicas_whose_clocks_are_five_minutes_apart_serve_one_set_of_sessions() {
    let redis = Redis::start().await;
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let library = library(folder.path());
    let ahead = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    let ahead = member(ahead, &redis, "ahead").env("LD_PRELOAD", &library.to_string_lossy());
    let (mut ahead, one) = both_up(tokio::join!(ahead.start(), replica(&redis, "one"))).await;

    let here = Session::start(&ahead, "talk", LATEST).await;
    let there = Session::start(&one, "talk", LATEST).await;
    // Both requests are forwarded to the other replica with a passport (the sealed identity of the client), which has a time.
    assert_eq!(
        (ping(&here.at(&one)).await, ping(&there.at(&ahead)).await),
        (200, 200)
    );
    let mut stream = here.at(&one).listen().await;
    announce(&here, 2).await;
    let read = stream.event().await.expect("an announcement");
    drop(stream);
    announce(&here, 3).await;
    // An event that a stream shows is stored. Its client forgets that it has read it.
    let mut stream = here.at(&one).get(read.id.as_deref()).await;
    stream.event().await.expect("the second announcement");
    drop(stream);

    ahead.kill();
    assert_eq!(ping(&here.at(&one)).await, 200, "claimed");
    let mut stream = here.at(&one).get(read.id.as_deref()).await;
    let kept = stream.event().await.expect("the event that was not read");
    assert_eq!(kept.json()["method"], "notifications/tools/list_changed");
    ahead.started_again().await;
    let answer = here.at(&ahead).request(4, "tools/list", json!({})).await;
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    assert!(holds(&ahead, 0).await && holds(&one, 2).await);
}
