//! Starting and ending servers leaves no file descriptor open. A separate test binary: descriptors belong to the whole
//! process, and other tests open some.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_workers::external::{
    ExternalServer, ProcessHost, ServerProcess, StdioSettings, StdioSpec,
};

#[path = "../process/tests/support/beside.rs"]
mod beside;

const ROUNDS: usize = 200;
/// Rounds at once.
const BATCH: usize = 8;
const DEADLINE: Duration = Duration::from_secs(60);

fn server(script: &str) -> ExternalServer {
    let path = std::env::var("PATH").unwrap();
    let spec = StdioSpec {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        personal: Default::default(),
        env: vec![("PATH".into(), Secret::new(path))],
        secrets: Vec::new(),
        cwd: "/".into(),
        settings: StdioSettings::default(),
        sandbox: Default::default(),
    };
    ExternalServer::new("demo".parse().unwrap(), spec)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("in time")
}

/// A round, by its number: a polite end, a crash, a drop, a start that fails, and an abandoned start.
async fn round(number: usize, host: ProcessHost) {
    let script = match number % 5 {
        1 => "echo ready; exit 3",
        _ => "echo ready; cat",
    };
    let mut server = server(script);
    if number % 5 == 3 {
        server.spec.program = "no-such-server".into();
        within(ServerProcess::spawn(&server, &host))
            .await
            .unwrap_err();
        return;
    }
    if number % 5 == 4 {
        let spawn = ServerProcess::spawn(&server, &host);
        let _ = tokio::time::timeout(Duration::from_millis(1), spawn).await;
        return;
    }
    let process = within(ServerProcess::spawn(&server, &host)).await.unwrap();
    let pipes = process.take_pipes().unwrap();
    let mut stdout = BufReader::new(Receiver::from_owned_fd(pipes.stdout).unwrap());
    let mut line = String::new();
    within(stdout.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "ready\n");
    match number % 5 {
        0 => {
            drop(pipes.stdin);
            within(process.stop()).await;
        }
        1 => drop(within(process.exited()).await),
        _ => drop(process),
    }
}

#[tokio::test]
async fn two_hundred_starts_and_ends_of_every_kind_leave_no_descriptor_open() {
    let exported = prometheus::Registry::new();
    let host = ProcessHost {
        sandbox: Default::default(),
        guard: beside::guard(),
        control: tokio::runtime::Handle::current(),
        runtimes: Arc::new(Runtimes::new()),
        metrics: Arc::new(WorkerMetrics::new(&exported).unwrap()),
        output: Default::default(),
    };
    // Descriptors that the runtime opens once are opened in the first rounds.
    let mut before = None;
    for batch in 0..=ROUNDS / BATCH {
        let rounds = (0..BATCH).map(|each| tokio::spawn(round(batch * BATCH + each, host.clone())));
        for round in rounds.collect::<Vec<_>>() {
            round.await.unwrap();
        }
        if before.is_none() {
            before = Some(settled(&exported).await);
        }
    }
    assert_eq!(settled(&exported).await, before.unwrap());
}

/// The number of open descriptors once the last process has ended, and its descriptors are closed.
async fn settled(exported: &prometheus::Registry) -> usize {
    let live = || {
        let families = exported.gather();
        let live = families
            .iter()
            .find(|it| it.name() == "tooldock_processes_live")
            .expect("it is registered");
        live.get_metric()[0].get_gauge().value()
    };
    within(async {
        let mut last = (0, 0);
        loop {
            let open = open_descriptors();
            let same = if last.0 == open { last.1 + 1 } else { 0 };
            last = (open, same);
            if live() == 0.0 && same == 100 {
                return open;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}
