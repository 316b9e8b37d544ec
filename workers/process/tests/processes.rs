//! Workers as real processes, under the real guard, with a Python program that misbehaves on request.
//!
//! Every wait is for an event and has a deadline. A process's end is seen through a pidfd, which works for processes
//! that are not our children.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tokio::sync::Notify;
use tooldock_base::config::{BackoffConfig, WorkersConfig};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_base::worker_state::WorkerState;
use tooldock_process::child::{Child, Exit, Priority, ProcessSpec, SpawnError, Stdin};
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::worker::{
    Ask, CallEvent, CallSink, Operation, ToolReply, Worker, WorkerCall, WorkerHost, WorkerSpec,
};

#[path = "support/beside.rs"]
mod beside;
#[path = "support/logged.rs"]
mod logged;
#[path = "support/programs.rs"]
mod programs;

use beside::guard;
use logged::Logged;
use programs::{DEADLINE, python, within};

const MAX_FRAME: u64 = 256 * 1024;

/// Starts a grandchild that detaches itself, prints both pids, and stays, deaf to SIGTERM.
const FAMILY: &str = r#"
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode())
        time.sleep(1000)
    os._exit(0)
print(os.getpid(), os.read(r, 20).decode(), flush=True)
time.sleep(1000)
"#;

// === the harness ===

struct House {
    dir: tempfile::TempDir,
    registry: prometheus::Registry,
    host: Arc<WorkerHost>,
}

impl House {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut WorkersConfig)) -> Self {
        Self::made(change, vec![tokio::runtime::Handle::current()])
    }

    fn in_runtimes(runtimes: Vec<tokio::runtime::Handle>) -> Self {
        Self::made(|_| {}, runtimes)
    }

    fn made(change: impl FnOnce(&mut WorkersConfig), handles: Vec<tokio::runtime::Handle>) -> Self {
        let mut config = WorkersConfig {
            backoff: BackoffConfig {
                initial: Duration::from_millis(20),
                max: Duration::from_millis(100),
            },
            ..WorkersConfig::default()
        };
        change(&mut config);
        let registry = prometheus::Registry::new();
        let runtimes = Runtimes::new();
        runtimes.provide(handles);
        let host = WorkerHost {
            sandbox: Default::default(),
            output: Default::default(),
            guard: guard(),
            config,
            runtimes: Arc::new(runtimes),
            metrics: Arc::new(WorkerMetrics::new(&registry).unwrap()),
        };
        Self {
            dir: tempfile::tempdir().unwrap(),
            registry,
            host: Arc::new(host),
        }
    }

    fn start(&self, boot: &str) -> Arc<Worker> {
        self.start_with(boot, Duration::from_secs(600))
    }

    fn start_with(&self, boot: &str, drain: Duration) -> Arc<Worker> {
        self.start_limited(boot, drain, Duration::from_secs(60))
    }

    fn start_limited(&self, boot: &str, drain: Duration, silence: Duration) -> Arc<Worker> {
        let spec = WorkerSpec {
            drain,
            silence,
            ..self.spec(boot)
        };
        Worker::start(spec, Arc::clone(&self.host))
    }

    fn start_several(&self, boot: &str, processes: usize) -> Arc<Worker> {
        let spec = WorkerSpec {
            processes,
            ..self.spec(boot)
        };
        Worker::start(spec, Arc::clone(&self.host))
    }

    fn spec(&self, boot: &str) -> WorkerSpec {
        let variable = |name: &str, value: &str| (OsString::from(name), Secret::new(value));
        let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
        WorkerSpec {
            namespace: "demo".parse().unwrap(),
            generation: 7,
            python: python(),
            venv: "/nowhere".into(),
            tools_dir: self.dir.path().to_owned(),
            files_hash: None,
            socket: self.dir.path().join("demo.sock"),
            environment: vec![
                variable("PYTHONPATH", fake.to_str().unwrap()),
                variable("PYTHONDONTWRITEBYTECODE", "1"),
                variable("FAKE_BOOT", boot),
                variable("FAKE_DIR", self.dir.path().to_str().unwrap()),
            ],
            hidden: Vec::new(),
            sync_concurrency: 1,
            processes: 1,
            max_frame: MAX_FRAME,
            drain: Duration::from_secs(600),
            vault_style: false,
            silence: Duration::from_secs(60),
            sandbox: Default::default(),
            waits_for_debugger: false,
        }
    }

    async fn ready(&self, boot: &str) -> Arc<Worker> {
        let worker = self.start(boot);
        within(worker.ready()).await.unwrap();
        worker
    }

    /// The sum of a metric over its series.
    fn metric(&self, name: &str) -> f64 {
        self.registry
            .gather()
            .iter()
            .filter(|family| family.name() == name)
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .map(|metric| metric.get_gauge().value() + metric.get_counter().value())
            .sum()
    }
}

fn tool_call(tool: &str, arguments: &Value) -> WorkerCall {
    asking_for(Operation::CallTool {
        tool: tool.into(),
        arguments: Bytes::from(arguments.to_string()),
    })
}

fn asking_for(operation: Operation) -> WorkerCall {
    WorkerCall {
        operation,
        caller: None,
        maker: Default::default(),
        request: "".into(),
        max_result: 10_000,
        time_limit: None,
        answers: None,
        trace: None,
    }
}

async fn call_with(worker: &Worker, tool: &str, arguments: Value) -> Result<Value, CallError> {
    let reply = within(worker.call(tool_call(tool, &arguments), None)).await;
    reply.map(|reply| serde_json::from_slice(&reply.value).unwrap())
}

async fn call(worker: &Worker, tool: &str) -> Result<Value, CallError> {
    call_with(worker, tool, serde_json::json!({})).await
}

async fn pid_from(worker: &Worker, tool: &str) -> u32 {
    u32::try_from(call(worker, tool).await.unwrap().as_u64().unwrap()).unwrap()
}

/// Notifies at the first progress report, which shows that a call has begun in the worker.
#[derive(Default)]
struct Begun(Notify);

impl CallSink for Begun {
    fn event(&self, event: CallEvent) {
        let CallEvent::Progress(report) = event else {
            panic!("{event:?}");
        };
        assert_eq!(report, r#"{"progress": 1, "total": 2}"#);
        self.0.notify_one();
    }
}

type Pending = tokio::task::JoinHandle<Result<ToolReply, CallError>>;

/// A call that runs in the worker when this returns.
async fn begun(worker: &Arc<Worker>, tool: &str, arguments: Value) -> Pending {
    begun_call(worker, tool_call(tool, &arguments)).await
}

async fn begun_call(worker: &Arc<Worker>, call: WorkerCall) -> Pending {
    let (worker, sink) = (Arc::clone(worker), Arc::new(Begun::default()));
    let pending = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { worker.call(call, Some(sink)).await }
    });
    within(sink.0.notified()).await;
    pending
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
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

/// Waits until a condition is true that has no event of its own, such as a state or a file.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not in time");
}

// === the guard ===

fn family_spec() -> ProcessSpec {
    ProcessSpec {
        program: python(),
        args: vec!["-c".into(), FAMILY.into()],
        env: vec![("GREETING".into(), Secret::new("hello"))],
        cwd: "/".into(),
        stdin: Stdin::Null,
        priority: Priority::Normal,
        sandbox: None,
    }
}

/// A child that ignores SIGTERM, and its detached grandchild.
async fn family() -> (Child, u32) {
    let metrics = WorkerMetrics::unregistered();
    let mut child = within(Child::spawn(&family_spec(), &guard(), metrics.processes()))
        .await
        .unwrap();
    let mut line = String::new();
    let mut stdout = tokio::io::BufReader::new(child.take_stdout().unwrap());
    within(tokio::io::AsyncBufReadExt::read_line(
        &mut stdout,
        &mut line,
    ))
    .await
    .unwrap();
    let pids: Vec<u32> = line
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert_eq!(pids[0], child.pid());
    (child, pids[1])
}

#[tokio::test]
async fn the_ladder_kills_what_ignores_sigterm_and_what_detached_itself() {
    let (mut child, grandchild) = family().await;
    let pid = child.pid();
    let exit = within(child.stop(Duration::from_millis(50))).await;
    assert_eq!(exit, Exit::Signal(9));
    assert!(!alive(pid) && !alive(grandchild), "stop returned too early");
    assert_eq!(within(child.wait()).await, exit);
}

#[tokio::test]
async fn dropping_a_child_ends_its_tree() {
    let (child, grandchild) = family().await;
    let pid = child.pid();
    drop(child);
    gone(pid).await;
    gone(grandchild).await;
}

#[tokio::test]
async fn a_killed_guard_takes_its_tree_with_it() {
    let (mut child, grandchild) = family().await;
    let pid = child.pid();
    kill(parent_of(pid), Signal::KILL);
    assert_eq!(within(child.wait()).await, Exit::Lost);
    gone(pid).await;
    gone(grandchild).await;
}

#[tokio::test]
async fn a_signal_to_the_guard_ends_its_tree() {
    let (mut child, grandchild) = family().await;
    kill(parent_of(child.pid()), Signal::TERM);
    assert_eq!(within(child.wait()).await, Exit::Signal(9));
    gone(grandchild).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_gateway() {
    // Stands for the gateway: holds the control channel and is killed.
    const HOLDER: &str = "
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
subprocess.Popen(sys.argv[1:], stdin=theirs, start_new_session=True)
theirs.close()
time.sleep(1000)
";
    let mut holder = Command::new(python())
        .args(["-c", HOLDER])
        .arg(guard())
        .args(["__guard", "--"])
        .arg(python())
        .args(["-c", FAMILY])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pids: Vec<u32> = line
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    let guard = parent_of(pids[0]);
    assert!(pids.iter().all(|pid| alive(*pid)));
    holder.kill().unwrap();
    holder.wait().unwrap();
    for pid in [pids[0], pids[1], guard] {
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_command_that_cannot_start_says_why_and_an_exit_code_is_passed_on() {
    let metrics = WorkerMetrics::unregistered();
    let spec = ProcessSpec {
        program: "/nowhere/python".into(),
        ..family_spec()
    };
    let error = within(Child::spawn(&spec, &guard(), metrics.processes()))
        .await
        .unwrap_err();
    assert!(matches!(error, SpawnError::Command(_)), "{error:?}");
    assert!(error.to_string().contains("/nowhere/python"), "{error}");

    let spec = ProcessSpec {
        cwd: "/nowhere".into(),
        ..family_spec()
    };
    let error = within(Child::spawn(&spec, &guard(), metrics.processes()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(" in /nowhere"), "{error}");

    let spec = ProcessSpec {
        args: vec!["-c".into(), "import os; os._exit(0 if os.environ.keys() <= {'GREETING', 'TOOLDOCK_PROCESS', 'LC_CTYPE'} else 1)".into()],
        ..family_spec()
    };
    let mut child = within(Child::spawn(&spec, &guard(), metrics.processes()))
        .await
        .unwrap();
    assert_eq!(within(child.wait()).await, Exit::Code(0));
}

#[tokio::test]
async fn a_command_of_low_priority_has_it_and_half_of_the_cores_with_all_it_starts() {
    // `struct sched_attr`, as the kernel returns it.
    const INNER: &str = r#"
import ctypes, os, platform, struct, sys
number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
attributes = ctypes.create_string_buffer(48)
ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0)
_, policy, _, nice, _, slice_ns, _, _ = struct.unpack("<IIQiIQQQ", attributes.raw)
cores = len(os.sched_getaffinity(0))
# Linux has slices since 6.12, and gives none back before.
has_slices = tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)
longer = slice_ns == 4_000_000 or not has_slices
print(policy, nice, slice_ns, cores, file=sys.stderr)
sys.exit(0 if policy == 0 and nice >= 10 and longer and cores == int(sys.argv[1]) else 3)
"#;
    let metrics = WorkerMetrics::unregistered();
    let cores = rustix::thread::sched_getaffinity(None).unwrap().count();
    let own = || rustix::process::getpriority_process(None).unwrap();
    let before = own();
    let outer = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)";
    let spec = ProcessSpec {
        args: vec![
            "-c".into(),
            outer.into(),
            INNER.into(),
            cores.div_ceil(2).to_string().into(),
        ],
        priority: Priority::Low,
        ..family_spec()
    };
    let mut child = within(Child::spawn(&spec, &guard(), metrics.processes()))
        .await
        .unwrap();
    assert_eq!(within(child.wait()).await, Exit::Code(0));
    assert_eq!(own(), before, "only the command has it");
}

/// The time slices of the threads of a process, in nanoseconds. Linux returns them since 6.12, and before only zeros.
fn slices_of(pid: u32) -> BTreeSet<u64> {
    // `struct sched_attr`, as the kernel returns it.
    const READER: &str = r#"
import ctypes, os, platform, struct, sys
number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
for thread in os.listdir(f"/proc/{sys.argv[1]}/task"):
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(number, int(thread), attributes, 48, 0) == 0
    print(struct.unpack("<IIQiIQQQ", attributes.raw)[5])
"#;
    let output = Command::new(python())
        .args(["-c", READER, &pid.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| line.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_worker_gives_way_while_it_starts_and_no_longer_when_it_is_ready() {
    let usual = slices_of(std::process::id());
    assert_eq!(usual.len(), 1, "{usual:?}");
    let has_slices = usual != BTreeSet::from([0]);
    let longer = if has_slices {
        BTreeSet::from([4_000_000])
    } else {
        usual.clone()
    };
    let house = House::new();
    let starting = house.start("silent");
    until("a process", || starting.pid().is_some()).await;
    assert_eq!(slices_of(starting.pid().unwrap()), longer);

    let ready = house.ready("threads").await;
    assert_eq!(slices_of(ready.pid().unwrap()), usual);
}

/// The guard of a command.
fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
    fields[2].parse().unwrap()
}

// === calls ===

#[tokio::test]
async fn a_worker_declares_its_tools_and_serves_many_calls_on_one_connection() {
    let house = House::new();
    let worker = house.start("chatty");
    let declared = within(worker.ready()).await.unwrap();
    assert_eq!(&*declared.tools[0].name, "echo");
    assert_eq!(declared.issues[0].code, "import_error");
    assert_eq!(worker.state(), WorkerState::Ready);
    let waiting = begun(&worker, "never", Value::Null).await;
    let calls = (0..200).map(|number| {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move {
            let reply = call_with(&worker, "echo", serde_json::json!({ "n": number })).await;
            (number, reply.unwrap())
        })
    });
    for handle in calls.collect::<Vec<_>>() {
        let (number, reply) = within(handle).await.unwrap();
        assert_eq!(reply["arguments"]["n"], number);
        assert_eq!(reply["pid"].as_u64(), worker.pid().map(u64::from));
    }
    assert_eq!(worker.in_flight(), 1);
    waiting.abort();
    assert!(waiting.await.is_err());
    assert_eq!((worker.in_flight(), worker.restarts()), (0, 0));
    assert_eq!(house.metric("tooldock_worker_in_flight"), 0.0);
}

#[tokio::test]
async fn the_process_gets_the_documented_arguments_and_only_the_given_environment() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let about = call(&worker, "about").await.unwrap();
    let argv = about["argv"].to_string();
    for part in [
        r#""-m","app.worker_main","--namespace","demo","--socket","#,
        r#""--venv","/nowhere","--tools","#,
        r#""--generation","7","--sync-concurrency","1","--max-frame","262144""#,
    ] {
        assert!(argv.contains(part), "{argv}");
    }
    let mut names: Vec<&str> = about["environ"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    // Python sets this variable itself.
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(
        names,
        [
            "FAKE_BOOT",
            "FAKE_DIR",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONPATH",
            "TOOLDOCK_PROCESS"
        ]
    );
}

#[tokio::test]
async fn answers_keep_their_kind() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let image = within(worker.call(tool_call("image", &Value::Null), None))
        .await
        .unwrap();
    assert_eq!(image.value, "null");
    assert_eq!(image.content.unwrap(), r#"[{"type": "image"}]"#);
    let error = call(&worker, "boom").await.unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (CallErrorCode::InternalError, "boom")
    );
    assert_eq!(error.details.unwrap().get(), r#"{"traceback": "t"}"#);
    let error = call(&worker, "neither").await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::InternalError);
}

#[tokio::test]
async fn resources_prompts_and_completion_take_the_same_connection() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let declared = worker.declared().unwrap();
    assert_eq!(&*declared.resources[0].uri, "a://b");
    let (arguments, params) = (
        Bytes::from_static(b"{}"),
        Bytes::from_static(b"{\"ref\":{}}"),
    );
    for (operation, line) in [
        (
            Operation::ReadResource {
                uri: "a://b".into(),
            },
            serde_json::json!({"op": "resources.read", "uri": "a://b"}),
        ),
        (
            Operation::GetPrompt {
                prompt: "p".into(),
                arguments,
            },
            serde_json::json!({"op": "prompts.get", "prompt": "p", "arguments": {}}),
        ),
        (
            Operation::Complete { params },
            serde_json::json!({"op": "completion.complete", "params": {"ref": {}}}),
        ),
    ] {
        let mut call = asking_for(operation);
        call.caller = Some(Bytes::from_static(b"{\"era\":\"none\"}"));
        let reply = within(worker.call(call, None)).await.unwrap();
        let mut request: Value = serde_json::from_slice(&reply.value).unwrap();
        let request = request.as_object_mut().unwrap();
        assert!(request.remove("id").is_some());
        let caller = request.remove("caller").unwrap();
        assert_eq!(caller, serde_json::json!({"era": "none"}));
        assert_eq!(Value::Object(request.clone()), line);
    }
    let unknown = asking_for(Operation::ReadResource {
        uri: "a://none".into(),
    });
    let error = within(worker.call(unknown, None)).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::ResourceNotFound);
}

/// Answers each question with its own params.
struct Obliging;

impl CallSink for Obliging {
    fn event(&self, event: CallEvent) {
        if let CallEvent::Ask(Ask { questions, replier }) = event {
            for question in questions {
                replier.answer(&question.key, Ok(&question.params));
            }
        }
    }
}

#[tokio::test]
async fn a_tool_asks_and_goes_on_with_the_answers() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let call = tool_call("ask", &serde_json::json!({ "keys": ["a", "b"] }));
    let reply = within(worker.call(call.clone(), Some(Arc::new(Obliging))))
        .await
        .unwrap();
    let answers: Value = serde_json::from_slice(&reply.value).unwrap();
    assert_eq!(
        answers,
        serde_json::json!({"a": {"result": {"of": "a"}}, "b": {"result": {"of": "b"}}})
    );
    let reply = within(worker.call(call, None)).await.unwrap();
    let answers: Value = serde_json::from_slice(&reply.value).unwrap();
    assert_eq!(answers["b"]["error"]["code"], "ask_failed");
}

#[tokio::test]
async fn a_result_or_an_argument_beyond_its_limit_fails_only_its_call() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let pid = worker.pid();
    let big = serde_json::json!({ "size": 20_000 });
    let error = call_with(&worker, "big", big).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::ResultTooLarge);
    assert!(
        error.message.contains("20002") && error.message.contains("10000"),
        "{error}"
    );
    let huge = serde_json::json!({ "x": "y".repeat(usize::try_from(MAX_FRAME).unwrap()) });
    let error = call_with(&worker, "echo", huge).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::InvalidArguments);
    assert!(call(&worker, "echo").await.is_ok());
    assert_eq!(worker.pid(), pid);
}

#[tokio::test]
async fn senseless_doubled_and_unknown_answers_are_counted_and_harm_nobody() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let waiting = begun(&worker, "never", Value::Null).await;
    assert_eq!(call(&worker, "nonsense").await.unwrap(), "at last");
    assert_eq!(call(&worker, "twice").await.unwrap(), 1);
    // 7 lines of garbage, 2 unknown ids, 1 second answer. The worker answers each call in a thread of its own: the second
    // answer may come after that of another call.
    let counted = || house.metric("tooldock_worker_protocol_errors_total");
    until("everything senseless is counted", || counted() >= 10.0).await;
    assert!(call(&worker, "echo").await.is_ok());
    assert!(!waiting.is_finished());
    assert_eq!(worker.restarts(), 0);
    assert_eq!(counted(), 10.0);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_in_the_worker_and_its_late_answer_ignored() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let dropped = begun(&worker, "late", Value::Null).await;
    dropped.abort();
    let cancelled = call(&worker, "await_cancel").await.unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 1);
    until("the late answer is counted", || {
        house.metric("tooldock_worker_protocol_errors_total") == 1.0
    })
    .await;
    assert!(call(&worker, "echo").await.is_ok());
}

#[tokio::test]
async fn a_flood_of_output_neither_blocks_the_worker_nor_reaches_the_log() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let lines = serde_json::json!({ "lines": 20_000 });
    assert_eq!(call_with(&worker, "print", lines).await.unwrap(), "printed");
    until("output is suppressed", || {
        house.metric("tooldock_worker_output_suppressed_total") > 15_000.0
    })
    .await;
}

// === ends and new beginnings ===

#[tokio::test]
async fn a_killed_worker_fails_its_calls_at_once_and_the_next_call_works() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let pid = worker.pid().unwrap();
    let waiting = [
        begun(&worker, "never", Value::Null).await,
        begun(&worker, "never", Value::Null).await,
    ];
    kill(pid, Signal::KILL);
    for call in waiting {
        let error = tokio::time::timeout(Duration::from_secs(60), call)
            .await
            .expect("at once");
        let error = error.unwrap().unwrap_err();
        assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
        assert_eq!(
            error.message,
            "the worker of namespace demo ended while the call ran; it is being restarted"
        );
        assert!(error.retry_after.is_some());
    }
    let reply = call(&worker, "echo").await.unwrap();
    assert_ne!(reply["pid"], pid);
    assert_eq!(worker.restarts(), 1);
}

#[tokio::test]
async fn a_worker_that_stops_answering_is_replaced() {
    let house = House::new();
    let worker = house.start_limited("ok", Duration::from_secs(600), Duration::from_millis(600));
    within(worker.ready()).await.unwrap();
    let pid = worker.pid().unwrap();
    let waiting = begun(&worker, "never", Value::Null).await;
    kill(pid, Signal::STOP);
    let error = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    let reply = call(&worker, "echo").await.unwrap();
    assert_ne!(reply["pid"], pid);
    gone(pid).await;
}

/// A call that its process reports as blocking the others, this long after it began.
async fn blocking(worker: &Arc<Worker>, running_ms: u64, limit: Option<Duration>) -> Pending {
    let call = WorkerCall {
        request: "r-1".into(),
        time_limit: limit,
        ..tool_call("blocks", &serde_json::json!({ "running_ms": running_ms }))
    };
    let pending = begun_call(worker, call).await;
    until("degraded", || worker.state() == WorkerState::Degraded).await;
    pending
}

#[tokio::test]
async fn a_process_that_a_call_blocks_past_its_time_limit_is_replaced_at_once_and_that_is_no_crash()
{
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    let house = House::with(|config| {
        // A failure would be a crash loop, and the next process a minute away.
        config.crash_loop.failures = 1;
        config.backoff.initial = Duration::from_secs(60);
        config.backoff.max = Duration::from_secs(60);
    });
    let worker = house.ready("ok").await;
    let pid = worker.pid().unwrap();
    let other = begun(&worker, "never", Value::Null).await;
    let blocking = blocking(&worker, 3_000, Some(Duration::from_secs(3))).await;
    let text = logged.text();
    for field in [
        r#"tool="blocks""#,
        r#"request_id="r-1""#,
        r#"place="a.py:3 in blocks""#,
        r#"namespace="demo""#,
    ] {
        assert!(text.contains(field), "{field}: {text}");
    }
    assert_eq!(text.matches("computes on the event loop").count(), 1);
    // The caller's time is up.
    blocking.abort();
    let error = within(other).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    let reply = call(&worker, "echo").await.unwrap();
    assert_ne!(reply["pid"], pid);
    assert_eq!((worker.restarts(), worker.state()), (1, WorkerState::Ready));
    gone(pid).await;
}

#[tokio::test]
async fn a_call_that_blocks_its_process_and_is_waited_for_does_not_end_it() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let pid = worker.pid().unwrap();
    let waiting = blocking(&worker, 3_000, Some(Duration::from_secs(3))).await;
    let turns = u64::from(pid);
    assert_eq!(call(&worker, "turns").await.unwrap().as_u64(), Some(turns));
    until("ready again", || worker.state() == WorkerState::Ready).await;
    assert!(!waiting.is_finished());
    waiting.abort();
    // A process also lives on after a blocking call that its client gives up before its time is over, or that has no limit.
    for limit in [Some(Duration::from_secs(3600)), None] {
        blocking(&worker, 3_000, limit).await.abort();
        assert_eq!(call(&worker, "turns").await.unwrap().as_u64(), Some(turns));
        until("ready again", || worker.state() == WorkerState::Ready).await;
    }
    assert_eq!((worker.restarts(), worker.pid()), (0, Some(pid)));
}

#[tokio::test]
async fn a_worker_is_degraded_while_one_of_its_processes_is_blocked() {
    let house = House::new();
    let worker = house.start_several("ok", 2);
    within(worker.ready()).await.unwrap();
    until("both are ready", || {
        worker.states().all(|state| state == WorkerState::Ready)
    })
    .await;
    let _waiting = blocking(&worker, 3_000, None).await;
    let states: BTreeSet<&str> = worker.states().map(WorkerState::as_str).collect();
    assert_eq!(states, BTreeSet::from(["degraded", "ready"]));
    // The other process serves on.
    assert!(call(&worker, "echo").await.is_ok());
}

#[tokio::test]
async fn calls_that_waited_for_a_thread_are_counted_and_told_in_one_line_with_the_key_that_helps() {
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    let house = House::new();
    let worker = house.ready("ok").await;
    let times = serde_json::json!({ "times": 5 });
    call_with(&worker, "waits", times).await.unwrap();
    until("all are counted", || {
        house.metric("tooldock_worker_sync_waits_total") == 10.0
    })
    .await;
    let text = logged.text();
    assert_eq!(text.matches("sync_concurrency raises").count(), 1, "{text}");
}

#[tokio::test]
async fn a_worker_that_hangs_up_floods_with_garbage_or_sends_an_endless_line_is_restarted() {
    let house = House::new();
    let worker = house.ready("ok").await;
    for (restarts, tool) in (1..).zip(["hang_up", "only_nonsense", "endless_line", "die"]) {
        let before = worker.pid().unwrap();
        let error = call(&worker, tool).await.unwrap_err();
        assert_eq!(error.code, CallErrorCode::WorkerUnavailable, "{tool}");
        assert!(call(&worker, "echo").await.is_ok(), "{tool}");
        assert_eq!(worker.restarts(), restarts, "{tool}");
        gone(before).await;
    }
}

#[tokio::test]
async fn a_killed_guard_means_a_restart_and_nothing_left_behind() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let (pid, grandchild) = (worker.pid().unwrap(), pid_from(&worker, "family").await);
    let waiting = begun(&worker, "never", Value::Null).await;
    kill(parent_of(pid), Signal::KILL);
    let error = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert!(call(&worker, "echo").await.is_ok());
    gone(pid).await;
    gone(grandchild).await;
}

#[tokio::test]
async fn a_worker_that_cannot_boot_is_retried_until_it_can() {
    let house = House::new();
    let worker = house.start("exit_first:2");
    let error = within(worker.ready()).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert!(error.message.contains("exit code 3"), "{error}");
    assert!(call(&worker, "echo").await.is_ok());
    assert_eq!(worker.restarts(), 2);
    assert_eq!(worker.declared().unwrap().tools.len(), 1);
}

#[tokio::test]
async fn a_worker_that_never_boots_is_a_crash_loop_and_calls_say_so() {
    let house = House::with(|config| config.backoff.max = Duration::from_secs(60));
    let worker = house.start("exit");
    until("crash loop", || {
        worker.state() == WorkerState::Backoff { crash_loop: true }
    })
    .await;
    assert_eq!(worker.state().as_str(), "crash_loop");
    assert_eq!(worker.restarts(), 4);
    let error = call(&worker, "echo").await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert!(error.message.contains("keeps failing"), "{error}");
    assert!(error.retry_after.unwrap() > Duration::from_secs(10));
    within(worker.retire(Duration::ZERO)).await;
}

// === several processes ===

#[tokio::test]
async fn calls_go_to_the_process_with_the_fewest_and_a_killed_one_is_skipped() {
    let house = House::new();
    let worker = house.start_several("ok", 3);
    within(worker.ready()).await.unwrap();
    let pids: BTreeSet<u32> = worker.pids().collect();
    assert_eq!(pids.len(), 3);
    assert_eq!(house.metric("tooldock_worker_state"), 3.0);
    let go = house.dir.path().join("go");
    let path = serde_json::json!({ "path": go });
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(begun(&worker, "until", path.clone()).await);
    }
    // A call in each: the next three go to each process once more.
    let mut next = BTreeSet::new();
    for _ in 0..3 {
        let answer = call(&worker, "echo").await.unwrap();
        next.insert(u32::try_from(answer["pid"].as_u64().unwrap()).unwrap());
    }
    assert_eq!(next, pids);
    let victim = *pids.first().unwrap();
    kill(victim, Signal::KILL);
    until("its end was noticed", || {
        worker.pids().all(|pid| pid != victim)
    })
    .await;
    // Calls that come now do not wait for its successor, whether or not it is there already.
    for _ in 0..6 {
        let answer = call(&worker, "echo").await.unwrap();
        assert_ne!(answer["pid"], victim);
    }
    std::fs::write(go, "").unwrap();
    let mut answered = BTreeSet::new();
    let mut failed = 0;
    for call in held {
        match within(call).await.unwrap() {
            Ok(reply) => drop(answered.insert(serde_json::from_slice(&reply.value).unwrap())),
            Err(error) => {
                assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
                failed += 1;
            }
        }
    }
    assert_eq!((answered.len(), failed), (2, 1));
    assert!(answered.is_subset(&pids) && !answered.contains(&victim));
    until("three again", || worker.pids().count() == 3).await;
    assert_eq!((worker.restarts(), worker.in_flight()), (1, 0));
    let now: Vec<u32> = worker.pids().collect();
    within(worker.retire(Duration::ZERO)).await;
    for pid in now {
        gone(pid).await;
    }
    assert_eq!(worker.state(), WorkerState::Stopped);
}

#[tokio::test]
async fn one_process_that_fails_to_boot_fails_the_start_and_the_others_serve() {
    let house = House::new();
    let worker = house.start_several("exit_first:1", 2);
    let error = within(worker.ready()).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert!(call(&worker, "echo").await.is_ok());
    assert!(worker.declared().is_some());
    until("both are ready", || {
        worker.states().all(|state| state == WorkerState::Ready)
    })
    .await;
}

#[tokio::test]
async fn a_call_waits_for_whichever_process_comes_first() {
    let house = House::new();
    let worker = house.start_several("ok", 2);
    within(worker.ready()).await.unwrap();
    let old: Vec<u32> = worker.pids().collect();
    for pid in &old {
        kill(*pid, Signal::KILL);
    }
    until("their ends were noticed", || {
        worker.pids().all(|pid| !old.contains(&pid))
    })
    .await;
    let answer = call(&worker, "echo").await.unwrap();
    assert!(old.iter().all(|pid| answer["pid"] != *pid));
}

#[tokio::test]
async fn every_runtime_has_a_connection_of_its_own_to_the_one_process() {
    let other = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let house = House::in_runtimes(vec![
        tokio::runtime::Handle::current(),
        other.handle().clone(),
    ]);
    let handle = other.handle().clone();
    let driver = std::thread::spawn(move || other.block_on(async { drop(ended.await) }));
    let worker = house.ready("ok").await;
    let pid = worker.pid().unwrap();
    let elsewhere = handle.spawn({
        let worker = Arc::clone(&worker);
        async move { call(&worker, "echo").await.unwrap() }
    });
    assert_eq!(within(elsewhere).await.unwrap()["pid"], pid);
    assert_eq!(call(&worker, "echo").await.unwrap()["pid"], pid);
    // The end of one connection ends the process, and with it the calls of the other.
    let waiting = begun(&worker, "never", Value::Null).await;
    let hangs_up = handle.spawn({
        let worker = Arc::clone(&worker);
        async move { call(&worker, "hang_up").await.unwrap_err().code }
    });
    assert_eq!(
        within(hangs_up).await.unwrap(),
        CallErrorCode::WorkerUnavailable
    );
    let error = within(waiting).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert_ne!(call(&worker, "echo").await.unwrap()["pid"], pid);
    within(worker.retire(Duration::ZERO)).await;
    drop(end);
    driver.join().unwrap();
}

#[tokio::test]
async fn a_missing_dependency_is_final_and_told_to_every_caller() {
    let house = House::new();
    let worker = house.start("failed");
    for error in [
        within(worker.ready()).await.unwrap_err(),
        call(&worker, "echo").await.unwrap_err(),
    ] {
        assert_eq!(error.code, CallErrorCode::DependencyError);
        assert_eq!(error.message, "pydantic 1 is too old");
    }
    assert_eq!(worker.state(), WorkerState::Failed);
    within(worker.retire(Duration::ZERO)).await;
    assert_eq!(worker.state(), WorkerState::Stopped);
}

#[tokio::test]
async fn a_boot_that_takes_too_long_is_killed() {
    let house = House::with(|config| {
        config.ready_timeout = Duration::from_secs(1);
        config.backoff.initial = Duration::from_secs(60);
        config.backoff.max = Duration::from_secs(60);
    });
    let worker = house.start("silent");
    until("it runs", || worker.pid().is_some()).await;
    let pid = worker.pid().unwrap();
    let error = within(worker.ready()).await.unwrap_err();
    assert!(error.message.contains("not ready after 1s"), "{error}");
    gone(pid).await;
}

#[tokio::test]
async fn a_worker_that_waits_for_a_debugger_may_take_longer_than_others() {
    let house = House::with(|config| config.ready_timeout = Duration::from_millis(1));
    let spec = WorkerSpec {
        waits_for_debugger: true,
        ..house.spec("ok")
    };
    let waiting = Worker::start(spec, Arc::clone(&house.host));
    assert!(within(waiting.ready()).await.is_ok());
    let usual = house.start("ok");
    assert!(within(usual.ready()).await.is_err());
}

#[tokio::test]
async fn a_worker_of_another_generation_is_not_believed() {
    let house = House::new();
    let worker = house.start("wrong_generation");
    let error = within(worker.ready()).await.unwrap_err();
    assert!(error.message.contains("another generation"), "{error}");
}

#[tokio::test]
async fn retiring_lets_calls_finish_then_leaves_nothing_behind() {
    let house = House::new();
    let worker = house.ready("stubborn").await;
    let (pid, grandchild) = (worker.pid().unwrap(), pid_from(&worker, "family").await);
    let file = house.dir.path().join("go");
    let running = begun(&worker, "until", serde_json::json!({ "path": file })).await;
    let retired = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { worker.retire(DEADLINE).await }
    });
    until("stopping", || worker.state() == WorkerState::Stopping).await;
    assert!(
        call(&worker, "echo").await.is_ok(),
        "served until the drain ends"
    );
    std::fs::write(&file, "").unwrap();
    assert!(within(running).await.unwrap().is_ok());
    within(retired).await.unwrap();
    assert!(
        !alive(pid) && !alive(grandchild),
        "retire returned too early"
    );
    assert_eq!((worker.state(), worker.pid()), (WorkerState::Stopped, None));
    let error = call(&worker, "echo").await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    within(worker.retire(DEADLINE)).await;
    assert_eq!(house.metric("tooldock_processes_live"), 0.0);
    assert_eq!(house.metric("tooldock_processes_reaped_total"), 1.0);
    assert_eq!(house.metric("tooldock_worker_state"), 1.0);
    drop(worker);
    assert!(
        !house
            .registry
            .gather()
            .iter()
            .any(|family| family.name() == "tooldock_worker_state")
    );
}

#[tokio::test]
async fn a_drain_that_takes_too_long_ends_the_calls() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let running = begun(&worker, "never", Value::Null).await;
    let patient = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { worker.retire(Duration::from_secs(3600)).await }
    });
    until("stopping", || worker.state() == WorkerState::Stopping).await;
    within(worker.retire(Duration::from_millis(10))).await;
    let error = within(running).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    within(patient).await.unwrap();
}

#[tokio::test]
async fn dropping_the_worker_ends_its_processes() {
    let house = House::new();
    let worker = house.ready("stubborn").await;
    let (pid, grandchild) = (worker.pid().unwrap(), pid_from(&worker, "family").await);
    drop(worker);
    gone(pid).await;
    gone(grandchild).await;
}

#[tokio::test]
async fn a_recycled_worker_is_replaced_without_a_failed_call() {
    let house = House::new();
    let worker = house.ready("ok").await;
    let old = worker.pid().unwrap();
    let file = house.dir.path().join("go");
    let running = begun(&worker, "until", serde_json::json!({ "path": file })).await;
    assert_eq!(pid_from(&worker, "recycle").await, old);
    until("replaced", || worker.pid().is_some_and(|pid| pid != old)).await;
    let reply = call(&worker, "echo").await.unwrap();
    assert_eq!(reply["pid"].as_u64(), worker.pid().map(u64::from));
    assert!(alive(old), "it drains");
    std::fs::write(&file, "").unwrap();
    let reply = within(running).await.unwrap().unwrap();
    assert_eq!(reply.value, old.to_string());
    gone(old).await;
    assert_eq!((worker.state(), worker.restarts()), (WorkerState::Ready, 1));
}

#[tokio::test]
async fn a_recycled_worker_drains_as_long_as_its_namespace_allows() {
    let house = House::new();
    let worker = house.start_with("ok", Duration::ZERO);
    within(worker.ready()).await.unwrap();
    let old = worker.pid().unwrap();
    let running = begun(&worker, "never", Value::Null).await;
    assert_eq!(pid_from(&worker, "recycle").await, old);
    let error = within(running).await.unwrap().unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    gone(old).await;
    assert_eq!((worker.state(), worker.restarts()), (WorkerState::Ready, 1));
}

#[test]
fn connections_live_on_the_given_runtime_and_their_end_is_survived() {
    let control = tokio::runtime::Runtime::new().unwrap();
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    control.block_on(async {
        let house = House::new();
        let runtimes = Runtimes::new();
        runtimes.provide(vec![first.handle().clone(), second.handle().clone()]);
        let host = WorkerHost {
            sandbox: Default::default(),
            output: Default::default(),
            guard: guard(),
            config: house.host.config.clone(),
            runtimes: Arc::new(runtimes),
            metrics: Arc::clone(&house.host.metrics),
        };
        let house = House {
            host: Arc::new(host),
            ..house
        };
        let worker = house.ready("ok").await;
        let waiting = begun(&worker, "never", Value::Null).await;
        first.shutdown_background();
        let error = within(waiting).await.unwrap().unwrap_err();
        assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
        assert!(call(&worker, "echo").await.is_ok());
        within(worker.retire(Duration::ZERO)).await;
    });
    second.shutdown_background();
}

// === stop for lack of calls ===

#[tokio::test]
async fn processes_without_calls_are_stopped_and_the_next_call_starts_them_without_counting_a_restart()
 {
    let house = House::with(|config| config.idle_stop = Some(Duration::from_millis(200)));
    let worker = house.start_several("ok", 2);
    let declared = within(worker.ready()).await.unwrap();
    for _ in 0..2 {
        until("no process is left", || {
            worker.pids().next().is_none()
                && worker.states().all(|state| state == WorkerState::Idle)
        })
        .await;
        assert_eq!(worker.state(), WorkerState::Idle);
        assert!(!worker.is_lost());
        // The lists stay, and calls at the same time share the start.
        let listed = worker.declared().unwrap();
        assert!(Arc::ptr_eq(&listed, &declared));
        let (one, other) = tokio::join!(call(&worker, "echo"), call(&worker, "echo"));
        assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    }
    assert_eq!(worker.restarts(), 0);
    assert_eq!(house.metric("tooldock_worker_restarts_total"), 0.0);
}

#[tokio::test]
async fn a_worker_with_a_call_in_flight_is_not_stopped_for_lack_of_calls() {
    let house = || House::with(|config| config.idle_stop = Some(Duration::from_millis(20)));
    let (house, unused) = (house(), house());
    let worker = house.ready("ok").await;
    let go = house.dir.path().join("go");
    let running = begun(&worker, "until", serde_json::json!({ "path": go })).await;
    let pid = worker.pid();
    // A worker without calls that is started later shows that the time is over.
    let other = unused.ready("ok").await;
    until("the other is idle", || other.state() == WorkerState::Idle).await;
    assert_eq!((worker.state(), worker.pid()), (WorkerState::Ready, pid));
    std::fs::write(&go, "").unwrap();
    assert!(within(running).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_worker_without_processes_can_be_retired() {
    let house = House::with(|config| config.idle_stop = Some(Duration::from_millis(20)));
    let worker = house.ready("ok").await;
    until("it is idle", || worker.state() == WorkerState::Idle).await;
    within(worker.retire(Duration::from_secs(60))).await;
    assert_eq!(worker.state(), WorkerState::Stopped);
    let error = call(&worker, "echo").await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
}

#[tokio::test]
async fn processes_that_were_stopped_are_started_again_although_another_one_takes_calls() {
    let house = House::with(|config| config.idle_stop = Some(Duration::from_millis(300)));
    let worker = house.start_several("ok", 2);
    within(worker.ready()).await.unwrap();
    // The killed process starts again, while the other one is stopped for lack of calls or runs.
    kill(worker.pid().unwrap(), Signal::KILL);
    until("a process is idle", || {
        worker.states().any(|state| state == WorkerState::Idle)
    })
    .await;
    let all = || worker.states().all(|state| state == WorkerState::Ready);
    let serve = async {
        while !all() {
            assert!(call(&worker, "echo").await.is_ok());
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, serve).await.is_ok(),
        "both processes take calls"
    );
}
