//! External servers: real processes with pipes under the real guard, and the namespaces a reload makes of them.
//!
//! Every wait is for an event and has a deadline. A process's end is seen through a pidfd, which works for processes
//! that are not our children.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tooldock_base::config::{LimitsPatch, NamespacesConfig, WorkersConfig};
use tooldock_base::data_dir::DataDir;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gateway_process::GatewayProcess;
use tooldock_base::names::NamespaceName;
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_base::yaml;
use tooldock_credentials::secrets::{SecretSource, Secrets, SecretsError};
use tooldock_process::child::Exit;
use tooldock_process::child::left_behind::end_left_behind;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::worker::WorkerHost;
use tooldock_workers::external::{
    ExternalServer, ProcessHost, ServerProcess, StdioServersConfig, StdioSettings, StdioSpec,
};
use tooldock_workers::registry::{Namespace, Registry, SecretsStatus, UpstreamKind};
use tooldock_workers::reload::{ReloadMetrics, ReloadReport, Reloader};
use tooldock_workers::servers::ServersConfig;

#[path = "../process/tests/support/beside.rs"]
mod beside;
#[path = "../process/tests/support/logged.rs"]
mod logged;
#[path = "../process/tests/support/programs.rs"]
mod programs;

use beside::guard;
use logged::Logged;
use programs::{DEADLINE, python, within};

/// Prints its pid and arguments, then sends every line back, and ends with its input. By its arguments it also starts a
/// grandchild that detaches itself, ignores signals, or prints a lot.
const SERVER: &str = r#"
import json, os, signal, sys, time
how = sys.argv[1:]
about = {"pid": os.getpid(), "env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd()}
about["fds"] = [fd for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")]
if "deaf" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "fork" in how:
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(w, str(os.getpid()).encode())
            time.sleep(1000)
        os._exit(0)
    about["grandchild"] = int(os.read(r, 20))
if "daemons" in how:
    # In a group, a session and a tree of their own, one with another environment, one that ignores everything.
    r, w = os.pipe()
    for kind in range(3):
        if os.fork() == 0:
            if kind != 1:
                os.setsid()
            else:
                os.setpgid(0, 0)
            if os.fork() == 0:
                if kind == 2:
                    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                        signal.signal(number, signal.SIG_IGN)
                os.write(w, f"{os.getpid()} ".encode())
                if kind == 0:
                    os.execve("/bin/sleep", ["sleep", "1000"], {})
                time.sleep(1000)
            os._exit(0)
    pids = b""
    while pids.count(b" ") < 3:
        pids += os.read(r, 100)
    about["daemons"] = [int(pid) for pid in pids.split()]
if "tell" in how:
    os.write(2, ("my token is " + os.environ["TOKEN"] + "\n").encode())
if "flood" in how:
    for _ in range(2000):
        os.write(2, b"x" * 9999 + b"\n")
print(json.dumps(about), flush=True)
if "crash" in how:
    os._exit(7)
for line in sys.stdin:
    if "complain" in how:
        os.write(2, b"".join(b"complaint %d\n" % number for number in range(71)))
    sys.stdout.write(line)
    sys.stdout.flush()
if "deaf" in how:
    time.sleep(1000)
"#;

// === the harness ===

struct House {
    exported: prometheus::Registry,
    host: ProcessHost,
}

impl House {
    fn new() -> Self {
        let exported = prometheus::Registry::new();
        let host = ProcessHost {
            sandbox: Default::default(),
            guard: guard(),
            control: tokio::runtime::Handle::current(),
            runtimes: Arc::new(Runtimes::new()),
            metrics: Arc::new(WorkerMetrics::new(&exported).unwrap()),
            output: Default::default(),
        };
        host.servers().serve([&"demo".parse().unwrap()].into_iter());
        Self { exported, host }
    }

    async fn spawn(&self, how: &[&str]) -> Running {
        self.spawn_server(&server(how)).await
    }

    async fn spawn_server(&self, server: &ExternalServer) -> Running {
        let process = within(ServerProcess::spawn(server, &self.host))
            .await
            .unwrap();
        let pipes = process.take_pipes().unwrap();
        assert!(process.take_pipes().is_none());
        let mut running = Running {
            process,
            stdin: Sender::from_owned_fd(pipes.stdin).unwrap(),
            stdout: tokio::io::BufReader::new(Receiver::from_owned_fd(pipes.stdout).unwrap()),
            about: Value::Null,
        };
        let line = running.line().await;
        running.about = serde_json::from_str(&line).unwrap();
        assert_eq!(running.about["pid"], running.process.pid());
        running
    }

    /// A metric of the test's namespace.
    fn metric(&self, name: &str) -> f64 {
        metric(&self.exported, &format!("tooldock_server_{name}"))
    }
}

/// A process with its pipes in this test's runtime.
struct Running {
    process: ServerProcess,
    stdin: Sender,
    stdout: tokio::io::BufReader<Receiver>,
    about: Value,
}

impl Running {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        within(self.stdout.read_line(&mut line)).await.unwrap();
        line
    }

    fn daemons(&self) -> Vec<u32> {
        let daemons = self.about["daemons"].as_array().unwrap();
        let pid = |it: &Value| u32::try_from(it.as_u64().unwrap()).unwrap();
        daemons.iter().map(pid).collect()
    }

    fn grandchild(&self) -> u32 {
        u32::try_from(self.about["grandchild"].as_u64().unwrap()).unwrap()
    }
}

fn metric(exported: &prometheus::Registry, name: &str) -> f64 {
    exported
        .gather()
        .iter()
        .filter(|family| family.name() == name)
        .flat_map(prometheus::proto::MetricFamily::get_metric)
        .map(|metric| metric.get_gauge().value() + metric.get_counter().value())
        .sum()
}

fn server(how: &[&str]) -> ExternalServer {
    let mut args = vec!["-c".into(), SERVER.into()];
    args.extend(how.iter().map(Into::into));
    let spec = StdioSpec {
        program: python(),
        args,
        personal: Default::default(),
        env: vec![("TOKEN".into(), Secret::new("hunter2"))],
        secrets: vec![Secret::new("hunter2")],
        cwd: "/".into(),
        settings: StdioSettings::default(),
        sandbox: Default::default(),
    };
    ExternalServer::new("demo".parse().unwrap(), spec)
}

/// Waits for the end of any process.
async fn gone(pid: u32) {
    let waited = tokio::task::spawn_blocking(move || {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return true;
        };
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap() == 1
    });
    assert!(waited.await.unwrap(), "process {pid} is left behind");
}

fn alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/cmdline")).exists()
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// The guard of a command.
fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
    fields[2].parse().unwrap()
}

/// Waits until a condition is true that has no event of its own.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not in time");
}

// === processes ===

#[tokio::test]
async fn a_server_reads_and_writes_and_ends_with_its_input() {
    let house = House::new();
    let mut running = house.spawn(&[]).await;
    // No pipe holds a megabyte: both ends work at once.
    let line = "x".repeat(1 << 20) + "\n";
    let (stdin, stdout) = (&mut running.stdin, &mut running.stdout);
    let mut back = String::new();
    let (written, read) = within(async {
        tokio::join!(
            stdin.write_all(line.as_bytes()),
            stdout.read_line(&mut back)
        )
    })
    .await;
    written.unwrap();
    assert_eq!((read.unwrap(), back), (line.len(), line));
    assert_eq!(running.process.exit(), None);
    assert_eq!(house.metric("processes_live"), 1.0);

    drop(running.stdin);
    let exit = within(running.process.stop()).await;
    assert_eq!(exit, Exit::Code(0), "no signal was needed");
    assert_eq!(running.process.exit(), Some(exit));
    let mut rest = Vec::new();
    within(running.stdout.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(house.metric("processes_live"), 0.0);
    for name in ["processes_started_total", "processes_reaped_total"] {
        assert_eq!(house.metric(name), 1.0, "{name}");
    }
    assert_eq!(house.metric("processes_killed_total"), 0.0);
}

#[tokio::test]
async fn what_ignores_the_end_of_its_input_and_sigterm_is_killed_with_its_grandchildren() {
    let house = House::new();
    let running = house.spawn(&["deaf", "fork"]).await;
    let (pid, grandchild) = (running.process.pid(), running.grandchild());
    drop(running.stdin);
    assert_eq!(within(running.process.stop()).await, Exit::Signal(9));
    assert!(!alive(pid) && !alive(grandchild), "stop returned too early");
    assert_eq!(house.metric("processes_killed_total"), 1.0);
    assert_eq!(house.metric("processes_live"), 0.0);
}

#[tokio::test]
async fn a_server_that_never_learns_of_the_end_of_its_input_is_signalled() {
    let house = House::new();
    let running = house.spawn(&[]).await;
    // `stdin` stays open here.
    assert_eq!(within(running.process.stop()).await, Exit::Signal(15));
}

#[tokio::test]
async fn dropping_a_process_ends_its_tree() {
    let house = House::new();
    let running = house.spawn(&["deaf", "fork"]).await;
    let (pid, grandchild) = (running.process.pid(), running.grandchild());
    drop(running);
    gone(pid).await;
    gone(grandchild).await;
    until("it is counted", || house.metric("processes_live") == 0.0).await;

    // A process also ends if its pipes were never taken.
    let process = within(ServerProcess::spawn(&server(&[]), &house.host)).await;
    let pid = process.unwrap().pid();
    gone(pid).await;
}

#[tokio::test]
async fn daemons_in_sessions_of_their_own_end_with_their_server() {
    let house = House::new();
    for stopped in [true, false] {
        let running = house.spawn(&["daemons"]).await;
        let daemons = running.daemons();
        assert!(daemons.iter().all(|pid| alive(*pid)));
        if stopped {
            drop(running.stdin);
            assert_eq!(within(running.process.stop()).await, Exit::Code(0));
        } else {
            kill(running.process.pid(), Signal::KILL);
            assert_eq!(within(running.process.exited()).await, Exit::Signal(9));
        }
        let left: Vec<_> = daemons.iter().filter(|pid| alive(**pid)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_suspended_is_ended_all_the_same() {
    let house = House::new();
    let running = house.spawn(&["fork"]).await;
    let (pid, grandchild) = (running.process.pid(), running.grandchild());
    kill(pid, Signal::STOP);
    kill(grandchild, Signal::STOP);
    drop(running.stdin);
    assert_eq!(within(running.process.stop()).await, Exit::Signal(9));
    assert!(!alive(grandchild));
}

#[tokio::test]
async fn a_server_carries_the_name_of_its_gateway_by_which_the_next_one_finds_what_is_left() {
    let house = House::new();
    let running = house.spawn(&["deaf"]).await;
    let environ = fs::read(format!("/proc/{}/environ", running.process.pid())).unwrap();
    let environ = String::from_utf8(environ).unwrap();
    let tag = environ
        .split('\0')
        .find_map(|it| it.strip_prefix("TOOLDOCK_PROCESS="));
    let (gateway, _) = tag.unwrap().split_once('-').unwrap();
    let gateway: GatewayProcess = gateway.parse().unwrap();
    assert_eq!(gateway, GatewayProcess::this());
    assert_eq!(end_left_behind(gateway, Duration::ZERO), 0, "it runs");

    // A pid that no system assigns, and a time that no other run of this test has.
    let dead = format!("{}.{}", i32::MAX, std::process::id());
    let mut orphan = Command::new("sleep")
        .arg("1000")
        .env("TOOLDOCK_PROCESS", format!("{dead}-1"))
        .spawn()
        .unwrap();
    let dead: GatewayProcess = dead.parse().unwrap();
    // A process shows its environment a moment after it was started.
    let environ = format!("/proc/{}/environ", orphan.id());
    let shown = async {
        while fs::read(&environ).unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    within(shown).await;
    assert_eq!(end_left_behind(dead, Duration::ZERO), 1);
    orphan.wait().unwrap();
    assert!(alive(running.process.pid()));
}

#[tokio::test]
async fn the_guard_does_not_go_by_the_gateways_name() {
    let house = House::new();
    let running = house.spawn(&[]).await;
    let guard = parent_of(running.process.pid());
    let name = fs::read_to_string(format!("/proc/{guard}/comm")).unwrap();
    assert_eq!(name, "guard\n");
}

#[tokio::test]
async fn a_secret_that_a_server_prints_is_not_logged() {
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    let house = House::new();
    let running = house.spawn(&["tell"]).await;
    drop(running.stdin);
    within(running.process.stop()).await;
    until("it is logged", || {
        logged.text().contains("my token is [redacted]")
    })
    .await;
    assert!(!logged.text().contains("hunter2"), "{}", logged.text());
}

#[tokio::test]
async fn a_page_about_a_refused_question_is_one_line_and_stays_with_the_last_lines() {
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    let house = House::new();
    let kept = house.host.output.of(&"demo".parse().unwrap());
    let left_out = "71 lines of the server are left out";
    for refused in [false, true] {
        let mut running = house.spawn(&["complain"]).await;
        running.process.hold_output();
        running.stdin.write_all(b"a question\n").await.unwrap();
        assert_eq!(running.line().await, "a question\n");
        running.process.release_output(refused);
        let seen = if refused { 142 } else { 71 };
        until("all is read", || kept.after(0).len() == seen).await;
        until("the last one is logged", || {
            logged.text().matches("complaint 70").count() == seen / 71
        })
        .await;
        // This subscriber receives level debug, too, at which the lines are kept.
        let text = logged.text();
        assert_eq!(
            text.matches(left_out).count(),
            usize::from(refused),
            "{text}"
        );
        assert_eq!(text.matches("complaint ").count(), seen);
        drop(running.stdin);
        within(running.process.stop()).await;
    }
}

#[tokio::test]
async fn a_crash_is_seen_and_takes_what_it_left_behind_with_it() {
    let house = House::new();
    let running = house.spawn(&["crash", "fork"]).await;
    assert_eq!(within(running.process.exited()).await, Exit::Code(7));
    assert!(!alive(running.grandchild()));
    // Again, and in any order.
    assert_eq!(within(running.process.stop()).await, Exit::Code(7));
}

#[tokio::test]
async fn a_killed_guard_is_noticed_and_leaves_nothing() {
    let house = House::new();
    let running = house.spawn(&["deaf", "fork"]).await;
    let pid = running.process.pid();
    kill(parent_of(pid), Signal::KILL);
    assert_eq!(within(running.process.exited()).await, Exit::Lost);
    gone(pid).await;
    gone(running.grandchild()).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_gateway_that_held_a_standard_input() {
    // Stands for the gateway: holds the control channel and the writing end, and is killed.
    const HOLDER: &str = "
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
r, w = os.pipe()
socket.send_fds(ours, [b'I'], [r])
os.close(r)
subprocess.Popen(sys.argv[1:], stdin=theirs, start_new_session=True)
theirs.close()
time.sleep(1000)
";
    let mut holder = tokio::process::Command::new(python())
        .args(["-c", HOLDER])
        .arg(guard())
        .args(["__guard", "--stdin", "--"])
        .arg(python())
        .args(["-c", SERVER, "deaf", "fork"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = tokio::io::BufReader::new(holder.stdout.take().unwrap());
    within(stdout.read_line(&mut line)).await.unwrap();
    let about: Value = serde_json::from_str(&line).unwrap();
    let pid = |key: &str| u32::try_from(about[key].as_u64().unwrap()).unwrap();
    let pids = [pid("pid"), pid("grandchild"), parent_of(pid("pid"))];
    assert!(pids.iter().all(|pid| alive(*pid)));
    within(holder.kill()).await.unwrap();
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_flood_on_standard_error_stops_nobody() {
    let house = House::new();
    // 20 MB before its first line, far more than a pipe holds.
    let mut running = house.spawn(&["flood"]).await;
    running.stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(running.line().await, "hello\n");
    until("what was dropped is counted", || {
        house.metric("output_suppressed_total") > 1000.0
    })
    .await;
}

#[tokio::test]
async fn a_server_inherits_three_pipes_and_the_given_environment() {
    let house = House::new();
    let _other = house.spawn(&[]).await;
    let running = house.spawn(&[]).await;
    // The process that runs the tests may leave descriptors open for all children: a plain child shows which.
    let any = Command::new(python())
        .args(["-c", SERVER])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let any: Value =
        serde_json::from_slice(any.stdout.split(|b| *b == b'\n').next().unwrap()).unwrap();
    assert_eq!(running.about["fds"], any["fds"]);
    let env = running.about["env"].as_object().unwrap();
    let names: Vec<_> = env.keys().filter(|name| *name != "LC_CTYPE").collect();
    assert_eq!(names, ["TOKEN", "TOOLDOCK_PROCESS"]);
    assert_eq!(running.about["cwd"], "/");
}

#[tokio::test]
async fn a_secret_is_in_the_environment_of_the_server_and_nowhere_else() {
    let house = House::new();
    let running = house.spawn(&[]).await;
    assert_eq!(running.about["env"]["TOKEN"], "hunter2");
    let pid = running.process.pid();
    for pid in [pid, parent_of(pid)] {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&argv).contains("hunter2"));
    }
    let printed = format!("{:?} {:?}", server(&[]), running.process);
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let house = House::new();
    let refused = |change: fn(&mut StdioSpec)| {
        let mut server = server(&[]);
        change(&mut server.spec);
        let host = house.host.clone();
        async move {
            let error = within(ServerProcess::spawn(&server, &host))
                .await
                .unwrap_err();
            assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
            assert!(error.message.contains("namespace demo"), "{error}");
            assert!(!error.message.contains("hunter2"), "{error}");
            error.message
        }
    };
    let message = refused(|spec| spec.program = "no-such-server".into()).await;
    assert!(message.contains("no-such-server"), "{message}");
    assert!(message.contains("not on its PATH"), "{message}");
    let message = refused(|spec| spec.program = "/no/such".into()).await;
    assert!(message.contains("No such file"), "{message}");
    let message = refused(|spec| spec.cwd = "/nowhere".into()).await;
    assert!(message.contains(" in /nowhere"), "{message}");
    assert_eq!(house.metric("processes_live"), 0.0);
}

// === reloads ===

/// The lower half of a gateway on a fresh data directory, with a namespace `PATH` for starting commands.
struct Dock {
    temp: tempfile::TempDir,
    registry: Arc<Registry>,
    reloader: Arc<Reloader>,
    secrets: Arc<Values>,
}

#[derive(Default)]
struct Values(Mutex<BTreeMap<String, String>>);

impl SecretSource for Values {
    fn read(&self) -> Result<Secrets, SecretsError> {
        let values = self.0.lock().unwrap();
        let each = values.iter();
        Ok(Secrets::global(each.map(|(name, value)| {
            (name.clone(), Secret::new(value.clone()))
        })))
    }
}

impl Dock {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(&temp.path().join("data")).unwrap());
        let exported = prometheus::Registry::new();
        let config = WorkersConfig::default();
        let host = Arc::new(WorkerHost {
            sandbox: Default::default(),
            output: Default::default(),
            guard: guard(),
            config: config.clone(),
            runtimes: Arc::new(Runtimes::new()),
            metrics: Arc::new(WorkerMetrics::new(&exported).unwrap()),
        });
        let registry = Arc::new(Registry::default());
        let secrets = Arc::new(Values::default());
        let reloader = Reloader::new(
            data,
            config,
            NamespacesConfig::default(),
            Arc::clone(&secrets) as Arc<dyn SecretSource>,
            host,
            Arc::clone(&registry),
            ReloadMetrics::new(&exported).unwrap(),
        );
        reloader.bind_runtime(tokio::runtime::Handle::current());
        let dock = Self {
            temp,
            registry,
            reloader,
            secrets,
        };
        // No Python namespaces: those need an environment.
        fs::remove_dir_all(dock.path("tools/shared")).unwrap();
        dock
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.temp.path().join("data").join(relative)
    }

    fn file(&self, text: &str) {
        fs::create_dir_all(self.path("external")).unwrap();
        fs::write(self.path("external/config.yaml"), text).unwrap();
    }

    fn configure(&self, yaml: &str) {
        let stdio: StdioServersConfig = yaml::from_str(yaml).unwrap();
        self.reloader.set_servers(ServersConfig {
            stdio,
            ..ServersConfig::default()
        });
    }

    async fn reload(&self) -> Arc<ReloadReport> {
        within(self.reloader.reload()).await.unwrap()
    }

    fn namespace(&self, name: &str) -> Arc<Namespace> {
        self.registry
            .namespace(name)
            .unwrap_or_else(|| panic!("{name} is not served"))
    }

    fn server(&self, name: &str) -> Arc<ExternalServer> {
        match &self.namespace(name).upstream {
            UpstreamKind::External(server) => Arc::clone(server),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn failure(&self, name: &str) -> CallError {
        match &self.namespace(name).upstream {
            UpstreamKind::Failed(error) => error.clone(),
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn names(names: &[NamespaceName]) -> Vec<&str> {
    names.iter().map(NamespaceName::as_str).collect()
}

#[tokio::test]
async fn servers_of_both_places_are_namespaces_and_only_what_changed_is_another() {
    let dock = Dock::new();
    dock.configure("{ time: { command: mcp-server-time } }");
    dock.file(
        "servers: { github: { source: registry, name: modelcontextprotocol/server-github }, off: { enabled: false } }",
    );
    fs::create_dir(dock.path("tools/empty")).unwrap();
    let report = dock.reload().await;
    assert_eq!(report.failed, []);
    assert_eq!(names(&report.namespaces), ["empty", "github", "time"]);
    assert_eq!(names(&report.workers_restarted), ["github", "time"]);
    let (time, github) = (dock.server("time"), dock.server("github"));
    assert_eq!(github.spec.program, Path::new("npx"));
    assert_eq!(
        github.spec.args,
        ["-y", "@modelcontextprotocol/server-github"]
    );
    assert!(dock.namespace("time").tools.is_empty());
    let before = dock.registry.snapshot();

    let report = dock.reload().await;
    assert!(report.workers_restarted.is_empty());
    assert_eq!(dock.registry.snapshot().generation, before.generation);

    dock.file("servers: { github: { name: a/b }, new: { command: x } }");
    let report = dock.reload().await;
    assert_eq!(names(&report.workers_restarted), ["github", "new"]);
    assert!(Arc::ptr_eq(&time, &dock.server("time")));
    assert!(Arc::ptr_eq(
        &before.namespaces["time"],
        &dock.namespace("time")
    ));
    assert_eq!(dock.server("github").spec.args, ["-y", "@a/b"]);

    fs::remove_file(dock.path("external/config.yaml")).unwrap();
    let report = dock.reload().await;
    assert_eq!(names(&report.removed), ["github", "new"]);
    assert_eq!(names(&report.namespaces), ["empty", "time"]);
    assert!(dock.registry.namespace("new").is_none());
    assert!(Arc::ptr_eq(&time, &dock.server("time")));
}

#[tokio::test]
async fn a_name_of_a_registry_is_run_by_the_installer_on_the_path() {
    use std::os::unix::fs::PermissionsExt as _;
    let dock = Dock::new();
    let npx = dock.temp.path().join("npx");
    fs::write(&npx, format!("#!{}\n{SERVER}", python().display())).unwrap();
    fs::set_permissions(&npx, fs::Permissions::from_mode(0o755)).unwrap();
    *dock.secrets.0.lock().unwrap() =
        BTreeMap::from([("GITHUB_TOKEN".to_owned(), "hunter2".to_owned())]);
    dock.file(&format!(
        "servers: {{ github: {{ source: registry, name: modelcontextprotocol/server-github, \
         env: {{ GITHUB_TOKEN: '${{GITHUB_TOKEN}}', PATH: {:?} }} }} }}",
        dock.temp.path()
    ));
    dock.reload().await;
    let house = House::new();
    let running = house.spawn_server(&dock.server("github")).await;
    let argv = running.about["argv"].as_array().unwrap();
    assert_eq!(argv[1..], ["-y", "@modelcontextprotocol/server-github"]);
    let env = running.about["env"].as_object().unwrap();
    assert_eq!(env["GITHUB_TOKEN"], "hunter2");
    assert!(env.contains_key("LANG") && env.contains_key("HOME"));
    // Set by the test runner: stands for any variable of the gateway.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(!env.contains_key("CARGO_MANIFEST_DIR"));
}

#[tokio::test]
async fn a_folder_wins_over_a_server_that_was_added_beside_the_configuration() {
    let dock = Dock::new();
    dock.file("servers: { time: { command: x } }");
    dock.reload().await;
    dock.server("time");

    fs::create_dir(dock.path("tools/time")).unwrap();
    let report = dock.reload().await;
    assert_eq!(names(&report.namespaces), ["time"]);
    let namespace = dock.namespace("time");
    assert!(matches!(namespace.upstream, UpstreamKind::Empty));
    let codes = || -> Vec<_> {
        let namespace = dock.namespace("time");
        namespace.issues.iter().map(|it| it.code).collect()
    };
    assert_eq!(codes(), ["empty_namespace", "name_collision"]);

    dock.file("servers: {}");
    dock.reload().await;
    assert_eq!(
        codes(),
        ["empty_namespace"],
        "the issue goes with its cause"
    );
    dock.file("servers: { time: { command: x } }");
    dock.reload().await;
    assert_eq!(
        codes(),
        ["empty_namespace", "name_collision"],
        "and comes with it"
    );

    fs::remove_dir(dock.path("tools/time")).unwrap();
    let report = dock.reload().await;
    assert_eq!(names(&report.workers_restarted), ["time"]);
    dock.server("time");
}

#[tokio::test]
async fn a_server_of_the_configuration_wins_over_every_other_of_its_name() {
    let dock = Dock::new();
    fs::create_dir(dock.path("tools/time")).unwrap();
    dock.file("servers: { time: { command: theirs } }");
    dock.reload().await;
    assert!(matches!(
        dock.namespace("time").upstream,
        UpstreamKind::Empty
    ));

    dock.configure("{ time: { command: mine } }");
    dock.reload().await;
    assert_eq!(dock.server("time").spec.program, Path::new("mine"));
    let issues = dock.namespace("time").issues.clone();
    let subjects: Vec<_> = issues.iter().map(|it| it.subject.as_str()).collect();
    assert_eq!(
        subjects,
        ["tools/time", "external/config.yaml: servers.time"]
    );
    assert!(issues.iter().all(|it| it.code == "name_collision"));

    dock.configure("{ time: { command: mine, enabled: false } }");
    dock.reload().await;
    assert!(
        dock.registry.namespace("time").is_none(),
        "the name is kept"
    );
    let unserved = dock.registry.unserved();
    assert_eq!(unserved.len(), 2);
    assert!(unserved.iter().all(|(name, _)| name.as_str() == "time"));

    dock.configure("{}");
    dock.reload().await;
    assert!(matches!(
        dock.namespace("time").upstream,
        UpstreamKind::Empty
    ));
    assert!(dock.registry.unserved().is_empty());
}

#[tokio::test]
async fn a_name_that_changes_hands_keeps_nothing_of_the_server_before() {
    let dock = Dock::new();
    dock.file("servers: { time: { command: theirs } }");
    dock.reload().await;
    dock.server("time");
    // Otherwise a server that cannot be resolved goes on as it was.
    dock.configure("{ time: { command: mine, env: { A: '${BEARER_TOKEN}' } } }");
    dock.reload().await;
    dock.failure("time");
}

#[tokio::test]
async fn a_wrong_entry_fails_alone_and_an_edit_gone_wrong_keeps_what_serves() {
    let dock = Dock::new();
    dock.file("servers: { good: { command: x }, bad: { command: x, warm: -1 }, Bad.Name: {} }");
    let report = dock.reload().await;
    let failed: Vec<_> = report
        .failed
        .iter()
        .map(|failure| (&*failure.namespace, failure.code))
        .collect();
    assert_eq!(
        failed,
        [("Bad.Name", "invalid_config"), ("bad", "invalid_config")]
    );
    let good = dock.server("good");
    let failure = dock.failure("bad");
    assert!(failure.message.contains("warm: "), "{failure}");
    assert_eq!(dock.namespace("bad").issues[0].subject, "warm");

    dock.file("servers: { good: { command: x, isolation: none } }");
    let report = dock.reload().await;
    assert_eq!(report.failed.len(), 1);
    assert!(Arc::ptr_eq(&good, &dock.server("good")));
    let issues = dock.namespace("good").issues.clone();
    assert!(issues[0].message.contains("isolation"), "{issues:?}");
    assert!(dock.registry.namespace("bad").is_none());

    dock.file("servers: [");
    let report = dock.reload().await;
    assert_eq!(report.failed[0].namespace, "external/config.yaml");
    assert!(Arc::ptr_eq(&good, &dock.server("good")));

    dock.file("servers: { good: { command: x } }");
    let report = dock.reload().await;
    assert_eq!(report.failed, []);
    assert!(Arc::ptr_eq(&good, &dock.server("good")));
    assert_eq!(dock.namespace("good").issues, []);
}

#[tokio::test]
async fn a_secret_that_comes_changes_or_goes_is_followed() {
    let dock = Dock::new();
    dock.file("servers: { github: { command: x, env: { TOKEN: '${TOKEN_OF_THE_STORE}' } }, other: { command: x } }");
    let report = dock.reload().await;
    assert_eq!(report.failed[0].code, "missing_variable");
    let failure = dock.failure("github");
    assert!(
        failure
            .message
            .contains("env.TOKEN: ${TOKEN_OF_THE_STORE} is not in the secrets store, and namespaces.env_allowed"),
        "{failure}"
    );
    assert_eq!(dock.namespace("github").secrets, ["TOKEN_OF_THE_STORE"]);
    assert_eq!(
        dock.namespace("github").secrets_status,
        SecretsStatus::Missing
    );
    let other = dock.server("other");

    let set = |value: &str| {
        let entry = ("TOKEN_OF_THE_STORE".to_owned(), value.to_owned());
        *dock.secrets.0.lock().unwrap() = BTreeMap::from([entry]);
    };
    let token = || {
        let server = dock.server("github");
        let variable = server.spec.env.iter().find(|(name, _)| name == "TOKEN");
        variable.unwrap().1.expose().to_owned()
    };
    set("one");
    assert_eq!(dock.reload().await.failed, []);
    assert_eq!(token(), "one");
    assert_eq!(dock.namespace("github").secrets_status, SecretsStatus::Ok);
    set("two");
    let report = dock.reload().await;
    assert_eq!(names(&report.workers_restarted), ["github"]);
    assert_eq!(token(), "two");

    dock.secrets.0.lock().unwrap().clear();
    dock.reload().await;
    dock.failure("github");
    assert!(Arc::ptr_eq(&other, &dock.server("other")));
}

#[tokio::test]
async fn an_entrys_limits_hold_up_to_the_ceilings_and_the_operators_are_the_last_word() {
    let dock = Dock::new();
    let limits = "limits: { timeout: 1h, tools_allow: ['get_*'] }";
    dock.configure(&format!("{{ mine: {{ command: x, {limits} }} }}"));
    dock.file(&format!(
        "servers: {{ theirs: {{ command: x, {limits} }} }}"
    ));
    dock.reload().await;
    let (mine, theirs) = (dock.namespace("mine"), dock.namespace("theirs"));
    assert_eq!(mine.limits.timeout, Duration::from_secs(3600));
    assert_eq!(mine.issues, []);
    assert_eq!(
        theirs.limits.timeout,
        NamespacesConfig::default().ceilings.timeout
    );
    assert_eq!(
        (theirs.issues[0].code, &*theirs.issues[0].subject),
        ("limit_clamped", "external/config.yaml: timeout")
    );
    for namespace in [mine, theirs] {
        assert!(namespace.policy.allows_tool("get_time"));
        assert!(!namespace.policy.allows_tool("set_time"));
    }

    let server = dock.server("theirs");
    dock.file("servers: { theirs: { command: x, limits: { timeout: 5s } } }");
    let report = dock.reload().await;
    assert!(report.workers_restarted.is_empty());
    assert!(Arc::ptr_eq(&server, &dock.server("theirs")));
    let namespace = dock.namespace("theirs");
    assert_eq!(namespace.limits.timeout, Duration::from_secs(5));
    assert!(namespace.policy.allows_tool("set_time"));

    let patch = LimitsPatch {
        timeout: Some(Duration::from_secs(7)),
        ..LimitsPatch::default()
    };
    dock.reloader.set_namespaces(NamespacesConfig {
        overrides: BTreeMap::from([("theirs".parse().unwrap(), patch)]),
        ..NamespacesConfig::default()
    });
    dock.reload().await;
    let limits = &dock.namespace("theirs").limits;
    assert_eq!(limits.timeout, Duration::from_secs(7));
}

#[tokio::test]
async fn new_limits_need_no_other_server() {
    let dock = Dock::new();
    dock.configure("{ time: { command: x } }");
    dock.reload().await;
    let (server, gate) = (
        dock.server("time"),
        Arc::clone(&dock.namespace("time").gate),
    );
    let patch = LimitsPatch {
        timeout: Some(Duration::from_secs(7)),
        tools_deny: Some(vec!["drop_*".into()]),
        principals: Some(vec!["ci".into()]),
        ..LimitsPatch::default()
    };
    dock.reloader.set_namespaces(NamespacesConfig {
        overrides: BTreeMap::from([("time".parse().unwrap(), patch)]),
        ..NamespacesConfig::default()
    });
    let report = dock.reload().await;
    assert!(report.workers_restarted.is_empty());
    assert!(Arc::ptr_eq(&server, &dock.server("time")));
    let namespace = dock.namespace("time");
    assert_eq!(namespace.limits.timeout, Duration::from_secs(7));
    assert!(!namespace.policy.allows_tool("drop_all") && namespace.policy.allows_tool("now"));
    assert!(!namespace.policy.allows_principal("me") && namespace.policy.allows_principal("ci"));
    assert!(Arc::ptr_eq(&gate, &namespace.gate));
}
