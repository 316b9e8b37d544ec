//! The command line and what stops a start: exit codes and one plain line that names the file, key or variable.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, programs};

fn tooldock(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = tempfile::TempDir::new().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(arguments)
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(environment.iter().copied().collect::<BTreeMap<_, _>>())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const TOKENS: [(&str, &str); 2] = [
    ("BEARER_TOKEN", "t-0123456789abcdef"),
    ("MANAGER_INTERNAL_TOKEN", "m-0123456789abcdef"),
];

#[test]
fn help_and_version_are_printed() {
    let help = tooldock(&["--help"], &[]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.contains("serve") && text.contains("check"), "{text}");
    assert!(!text.contains("__guard"), "{text}");
    let version = tooldock(&["--version"], &[]);
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("tooldock "));
}

#[test]
fn wrong_usage_and_wrong_values_exit_2_with_one_line_that_names_them() {
    let with = |extra: (&'static str, &'static str)| {
        let mut environment = TOKENS.to_vec();
        environment.push(extra);
        environment
    };
    for (arguments, environment, named) in [
        (
            &["serve", "--no-such-flag"][..],
            TOKENS.to_vec(),
            "--no-such-flag",
        ),
        (
            &["secrets", "set", "--key", "A"],
            vec![],
            "--scope <SCOPE> (see tooldock secrets set --help)",
        ),
        (&["serve"], vec![], "BEARER_TOKEN"),
        (
            &["serve", "--role", "core"],
            vec![TOKENS[0]],
            "MANAGER_INTERNAL_TOKEN",
        ),
        (
            &["serve", "--role", "manager"],
            vec![TOKENS[0]],
            "MANAGER_INTERNAL_TOKEN",
        ),
        (
            &["serve", "--role", "manager"],
            vec![TOKENS[1]],
            "BEARER_TOKEN",
        ),
        (
            &["serve", "-c", "no/such/file.yaml"],
            TOKENS.to_vec(),
            "no/such/file.yaml",
        ),
        (
            &["serve"],
            with(("MCP_SESSION_TTL_HOURS", "abc")),
            "MCP_SESSION_TTL_HOURS",
        ),
        (&["serve"], with(("CORE_PORT", "70000")), "CORE_PORT"),
        (
            &["serve"],
            with(("INTERNAL_ALLOWED_CIDRS", "10.0.0.0/99")),
            "INTERNAL_ALLOWED_CIDRS",
        ),
        (&["serve"], with(("LOG_LEVEL", "loud")), "LOG_LEVEL"),
        (
            &["serve"],
            with(("MCP_SUPPORTED_VERSIONS", "1999-01-01")),
            "MCP_SUPPORTED_VERSIONS",
        ),
        (
            &["serve"],
            with(("ENABLE_FS_WATCHER", "maybe")),
            "ENABLE_FS_WATCHER",
        ),
        (
            &["serve"],
            with(("TOOL_CALL_TIMEOUT_SECONDS", "0")),
            "TOOL_CALL_TIMEOUT_SECONDS",
        ),
        (
            &["serve"],
            with(("NAMESPACE_MAX_CONCURRENCY", "0")),
            "NAMESPACE_MAX_CONCURRENCY: 0 is not between",
        ),
        (
            &["serve"],
            with(("TOOLDOCK_METRICS_PORT", "8000")),
            "TOOLDOCK_METRICS_PORT",
        ),
        (
            &["serve"],
            with(("BEARER_TOKEN_FILE", "token.txt")),
            "BEARER_TOKEN_FILE: BEARER_TOKEN is set, too",
        ),
        (
            &["check"],
            vec![("MANAGER_INTERNAL_TOKEN_FILE", "/no/such/file")],
            "MANAGER_INTERNAL_TOKEN_FILE: /no/such/file: No such file",
        ),
    ] {
        let output = tooldock(arguments, &environment);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?} {environment:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(named),
            "{named} not in {}",
            stderr(&output)
        );
        assert_eq!(stderr(&output).trim().lines().count(), 1);
    }
}

#[test]
fn keys_that_are_unknown_wrong_or_of_a_later_version_are_named() {
    for (text, named) in [
        ("no_such_key: 1", "no_such_key"),
        (
            "admission: { limits: { body: 4MX } }",
            "admission.limits.body",
        ),
        ("sessions: { ttl: soon }", "sessions.ttl"),
        (
            "listeners: [{ name: core, address: nowhere, profile: core }]",
            "listeners[0].address",
        ),
        (
            "listeners: [{ name: core, address: '127.0.0.1:1', profile: core, proxy_protocol: true }]",
            "listeners[0].proxy_protocol: needs admission.trusted_proxies",
        ),
        (
            "sessions: { store: 'redis://:6379' }",
            "sessions.store: the Redis URL names no host: redis://HOST:PORT: redis://:6379",
        ),
        (
            "sessions: { store: 'redis://:hush@cache:port' }",
            "sessions.store: the port of the Redis URL is no number from 1 to 65535: redis://***MASKED***@cache:***MASKED***",
        ),
        (
            "sessions: { store: floppy }",
            "sessions.store: expected `memory`, `disk`, or a Redis URL such as `redis://HOST:6379`: floppy",
        ),
        (
            "sessions: { store_prefix: '' }",
            "sessions.store_prefix: is empty: ",
        ),
        (
            "replicas: { grace: 100h }",
            "replicas.grace: 4days 4h is not between 1ms and 1day",
        ),
        (
            "{ sessions: { store: disk }, replicas: { address: 'gateway-1:8000' } }",
            "replicas.address: 0.0.0.0:8000 is taken by listeners[0].address, which is 127.0.0.1:8000: choose another one",
        ),
        (
            "replicas: { address: '0.0.0.0:7100' }",
            "replicas.address: 0.0.0.0:7100 names no address that others can reach",
        ),
        (
            "replicas: { peers: 'dns:gateways' }",
            "replicas.peers: expected `auto`, a list of HOST:PORT, or dns:NAME:PORT: dns:gateways",
        ),
        (
            "relay: { socket: relay.sock }",
            "relay.socket: the path of a Unix socket is absolute",
        ),
        (
            "namespaces: { defaults: { tools_deny: ['['] } }",
            "namespaces.defaults.tools_deny",
        ),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        for command in ["serve", "check"] {
            let output = tooldock(&[command, "-c", file.path().to_str().unwrap()], &TOKENS);
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(
                stderr(&output).contains(named),
                "{named} not in {}",
                stderr(&output)
            );
            assert_eq!(
                stderr(&output).trim().lines().count(),
                1,
                "one line: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn check_prints_the_effective_configuration_without_secrets() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/tooldock.yaml");
    let output = tooldock(&["check", "-c", shipped], &TOKENS);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert!(
        text.contains("127.0.0.1:8000") && text.contains("work_stealing: false"),
        "{text}"
    );
    for (_, secret) in TOKENS {
        assert!(!text.contains(secret), "{text}");
    }
    let without = tooldock(&["check", "-c", shipped], &[]);
    assert!(without.status.success());
    let text = String::from_utf8_lossy(&without.stdout).into_owned() + &stderr(&without);
    assert!(
        text.contains("BEARER_TOKEN"),
        "a missing token is a warning: {text}"
    );
}

#[test]
fn new_writes_a_folder_that_check_accepts_and_leaves_one_that_is_there() {
    let data = tempfile::tempdir().unwrap();
    let place = data.path().to_str().unwrap();
    for (template, file) in [
        ("tool", "hello.py"),
        ("server", "server.py"),
        ("typescript", "src/index.ts"),
    ] {
        let arguments = ["new", template, "--template", template];
        let made = tooldock(&arguments, &[("DATA_DIR", place)]);
        assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
        let folder = data.path().join("tools").join(template);
        assert!(folder.join(file).is_file());
        let again = tooldock(&arguments, &[("DATA_DIR", place)]);
        assert_eq!(again.status.code(), Some(2));
        assert!(stderr(&again).contains("is there already"));
        let checked = tooldock(&["check", folder.to_str().unwrap()], &[]);
        let built = template != "typescript";
        assert_eq!(checked.status.success(), built, "{}", stderr(&checked));
    }
}

#[test]
fn test_says_why_a_namespace_has_no_tests_that_could_run() {
    let data = tempfile::tempdir().unwrap();
    let place = [("DATA_DIR", data.path().to_str().unwrap())];
    for template in ["tool", "server"] {
        tooldock(&["new", template, "--template", template], &place);
    }
    for (name, why) in [
        ("tool", "no environment yet"),
        ("server", "makes an MCP server"),
        ("none", "there is no folder none"),
    ] {
        let refused = tooldock(&["test", name], &place);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
}

#[tokio::test]
async fn a_taken_address_ends_the_start_with_a_line_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let gateway = Gateway::empty()
        .config(json!({"listeners": [{"name": "core", "address": address, "profile": "core"}]}))
        .spawn();
    assert_eq!(gateway.ended().await.code(), Some(1));
    let log = gateway.log();
    assert!(log.contains(&address), "{log}");
    assert!(
        log.contains("TOOLDOCK_CORE_PORT, or listeners[0].address in ") && log.contains("moves it"),
        "{log}"
    );
    let port = taken.local_addr().unwrap().port().to_string();
    for variable in ["PORT", "TOOLDOCK_METRICS_PORT"] {
        let gateway = Gateway::empty().env(variable, &port).spawn();
        assert_eq!(gateway.ended().await.code(), Some(1));
        let log = gateway.log();
        assert!(log.contains(&format!("{variable} sets this port")), "{log}");
    }
}

#[tokio::test]
async fn every_listener_is_moved_by_a_variable_with_its_name() {
    let metrics = free_address();
    let gateway = Gateway::empty()
        .env("TOOLDOCK_METRICS_PORT", &metrics.port().to_string())
        .start()
        .await;
    let ready = gateway.client.get(format!("http://{metrics}/ready")).send();
    assert_eq!(ready.await.unwrap().status(), 200);
}

#[test]
fn make_run_passes_its_arguments_on() {
    let output = Command::new("make")
        .args(["--dry-run", "run", "ARGS=-c my.yaml --role core"])
        .current_dir(programs::root())
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("tooldock serve --dev -c my.yaml --role core\n"),
        "{printed}{}",
        stderr(&output)
    );
}

#[tokio::test]
async fn an_address_belongs_to_one_gateway_whatever_its_threads() {
    let first = Gateway::empty().config(json!({"threads": 2})).start().await;
    let address = first.address.to_string();
    let listeners = json!([{"name": "core", "address": address, "profile": "core"}]);
    let second = Gateway::empty()
        .config(json!({"threads": 2, "listeners": listeners}))
        .spawn();
    assert_eq!(second.ended().await.code(), Some(1));
    assert!(second.log().contains(&address), "{}", second.log());
    // Not even by a process that asks for a socket beside it, as a tool might.
    let beside = TcpSocket::new_v4().unwrap();
    beside.set_reuseport(true).unwrap();
    assert!(beside.bind(first.address).is_err());
}

#[tokio::test]
async fn a_data_directory_belongs_to_one_gateway() {
    let first = Gateway::empty().start().await;
    let second = Gateway::empty()
        .env("DATA_DIR", first.data_dir().to_str().unwrap())
        .spawn();
    assert_eq!(second.ended().await.code(), Some(1));
    assert!(second.log().contains("gateway.lock"), "{}", second.log());
}

#[tokio::test]
async fn dev_prints_lines_that_work_when_pasted() {
    let gateway = Gateway::empty()
        .without_tokens()
        .arguments(&["--dev"])
        .start()
        .await;
    let curl = eventually("the announcement", || async {
        gateway
            .log()
            .lines()
            .find(|line| line.trim_start().starts_with("curl ") && line.contains("/tools/"))
            .map(str::to_owned)
    })
    .await;
    let answer = Command::new("sh").arg("-c").arg(&curl).output().unwrap();
    assert!(
        String::from_utf8_lossy(&answer.stdout).contains("Hello"),
        "{curl}: {answer:?}"
    );
    let reload = gateway
        .log()
        .lines()
        .find(|line| line.contains("/reload"))
        .unwrap()
        .to_owned();
    let answer = Command::new("sh")
        .arg("-c")
        .arg(reload.trim_start())
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&answer.stdout).contains("\"reloaded\":true"),
        "{reload}: {answer:?}"
    );
}

#[test]
fn check_takes_a_data_directory_a_file_of_servers_or_a_namespace() {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "data/external/config.yaml",
        "servers: { clock: { command: sh }, bad: { command: sh, warm: -1 } }",
    );
    write("data/tools/wrong/tooldock.yaml", "timeout: soon");
    write("data/tools/good/tooldock.yaml", "timeout: 10s");
    write("conf/tooldock.yaml", "listeners: []");
    let check = |path: &str| {
        let path = folder.path().join(path);
        let output = tooldock(&["check", path.to_str().unwrap()], &[]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), printed, stderr(&output))
    };
    let (code, printed, errors) = check("data");
    assert_eq!(code, Some(2), "{errors}");
    let lines: Vec<_> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines[0].contains("servers.bad.warm: ") && lines[1].contains("tools/wrong: "),
        "{errors}"
    );
    assert!(
        printed.contains("# data directory: ") && printed.contains("#   clock: sh"),
        "{printed}"
    );

    let (code, printed, errors) = check("data/external/config.yaml");
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.lines().count() == 1 && errors.contains("servers.bad.warm: "),
        "{errors}"
    );
    assert!(
        printed.contains("1 error") && printed.contains("#   clock: sh"),
        "{printed}"
    );

    let (code, _, errors) = check("data/tools/wrong/tooldock.yaml");
    assert_eq!(code, Some(2));
    assert!(errors.contains("tooldock.yaml: timeout"), "{errors}");
    let (code, printed, errors) = check("data/tools/good/tooldock.yaml");
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(
        printed.contains("good/tooldock.yaml: no errors"),
        "{printed}"
    );

    let (code, _, errors) = check("conf/tooldock.yaml");
    assert_eq!(code, Some(2));
    assert!(errors.contains("say tooldock check -c FILE"), "{errors}");
}

/// A configuration in a folder of its own, with free addresses.
struct Checkable {
    folder: tempfile::TempDir,
    config: Value,
}

impl Checkable {
    fn new(more: Value) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let mut config = json!({
            "data_dir": folder.path().join("data"),
            "listeners": [{"name": "core", "address": free_address().to_string(), "profile": "core"}],
        });
        let keys = more.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(keys);
        Self { folder, config }
    }

    fn run(&self, command: &str, environment: &[(&str, &str)]) -> Output {
        let file = self.folder.path().join("gateway.yaml");
        std::fs::write(&file, self.config.to_string()).unwrap();
        let environment = [&TOKENS[..], environment].concat();
        tooldock(&[command, "-c", file.to_str().unwrap()], &environment)
    }
}

#[test]
fn check_and_serve_refuse_a_store_of_secrets_without_its_key() {
    let checkable = Checkable::new(json!({}));
    let key = ("SECRETS_KEY", "k-0123456789abcdef");
    let set = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["secrets", "set", "--key", "A", "--scope", "global"])
        .env_clear()
        .env("DATA_DIR", checkable.folder.path().join("data"))
        .env(key.0, key.1)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut set = set.unwrap();
    std::io::Write::write_all(&mut set.stdin.take().unwrap(), b"value\n").unwrap();
    assert!(set.wait().unwrap().success());
    let told = ["serve", "check"].map(|command| {
        let output = checkable.run(command, &[]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        stderr(&output)
    });
    assert!(
        told[0].contains("SECRETS_KEY: is required: "),
        "{}",
        told[0]
    );
    assert_eq!(told[0], told[1]);
    let with_key = checkable.run("check", &[key]);
    assert!(with_key.status.success(), "{}", stderr(&with_key));
    for wrong in [
        ("SECRETS_KEY", "another-0123456789"),
        ("ALLOW_INSECURE_SECRETS", "1"),
    ] {
        let output = checkable.run("check", &[wrong]);
        assert_eq!(output.status.code(), Some(2), "{}", wrong.0);
    }
}

#[test]
fn check_names_the_port_of_another_program_as_serve_does() {
    let mut checkable = Checkable::new(json!({}));
    let free = checkable.run("check", &[]);
    assert!(free.status.success(), "{}", stderr(&free));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let everywhere = format!("0.0.0.0:{}", address.port());
    for address in [address.to_string(), everywhere] {
        let other = json!({"name": "second", "address": address, "profile": "metrics"});
        let listeners = checkable.config["listeners"].as_array_mut().unwrap();
        listeners.truncate(1);
        listeners.push(other);
        let output = checkable.run("check", &[]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = format!("listener second: cannot bind {address}: Address already in use");
        assert!(stderr(&output).contains(&said), "{}", stderr(&output));
        let serve = checkable.run("serve", &[]);
        assert!(stderr(&serve).contains(&said), "{}", stderr(&serve));
    }
}

#[tokio::test]
async fn check_takes_the_ports_of_the_gateway_that_it_is_for_as_free() {
    let (core, metrics) = (free_address(), free_address());
    let gateway = Gateway::empty().listening(core, metrics).start().await;
    let mut config = gateway.configured().clone();
    config["data_dir"] = json!(gateway.data_dir());
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    let check = |config: &Value| {
        std::fs::write(&file, config.to_string()).unwrap();
        let output = tooldock(&["check", "-c", file.to_str().unwrap()], &TOKENS);
        (output.status.code(), stderr(&output))
    };
    assert_eq!(check(&config), (Some(0), String::new()));
    // For another data directory, the same ports are taken.
    config["data_dir"] = json!(folder.path().join("data"));
    let (code, told) = check(&config);
    assert_eq!(code, Some(2));
    assert!(
        told.contains(&core.to_string()) && told.contains(&metrics.to_string()),
        "{told}"
    );
}

#[tokio::test]
async fn a_rule_for_a_namespace_that_is_not_there_is_an_error_of_check_and_of_serve() {
    let mut checkable = Checkable::new(json!({
        "upstreams": {"remote": {"search": {"backends": ["http://127.0.0.1:9/mcp"], "enabled": true}}},
        "namespaces": {"overrides": {"search": {"timeout": "5s"}, "shared": {"timeout": "5s"}}},
        "admission": {"rate_limits": [{"key": "principal", "rate": 1, "burst": 1, "namespace": "search"}]},
    }));
    let fine = checkable.run("check", &[]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    let tools = checkable.folder.path().join("data/tools/folder");
    std::fs::create_dir_all(&tools).unwrap();
    let limits = checkable.config["admission"]["rate_limits"]
        .as_array_mut()
        .unwrap();
    limits.push(
        json!({"key": "tool", "rate": 1, "burst": 1, "unit": "tool_call", "namespace": "folder"}),
    );
    let fine = checkable.run("check", &[]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    checkable.config["admission"]["rate_limits"][1]["namespace"] = json!("serach");
    checkable.config["namespaces"]["overrides"]["fodler"] = json!({"timeout": "5s"});
    let wrong = checkable.run("check", &[]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = stderr(&wrong);
    let expected = [
        "admission.rate_limits[1].namespace: there is no namespace \"serach\"; there are folder, search",
        "namespaces.overrides.fodler: there is no namespace \"fodler\"; there are folder, search",
    ];
    for line in expected {
        assert!(said.contains(line), "{said}");
    }
    // The namespace may be made while the gateway runs, so that the start goes on.
    let gateway = Gateway::empty()
        .config(json!({"namespaces": {"overrides": {"serach": {"timeout": "5s"}}}}))
        .start()
        .await;
    let line = "namespaces.overrides.serach: there is no namespace";
    let logged = gateway.log();
    let logged = logged
        .lines()
        .find(|it| it.contains(line))
        .unwrap_or_default();
    assert!(logged.contains("ERROR"), "{}", gateway.log());
}

#[test]
fn check_of_a_configuration_names_the_variables_that_namespaces_lack() {
    let folder = tempfile::TempDir::new().unwrap();
    let namespace = folder.path().join("data/tools/work");
    std::fs::create_dir_all(&namespace).unwrap();
    std::fs::write(namespace.join("work.py"), "").unwrap();
    let manifest = "env: { REGION: '${REGION_OF_WORK}' }\nsecrets: [WORK_TOKEN]\n";
    std::fs::write(namespace.join("tooldock.yaml"), manifest).unwrap();
    let file = folder.path().join("gateway.yaml");
    let data = folder.path().join("data");
    let config = json!({"data_dir": data, "namespaces": {"env_allowed": ["REGION_OF_WORK"]}});
    std::fs::write(&file, config.to_string()).unwrap();
    let check = |more: &[(&str, &str)]| {
        let environment = [&TOKENS[..], more].concat();
        let output = tooldock(&["check", "-c", file.to_str().unwrap()], &environment);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = check(&[]);
    for name in ["REGION_OF_WORK", "WORK_TOKEN"] {
        let is_warning = |line: &str| line.starts_with("# warning") && line.contains(name);
        assert!(told.lines().any(is_warning), "{name}: {told}");
    }
    let told = check(&[("REGION_OF_WORK", "eu")]);
    assert!(told.contains("WORK_TOKEN"), "{told}");
    assert!(
        !told
            .lines()
            .any(|line| line.contains("warning") && line.contains("env.REGION")),
        "{told}"
    );
}

#[test]
fn a_session_key_that_replicas_would_not_share_is_warned_of_by_check_and_ends_serve() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sessions: { store: 'redis://127.0.0.1:1' }").unwrap();
    for (command, passes) in [("check", true), ("serve", false)] {
        let output = tooldock(&[command, "-c", file.path().to_str().unwrap()], &TOKENS);
        assert_eq!(
            output.status.success(),
            passes,
            "{command}: {}",
            stderr(&output)
        );
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains("set SESSION_KEY to one secret"),
            "{command}: {said}"
        );
    }
}

#[test]
fn check_lists_all_faults_of_a_file_with_line_column_and_nearest_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tooldock.yaml");
    let text = r#"
listeners:
  - { name: a, adress: "127.0.0.1:1", address: "127.0.0.1:8000", profile: core }
  - { name: b, address: 5, profile: core }
  - { name: c, address: "127.0.0.1:8001", profile: manager, auth: [none] }
admission:
  cidrs: { allow: [10.0.0.0/99] }
namespaces:
  defaults: { max_concurrency: 0, timeout: soon }
upstreams:
  stdio:
    files: { comand: npx, command: npx, env: 5 }
  remote:
    X!: { backends: ["http://127.0.0.1:1/mcp"] }
    billing: { backends: ["ftp://x"], mode: sideways }
sesions: { store: disk }
"#;
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let output = tooldock(&["check", "-c", file], &TOKENS);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for (key, reason, line) in [
        ("listeners[0].adress", "did you mean `address`?", 3),
        ("listeners[1].address", "write IP:PORT", 4),
        ("listeners[2].auth", "management tools", 5),
        ("admission.cidrs.allow[0]", "10.0.0.0/99", 7),
        ("namespaces.defaults.max_concurrency", "between 1 and", 9),
        ("namespaces.defaults.timeout", "expected a duration", 9),
        (
            "upstreams.stdio.files.comand",
            "did you mean `command`?",
            12,
        ),
        ("upstreams.stdio.files.env", "", 12),
        ("upstreams.remote.X!", "invalid namespace name", 14),
        ("upstreams.remote.billing.backends[0]", "", 15),
        ("upstreams.remote.billing.mode", "", 15),
        ("sesions", "did you mean `sessions`?", 16),
    ] {
        let place = format!(" at line {line} column ");
        let is_it = |told: &&str| {
            told.starts_with(&format!("tooldock: {file}: {key}")) && told.contains(&place)
        };
        let told: Vec<_> = said.lines().filter(is_it).collect();
        assert_eq!(told.len(), 1, "{key}: {said}");
        assert!(told[0].contains(reason), "{told:?}");
    }
    assert_eq!(said.lines().count(), 12, "{said}");
    let annotated = tooldock(&["check", "--format", "github", "-c", file], &TOKENS);
    let annotated = String::from_utf8(annotated.stdout).unwrap();
    assert_eq!(annotated.lines().count(), 12, "{annotated}");
    let first = format!("::error file={file},line=3::");
    assert!(annotated.contains(&first), "{annotated}");
    let piped = format!("\"$0\" check -c <(cat {file})");
    let piped = Command::new("bash")
        .args(["-c", &piped, env!("CARGO_BIN_EXE_tooldock")])
        .output()
        .unwrap();
    assert_eq!(piped.status.code(), Some(2));
    assert!(stderr(&piped).contains("listeners"), "{}", stderr(&piped));
    // A start names the first.
    let started = stderr(&tooldock(&["serve", "-c", file], &TOKENS));
    assert_eq!(started.lines().count(), 1, "{started}");
    assert!(started.contains(" at line "), "{started}");
}

#[test]
fn check_names_duplicate_keys_and_tabs_with_their_lines() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tooldock.yaml");
    let said = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = tooldock(&["check", "-c", file.to_str().unwrap()], &TOKENS);
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let twice = said("threads: 1\nnamespaces:\n  defaults: {}\n  defaults: {}\nthreads: 2\n");
    let expected = "duplicate key namespaces.defaults at line 4 column 3: it stands at line 3 column 3 already; \
                    duplicate key threads at line 5 column 1: it stands at line 1 column 1 already";
    assert!(twice.contains(expected), "{twice}");
    let tab = said("namespaces:\n  defaults:\n\ttimeout: 5s\n");
    assert!(tab.contains("a tab indents line 3, use spaces"), "{tab}");
}

#[test]
fn a_strict_check_refuses_warnings() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tooldock.yaml");
    let text = "listeners: [{ name: a, address: \"0.0.0.0:8000\", profile: core }]\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let lenient = tooldock(&["check", "-c", file], &TOKENS);
    assert_eq!(lenient.status.code(), Some(0), "{}", stderr(&lenient));
    let strict = tooldock(&["check", "--strict", "-c", file], &TOKENS);
    assert_eq!(strict.status.code(), Some(2));
    assert!(stderr(&strict).contains("--strict"), "{}", stderr(&strict));
}

#[test]
fn errors_of_a_configuration_show_no_login_header_or_token() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tooldock.yaml");
    let text = r#"
upstreams:
  remote:
    a: { backends: "https://u:hunter2@h/x" }
    b: "https://u:hunter2@h/x"
    c: { backends: ["https://h/x"], headers: "Authorization: hunter2" }
    d: { backends: ["https://h/x"], oauth: hunter2 }
  stdio:
    e: "TOKEN=hunter2 x"
admission: { public_url: "https://u:hunter2@h/x y" }
"a\eb": 1
"#;
    std::fs::write(&file, text).unwrap();
    let output = tooldock(&["check", "-c", file.to_str().unwrap()], &TOKENS);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 7, "{said}");
    assert!(
        !said.contains("hunter2") && !said.contains('\u{1b}'),
        "{said}"
    );
}
