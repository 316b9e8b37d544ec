//! Starting, asking and ending a real gateway.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ports::free_address;
use super::{READY_DEADLINE, eventually, eventually_within, programs};

/// The unrestricted token of every gateway in these tests.
pub const TOKEN: &str = "test-token-0123456789abcdef";
/// The manager token of every gateway in these tests.
pub const MANAGER_TOKEN: &str = "test-manager-0123456789abcdef";

/// A gateway that is about to start.
pub struct Builder {
    data: TempDir,
    /// The data directory below `data`; empty for `data` itself.
    nested: PathBuf,
    config: Value,
    environment: BTreeMap<String, String>,
    arguments: Vec<String>,
    binary: PathBuf,
    /// (namespace, file name, source)
    tools: Vec<(String, String, String)>,
    addresses: Option<(SocketAddr, SocketAddr)>,
    tokens: bool,
    /// Further keys of the core listener.
    core: Value,
    /// The soft and the hard limit on open files.
    open_files: Option<(u64, u64)>,
    web: Option<SocketAddr>,
}

/// Makes a command, with further arguments.
type Start = Box<dyn Fn(&[&str]) -> Command + Send + Sync>;

/// A running gateway. Dropping it ends the process.
pub struct Gateway {
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    pub data: TempDir,
    data_dir: PathBuf,
    /// A folder that tools and tests share: the data directory is closed to tools.
    scratch: TempDir,
    pub client: reqwest::Client,
    process: Mutex<Child>,
    /// Makes the command that starts the process once more, with further arguments.
    command: Start,
    config_file: PathBuf,
    config: Value,
    web: Option<SocketAddr>,
}

impl Gateway {
    /// A gateway with an empty `tools/shared` only.
    pub fn empty() -> Builder {
        Self::with_tools([])
    }

    /// A gateway with tool files: (namespace, file name, source).
    pub fn with_tools<const N: usize>(files: [(&str, &str, &str); N]) -> Builder {
        let data = TempDir::new().expect("a temporary directory");
        Builder {
            config: json!({}),
            environment: BTreeMap::new(),
            arguments: Vec::new(),
            binary: PathBuf::from(env!("CARGO_BIN_EXE_tooldock")),
            nested: PathBuf::new(),
            addresses: None,
            tokens: true,
            core: json!({}),
            open_files: None,
            web: None,
            tools: files
                .map(|(namespace, file, source)| {
                    (namespace.to_owned(), file.to_owned(), source.to_owned())
                })
                .into(),
            data,
        }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.data.path().join("gateway.log")).unwrap_or_default()
    }

    pub fn pid(&self) -> i32 {
        self.process.lock().expect("not poisoned").id() as i32
    }

    /// Number of open descriptors of the process. Only root may look: the gateway hides from its own user.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("the process is there, and this is root")
            .count()
    }

    /// Adds or replaces a tool file. Nothing is served from it before a reload.
    pub fn drop_tool(&self, namespace: &str, file: &str, source: &str) {
        drop_tool(&self.data_dir, namespace, file, source);
    }

    pub fn tools_dir(&self) -> PathBuf {
        self.data_dir.join("tools")
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A folder that tools and tests share, `SCRATCH_DIR` of the gateway.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The address of the web UI's listener.
    pub fn web(&self) -> SocketAddr {
        self.web.expect("it was started with one")
    }

    /// A request with the bearer token and nothing else.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.client
            .request(method.parse().expect("a method"), self.url(path))
            .bearer_auth(TOKEN)
    }

    /// A REST call of a tool.
    pub async fn call(&self, namespace: &str, tool: &str, arguments: Value) -> (u16, Value) {
        let response = self
            .request("POST", &format!("/tools/{tool}"))
            .header("X-Namespace", namespace)
            .json(&arguments)
            .send()
            .await
            .expect("answered");
        (
            response.status().as_u16(),
            response.json().await.expect("a JSON body"),
        )
    }

    /// An MCP message without session or version: the rules of 2025-03-26.
    pub async fn mcp(&self, namespace: &str, message: Value) -> (u16, Value) {
        let response = self
            .request("POST", "/mcp")
            .header("X-Namespace", namespace)
            .json(&message)
            .send()
            .await
            .expect("answered");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// `POST /reload` with all three controls in order.
    pub async fn reload(&self) -> Value {
        let response = self
            .request("POST", "/reload")
            .header("X-Manager-Token", MANAGER_TOKEN)
            .send()
            .await
            .expect("answered");
        assert_eq!(response.status(), 200);
        response.json().await.expect("a JSON body")
    }

    pub async fn metrics_text(&self) -> String {
        self.client
            .get(format!("http://{}/metrics", self.metrics))
            .send()
            .await
            .expect("answered")
            .text()
            .await
            .expect("text")
    }

    /// Waits until `calls` calls of a namespace run in its worker.
    pub async fn in_flight(&self, namespace: &str, calls: usize) {
        let line = format!("tooldock_worker_in_flight{{namespace=\"{namespace}\"}} {calls}\n");
        eventually("so many calls are in flight", || async {
            self.metrics_text().await.contains(&line).then_some(())
        })
        .await;
    }

    /// The configuration it was started with.
    pub fn configured(&self) -> &Value {
        &self.config
    }

    /// Writes the configuration again, merged with `changes`.
    pub fn reconfigure(&self, changes: Value) {
        let mut config = self.config.clone();
        merge(&mut config, changes);
        write_config(&self.config_file, &config);
    }

    /// Writes another configuration file, beside the addresses and tokens of the present one.
    pub fn replace_configuration(&self, change: impl FnOnce(&mut Value)) {
        let mut config = self.config.clone();
        change(&mut config);
        write_config(&self.config_file, &config);
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// The exit status, if the process has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.process
            .lock()
            .expect("not poisoned")
            .try_wait()
            .expect("own child")
    }

    /// Waits until the gateway is ready.
    async fn ready(&self) {
        eventually_within(READY_DEADLINE, "the gateway is ready", || async {
            if let Some(status) = self.exited() {
                panic!("the gateway ended with {status}:\n{}", self.log());
            }
            let ready = self.client.get(self.url("/ready")).send().await.ok()?;
            (ready.status() == 200).then_some(())
        })
        .await;
    }

    /// Kills the process, as a machine that runs out of memory does, and starts another one over the same data directory.
    pub async fn killed_and_started_again(&mut self) {
        self.kill();
        self.started_again().await;
    }

    /// Kills the process and waits until it is gone.
    pub fn kill(&mut self) {
        let process = self.process.get_mut().expect("not poisoned");
        process.kill().expect("own child");
        process.wait().expect("own child");
    }

    /// Starts another process over the same data directory.
    pub async fn started_again(&mut self) {
        let process = (self.command)(&[]).spawn().expect("the gateway starts");
        *self.process.get_mut().expect("not poisoned") = process;
        self.ready().await;
    }

    /// Starts a successor (`serve --upgrade`) without waiting. The process of this gateway stays the previous one.
    pub fn successor(&self) -> Child {
        let started = (self.command)(&["--upgrade"]).spawn();
        started.expect("the successor starts")
    }

    /// Starts a process over the same data directory without waiting. The process of this gateway stays the previous one.
    pub fn another(&self) -> Child {
        (self.command)(&[]).spawn().expect("the process starts")
    }

    /// Replaces the process by a successor, and waits until the previous process has ended. Returns its exit status.
    pub async fn upgraded(&mut self) -> ExitStatus {
        let successor = self.successor();
        self.replaced_by(successor).await
    }

    /// As [`Gateway::upgraded`], by a successor that was started before.
    pub async fn replaced_by(&mut self, successor: Child) -> ExitStatus {
        let status = self.ended().await;
        *self.process.get_mut().expect("not poisoned") = successor;
        self.ready().await;
        status
    }

    /// Waits for the process to end.
    pub async fn ended(&self) -> ExitStatus {
        eventually("the gateway has ended", || async { self.exited() }).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let mut process = match self.process.lock() {
            Ok(process) => process,
            Err(poisoned) => poisoned.into_inner(),
        };
        let _ = process.kill();
        let _ = process.wait();
        if std::thread::panicking() {
            eprintln!("--- gateway log\n{}", self.log());
            return;
        }
        let log = self.log();
        let longest = long_polls(&log).max().unwrap_or(0);
        assert!(
            longest <= LONGEST_POLL_MS,
            "a request computed {longest} ms on a message thread:\n{log}"
        );
    }
}

/// Maximum time for which a poll of a message thread may compute in these tests, in ms of processor time, which excludes
/// other processes. The gateway itself reports 50 ms; the binary of these tests is not optimised and 20 times as slow.
const LONGEST_POLL_MS: u64 = 1000;

/// The times of the long polls in a log, in ms of processor time.
fn long_polls(log: &str) -> impl Iterator<Item = u64> {
    let lines = log.lines();
    let told = lines.filter(|line| line.contains("a request computed on a message thread"));
    told.filter_map(|line| {
        let (_, time) = line.split_once("computed_ms")?;
        let digits = time.trim_start_matches(|it: char| !it.is_ascii_digit());
        let end = digits.find(|it: char| !it.is_ascii_digit());
        digits[..end.unwrap_or(digits.len())].parse().ok()
    })
}

#[test]
fn long_polls_are_found_in_logs_of_both_forms() {
    let log = concat!(
        "WARN a request computed on a message thread for longer than 50 ms route=\"/mcp\" wall_ms=90 computed_ms=81\n",
        "INFO something else computed_ms=7\n",
        r#"{"message":"a request computed on a message thread for longer than 50 ms","computed_ms":1234,"wall_ms":1}"#,
    );
    assert_eq!(long_polls(log).collect::<Vec<_>>(), [81, 1234]);
}

impl Builder {
    /// Merges keys into the configuration file.
    pub fn config(mut self, keys: Value) -> Self {
        merge(&mut self.config, keys);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    /// Starts another program, which becomes the gateway.
    pub fn binary(mut self, program: &Path) -> Self {
        self.binary = program.to_owned();
        self
    }

    /// Fixes the addresses, for tests that write the list of listeners themselves.
    pub fn listening(mut self, core: SocketAddr, metrics: SocketAddr) -> Self {
        self.addresses = Some((core, metrics));
        self
    }

    /// Adds the files of a folder of `tests/fixtures`, and of its subfolders, to a namespace.
    pub fn fixture(mut self, namespace: &str, folder: &str) -> Self {
        let folder = programs::root().join("tests/fixtures").join(folder);
        let mut folders = vec![folder.clone()];
        while let Some(inner) = folders.pop() {
            let entries =
                fs::read_dir(&inner).unwrap_or_else(|error| panic!("{}: {error}", inner.display()));
            for entry in entries {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&folder).expect("inside");
                let source = fs::read_to_string(&path).expect("a text file");
                let name = name.to_string_lossy().into_owned();
                self.tools.push((namespace.to_owned(), name, source));
            }
        }
        self
    }

    /// Merges keys into the core listener.
    pub fn core(mut self, keys: Value) -> Self {
        merge(&mut self.core, keys);
        self
    }

    /// Sets no token variables.
    pub fn without_tokens(mut self) -> Self {
        self.tokens = false;
        self
    }

    /// Puts the data directory into a subfolder.
    pub fn nested_data_dir(mut self, folder: &str) -> Self {
        self.nested = PathBuf::from(folder);
        self
    }

    /// Adds a listener of the web UI.
    pub fn with_web(mut self) -> Self {
        self.web = Some(free_address());
        self
    }

    /// Starts the gateway after `prepare` has changed its data directory.
    pub async fn start_with(self, prepare: impl FnOnce(&Path)) -> Gateway {
        let data_dir = self.write_data();
        prepare(&data_dir);
        self.start().await
    }

    /// As [`Builder::start_with`], without waiting.
    pub fn spawn_with(self, prepare: impl FnOnce(&Path)) -> Gateway {
        let data_dir = self.write_data();
        prepare(&data_dir);
        self.spawn()
    }

    fn write_data(&self) -> PathBuf {
        let data_dir = self.data.path().join(&self.nested);
        for (namespace, file, source) in &self.tools {
            drop_tool(&data_dir, namespace, file, source);
        }
        data_dir
    }

    /// Starts the gateway and waits until it is ready.
    pub async fn start(self) -> Gateway {
        let gateway = self.spawn();
        gateway.ready().await;
        gateway
    }

    /// Sets a limit on open files: the soft and the hard one.
    pub fn open_files(mut self, soft: u64, hard: u64) -> Self {
        self.open_files = Some((soft, hard));
        self
    }

    /// Starts the process without waiting.
    pub fn spawn(mut self) -> Gateway {
        // Every HTTP client needs a provider, plain HTTP or not. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data_dir = self.write_data();
        let (address, metrics) = self
            .addresses
            .unwrap_or_else(|| (free_address(), free_address()));
        let mut core = json!({"name": "core", "address": address.to_string(), "profile": "core"});
        merge(&mut core, std::mem::take(&mut self.core));
        let web = self.web.map(
            |address| json!({"name": "web", "address": address.to_string(), "profile": "v1-web"}),
        );
        let mut defaults = json!({
            "listeners": [
                core,
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
            ],
            "workers": {"base_env": shared_base_env().to_str()},
        });
        if let (Some(web), Some(listeners)) = (web, defaults["listeners"].as_array_mut()) {
            listeners.push(web);
        }
        let mut config = defaults;
        merge(&mut config, std::mem::take(&mut self.config));
        let config_file = self.data.path().join("tooldock.test.yaml");
        write_config(&config_file, &config);
        let log = fs::File::create(self.data.path().join("gateway.log")).expect("a log file");
        let data = self.data;
        let web = self.web;
        let home = data.path().to_owned();
        let scratch = TempDir::new().expect("a temporary directory");
        let scratch_dir = scratch.path().to_owned();
        let (file, data_dir_of) = (config_file.clone(), data_dir.clone());
        let command = move |further: &[&str]| {
            let mut command = match self.open_files {
                None => Command::new(&self.binary),
                Some((soft, hard)) => {
                    let mut shell = Command::new("sh");
                    let limited =
                        format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\" \"$@\"");
                    shell.arg("-c").arg(limited).arg(&self.binary);
                    shell
                }
            };
            command
                .arg("serve")
                .arg("-c")
                .arg(&file)
                .args(&self.arguments)
                .args(further)
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .env("HOME", &home)
                .envs(package_index_variables())
                .env("DATA_DIR", &data_dir_of)
                .env("SCRATCH_DIR", &scratch_dir)
                .envs(self.tokens.then_some(("BEARER_TOKEN", TOKEN)))
                .envs(
                    self.tokens
                        .then_some(("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)),
                )
                .envs(&self.environment)
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a second handle"))
                .stderr(log.try_clone().expect("a second handle"));
            command
        };
        let process = command(&[]).spawn().expect("the gateway starts");
        Gateway {
            address,
            metrics,
            web,
            data,
            data_dir,
            scratch,
            client: reqwest::Client::new(),
            process: Mutex::new(process),
            command: Box::new(command),
            config_file,
            config,
        }
    }
}

/// Sources of packages on this machine, passed on to pip and uv.
fn package_index_variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars().filter(|(name, _)| {
        let name = name.to_ascii_uppercase();
        name.starts_with("PIP_")
            || name.starts_with("UV_")
            || name.ends_with("_PROXY")
            || name.starts_with("SSL_CERT")
    })
}

/// The base environment of all tests: making it needs the network and some seconds.
pub fn shared_base_env() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/python-envs/base")
}

fn drop_tool(data: &Path, namespace: &str, file: &str, source: &str) {
    let file = data.join("tools").join(namespace).join(file);
    let folder = file.parent().expect("a folder");
    fs::create_dir_all(folder).expect("the namespace folder");
    fs::write(file, source).expect("the tool file");
}

fn write_config(file: &Path, config: &Value) {
    // JSON is YAML.
    fs::write(file, config.to_string()).expect("the configuration file");
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
