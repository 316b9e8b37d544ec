//! Reloads with real interpreters, environments and worker processes.
//!
//! The base environment is kept in `target/python-envs/` and made once, which needs a package index; everything else
//! is installed from wheels that the tests write themselves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use prometheus::Registry as Prometheus;
use tokio::io::AsyncReadExt as _;
use tooldock_base::config::{LimitsPatch, NamespacesConfig, WorkersConfig};
use tooldock_base::data_dir::DataDir;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_base::worker_state::WorkerState;
use tooldock_credentials::secrets::{SecretSource, Secrets, SecretsError};
use tooldock_process::child::output::RecentOutput;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::worker::{
    Ask, CallEvent, CallSink, Operation, Worker, WorkerCall, WorkerHost,
};
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};
use tooldock_workers::reload::{ReloadError, ReloadMetrics, ReloadReport, Reloader};

#[path = "../process/tests/support/beside.rs"]
mod beside;
#[path = "reload/debugger.rs"]
mod debugger;

const TOOL: &str = "from fastmcp.tools import tool\nimport os, sys\n";
const DEADLINE: Duration = Duration::from_secs(300);

/// The lower half of a gateway on a fresh data directory.
struct House {
    temp: tempfile::TempDir,
    registry: Arc<Registry>,
    reloader: Arc<Reloader>,
    secrets: Arc<Values>,
    /// The last lines that workers printed.
    output: RecentOutput,
}

/// The value of `TOKEN` in each namespace.
#[derive(Default)]
struct Values(Mutex<BTreeMap<String, String>>);

impl SecretSource for Values {
    fn read(&self) -> Result<Secrets, SecretsError> {
        let values = self.0.lock().unwrap();
        let all = values
            .iter()
            .fold(Secrets::default(), |all, (name, value)| {
                all.with(&name.parse().unwrap(), "TOKEN", Secret::new(value.clone()))
            });
        Ok(all)
    }
}

/// `target/`, found from where cargo put this test.
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().to_owned()
}

impl House {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut WorkersConfig)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(&temp.path().join("data")).unwrap());
        let mut config = WorkersConfig {
            base_env: target_dir()
                .join("python-envs/base")
                .to_str()
                .unwrap()
                .to_owned(),
            ..WorkersConfig::default()
        };
        config.backoff.initial = Duration::from_millis(50);
        change(&mut config);
        let runtimes = Arc::new(Runtimes::new());
        runtimes.provide(vec![tokio::runtime::Handle::current()]);
        let output = RecentOutput::default();
        let host = Arc::new(WorkerHost {
            sandbox: Default::default(),
            output: output.clone(),
            guard: beside::guard(),
            config: config.clone(),
            runtimes,
            metrics: Arc::new(WorkerMetrics::unregistered()),
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
            ReloadMetrics::new(&Prometheus::new()).unwrap(),
        );
        reloader.bind_runtime(tokio::runtime::Handle::current());
        let house = Self {
            temp,
            registry,
            reloader,
            secrets,
            output,
        };
        fs::remove_dir_all(house.path("tools/shared")).unwrap();
        house
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.temp.path().join("data").join(relative)
    }

    /// Writes a file below `tools/`; a Python file begins with the import of `tool`.
    fn write(&self, relative: &str, text: &str) {
        let path = self.path("tools").join(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let header = if relative.ends_with(".py") { TOOL } else { "" };
        fs::write(path, format!("{header}{text}")).unwrap();
    }

    async fn reload(&self) -> Arc<ReloadReport> {
        self.reloader.reload().await.unwrap()
    }

    fn namespace(&self, name: &str) -> Arc<Namespace> {
        self.registry
            .namespace(name)
            .unwrap_or_else(|| panic!("{name} is not served"))
    }

    fn worker(&self, name: &str) -> Arc<Worker> {
        match &self.namespace(name).upstream {
            UpstreamKind::Worker(worker) => Arc::clone(worker),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn pid(&self, name: &str) -> u32 {
        self.worker(name).pid().expect("it runs")
    }

    async fn call(&self, name: &str, tool: &str) -> Result<String, CallError> {
        call(&self.worker(name), tool, "{}").await
    }

    fn failure(&self, name: &str) -> CallError {
        match &self.namespace(name).upstream {
            UpstreamKind::Failed(error) => error.clone(),
            other => panic!("{name}: {other:?}"),
        }
    }

    /// A wheel of a package whose module tells its version. Returns the lines that install it.
    fn wheel(&self, name: &str, version: &str) -> String {
        self.wheel_of(name, version, &format!("VERSION = {version:?}\n"))
    }

    /// A wheel of a package with one module `NAME.py`, in a separate directory. Returns the lines that install it.
    fn wheel_of(&self, name: &str, version: &str, source: &str) -> String {
        let wheels = self.temp.path().join("wheels");
        fs::create_dir_all(&wheels).unwrap();
        let script = r"
import sys, zipfile
wheels, name, version, source = sys.argv[1:]
info = f'{name}-{version}.dist-info'
with zipfile.ZipFile(f'{wheels}/{name}-{version}-py3-none-any.whl', 'w') as z:
    z.writestr(f'{name}.py', source)
    z.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
    z.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr(f'{info}/RECORD', '')
";
        let made = Command::new("python3")
            .args(["-c", script])
            .arg(&wheels)
            .args([name, version, source])
            .status();
        assert!(made.unwrap().success());
        format!(
            "--no-index\n--find-links {}\n{name}=={version}\n",
            wheels.display()
        )
    }

    /// A package with one module `NAME.py` and its own build backend, which needs no index.
    fn package(&self, folder: &Path, name: &str, version: &str) {
        fs::create_dir_all(folder).unwrap();
        let project =
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n";
        let backend = format!(
            r"
import os, zipfile
info = '{name}-1.0.dist-info'
def wheel(folder, content):
    with zipfile.ZipFile(f'{{folder}}/{name}-1.0-py3-none-any.whl', 'w') as z:
        for file, text in content.items():
            z.writestr(file, text)
        z.writestr(f'{{info}}/METADATA', 'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
        z.writestr(f'{{info}}/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr(f'{{info}}/RECORD', '')
    return '{name}-1.0-py3-none-any.whl'
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return wheel(folder, {{'{name}.py': open('{name}.py').read()}})
def build_editable(folder, config_settings=None, metadata_directory=None):
    return wheel(folder, {{'{name}.pth': os.getcwd()}})
"
        );
        let module = format!("VERSION = '{version}'\n");
        for (file, text) in [
            ("pyproject.toml", project),
            ("backend.py", &backend),
            (&format!("{name}.py"), &module),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
    }

    async fn close(self) {
        self.reloader.shutdown(Duration::ZERO).await;
    }
}

async fn call(worker: &Worker, tool: &str, arguments: &str) -> Result<String, CallError> {
    let call = WorkerCall {
        operation: Operation::CallTool {
            tool: tool.into(),
            arguments: Bytes::copy_from_slice(arguments.as_bytes()),
        },
        caller: None,
        maker: Default::default(),
        request: "".into(),
        max_result: 1 << 20,
        time_limit: None,
        answers: None,
        trace: None,
    };
    let reply = worker.call(call, None).await?;
    Ok(serde_json::from_slice::<serde_json::Value>(&reply.value)
        .unwrap()
        .to_string()
        .trim_matches('"')
        .to_owned())
}

/// Waits until a condition becomes true.
async fn eventually(what: &str, happened: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !happened() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "never happened: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn names(names: &[NamespaceName]) -> Vec<&str> {
    names.iter().map(NamespaceName::as_str).collect()
}

fn tool(name: &str, body: &str) -> String {
    format!("@tool\ndef {name}() -> str:\n    \"\"\"A tool.\"\"\"\n    {body}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_in_folder_is_served_after_a_reload_and_gone_after_its_removal() {
    let house = House::new();
    let report = house.reload().await;
    assert!(report.namespaces.is_empty());
    assert_eq!(
        house.registry.snapshot().generation,
        1,
        "an empty scan is a scan"
    );

    house.write("my-tools/hello.py", &tool("hello", "return 'hi'"));
    fs::create_dir(house.path("tools/empty")).unwrap();
    assert!(house.registry.namespace("my-tools").is_none());
    let report = house.reload().await;
    assert_eq!(report.failed, []);
    assert_eq!(names(&report.namespaces), ["empty", "my-tools"]);
    assert_eq!(names(&report.workers_restarted), ["my-tools"]);
    assert!(report.deps_synced.is_empty() && !report.coalesced);
    assert!(matches!(
        house.namespace("empty").upstream,
        UpstreamKind::Empty
    ));
    assert_eq!(house.call("my-tools", "hello").await.unwrap(), "hi");
    assert!(house.path("venvs/my-tools/bin/python").exists());
    assert!(house.path("workers/my-tools/worker.sock").exists());

    let pid = house.pid("my-tools");
    fs::remove_dir_all(house.path("tools/my-tools")).unwrap();
    let report = house.reload().await;
    assert_eq!(names(&report.removed), ["my-tools"]);
    assert!(house.registry.namespace("my-tools").is_none());
    assert!(!house.path("workers/my-tools/worker.sock").exists());
    assert!(house.path("venvs/my-tools").symlink_metadata().is_err());
    eventually("the worker stops", || !is_alive(pid)).await;
    let builds = || {
        let entries = fs::read_dir(house.path("venvs/.builds")).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        names
            .filter(|it| it.starts_with("my-tools"))
            .collect::<Vec<_>>()
    };
    eventually("its environment goes with it", || builds().is_empty()).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_changed_gets_a_new_process() {
    let house = House::new();
    for name in ["a", "b"] {
        house.write(&format!("{name}/t.py"), &tool("version", "return 'one'"));
    }
    house.reload().await;
    let (a, b) = (house.namespace("a"), house.namespace("b"));
    let (pid_a, pid_b) = (house.pid("a"), house.pid("b"));

    let report = house.reload().await;
    assert!(report.workers_restarted.is_empty());
    assert!(Arc::ptr_eq(&a, &house.namespace("a")));

    house.write("b/t.py", &tool("version", "return 'two'"));
    let report = house.reload().await;
    assert_eq!(names(&report.workers_restarted), ["b"]);
    assert!(Arc::ptr_eq(&a, &house.namespace("a")));
    assert!(!Arc::ptr_eq(&b, &house.namespace("b")));
    assert_eq!(house.pid("a"), pid_a);
    assert_ne!(house.pid("b"), pid_b);
    assert_eq!(house.call("b", "version").await.unwrap(), "two");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_finishes_where_it_began() {
    let house = House::new();
    let (begun, go) = (
        house.temp.path().join("begun"),
        house.temp.path().join("go"),
    );
    let slow = format!(
        "import asyncio\n@tool\nasync def slow() -> str:\n    \"\"\"Waits.\"\"\"\n    open({begun:?}, 'w').close()\n    \
         while not os.path.exists({go:?}):\n        await asyncio.sleep(0.01)\n    return 'old'\n"
    );
    house.write("ns/t.py", &slow);
    house.reload().await;
    let old = house.worker("ns");
    let in_flight = tokio::spawn({
        let old = Arc::clone(&old);
        async move { call(&old, "slow", "{}").await }
    });
    eventually("the call runs", || begun.exists()).await;

    house.write("ns/t.py", &tool("slow", "return 'new'"));
    house.reload().await;
    assert_eq!(house.call("ns", "slow").await.unwrap(), "new");
    fs::write(&go, "").unwrap();
    assert_eq!(in_flight.await.unwrap().unwrap(), "old");
    eventually("the old worker ends", || old.pid().is_none()).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_limits_need_no_new_process() {
    let house = House::new();
    house.write("ns/t.py", &tool("t", "return ''"));
    house.reload().await;
    let pid = house.pid("ns");
    let mut limits = NamespacesConfig::default();
    limits.defaults.timeout = Duration::from_secs(7);
    house.reloader.set_namespaces(limits);
    assert_ne!(
        house.namespace("ns").limits.timeout,
        Duration::from_secs(7),
        "not before the reload"
    );
    let report = house.reload().await;
    assert!(report.workers_restarted.is_empty());
    assert_eq!(house.namespace("ns").limits.timeout, Duration::from_secs(7));
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

/// The operator takes a tool, and all principals except one, away from a namespace.
fn tightened(name: &str) -> NamespacesConfig {
    let patch = LimitsPatch {
        tools_deny: Some(vec!["danger".into()]),
        principals: Some(vec!["ops".into()]),
        ..LimitsPatch::default()
    };
    let mut config = NamespacesConfig::default();
    config.overrides.insert(name.parse().unwrap(), patch);
    config
}

/// Returns true if the namespace has the tool and its policy allows it.
fn allows(namespace: &Namespace, name: &str) -> bool {
    let mut tools = namespace.tools.iter();
    tools.any(|tool| *tool.name == *name) && namespace.policy.allows_tool(name)
}

fn assert_tightened(namespace: &Namespace) {
    assert!(!allows(namespace, "danger") && allows(namespace, "safe"));
    assert!(!namespace.policy.allows_principal("guest"));
    assert!(namespace.policy.allows_principal("ops"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_word_counts_while_an_update_fails() {
    let house = House::new();
    house.write(
        "ns/t.py",
        &format!(
            "{}{}",
            tool("safe", "return ''"),
            tool("danger", "return ''")
        ),
    );
    house.write("ns/tooldock.yaml", "timeout: 7s\nmax_concurrency: 60\n");
    house.reload().await;
    let pid = house.pid("ns");
    assert!(allows(&house.namespace("ns"), "danger"));

    house.write("ns/tooldock.yaml", "timeout: [\n");
    let mut config = tightened("ns");
    config.ceilings.max_concurrency = 2;
    house.reloader.set_namespaces(config);
    for _ in 0..2 {
        assert_eq!(house.reload().await.failed[0].code, "invalid_manifest");
        let namespace = house.namespace("ns");
        assert_tightened(&namespace);
        assert_eq!(
            namespace.limits.timeout,
            Duration::from_secs(7),
            "what it asked for when it was last right"
        );
        assert!(namespace.gate.has_limits(2, namespace.limits.queue));
        let codes: Vec<_> = namespace.issues.iter().map(|issue| issue.code).collect();
        assert_eq!(codes, ["limit_clamped", "invalid_manifest"]);
    }

    // In the other direction, too, and without a new process.
    house.reloader.set_namespaces(NamespacesConfig::default());
    house.write("ns/tooldock.yaml", "timeout: 7s\nmax_concurrency: 60\n");
    assert_eq!(house.reload().await.failed, []);
    let namespace = house.namespace("ns");
    assert!(allows(&namespace, "danger") && namespace.issues.is_empty());
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_word_does_not_wait_for_an_install() {
    let house = House::new();
    house.write(
        "ns/t.py",
        &format!(
            "{}{}",
            tool("safe", "return ''"),
            tool("danger", "return ''")
        ),
    );
    house.reload().await;
    let index = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = index.local_addr().unwrap();
    house.write(
        "ns/requirements.txt",
        &format!("--index-url http://{address}/simple\nsomething\n"),
    );
    house.reloader.set_namespaces(tightened("ns"));
    let reload = tokio::spawn({
        let reloader = Arc::clone(&house.reloader);
        async move { reloader.reload().await }
    });
    eventually("the tool is gone", || {
        !allows(&house.namespace("ns"), "danger")
    })
    .await;
    let (mut installer, _) = tokio::time::timeout(DEADLINE, index.accept())
        .await
        .unwrap()
        .unwrap();
    assert!(!reload.is_finished(), "it still installs");
    assert_tightened(&house.namespace("ns"));

    // Closing stops the install, and leaves the serving worker.
    let pid = house.pid("ns");
    house.reloader.close();
    house.reloader.close();
    let answer = tokio::time::timeout(DEADLINE, reload).await.unwrap();
    assert!(matches!(answer.unwrap(), Err(ReloadError::ShuttingDown)));
    assert!(matches!(
        house.reloader.reload().await,
        Err(ReloadError::ShuttingDown)
    ));
    assert_eq!(house.call("ns", "safe").await.unwrap(), "");
    assert_eq!(house.pid("ns"), pid);
    let mut request = Vec::new();
    let ended = tokio::time::timeout(DEADLINE, installer.read_to_end(&mut request)).await;
    assert!(ended.is_ok(), "the installer goes on");
    house.close().await;
    assert!(!is_alive(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_answer_holds_no_later_reload_up_and_its_install_ends_with_the_folder()
 {
    let house = House::new();
    house.write("quick/t.py", &tool("say", "return 'old'"));
    house.reload().await;
    let index = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = index.local_addr().unwrap();
    house.write("slow/t.py", &tool("say", "return ''"));
    house.write(
        "slow/requirements.txt",
        &format!("--index-url http://{address}/simple\nsomething\n"),
    );
    let reload = || {
        let reloader = Arc::clone(&house.reloader);
        tokio::spawn(async move { reloader.reload().await })
    };
    let first = reload();
    let accepted = tokio::time::timeout(DEADLINE, index.accept()).await;
    let (mut installer, _) = accepted.unwrap().unwrap();

    house.write("quick/t.py", &tool("say", "return 'new'"));
    let second = reload();
    let before = house.worker("quick");
    eventually("the edit is served", || {
        !Arc::ptr_eq(&before, &house.worker("quick"))
    })
    .await;
    assert_eq!(house.call("quick", "say").await.unwrap(), "new");
    let slow = "slow".parse().unwrap();
    assert!(house.registry.awaits(&slow), "it is starting");
    assert!(!first.is_finished() && !second.is_finished());

    fs::remove_dir_all(house.path("tools/slow")).unwrap();
    let third = tokio::time::timeout(DEADLINE, house.reload())
        .await
        .unwrap();
    assert_eq!(third.failed, []);
    for earlier in [first, second] {
        let report = earlier.await.unwrap().unwrap();
        assert!(report.coalesced);
    }
    assert!(!house.registry.awaits(&slow));
    let mut request = Vec::new();
    let ended = tokio::time::timeout(DEADLINE, installer.read_to_end(&mut request)).await;
    assert!(ended.is_ok(), "the installer goes on");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_word_counts_without_a_toolchain() {
    let house = House::new();
    house.write(
        "ns/t.py",
        &format!(
            "{}{}",
            tool("safe", "return ''"),
            tool("danger", "return ''")
        ),
    );
    house.reload().await;
    let (pid, before) = (house.pid("ns"), house.namespace("ns"));
    fs::remove_dir_all(house.path("runtime")).unwrap();
    fs::write(house.path("runtime"), "in the way").unwrap();
    house.reload().await;
    assert!(
        Arc::ptr_eq(&before, &house.namespace("ns")),
        "nothing changed"
    );
    house.reloader.set_namespaces(tightened("ns"));
    assert!(house.reload().await.workers_restarted.is_empty());
    assert_tightened(&house.namespace("ns"));
    assert_eq!(house.pid("ns"), pid);

    house.write("ns/more.py", "");
    house.reloader.set_namespaces(NamespacesConfig::default());
    assert_eq!(house.reload().await.failed[0].code, "dependency_error");
    assert!(allows(&house.namespace("ns"), "danger"));
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_restarts_only_the_namespace_it_belongs_to() {
    let house = House::new();
    for name in ["github", "slack"] {
        house.write(
            &format!("{name}/t.py"),
            &tool(
                "token",
                "return os.environ.get('TOKEN', '') + os.environ['SITE']",
            ),
        );
        house.write(
            &format!("{name}/tooldock.yaml"),
            "secrets: [TOKEN]\nenv: {SITE: '@here', TOKEN: default}\n",
        );
    }
    house.reload().await;
    let (github, slack) = (house.pid("github"), house.pid("slack"));
    assert_eq!(house.call("slack", "token").await.unwrap(), "default@here");
    house
        .secrets
        .0
        .lock()
        .unwrap()
        .insert("slack".into(), "s3cret".into());
    let report = house.reload().await;
    assert_eq!(names(&report.workers_restarted), ["slack"]);
    assert_eq!(house.pid("github"), github);
    assert_ne!(house.pid("slack"), slack);
    assert_eq!(house.call("slack", "token").await.unwrap(), "s3cret@here");
    let environ = fs::read_to_string(format!("/proc/{}/environ", house.pid("slack"))).unwrap();
    assert!(environ.contains("TOKEN=s3cret"));
    // Set by cargo for this process, which stands for the gateway.
    assert!(!environ.contains("CARGO_MANIFEST_DIR"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_namespaces_have_two_versions_of_one_package() {
    let house = House::new();
    for (name, version) in [("a", "1.0"), ("b", "2.0")] {
        house.write(
            &format!("{name}/requirements.txt"),
            &house.wheel("localpkg", version),
        );
        house.write(
            &format!("{name}/t.py"),
            &tool("version", "import localpkg; return localpkg.VERSION"),
        );
    }
    let report = house.reload().await;
    assert_eq!(report.failed, []);
    assert_eq!(names(&report.deps_synced), ["a", "b"]);
    assert_eq!(house.call("a", "version").await.unwrap(), "1.0");
    assert_eq!(house.call("b", "version").await.unwrap(), "2.0");

    let before = fs::read_link(house.path("venvs/a")).unwrap();
    assert!(
        house.reload().await.deps_synced.is_empty(),
        "nothing changed"
    );
    house.write("a/requirements.txt", &house.wheel("localpkg", "1.5"));
    // The installer runs in this folder, and must not import its own standard library from it.
    house.write(
        "a/keyword.py",
        "raise SystemExit('not the keyword of pip')\n",
    );
    let report = house.reload().await;
    assert_eq!(names(&report.deps_synced), ["a"]);
    assert_eq!(house.call("a", "version").await.unwrap(), "1.5");
    let after = fs::read_link(house.path("venvs/a")).unwrap();
    assert_ne!(before, after);
    // The build is removed by the first reload that finds no worker in it.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while house.path("venvs").join(&before).exists() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the old build stays"
        );
        house.reload().await;
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_install_keeps_the_old_version_serving_and_is_tried_again() {
    let house = House::new();
    house.write("ns/requirements.txt", &house.wheel("localpkg", "1.0"));
    house.write(
        "ns/t.py",
        &tool("version", "import localpkg; return localpkg.VERSION"),
    );
    house.reload().await;
    let (pid, hash) = (house.pid("ns"), house.namespace("ns").content_hash);

    house.write("ns/requirements.txt", "--no-index\nno-such-package==9\n");
    for _ in 0..2 {
        let report = house.reload().await;
        assert_eq!(report.failed.len(), 1, "{report:?}");
        assert_eq!(
            (&*report.failed[0].namespace, report.failed[0].code),
            ("ns", "dependency_error")
        );
        assert!(
            report.failed[0].message.contains("no-such-package"),
            "{report:?}"
        );
    }
    let served = house.namespace("ns");
    assert_eq!((house.pid("ns"), served.content_hash), (pid, hash));
    assert_eq!(
        served
            .issues
            .iter()
            .filter(|issue| issue.code == "dependency_error")
            .count(),
        1
    );
    assert_eq!(house.call("ns", "version").await.unwrap(), "1.0");

    // Taking the change back needs no new process and clears the issue.
    house.write("ns/requirements.txt", &house.wheel("localpkg", "1.0"));
    let report = house.reload().await;
    assert_eq!(
        (report.failed.len(), report.workers_restarted.len()),
        (0, 0)
    );
    assert!(house.namespace("ns").issues.is_empty());
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_local_package_is_built_again_and_runs_in_a_new_process() {
    let house = House::new();
    let outside = house.temp.path().join("outside");
    let places = [
        ("inside", "./lib".to_owned(), house.path("tools/inside/lib")),
        ("path", outside.display().to_string(), outside.clone()),
        (
            "url",
            format!("file://{}", outside.display()),
            outside.clone(),
        ),
        (
            "named",
            format!("locallib @ file://{}", outside.display()),
            outside,
        ),
    ];
    let version = tool("version", "import locallib; return locallib.VERSION");
    for (name, line, folder) in &places {
        house.package(folder, "locallib", "one");
        house.write(
            &format!("{name}/requirements.txt"),
            &format!("--no-index\n{line}\n"),
        );
        house.write(&format!("{name}/v.py"), &version);
    }
    let report = house.reload().await;
    assert!(report.failed.is_empty(), "{report:?}");
    let mut before = BTreeMap::new();
    for (name, ..) in &places {
        assert_eq!(house.call(name, "version").await.unwrap(), "one", "{name}");
        before.insert(*name, house.pid(name));
    }
    assert!(house.reload().await.workers_restarted.is_empty());
    for (_, _, folder) in &places {
        // With the old length: the change shows in neither name, version nor size.
        fs::write(folder.join("locallib.py"), "VERSION = 'two'\n").unwrap();
    }
    let report = house.reload().await;
    assert_eq!(
        names(&report.deps_synced),
        ["inside", "named", "path", "url"]
    );
    for (name, ..) in &places {
        assert_eq!(house.call(name, "version").await.unwrap(), "two", "{name}");
        assert_ne!(house.pid(name), before[name], "{name}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_a_package_that_is_used_in_place_restarts_the_worker_and_installs_nothing() {
    let house = House::new();
    let outside = house.temp.path().join("outside");
    house.package(&outside, "locallib", "one");
    let line = format!("--no-index\n-e {}\n", outside.display());
    house.write("ns/requirements.txt", &line);
    house.write(
        "ns/v.py",
        &tool("version", "import locallib; return locallib.VERSION"),
    );
    let report = house.reload().await;
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(house.call("ns", "version").await.unwrap(), "one");
    fs::write(outside.join("locallib.py"), "VERSION = 'second'\n").unwrap();
    let report = house.reload().await;
    assert_eq!(names(&report.workers_restarted), ["ns"]);
    assert!(report.deps_synced.is_empty(), "{report:?}");
    assert_eq!(house.call("ns", "version").await.unwrap(), "second");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_a_pipe_or_a_device_is_refused_before_anything_is_installed() {
    let house = House::new();
    let pipe = house.temp.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for (name, list) in [("pipe", pipe.to_str().unwrap()), ("zero", "/dev/zero")] {
        house.write(&format!("{name}/requirements.txt"), &format!("-r {list}\n"));
        house.write(&format!("{name}/t.py"), &tool("t", "return ''"));
    }
    house.write("other/t.py", &tool("t", "return 'there'"));
    // An installer would wait for `workers.sync_timeout`, ten minutes.
    let report = tokio::time::timeout(DEADLINE, house.reload())
        .await
        .unwrap();
    for (name, list) in [("pipe", pipe.to_str().unwrap()), ("zero", "/dev/zero")] {
        let error = house.failure(name);
        assert_eq!(error.code, CallErrorCode::DependencyError);
        assert!(error.message.contains(list), "{error:?}");
    }
    assert_eq!(report.failed.len(), 2, "{report:?}");
    assert_eq!(house.call("other", "t").await.unwrap(), "there");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_install_delays_no_other_namespace_and_ends_at_its_limit() {
    let house = House::with(|config| config.sync_timeout = Duration::from_secs(15));
    // Made before, so that its time is not counted.
    house.write("warm/t.py", &tool("t", "return ''"));
    house.reload().await;
    // Accepts and never answers.
    let index = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = index.local_addr().unwrap();
    house.write(
        "hangs/requirements.txt",
        &format!("--index-url http://user:hunter2@{address}/simple\nsomething\n"),
    );
    house.write("hangs/t.py", &tool("t", "return ''"));
    house.write("quick/t.py", &tool("t", "return 'there'"));
    let reload = tokio::spawn({
        let reloader = Arc::clone(&house.reloader);
        async move { reloader.reload().await }
    });
    eventually("the other one is served", || {
        house.registry.namespace("quick").is_some()
    })
    .await;
    assert!(!reload.is_finished(), "the other one did not wait");
    assert!(house.registry.namespace("hangs").is_none());
    let report = reload.await.unwrap().unwrap();
    assert_eq!(report.failed[0].code, "dependency_error");
    assert!(
        report.failed[0].message.contains("not finished after 15s"),
        "{report:?}"
    );
    assert!(!format!("{report:?}").contains("hunter2"));
    assert_eq!(house.failure("hangs").code, CallErrorCode::DependencyError);
    assert!(house.path("venvs/hangs").symlink_metadata().is_err());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pinning_an_old_pydantic_is_a_dependency_error_that_says_so() {
    let house = House::new();
    house.write("old/requirements.txt", &house.wheel("pydantic", "1.10.13"));
    house.write("old/t.py", &tool("t", "return ''"));
    house.write("new/requirements.txt", &house.wheel("pydantic", "2.99.0"));
    house.write("new/t.py", &tool("t", "return ''"));
    let report = house.reload().await;
    let failure = report
        .failed
        .iter()
        .find(|failure| failure.namespace == "old")
        .unwrap();
    assert_eq!(failure.code, "dependency_error");
    assert!(failure.message.contains("pydantic 1.10.13"), "{failure:?}");
    assert_eq!(house.failure("old").code, CallErrorCode::DependencyError);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_and_manifests_harm_nobody_else() {
    let house = House::new();
    house.write("ns/hello.py", &tool("hello", "return 'hi'"));
    house.write("ns/broken.py", "def (:\n");
    house.write("bad/t.py", &tool("t", "return ''"));
    house.write("bad/tooldock.yaml", "timeout: soon\n");
    let report = house.reload().await;
    assert_eq!(house.call("ns", "hello").await.unwrap(), "hi");
    assert_eq!(house.namespace("ns").issues[0].subject, "broken.py");
    assert_eq!(report.failed[0].code, "invalid_manifest");
    assert!(
        house
            .failure("bad")
            .message
            .starts_with("tooldock.yaml: timeout: ")
    );

    house.write("bad/tooldock.yaml", "timeout: 20s\nmax_concurrency: 1000\n");
    assert_eq!(house.reload().await.failed, []);
    assert_eq!(house.namespace("bad").issues[0].code, "limit_clamped");

    let pid = house.pid("bad");
    house.write("bad/tooldock.yaml", "timeout: [\n");
    assert_eq!(house.reload().await.failed[0].code, "invalid_manifest");
    assert_eq!(house.pid("bad"), pid, "the old one goes on");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_code_runs_in_the_worker_and_nowhere_else() {
    let house = House::new();
    let marker = house.temp.path().join("marker");
    let line = format!("open({marker:?}, 'a').write(str(os.getpid()) + '\\n')\n");
    house.write("ns/t.py", &format!("{line}{}", tool("t", "return ''")));
    house.reload().await;
    house.reload().await;
    assert_eq!(
        fs::read_to_string(&marker).unwrap(),
        format!("{}\n", house.pid("ns"))
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_boot_is_retried_and_served_once_it_can() {
    let house = House::new();
    let cured = house.temp.path().join("cured");
    let body = format!(
        "if not os.path.exists({cured:?}): os._exit(1)\n{}",
        tool("t", "return 'well'")
    );
    house.write("ns/t.py", &body);
    let report = house.reload().await;
    assert_eq!(report.failed[0].code, "worker_unavailable");
    assert_eq!(house.failure("ns").code, CallErrorCode::WorkerUnavailable);
    fs::write(&cured, "").unwrap();
    let registry = Arc::clone(&house.registry);
    eventually("it recovers without a reload", || {
        registry
            .namespace("ns")
            .is_some_and(|ns| matches!(ns.upstream, UpstreamKind::Worker(_)))
    })
    .await;
    assert_eq!(house.call("ns", "t").await.unwrap(), "well");
    assert!(
        house.reload().await.workers_restarted.is_empty(),
        "it is the one that is wanted"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_that_wait_for_a_running_one_share_the_next() {
    let house = House::new();
    house.write("ns/t.py", &tool("t", "return ''"));
    let reload = || {
        let reloader = Arc::clone(&house.reloader);
        tokio::spawn(async move { reloader.reload().await.unwrap() })
    };
    let first = reload();
    let (registry, generation) = (Arc::clone(&house.registry), 0);
    eventually("the first one runs", || {
        registry.snapshot().generation > generation
            || first.is_finished()
            || house.path("venvs/.builds").read_dir().unwrap().count() > 0
    })
    .await;
    assert!(!first.is_finished());
    house.write("late/t.py", &tool("t", "return ''"));
    let (second, third) = tokio::join!(house.reloader.reload(), house.reloader.reload());
    let (second, third) = (second.unwrap(), third.unwrap());
    assert!(!first.await.unwrap().coalesced);
    assert!(second.coalesced && Arc::ptr_eq(&second, &third));
    assert_eq!(names(&second.workers_restarted), ["late", "ns"]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_goes_on_when_its_caller_is_gone() {
    let house = House::new();
    house.write("ns/t.py", &tool("t", "return ''"));
    let polled_once = tokio::time::timeout(Duration::ZERO, house.reloader.reload()).await;
    assert!(polled_once.is_err());
    eventually("it is served", || house.registry.namespace("ns").is_some()).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_no_process_and_refuses_reloads() {
    let house = House::new();
    for name in ["a", "b"] {
        house.write(&format!("{name}/t.py"), &tool("t", "return ''"));
    }
    house.reload().await;
    let pids = [house.pid("a"), house.pid("b")];
    house.reloader.shutdown(Duration::from_secs(5)).await;
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert!(matches!(
        house.reloader.reload().await,
        Err(ReloadError::ShuttingDown)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_interpreter_the_namespace_says_which_key_to_set() {
    let house = House::with(|config| config.python = "no-such-python".into());
    house.write("ns/t.py", &tool("t", "return ''"));
    let report = house.reload().await;
    assert_eq!(report.failed[0].code, "dependency_error");
    assert!(house.failure("ns").message.starts_with("workers.python: "));
    house.close().await;
}

/// Functions of every kind.
const TALK: &str = r#"
from fastmcp import Context
from fastmcp.prompts import prompt
from fastmcp.resources import resource

@resource("test://note", mime_type="text/plain")
def note() -> str:
    """A note."""
    return "hello"

@resource("test://item/{id}")
def item(id: str) -> str:
    """An item."""
    return f"item {id}"

@prompt(complete={"topic": ["ruby", "rust", "python"]})
def about(topic: str) -> str:
    """A prompt."""
    return f"Tell me about {topic}"

@tool
async def ask(ctx: Context) -> str:
    """Asks."""
    await ctx.info("asking")
    answer = await ctx.elicit("Name?", str)
    await ctx.send_resource_updated("test://note")
    return answer.data
"#;

/// Answers every question with a form that has the name Ada, and keeps all other events.
#[derive(Default)]
struct Ada(Mutex<Vec<String>>);

impl CallSink for Ada {
    fn event(&self, event: CallEvent) {
        let heard = match event {
            CallEvent::Ask(Ask { questions, replier }) => {
                let answer = br#"{"action": "accept", "content": {"value": "Ada"}}"#;
                replier.answer(&questions[0].key, Ok(answer));
                let question = &questions[0];
                format!("{} {}", question.key, question.method.as_str())
            }
            CallEvent::Log { level, .. } => level.as_str().to_owned(),
            CallEvent::Notice(notice) => notice.method().to_owned(),
            CallEvent::Progress(_) => "progress".to_owned(),
            CallEvent::Dropped(count) => format!("{count} dropped"),
        };
        self.0.lock().unwrap().push(heard);
    }
}

async fn value_of(worker: &Worker, operation: Operation) -> Result<serde_json::Value, CallError> {
    let call = WorkerCall {
        operation,
        caller: None,
        maker: Default::default(),
        request: "".into(),
        max_result: 1 << 20,
        time_limit: None,
        answers: None,
        trace: None,
    };
    let reply = worker.call(call, None).await?;
    Ok(serde_json::from_slice(&reply.value).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_prompts_and_completion_are_served_as_tools_are() {
    let house = House::new();
    house.write("talk/all.py", TALK);
    let mut swaps = house.registry.subscribe();
    let report = house.reload().await;
    assert_eq!(report.failed, []);
    assert!(swaps.has_changed().unwrap());
    let seen = Arc::clone(&swaps.borrow_and_update());
    let namespace = &seen.namespaces["talk"];
    assert_eq!(namespace.issues, []);
    let note = namespace.resource("test://note").unwrap();
    assert!(note.definition.get().contains("text/plain") && !note.context);
    assert_eq!(note.filename, "all.py");
    let template = &namespace.resource_templates[0];
    assert_eq!(&*template.uri_template, "test://item/{id}");
    assert!(namespace.prompt("about").is_some() && namespace.completions);
    assert!(
        namespace
            .tools
            .iter()
            .any(|tool| &*tool.name == "ask" && tool.context)
    );

    let worker = house.worker("talk");
    for (uri, text) in [("test://note", "hello"), ("test://item/7", "item 7")] {
        let read = Operation::ReadResource { uri: uri.into() };
        let result = value_of(&worker, read).await.unwrap();
        assert_eq!(result["contents"][0]["text"], text, "{result}");
        assert_eq!(result["contents"][0]["uri"], uri, "{result}");
    }
    let none = "test://none".into();
    let error = value_of(&worker, Operation::ReadResource { uri: none }).await;
    assert_eq!(error.unwrap_err().code, CallErrorCode::ResourceNotFound);

    let get = |prompt: &str, arguments: &'static str| Operation::GetPrompt {
        prompt: prompt.into(),
        arguments: Bytes::from_static(arguments.as_bytes()),
    };
    let result = value_of(&worker, get("about", r#"{"topic": "rust"}"#)).await;
    let result = result.unwrap();
    let content = &result["messages"][0]["content"];
    assert_eq!(content["text"], "Tell me about rust", "{result}");
    for (asked, code) in [
        (get("about", ""), CallErrorCode::InvalidArguments),
        (get("none", ""), CallErrorCode::PromptNotFound),
    ] {
        assert_eq!(value_of(&worker, asked).await.unwrap_err().code, code);
    }

    let params = r#"{"ref": {"type": "ref/prompt", "name": "about"}, "argument": {"name": "topic", "value": "ru"}}"#;
    let params = Bytes::from_static(params.as_bytes());
    let result = value_of(&worker, Operation::Complete { params }).await;
    let values = &result.unwrap()["completion"]["values"];
    assert_eq!(*values, serde_json::json!(["ruby", "rust"]));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_event_loop_a_tool_blocks_past_its_time_limit_is_replaced() {
    let house = House::new();
    house.write(
        "busy/a.py",
        "@tool\nasync def spin() -> None:\n    while True:\n        pass\n\n\n@tool\nasync def pid() -> int:\n    return os.getpid()\n",
    );
    house.reload().await;
    let worker = house.worker("busy");
    let before = call(&worker, "pid", "{}").await.unwrap();
    let limit = Duration::from_secs(1);
    let spin = WorkerCall {
        operation: Operation::CallTool {
            tool: "spin".into(),
            arguments: Bytes::new(),
        },
        caller: None,
        maker: Default::default(),
        request: "r-1".into(),
        max_result: 1 << 20,
        time_limit: Some(limit),
        answers: None,
        trace: None,
    };
    let spun = tokio::time::timeout(limit, worker.call(spin, None)).await;
    assert!(spun.is_err(), "its time is up");
    // The call waits behind a call that was given up.
    let error = call(&worker, "pid", "{}").await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::WorkerUnavailable);
    assert_ne!(call(&worker, "pid", "{}").await.unwrap(), before);
    assert_eq!(worker.restarts(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_with_a_context_logs_asks_and_announces() {
    let house = House::new();
    house.write("talk/all.py", TALK);
    house.reload().await;
    let worker = house.worker("talk");
    let caller = r#"{"era": "legacy", "capabilities": {"elicitation": {}}, "logLevel": "info", "progress": false}"#;
    let mut call = WorkerCall {
        operation: Operation::CallTool {
            tool: "ask".into(),
            arguments: Bytes::new(),
        },
        caller: Some(Bytes::from_static(caller.as_bytes())),
        maker: Default::default(),
        request: "".into(),
        max_result: 1 << 20,
        time_limit: None,
        answers: None,
        trace: None,
    };
    let ada = Arc::new(Ada::default());
    let sink = Arc::clone(&ada) as Arc<dyn CallSink>;
    let reply = worker.call(call.clone(), Some(sink)).await.unwrap();
    assert_eq!(reply.value, r#""Ada""#);
    assert_eq!(
        *ada.0.lock().unwrap(),
        [
            "info",
            "elicitation-1 elicitation/create",
            "notifications/resources/updated"
        ]
    );

    // A caller without the capability for questions.
    call.caller = None;
    let error = worker.call(call, None).await.unwrap_err();
    assert_eq!(error.code, CallErrorCode::MissingCapability);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_limits_keep_what_is_declared_and_the_calls_that_wait_for_their_clients() {
    let house = House::new();
    house.write("talk/all.py", TALK);
    house.reload().await;
    let before = house.namespace("talk");
    let place = before.parked.enter("ada").unwrap();
    house.write("talk/tooldock.yaml", "ask_timeout: 5s\n");
    house.reload().await;
    let after = house.namespace("talk");
    assert_eq!(after.limits.ask_timeout, Duration::from_secs(5));
    assert_eq!(after.parked.parked(), 1);
    assert!(after.resource("test://note").is_some() && after.prompt("about").is_some());
    drop(place);

    let pid = house.pid("talk");
    let config = NamespacesConfig {
        overrides: BTreeMap::from([(
            "talk".parse().unwrap(),
            LimitsPatch {
                max_parked: Some(1),
                ..LimitsPatch::default()
            },
        )]),
        ..NamespacesConfig::default()
    };
    house.reloader.set_namespaces(config);
    house.reload().await;
    let after = house.namespace("talk");
    assert!(after.parked.has_limit(1));
    let kept = (
        after.prompts.len(),
        after.resources.len(),
        after.resource_templates.len(),
    );
    assert_eq!(kept, (1, 1, 1));
    assert!(after.completions);
    assert_eq!(house.pid("talk"), pid, "no new process");
    house.close().await;
}

// === processes started again without a reload ===

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn listed(namespace: &Namespace) -> Vec<&str> {
    namespace.tools.iter().map(|tool| &*tool.name).collect()
}

fn lists(registry: &Registry, name: &str, tools: &[&str]) -> bool {
    let namespace = registry.namespace(name);
    namespace.is_some_and(|namespace| listed(&namespace) == tools)
}

fn codes(namespace: &Namespace) -> Vec<&str> {
    namespace.issues.iter().map(|issue| issue.code).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_an_edit_reloads_that_namespace_and_no_other() {
    let house = House::new();
    for name in ["edited", "other"] {
        house.write(&format!("{name}/t.py"), &tool("old", "return 'one'"));
    }
    house.reload().await;
    let other = house.namespace("other");
    for name in ["edited", "other"] {
        house.write(&format!("{name}/t.py"), &tool("new", "return 'two'"));
    }
    assert_eq!(house.call("edited", "old").await.unwrap(), "one");
    kill(house.pid("edited"));
    eventually("the new tool is listed", || {
        lists(&house.registry, "edited", &["new"])
    })
    .await;
    assert_eq!(house.call("edited", "new").await.unwrap(), "two");
    assert_eq!(codes(&house.namespace("edited")), ["files_changed"]);
    assert!(
        Arc::ptr_eq(&other, &house.namespace("other")),
        "nobody reloaded the other one"
    );
    let pid = house.pid("edited");
    // The namespace is published before its own reload is over: the report of a reload that comes meanwhile covers both.
    let report = house.reload().await;
    assert!(names(&report.workers_restarted).contains(&"other"));
    assert_eq!(house.pid("edited"), pid);
    assert_eq!(codes(&house.namespace("edited")), [""; 0]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_starts_an_edited_idle_namespace_is_answered_by_its_new_files() {
    let house = House::with(|config| config.idle_stop = Some(Duration::from_millis(200)));
    house.write("ns/t.py", &tool("answer", "return 'old'"));
    house.reload().await;
    let worker = house.worker("ns");
    eventually("it is idle", || worker.state() == WorkerState::Idle).await;
    house.write("ns/t.py", &tool("answer", "return 'new'"));
    assert_eq!(call(&worker, "answer", "{}").await.unwrap(), "new");
    assert!(!Arc::ptr_eq(&worker, &house.worker("ns")));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_another_while_the_worker_read_it_is_read_again() {
    let house = House::new();
    // A worker loads files in the order of their names. At the first start only, a.py replaces b.py before the worker loads
    // it, and c.py puts the original back.
    let here = "import os, pathlib\nhere = pathlib.Path(__file__).parent\n";
    let swap = "if not (here / 'once.db').exists():
    (here / 'once.db').touch()
    text = (here / 'b.py').read_text()
    os.rename(here / 'b.py', here / 'b.kept')
    (here / 'b.py').write_text(text.replace('right', 'mistaken'))
";
    let put_back = "if (here / 'b.kept').exists(): os.replace(here / 'b.kept', here / 'b.py')\n";
    let other = |name| tool(name, "return 'other'");
    house.write("ns/a.py", &format!("{here}{swap}{}", other("first")));
    house.write("ns/b.py", &tool("right", "return 'right'"));
    house.write("ns/c.py", &format!("{here}{put_back}{}", other("third")));
    house.reload().await;
    assert!(house.path("tools/ns/once.db").exists());
    eventually("what the file says is listed", || {
        lists(&house.registry, "ns", &["first", "right", "third"])
    })
    .await;
    // At the second start nothing was replaced, so that no third one is needed. The first reload's report may cover the
    // namespace's own, which publishes the namespace before it is over.
    let pid = house.pid("ns");
    house.reload().await;
    assert!(house.reload().await.workers_restarted.is_empty());
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_writes_its_own_file_at_each_start_is_reloaded_once_more_and_then_left_alone()
 {
    let house = House::new();
    let rewrite = "import pathlib\nown = pathlib.Path(__file__)\nown.write_text(own.read_text())\n";
    house.write(
        "ns/t.py",
        &format!("{rewrite}{}", tool("here", "return 'here'")),
    );
    house.reload().await;
    eventually("the second start is over", || {
        let issues = &house.namespace("ns").issues;
        issues
            .iter()
            .any(|it| it.message.contains("whenever it starts"))
    })
    .await;
    let pid = house.pid("ns");
    // The namespace is published before its own reload is over: a report of one that comes meanwhile covers both.
    house.reload().await;
    for _ in 0..2 {
        assert!(house.reload().await.workers_restarted.is_empty());
    }
    assert_eq!(house.pid("ns"), pid);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_a_tool_wrote_data_is_a_restart_of_the_same_worker() {
    let house = House::new();
    house.write(
        "ns/t.py",
        &tool("note", "open('notes.db', 'a').write('x'); return 'noted'"),
    );
    house.reload().await;
    assert_eq!(house.call("ns", "note").await.unwrap(), "noted");
    let worker = house.worker("ns");
    kill(worker.pid().unwrap());
    eventually("it is started again", || worker.restarts() == 1).await;
    assert_eq!(call(&worker, "note", "{}").await.unwrap(), "noted");
    assert!(Arc::ptr_eq(&worker, &house.worker("ns")));
    assert!(house.reload().await.workers_restarted.is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_deployment_removes_nothing_and_installs_nothing() {
    let house = House::with(|config| config.backoff.max = Duration::from_millis(200));
    house.write("ns/t.py", &tool("old", "return 'one'"));
    house.reload().await;
    let registry = Arc::clone(&house.registry);
    // The old folder goes before the new one comes.
    fs::remove_dir_all(house.path("tools/ns")).unwrap();
    kill(house.pid("ns"));
    eventually("nothing is listed", || lists(&registry, "ns", &[])).await;
    let failure = house.failure("ns").message;
    assert!(failure.contains("no Python file"), "{failure}");
    house.write("ns/t.py", &tool("new", "return 'two'"));
    eventually("it comes back", || lists(&registry, "ns", &["new"])).await;

    // Packages are installed only by a requested reload.
    house.write("ns/requirements.txt", "a-package-that-is-nowhere\n");
    kill(house.pid("ns"));
    eventually("nothing is listed", || lists(&registry, "ns", &[])).await;
    let failure = house.failure("ns").message;
    assert!(failure.contains("POST /reload"), "{failure}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_an_edit_that_cannot_be_served_lists_nothing_until_it_can() {
    let house = House::with(|config| config.backoff.max = Duration::from_millis(200));
    house.write("ns/t.py", &tool("old", "return 'one'"));
    house.reload().await;
    house.write("ns/t.py", &tool("new", "return 'two'"));
    house.write("ns/tooldock.yaml", "timeout: [\n");
    kill(house.pid("ns"));
    let registry = Arc::clone(&house.registry);
    eventually("nothing is listed", || lists(&registry, "ns", &[])).await;
    assert!(house.failure("ns").message.contains("tooldock.yaml"));
    fs::remove_file(house.path("tools/ns/tooldock.yaml")).unwrap();
    eventually("it is tried again", || lists(&registry, "ns", &["new"])).await;
    assert_eq!(house.call("ns", "new").await.unwrap(), "two");

    // A process that does not come up: in the end, the listed tools are the loaded ones, too.
    let dies = format!("os._exit(1)\n{}", tool("newer", "return ''"));
    house.write("ns/t.py", &dies);
    kill(house.pid("ns"));
    eventually("nothing is listed", || lists(&registry, "ns", &[])).await;
    house.write("ns/t.py", &tool("newer", "return 'three'"));
    eventually("it comes up", || lists(&registry, "ns", &["newer"])).await;
    assert_eq!(house.call("ns", "newer").await.unwrap(), "three");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_of_a_namespace_never_answer_from_two_versions() {
    let house = House::new();
    house.write("ns/t.py", &tool("version", "return 'one'"));
    house.write("ns/tooldock.yaml", "processes: 2\n");
    let mut config = NamespacesConfig::default();
    config.ceilings.processes = 2;
    house.reloader.set_namespaces(config);
    assert_eq!(house.reload().await.failed, []);
    let old = house.worker("ns");
    assert_eq!(old.pids().count(), 2);
    house.write("ns/t.py", &tool("version", "return 'two'"));
    kill(house.pid("ns"));
    eventually("the namespace has another worker", || {
        !Arc::ptr_eq(&old, &house.worker("ns"))
    })
    .await;
    assert_eq!(
        old.restarts(),
        0,
        "no process of the old worker loads new files"
    );
    for _ in 0..4 {
        assert_eq!(house.call("ns", "version").await.unwrap(), "two");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_declares_other_functions_when_it_is_started_again_is_not_served_as_it_was()
{
    let house = House::new();
    house.write("ns/name.txt", "first");
    house.write(
        "ns/t.py",
        "@tool(name=open('name.txt').read())\ndef made() -> str:\n    \"\"\"A tool.\"\"\"\n    return ''\n",
    );
    let report = house.reload().await;
    assert_eq!(report.failed, []);
    assert_eq!(listed(&house.namespace("ns")), ["first"]);
    house.write("ns/name.txt", "second");
    kill(house.pid("ns"));
    let registry = Arc::clone(&house.registry);
    eventually("the list is what is loaded", || {
        lists(&registry, "ns", &["second"])
    })
    .await;
    assert_eq!(codes(&house.namespace("ns")), ["functions_changed"]);
    house.close().await;
}
