//! `tooldock doctor`: the real program, beside a real gateway behind a real nginx with faults, and on a machine with faults.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;

use crate::replicas;
use crate::support::nginx::Nginx;
use crate::support::ports::free_address;
use crate::support::redis::Redis;
use crate::support::{Gateway, TOKEN};
use crate::tls::write_certificate;

/// Directives of a location that passes everything on as clients sent it.
const GOOD: &str = r#"
    client_max_body_size 8m;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_buffering off;
"#;

/// An nginx in front of a gateway, with its files.
struct Front {
    address: SocketAddr,
    folder: TempDir,
    _nginx: Nginx,
}

impl Front {
    /// Starts an nginx whose only location has these directives.
    async fn start(gateway: SocketAddr, location: &str) -> Self {
        Self::with(&format!("proxy_pass http://{gateway};\n{location}"), "", "").await
    }

    /// Starts an nginx with a group of servers.
    async fn upstream(upstream: &str, location: &str) -> Self {
        Self::made(upstream, location, "", "").await
    }

    async fn with(location: &str, listen: &str, server: &str) -> Self {
        Self::made("", location, listen, server).await
    }

    async fn made(upstream: &str, location: &str, listen: &str, server: &str) -> Self {
        let folder = TempDir::new().unwrap();
        write_certificate(folder.path());
        let address = free_address();
        let files = folder.path().display();
        let conf = format!(
            "events {{}}\n\
             http {{\n\
             client_body_temp_path temp/body; proxy_temp_path temp/proxy; fastcgi_temp_path temp/fastcgi;\n\
             scgi_temp_path temp/scgi; uwsgi_temp_path temp/uwsgi;\n\
             access_log off;\n\
             {upstream}\n\
             server {{\n\
             listen {address} {listen};\n\
             {}\n\
             location / {{\n{location}\n}}\n\
             }}\n\
             }}\n",
            server.replace("FOLDER", &files.to_string()),
        );
        fs::write(folder.path().join("nginx.conf"), conf).unwrap();
        let nginx = Nginx::start(folder.path(), address).await;
        Self {
            address,
            folder,
            _nginx: nginx,
        }
    }

    fn url(&self) -> String {
        format!("http://localhost:{}", self.address.port())
    }
}

/// The outcome of a run: exit code, findings, standard error.
struct Diagnosis {
    code: i32,
    findings: Vec<Value>,
    said: String,
}

impl Diagnosis {
    fn of(command: &mut Command) -> Self {
        let output = command.arg("--json").output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!out.contains(TOKEN) && !err.contains(TOKEN), "{out}{err}");
        let told: Value = serde_json::from_str(&out).unwrap_or_default();
        let findings = told["findings"].as_array().cloned().unwrap_or_default();
        Self {
            code: output.status.code().unwrap(),
            findings,
            said: format!("{out}{err}"),
        }
    }

    /// Asserts that there is a finding with this weight whose fact and remedy hold these texts.
    fn has(&self, severity: &str, said: &str, remedy: &str) {
        let found = self.findings.iter().any(|it| {
            let holds = |key: &str, text: &str| {
                text.is_empty() || it[key].as_str().is_some_and(|it| it.contains(text))
            };
            it["severity"] == severity && holds("said", said) && holds("do", remedy)
        });
        assert!(found, "{severity}: {said} ({remedy}): {}", self.said);
    }

    fn fails(&self) {
        assert_eq!(self.code, 1, "{}", self.said);
    }

    fn is_fine(&self) {
        assert_eq!(self.code, 0, "{}", self.said);
    }
}

/// A run beside a gateway, with the variables that programs are found by.
fn doctor(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = alone(gateway.data.path(), "tooldock.test.yaml", arguments);
    command
        .env("DATA_DIR", gateway.data_dir())
        .env("TOOLDOCK_TOKEN", TOKEN);
    command
}

/// A run in a folder with a configuration.
fn alone(folder: &Path, file: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command
        .arg("doctor")
        .args(arguments)
        .args(["-c", file])
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null());
    command
}

/// A folder with a configuration and an empty data directory.
fn machine(mut config: Value) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    config["data_dir"] = json!(data);
    config["namespaces"] = json!({"starter": false});
    // So few connections that every limit on open files is enough.
    config["admission"] = json!({"limits": {"connections": 10}});
    if config.get("listeners").is_none() {
        let address = free_address().to_string();
        config["listeners"] = json!([{"name": "core", "address": address, "profile": "core"}]);
    }
    fs::write(folder.path().join("gw.yaml"), config.to_string()).unwrap();
    (folder, data)
}

async fn behind_a_front() -> Gateway {
    Gateway::empty()
        .config(json!({"admission": {"trusted_proxies": ["127.0.0.1/32"]}}))
        .start()
        .await
}

#[tokio::test]
async fn a_good_front_has_no_problem_and_each_fault_of_another_is_found_with_its_line() {
    let gateway = behind_a_front().await;
    let front = Front::start(gateway.address, GOOD).await;
    let good = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &front.url()]));
    good.is_fine();
    for said in [
        "reaches this gateway, through a server in front",
        "the headers of clients arrive",
        "streams arrive event by event",
        "bodies of 1500000 bytes pass",
        "the gateway knows clients by X-Forwarded-For: this one is 127.0.0.1",
        "the running gateway has",
    ] {
        good.has("ok", said, "");
    }

    let bad = r#"
        client_max_body_size 1m;
        proxy_http_version 1.0;
        proxy_ignore_headers X-Accel-Buffering;
        proxy_set_header Authorization "";
        proxy_set_header Traceparent "";
        proxy_set_header Origin "";
        proxy_set_header X-Forwarded-For $http_x_forwarded_for;
        proxy_hide_header Mcp-Session-Id;
        limit_except GET POST { deny all; }
    "#;
    let front = Front::start(gateway.address, bad).await;
    let bad = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &front.url()]));
    bad.fails();
    for (severity, said, line) in [
        ("problem", "the front buffers", "proxy_buffering off;"),
        (
            "problem",
            "removes the header authorization",
            "proxy_set_header authorization $http_authorization;",
        ),
        (
            "warning",
            "removes the header traceparent",
            "proxy_set_header traceparent $http_traceparent;",
        ),
        (
            "problem",
            "removes the header origin",
            "proxy_set_header Origin $http_origin;",
        ),
        (
            "problem",
            "from answers",
            "proxy_pass_header Mcp-Session-Id;",
        ),
        (
            "problem",
            "a body of 1500000 bytes does not pass",
            "client_max_body_size 4m;",
        ),
        (
            "problem",
            "DELETE does not pass",
            "limit_except GET POST DELETE",
        ),
        (
            "problem",
            "each client can choose its address",
            "proxy_set_header X-Forwarded-For $remote_addr;",
        ),
        ("warning", "not localhost", "proxy_set_header Host $host;"),
        ("warning", "HTTP/1.0", "proxy_http_version 1.1;"),
    ] {
        bad.has(severity, said, line);
    }
    // The other headers arrived.
    assert!(!bad.said.contains("header last-event-id"), "{}", bad.said);
}

#[tokio::test]
async fn a_front_that_names_no_clients_or_that_is_not_trusted_is_found() {
    let gateway = Gateway::empty().start().await;
    let front = Front::start(gateway.address, GOOD).await;
    let run = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &front.url()]));
    run.fails();
    run.has(
        "problem",
        "X-Forwarded-For does not count",
        "trusted_proxies: [\"127.0.0.1/32\"]",
    );
    let silent = GOOD.replace("$proxy_add_x_forwarded_for", "\"\"");
    let front = Front::start(gateway.address, &silent).await;
    let run = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &front.url()]));
    run.has(
        "problem",
        "all clients of the front have the address 127.0.0.1",
        "X-Forwarded-For $proxy_add_x_forwarded_for;",
    );
    // The same requests sent to the gateway itself arrive whole: no problem is found.
    let direct = format!("http://{}", gateway.address);
    let run = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &direct]));
    run.is_fine();
    run.has("ok", "without a server in front", "");
}

#[tokio::test]
async fn a_public_url_that_leads_elsewhere_is_found() {
    let gateway = behind_a_front().await;
    let other = Gateway::empty().start().await;
    let nobody = free_address();
    let page = Front::with("return 200 hello;", "", "").await;
    let down = Front::start(nobody, GOOD).await;
    let moved = Front::with("return 301 https://gw.example$request_uri;", "", "").await;
    let closed = Front::with("return 401;", "", "").await;
    for (url, said) in [
        (format!("http://{}", other.address), "another gateway"),
        (page.url(), "another server, which answers 200"),
        (
            down.url(),
            "the front does not reach the gateway: it answers 502",
        ),
        (moved.url(), "redirects to https://gw.example/mcp/_probe/"),
        (closed.url(), "it answers 401"),
        (format!("http://{nobody}"), "nothing answers"),
        (
            "http://no-such-host.invalid".to_owned(),
            "no-such-host.invalid",
        ),
    ] {
        let run = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &url]));
        run.fails();
        run.has("problem", said, " ");
    }
}

#[tokio::test]
async fn the_certificate_of_the_front_and_a_short_patience_are_found() {
    let gateway = behind_a_front().await;
    let server = "ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem;";
    let location = format!(
        "proxy_pass http://{};{GOOD}proxy_read_timeout 1s;",
        gateway.address
    );
    let front = Front::with(&location, "ssl", server).await;
    let url = format!("https://localhost:{}", front.address.port());
    let arguments = ["--public-url", &url, "--slow", "4"];
    let run = Diagnosis::of(&mut doctor(&gateway, &arguments));
    run.fails();
    run.has("problem", "clients refuse the certificate", "--ca FILE");
    // The probes send no secret, so that they go on.
    run.has("ok", "reaches this gateway", "");
    run.has(
        "warning",
        "a stream that is silent for 4 s",
        "proxy_read_timeout 1h;",
    );
    let file = front.folder.path().join("cert.pem");
    let arguments = ["--public-url", &url, "--ca", file.to_str().unwrap()];
    let run = Diagnosis::of(&mut doctor(&gateway, &arguments));
    run.has("ok", "the certificate of localhost ends on", "");
}

#[tokio::test]
async fn a_nonce_opens_one_probe_which_answers_names_and_no_values() {
    let gateway = Gateway::empty().start().await;
    let issued = gateway.request("POST", "/operator/doctor?n=2");
    let issued: Value = issued.send().await.unwrap().json().await.unwrap();
    let nonce = issued["nonces"][0].as_str().unwrap();
    let path = format!("/mcp/_probe/{nonce}");
    let probed = async || {
        let request = gateway
            .request("GET", &path)
            .header("X-Own", "secret-value");
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, body) = probed().await;
    assert_eq!(status, 200, "{body}");
    assert!(
        body.contains("\"x-own\"") && body.contains("\"authorization\""),
        "{body}"
    );
    assert!(
        !body.contains("secret-value") && !body.contains(TOKEN),
        "{body}"
    );
    let (status, body) = probed().await;
    assert_eq!(status, 404, "{body}");

    // Without an operator there is no nonce, and without a nonce nothing.
    let asked = gateway.client.post(gateway.url("/operator/doctor"));
    assert_eq!(asked.send().await.unwrap().status(), 401);
    let asked = gateway.request("POST", "/operator/doctor?n=1000");
    assert_eq!(asked.send().await.unwrap().status(), 400);
    for method in ["GET", "POST", "DELETE"] {
        let asked = gateway.request(method, "/mcp/_probe/none").body("{}");
        assert_eq!(asked.send().await.unwrap().status(), 404, "{method}");
    }
}

#[tokio::test]
async fn a_refused_token_is_a_problem_and_wrong_options_are_usage() {
    let gateway = Gateway::empty().start().await;
    let mut command = doctor(&gateway, &[]);
    let run = Diagnosis::of(command.env("TOOLDOCK_TOKEN", "wrong"));
    run.fails();
    run.has("problem", "401", "TOOLDOCK_TOKEN");
    for arguments in [
        &["--public-url", "ftp://gw.example"][..],
        &["--slow", "0"],
        &["--url", "nowhere"],
    ] {
        let run = Diagnosis::of(&mut doctor(&gateway, arguments));
        assert_eq!(run.code, 2, "{}", run.said);
    }
}

#[test]
fn without_a_gateway_the_machine_is_checked_and_serve_is_named() {
    let (folder, _) = machine(json!({}));
    let run = |arguments: &[&str]| Diagnosis::of(&mut alone(folder.path(), "gw.yaml", arguments));
    let fine = run(&[]);
    fine.is_fine();
    fine.has("warning", "no gateway runs at", "tooldock serve -c gw.yaml");
    fine.has("ok", "free: ", "");
    run(&["--strict"]).fails();
    let output = alone(folder.path(), "gw.yaml", &[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "a pipe has no colours: {text}");
    assert!(text.contains("  do: tooldock serve -c gw.yaml"), "{text}");
    assert!(text.ends_with("0 problems, 1 warning\n"), "{text}");
}

#[test]
fn faults_of_a_machine_are_found_with_what_to_type() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (folder, data) = machine(json!({
        "listeners": [{"name": "core", "address": address.to_string(), "profile": "core"}],
        "upstreams": {
            "stdio": {"time": {"command": "uvx", "args": ["mcp-server-time"]}},
            "remote": {
                "gone": {"backends": ["http://no-such-host.invalid/mcp"]},
                "near": {"backends": [format!("http://localhost:{}/mcp", address.port())]},
                "shut": {"backends": [format!("http://{}/mcp", free_address())]},
            },
        },
    }));
    let secret = data.join("session.key");
    fs::write(&secret, "a secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let programs = folder.path().join("no-programs");
    fs::create_dir(&programs).unwrap();
    let mut command = alone(folder.path(), "gw.yaml", &[]);
    let run = Diagnosis::of(command.env("PATH", &programs));
    run.fails();
    let port = format!("sport = :{}", address.port());
    run.has("problem", "listener core", &port);
    run.has(
        "problem",
        "upstreams.stdio.time: uvx is not on PATH",
        "pipx install uv",
    );
    run.has("problem", "upstreams.remote.gone: ", " ");
    run.has(
        "problem",
        "private address",
        "upstreams.remote.near.allow_private: true",
    );
    run.has("problem", "upstreams.remote.shut: no connection", "curl -v");
    let remedy = format!("chmod o-rwx {}", secret.display());
    run.has("problem", "can read or change the secrets", &remedy);
    // No namespace has Python.
    run.has("skipped", "no namespace needs it", "");
    fs::create_dir_all(data.join("tools/calc")).unwrap();
    fs::write(data.join("tools/calc/add.py"), "").unwrap();
    let mut command = alone(folder.path(), "gw.yaml", &[]);
    let run = Diagnosis::of(command.env("PATH", &programs));
    run.has("problem", "workers.python", "apt install python3");
}

#[tokio::test]
async fn a_redis_is_asked_for_its_version_its_role_and_its_clock() {
    let mut redis = Redis::start().await;
    let (folder, _) = machine(json!({"sessions": {"store": redis.url()}}));
    let key = "a session key of more than 32 characters";
    let run = || {
        let mut command = alone(folder.path(), "gw.yaml", &[]);
        Diagnosis::of(command.env("SESSION_KEY", key))
    };
    let up = run();
    up.is_fine();
    up.has("ok", "the clocks of Redis", "");
    redis.kill();
    let down = run();
    down.fails();
    down.has("problem", "sessions.store: ", "redis-cli");
}

#[tokio::test]
async fn the_replicas_behind_a_front_and_a_stranger_among_them_are_found() {
    let redis = Redis::start().await;
    let (one, two) = replicas::two(&redis).await;
    let balanced = async |others: &[SocketAddr]| {
        let servers = others.iter().map(|it| format!("server {it};"));
        let upstream = format!("upstream all {{ {} }}", servers.collect::<String>());
        let location = format!("proxy_pass http://all;{GOOD}");
        Front::upstream(&upstream, &location).await
    };
    let front = balanced(&[one.address, two.address]).await;
    let run = Diagnosis::of(&mut doctor(&one, &["--public-url", &front.url()]));
    run.has("ok", "go to one, two, which forward them", "");

    let sticky = format!(
        "upstream all {{ hash $http_mcp_session_id consistent; server {}; server {}; }}",
        one.address, two.address
    );
    let front = Front::upstream(&sticky, &format!("proxy_pass http://all;{GOOD}")).await;
    let run = Diagnosis::of(&mut doctor(&one, &["--public-url", &front.url()]));
    run.has("ok", "requests of a session go to one replica", "");

    let stranger = Gateway::empty().start().await;
    let front = balanced(&[one.address, stranger.address, one.address, one.address]).await;
    // The first probe may meet the stranger, and then says so.
    let run = Diagnosis::of(&mut doctor(&one, &["--public-url", &front.url()]));
    run.fails();
    run.has("problem", "SESSION_KEY", "nginx: ");
}

/// Passes connections on, each with a header of the PROXY protocol for this client.
async fn introducing(to: SocketAddr, client: &'static str) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await.unwrap();
                let header = format!("PROXY TCP4 {client} 127.0.0.1 40000 443\r\n");
                to.write_all(header.as_bytes()).await.unwrap();
                let _ = copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_that_speaks_the_proxy_protocol_names_its_clients() {
    let [plain, address, metrics] = [(); 3].map(|()| free_address());
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .config(json!({"admission": {"trusted_proxies": ["127.0.0.1"]}, "listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            {"name": "proxied", "address": address.to_string(), "profile": "core", "proxy_protocol": true},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    let front = introducing(address, "203.0.113.9").await;
    let url = format!("http://{front}");
    let run = Diagnosis::of(&mut doctor(&gateway, &["--public-url", &url]));
    run.has("ok", "by the PROXY protocol: this one is 203.0.113.9", "");
    run.is_fine();
}
