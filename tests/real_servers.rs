//! External stdio servers behind the gateway: an old and a new client see there the same as when they start the server
//! themselves.
//!
//! The client scripts print answers as they came over the wire, so that the comparison is of JSON and not of an SDK's view
//! of it. Additions of a bridge between the eras are removed before, and named in [`without_additions`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::programs::{node, python, root, run};
use crate::support::{Gateway, TOKEN};

/// Where an answer names the server it comes from.
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// A folder the servers may work in.
pub struct Scratch {
    folder: TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        for name in ["configured", "rooted"] {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join("hello.txt"), format!("{name} says hello\n")).expect("a file");
        }
        let scratch = Self { folder };
        scratch.make_repository();
        scratch
    }

    /// Makes a commit, always the same one.
    fn make_repository(&self) {
        let path = self.path("repository");
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("notes.txt"), "first\n").expect("a file");
        for arguments in [
            ["init", "--quiet", "--initial-branch=main"].as_slice(),
            &["add", "notes.txt"],
            &["commit", "--quiet", "--message=The first note"],
        ] {
            let mut git = std::process::Command::new("git");
            git.arg("-C").arg(&path).args(arguments);
            for who in ["AUTHOR", "COMMITTER"] {
                git.env(format!("GIT_{who}_NAME"), "Ada")
                    .env(format!("GIT_{who}_EMAIL"), "ada@example.org")
                    .env(format!("GIT_{who}_DATE"), "2026-01-01T12:00:00Z");
            }
            run(git.env("GIT_CONFIG_GLOBAL", "/dev/null"));
        }
        fs::write(path.join("notes.txt"), "first\nsecond\n").expect("a file");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }
}

/// How to start each server: `command`, `args`, `env`, as both the gateway and the SDKs spell it.
pub fn servers(scratch: &Scratch) -> BTreeMap<&'static str, Value> {
    let (node, packages) = node();
    let node = node.get_program().to_string_lossy().into_owned();
    let from_npm = |name: &str, arguments: &[&str], env: Value| {
        let program = packages.join("node_modules/.bin").join(name);
        let program = std::path::absolute(program).expect("a path");
        let mut args = vec![program.to_string_lossy().into_owned()];
        args.extend(arguments.iter().map(|text| (*text).to_owned()));
        json!({"command": absolute(&node), "args": args, "env": env})
    };
    let from_pypi = |name: &str, arguments: &[&str]| {
        let program = installed(name);
        json!({"command": program, "args": arguments, "env": {}})
    };
    let memory = json!({"MEMORY_FILE_PATH": scratch.text("memory.jsonl")});
    BTreeMap::from([
        (
            "everything",
            from_npm("mcp-server-everything", &["stdio"], json!({})),
        ),
        (
            "filesystem",
            from_npm(
                "mcp-server-filesystem",
                &[&scratch.text("configured")],
                json!({}),
            ),
        ),
        ("memory", from_npm("mcp-server-memory", &[], memory)),
        (
            "thinking",
            from_npm("mcp-server-sequential-thinking", &[], json!({})),
        ),
        (
            "time",
            from_pypi("mcp-server-time", &["--local-timezone", "UTC"]),
        ),
        (
            "git",
            from_pypi(
                "mcp-server-git",
                &["--repository", &scratch.text("repository")],
            ),
        ),
    ])
}

/// A program of the environment with the servers of PyPI.
fn installed(name: &str) -> String {
    let python = python("servers");
    let program = Path::new(python.get_program()).with_file_name(name);
    absolute(&program.to_string_lossy())
}

/// A path that holds from any folder; the name of a program on `PATH` stays one.
fn absolute(program: &str) -> String {
    if !program.contains('/') {
        return program.to_owned();
    }
    let path = std::path::absolute(program).expect("a path");
    path.to_string_lossy().into_owned()
}

/// The steps of every client with a server.
fn steps(server: &str, scratch: &Scratch) -> Vec<Value> {
    let configured = |name: &str| scratch.path("configured").join(name);
    let rooted = |name: &str| scratch.path("rooted").join(name);
    let repository = scratch.text("repository");
    let steps = match server {
        "everything" => json!([
            {"list": "tools"}, {"list": "resources"}, {"list": "templates"}, {"list": "prompts"},
            {"call": "get-sum", "arguments": {"a": 2, "b": 3}},
            {"call": "get-sum", "arguments": {"a": "two"}},
            {"call": "no-such-tool"},
            {"call": "get-structured-content", "arguments": {"location": "Chicago"}},
            {"call": "get-annotated-message", "arguments": {"messageType": "error", "includeImage": true}},
            {"call": "get-resource-links"},
            {"call": "trigger-long-running-operation", "arguments": {"duration": 1, "steps": 4}, "progress": true},
            {"call": "trigger-sampling-request", "arguments": {"prompt": "hello"}},
            {"call": "trigger-elicitation-request"},
            {"call": "trigger-url-elicitation", "arguments": {"url": "https://a.example/", "elicitationId": "one"}},
            {"call": "get-roots-list"},
            {"read": "demo://resource/static/document/features.md"},
            {"read": "demo://resource/no/such"},
            {"prompt": "simple-prompt"},
            {"prompt": "args-prompt", "arguments": {"city": "Bonn"}},
            {"complete": "completable-prompt", "argument": {"name": "department", "value": "S"}},
            {"complete": "completable-prompt", "argument": {"name": "name", "value": ""},
             "context": {"department": "Sales"}},
        ]),
        "filesystem" => json!([
            {"list": "tools"},
            {"call": "list_allowed_directories"},
            {"call": "read_text_file", "arguments": {"path": rooted("hello.txt")}},
            {"call": "read_text_file", "arguments": {"path": configured("hello.txt")}},
            {"call": "write_file", "arguments": {"path": rooted("new.txt"), "content": "new"}},
            {"call": "list_directory", "arguments": {"path": scratch.path("rooted")}},
        ]),
        "memory" => json!([
            {"list": "tools"}, {"list": "resources"},
            {"call": "create_entities", "arguments": {"entities": [
                {"name": "Ada", "entityType": "person", "observations": ["counts"]}]}},
            {"call": "open_nodes", "arguments": {"names": ["Ada"]}},
            {"call": "create_entities", "arguments": {"entities": "none"}},
            {"read": "memory://knowledge-graph"},
            {"call": "delete_entities", "arguments": {"entityNames": ["Ada"]}},
        ]),
        "thinking" => json!([
            {"list": "tools"},
            {"call": "sequentialthinking", "arguments": {
                "thought": "One", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}},
            {"call": "sequentialthinking", "arguments": {"thought": "Two"}},
        ]),
        "time" => json!([
            {"list": "tools"},
            {"call": "convert_time", "arguments": {
                "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}},
            {"call": "get_current_time", "arguments": {"timezone": "Nowhere/Town"}},
            {"call": "no_such_tool"},
        ]),
        "git" => json!([
            {"list": "tools"},
            {"call": "git_log", "arguments": {"repo_path": repository}},
            {"call": "git_diff_unstaged", "arguments": {"repo_path": repository}},
            {"call": "git_show", "arguments": {"repo_path": repository, "revision": "no-such-revision"}},
        ]),
        other => panic!("no steps for {other}"),
    };
    serde_json::from_value(steps).expect("a list")
}

/// The steps of each client of a server, and the way to connect.
struct Visit {
    script: &'static str,
    environment: &'static str,
    targets: Map<String, Value>,
}

impl Visit {
    fn new(script: &'static str, environment: &'static str) -> Self {
        Self {
            script,
            environment,
            targets: Map::new(),
        }
    }

    fn to(mut self, name: &str, target: Value) -> Self {
        self.targets.insert(name.to_owned(), target);
        self
    }

    /// The answers of the servers, by target.
    async fn pay(self) -> Map<String, Value> {
        let printed = tokio::task::spawn_blocking(move || {
            let mut client = python(self.environment)
                .arg(root().join("tests/clients").join(self.script))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the client starts");
            let targets = Value::Object(self.targets).to_string();
            let mut input = client.stdin.take().expect("piped");
            input
                .write_all(targets.as_bytes())
                .expect("the client reads");
            drop(input);
            let output = client.wait_with_output().expect("the client ends");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {errors}", self.script);
            output.stdout
        })
        .await
        .expect("not cancelled");
        serde_json::from_slice(&printed).expect("a JSON object")
    }
}

/// Instructions for clients: the way to a server, and the steps there.
struct Guide<'a> {
    scratch: &'a Scratch,
    servers: &'a BTreeMap<&'static str, Value>,
}

impl Guide<'_> {
    fn target(&self, server: &str, connection: Value) -> Value {
        let mut target = connection;
        target["can_be_asked"] = json!(true);
        target["roots"] = json!([format!("file://{}", self.scratch.text("rooted"))]);
        target["steps"] = json!(steps(server, self.scratch));
        target
    }

    /// The server started by the client itself.
    fn directly(&self, server: &str) -> Value {
        let mut target = self.target(
            server,
            json!({"command": self.servers[server], "mode": "auto"}),
        );
        wait_for_roots(server, &mut target);
        target
    }

    fn through(&self, gateway: &Gateway, server: &str, via: &str) -> Value {
        let path = if via == "sse" { "/sse" } else { "/mcp" };
        let connection = json!({
            "via": via, "mode": "auto", "url": gateway.url(path),
            "headers": {"Authorization": format!("Bearer {TOKEN}"), "X-Namespace": server},
        });
        self.target(server, connection)
    }
}

/// Two of the servers ask for roots of their own accord once they are opened. In a session that comes before the first
/// step, or else it would come with any of them.
fn wait_for_roots(server: &str, target: &mut Value) {
    let ready = match server {
        "everything" => json!({"call": "get-roots-list", "says": target["roots"][0]}),
        "filesystem" => json!({"call": "list_allowed_directories", "says": "/rooted"}),
        _ => return,
    };
    target["asked_first"] = json!("roots/list");
    target["ready"] = ready;
}

async fn gateway(servers: &BTreeMap<&'static str, Value>) -> Gateway {
    let mut servers = servers.clone();
    for server in servers.values_mut() {
        // Whole interpreters start here, beside those of other tests.
        server["connect_timeout"] = json!("2m");
        server["probe_timeout"] = json!("1m");
        server["warm"] = json!(0);
    }
    Gateway::empty()
        .config(json!({"upstreams": {"stdio": servers}}))
        .start()
        .await
}

/// The answer to a step, by the step's content.
fn step<'a>(seen: &'a Value, wanted: &Value) -> &'a Value {
    let steps = seen["steps"].as_array().expect("a list of steps");
    steps
        .iter()
        .find(|step| contains(&step["step"], wanted))
        .unwrap_or_else(|| panic!("no step {wanted} in {seen}"))
}

fn contains(step: &Value, wanted: &Value) -> bool {
    let mut wanted = wanted.as_object().expect("an object").iter();
    wanted.all(|(key, value)| step[key] == *value)
}

fn called<'a>(seen: &'a Value, tool: &str) -> &'a Value {
    step(seen, &json!({"call": tool}))
}

/// The text of a tool's result.
fn text(step: &Value) -> &str {
    step["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text: {step}"))
}

/// The parts that have to be equal on both ways: the answer, its questions, the progress.
fn comparable(step: &Value) -> Value {
    let mut step = step.clone();
    let members = step.as_object_mut().expect("an object");
    // Looked at where it is certain.
    members.remove("heard");
    if members["step"].get("research").is_some() {
        // Names its task and the time.
        members.remove("result");
    }
    if let Some(result) = members.get_mut("result") {
        without_additions(result);
    }
    step
}

/// Removes the additions of a bridge to a modern client from a result.
fn without_additions(result: &mut Value) {
    let result = result.as_object_mut().expect("an object");
    for key in ["resultType", "ttlMs", "cacheScope"] {
        result.remove(key);
    }
    let meta = result.get_mut("_meta").and_then(Value::as_object_mut);
    if let Some(meta) = meta {
        meta.remove(SERVER);
        if meta.is_empty() {
            result.remove("_meta");
        }
    }
}

/// A server's description of itself, in `initialize` or in `server/discover`.
fn introduction(seen: &Value) -> Value {
    let opened = &seen["opened"];
    let server = match &opened["serverInfo"] {
        Value::Null => &opened["_meta"][SERVER],
        server => server,
    };
    json!({
        "server": server,
        "capabilities": opened["capabilities"],
        "instructions": opened["instructions"],
    })
}

/// Compares all that the client did on its way `through` the gateway.
fn assert_the_same(
    way: &str,
    direct: &Map<String, Value>,
    through: &Map<String, Value>,
    comparable: impl Fn(&Value) -> Value,
) {
    for (server, through) in through {
        let direct = &direct[server];
        assert_eq!(
            introduction(direct),
            introduction(through),
            "{way}, {server}"
        );
        let pairs = steps_of(direct).iter().zip(steps_of(through));
        for (direct, through) in pairs {
            assert_eq!(comparable(direct), comparable(through), "{way}, {server}");
        }
    }
}

fn steps_of(seen: &Value) -> &[Value] {
    seen["steps"].as_array().expect("a list of steps")
}

/// Checks that the answers are results, and not equal failures.
fn assert_they_work(seen: &Map<String, Value>) {
    let everything = &seen["everything"];
    assert_eq!(
        text(called(everything, "get-sum")),
        "The sum of 2 and 3 is 5."
    );
    let wrong = step(
        everything,
        &json!({"call": "get-sum", "arguments": {"a": "two"}}),
    );
    assert_eq!(wrong["result"]["isError"], true);
    let long = called(everything, "trigger-long-running-operation");
    assert_eq!(
        long["progress"],
        json!([[1.0, 4.0], [2.0, 4.0], [3.0, 4.0], [4.0, 4.0]])
    );
    let sampled = called(everything, "trigger-sampling-request");
    assert!(text(sampled).contains("said Resource trigger-sampling-request context: hello"));
    let elicited = called(everything, "trigger-elicitation-request");
    assert_eq!(elicited["asked"][0]["method"], "elicitation/create");
    assert!(elicited["result"].to_string().contains("- Name: Ada"));
    let by_url = called(everything, "trigger-url-elicitation");
    assert!(text(by_url).contains("User completed the URL elicitation flow"));
    assert!(text(called(everything, "get-roots-list")).contains("Current MCP Roots (1 total)"));
    let prompt = step(everything, &json!({"prompt": "args-prompt"}));
    assert_eq!(
        prompt["result"]["messages"][0]["content"]["text"],
        "What's weather in Bonn?"
    );
    let missing = step(everything, &json!({"read": "demo://resource/no/such"}));
    assert!(missing["error"].is_object());

    let files = &seen["filesystem"];
    let reads: Vec<_> = steps_of(files)
        .iter()
        .filter(|it| it["step"]["call"] == "read_text_file")
        .collect();
    // The roots of the client took the place of the folder the server was started with.
    assert_eq!(text(reads[0]), "rooted says hello\n");
    assert_eq!(reads[1]["result"]["isError"], true);

    let graph = step(
        &seen["memory"],
        &json!({"read": "memory://knowledge-graph"}),
    );
    assert!(
        graph["result"]["contents"][0]["text"]
            .as_str()
            .unwrap()
            .contains("Ada")
    );
    let thought = called(&seen["thinking"], "sequentialthinking");
    assert_eq!(
        thought["result"]["structuredContent"]["thoughtHistoryLength"],
        1
    );
    let time = called(&seen["time"], "convert_time");
    assert!(text(time).contains("+9.0h"), "{time}");
    assert_eq!(
        called(&seen["time"], "get_current_time")["result"]["isError"],
        true
    );
    assert!(called(&seen["time"], "no_such_tool")["error"].is_object());
    assert!(text(called(&seen["git"], "git_log")).contains("The first note"));
    assert_eq!(called(&seen["git"], "git_show")["result"]["isError"], true);
}

/// Steps that need a session: a log level, subscriptions, tasks of the server's own kind.
fn steps_of_a_session() -> Vec<Value> {
    let steps = json!([
        {"level": "error"}, {"subscribe": "demo://resource/dynamic/text/1"},
        {"level": "debug"}, {"unsubscribe": "demo://resource/dynamic/text/1"},
        {"call": "toggle-simulated-logging"}, {"call": "toggle-simulated-logging"},
        {"updates": "demo://resource/dynamic/text/2", "by": "toggle-subscriber-updates"},
        {"call": "toggle-subscriber-updates"},
        {"research": "bees"},
    ]);
    serde_json::from_value(steps).expect("a list")
}

fn assert_a_session_works(seen: &Map<String, Value>) {
    let everything = &seen["everything"];
    let heard = |wanted: Value| step(everything, &wanted)["heard"].as_array().unwrap().len();
    assert_eq!(
        heard(json!({"subscribe": "demo://resource/dynamic/text/1"})),
        0
    );
    assert_eq!(
        heard(json!({"unsubscribe": "demo://resource/dynamic/text/1"})),
        1
    );
    assert_eq!(heard(json!({"call": "toggle-simulated-logging"})), 1);
    let updates = step(everything, &json!({"by": "toggle-subscriber-updates"}));
    assert_eq!(updates["updated"], true);
    let research = step(everything, &json!({"research": "bees"}));
    assert_eq!(
        (&research["created"], &research["status"]),
        (&json!("working"), &json!("completed"))
    );
    assert!(text(research).contains("bees"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_client_sees_what_it_sees_directly() {
    let scratch = Scratch::new();
    let servers = servers(&scratch);
    let gateway = gateway(&servers).await;
    let guide = Guide {
        scratch: &scratch,
        servers: &servers,
    };
    let visit = |connect: &dyn Fn(&str) -> Value| {
        let mut visit = Visit::new("real_mcp1.py", "clients-mcp1");
        for server in servers.keys() {
            let mut target = connect(server);
            wait_for_roots(server, &mut target);
            if *server == "everything" {
                let steps = target["steps"].as_array_mut().expect("a list");
                steps.extend(steps_of_a_session());
            }
            visit = visit.to(server, target);
        }
        visit.pay()
    };
    let direct = visit(&|server| guide.directly(server)).await;
    assert_they_work(&direct);
    assert_a_session_works(&direct);
    for via in ["streamable", "sse"] {
        let through = visit(&|server| guide.through(&gateway, server, via)).await;
        assert_the_same(via, &direct, &through, comparable);
        assert_a_session_works(&through);
    }
    // They name no older revision, but a process that was not asked takes the handshake.
    for server in ["time", "git"] {
        let ready = gateway.request("GET", "/ready").send();
        let ready: Value = ready.await.unwrap().json().await.unwrap();
        let mut all = ready["namespaces"].as_array().expect("a list").iter();
        let entry = all.find(|it| it["name"] == server).expect("an entry");
        assert_eq!(entry["server"]["era"], "dual", "{entry}");
    }
}

/// Tools of server-everything that it offers only to a client that can be asked.
const ASKING_TOOLS: [&str; 4] = [
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
];

/// As [`comparable`], for a modern client of a server that knows only the handshake. Lists come from a process that
/// several clients share, and that has no client's capabilities; and the process of a call asks for roots anew, at times
/// of its own.
fn comparable_across_eras(step: &Value) -> Value {
    let mut step = comparable(step);
    if let Some(tools) = step
        .pointer_mut("/result/tools")
        .and_then(Value::as_array_mut)
    {
        tools.retain(|tool| ASKING_TOOLS.iter().all(|name| tool["name"] != *name));
    }
    if let Some(asked) = step.pointer_mut("/asked").and_then(Value::as_array_mut) {
        asked.retain(|asked| asked["method"] != "roots/list");
    }
    step
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_sees_what_it_sees_directly() {
    let scratch = Scratch::new();
    let servers = servers(&scratch);
    let gateway = gateway(&servers).await;
    let guide = Guide {
        scratch: &scratch,
        servers: &servers,
    };
    let visit = || Visit::new("real_mcp2.py", "clients-mcp2");
    let (mut directly, mut through) = (visit(), visit());
    for server in servers.keys() {
        directly = directly.to(server, guide.directly(server));
        through = through.to(server, guide.through(&gateway, server, "streamable"));
    }
    // A client that cannot be asked shares a process, where its calls affect its subscriptions. It comes alone: messages
    // of a process beside two calls belong to no client.
    let mut silent = guide.through(&gateway, "everything", "streamable");
    silent["can_be_asked"] = json!(false);
    // The gateway ends the subscription by a request of its own, and the messages of the process meanwhile are for no
    // client. Two more calls let that request be answered.
    silent["steps"] = json!([
        {"updates": "demo://resource/dynamic/text/2", "by": "toggle-subscriber-updates"},
        {"call": "toggle-subscriber-updates"},
        {"call": "get-sum", "arguments": {"a": 1, "b": 2}},
        {"call": "get-sum", "arguments": {"a": 1, "b": 2}},
        {"call": "toggle-simulated-logging"},
        {"call": "toggle-simulated-logging"},
        {"call": "trigger-sampling-request"},
    ]);
    let direct = directly.pay().await;
    let seen = through.pay().await;
    let silent = visit().to("silent", silent).pay().await;
    let silent = &silent["silent"];
    for (server, seen) in &seen {
        let versions = seen["opened"]["supportedVersions"].as_array();
        let modern = versions.is_some_and(|it| it.contains(&json!("2026-07-28")));
        assert!(modern, "{server} was not opened in the modern era");
    }
    assert_the_same("modern", &direct, &seen, comparable_across_eras);
    assert_they_work(&seen);

    assert_eq!(
        step(silent, &json!({"by": "toggle-subscriber-updates"}))["updated"],
        true
    );
    // The only call of that moment hears whatever the shared process logs, the end of the subscription, too.
    let log = called(silent, "toggle-simulated-logging");
    let heard = log["heard"].as_array().unwrap().iter();
    let levels = heard.filter(|it| {
        let data = it["params"]["data"].as_str().unwrap_or_default();
        // At the level it draws it says "Debug-level message", or "Alert level-message".
        data.contains("-level message") || data.contains(" level-message")
    });
    assert_eq!(levels.count(), 1, "{log}");
    assert_eq!(
        called(silent, "trigger-sampling-request")["result"]["isError"],
        true
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_client_answered_is_not_told_to_the_next() {
    let scratch = Scratch::new();
    let servers = servers(&scratch);
    let gateway = gateway(&servers).await;
    let guide = Guide {
        scratch: &scratch,
        servers: &servers,
    };
    for folder in ["rooted", "configured"] {
        let mut visit = Visit::new("real_mcp2.py", "clients-mcp2");
        for (server, tool) in [
            ("everything", "get-roots-list"),
            ("filesystem", "list_allowed_directories"),
        ] {
            let mut target = guide.through(&gateway, server, "streamable");
            target["roots"] = json!([format!("file://{}", scratch.text(folder))]);
            target["steps"] = json!([{"call": tool}]);
            visit = visit.to(server, target);
        }
        let seen = visit.pay().await;
        for (server, tool) in [
            ("everything", "get-roots-list"),
            ("filesystem", "list_allowed_directories"),
        ] {
            let text = text(called(&seen[server], tool));
            assert!(
                text.contains(&scratch.text(folder)),
                "{server}, {folder}: {text}"
            );
        }
    }
}

/// `npx` finds packages beside it, `uvx` packages in its cache: nothing is fetched.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_started_by_its_name_in_a_registry() {
    let scratch = Scratch::new();
    let servers = servers(&scratch);
    let (_, packages) = node();
    let tools = installed("uvx");
    let tools = Path::new(&tools).parent().expect("a folder");
    let path = format!(
        "{}:{}",
        tools.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let requirement = fs::read_to_string(root().join("tests/clients/requirements-servers.txt"))
        .expect("the list");
    let time = requirement
        .lines()
        .find(|line| line.starts_with("mcp-server-time=="))
        .expect("a version");
    let time = time.replace("==", "@");
    let config = json!({"servers": {
        "memory": {
            "source": "registry",
            "name": "modelcontextprotocol/server-memory",
            "cwd": absolute(&packages.to_string_lossy()),
            "env": {"MEMORY_FILE_PATH": "${MEMORY_FILE}", "npm_config_offline": "true"},
        },
        "time": {"source": "registry", "name": time, "package_type": "pypi", "args": ["--local-timezone", "UTC"],
                 "connect_timeout": "2m"},
        "known": {"name": "example/clock", "args": ["--local-timezone", "UTC"], "connect_timeout": "2m"},
        "off": {"name": "modelcontextprotocol/server-everything", "enabled": false},
    }});
    let cache = json!({"servers": {"example/clock": {"package_type": "pypi", "package": time}}});
    let gateway = Gateway::empty()
        .env("PATH", &path)
        .env(
            "UV_CACHE_DIR",
            &absolute(&tools.with_file_name("uv-cache").to_string_lossy()),
        )
        .env("UV_OFFLINE", "1")
        .env("UV_PYTHON", &installed("python"))
        .env("MEMORY_FILE", &scratch.text("memory.jsonl"))
        .config(json!({"namespaces": {"env_allowed": ["MEMORY_FILE"]}}))
        .start_with(|data| {
            // JSON is YAML.
            fs::create_dir(data.join("external")).expect("a folder");
            fs::write(data.join("external/config.yaml"), config.to_string()).expect("written");
            fs::write(data.join("external/registry-cache.yaml"), cache.to_string())
                .expect("written");
        })
        .await;
    let guide = Guide {
        scratch: &scratch,
        servers: &servers,
    };
    let mut visit = Visit::new("real_mcp1.py", "clients-mcp1");
    for (namespace, server) in [("memory", "memory"), ("time", "time"), ("known", "time")] {
        let mut target = guide.through(&gateway, server, "streamable");
        target["headers"]["X-Namespace"] = json!(namespace);
        target["can_be_asked"] = json!(false);
        visit = visit.to(namespace, target);
    }
    let seen = visit.pay().await;
    assert!(text(called(&seen["memory"], "open_nodes")).contains("Ada"));
    assert!(scratch.path("memory.jsonl").exists());
    for namespace in ["time", "known"] {
        assert!(text(called(&seen[namespace], "convert_time")).contains("+9.0h"));
    }
    let (status, _) = gateway.call("off", "echo", json!({})).await;
    assert_eq!(status, 404);
}
