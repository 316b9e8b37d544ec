//! `tooldock import-nginx`: exit codes and output for an operator at a shell, and a gateway that runs with the imported
//! configuration and admits the clients that nginx admitted.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tooldock_base::yaml;

use crate::support::backend::{self, Backend};
use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, programs, sha256};

pub fn import(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .arg("import-nginx")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    for (name, content) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    folder
}

const FRONT: &str =
    "server { listen 127.0.0.1:8080; location /search/ { proxy_pass http://10.0.0.1:9000/; } }";

#[test]
fn the_exit_status_says_whether_a_security_directive_would_be_dropped() {
    let closed = FRONT.replace("listen", "auth_basic x; listen");
    let folder = folder(&[
        ("open.conf", FRONT),
        ("closed.conf", &closed),
        ("wrong.conf", "server {\n listen 80"),
        ("circle.conf", "include circle.conf;"),
    ]);
    let open = import(folder.path(), &["open.conf"]);
    assert_eq!(open.status.code(), Some(0), "{}", text(&open.stderr));
    let said = text(&open.stderr);
    assert!(said.starts_with("tooldock: differs from now on"), "{said}");
    assert!(
        said.contains("512 calls of a namespace run at once"),
        "{said}"
    );
    assert!(
        said.lines().skip(1).all(|line| line.starts_with("  ")),
        "{said}"
    );
    let closed = import(folder.path(), &["closed.conf"]);
    assert_eq!(closed.status.code(), Some(2));
    let said = text(&closed.stderr);
    assert!(
        said.starts_with("closed.conf:1: auth_basic: security: "),
        "{said}"
    );
    assert!(
        said.ends_with("tooldock: 1 directive is not carried over, 1 of them about security\n"),
        "{said}"
    );
    // To be completed by hand.
    assert!(text(&closed.stdout).contains("http://10.0.0.1:9000/mcp"));
    for (file, said) in [
        (
            "wrong.conf",
            "tooldock: wrong.conf:2: the file ends before the \";\" of this directive\n",
        ),
        (
            "circle.conf",
            "tooldock: circle.conf:1: include: circle.conf leads to circle.conf, which includes it again\n",
        ),
        (
            "none.conf",
            "tooldock: none.conf: No such file or directory (os error 2)\n",
        ),
    ] {
        let output = import(folder.path(), &[file]);
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(2), said)
        );
        assert!(output.stdout.is_empty());
    }
    let help = import(folder.path(), &["--help"]);
    let help = text(&help.stdout);
    assert!(
        help.contains("Exit status") && help.contains("Example") && help.contains("--force"),
        "{help}"
    );
}

#[test]
fn an_output_file_is_written_whole_and_over_nothing_unless_told() {
    let closed = FRONT.replace("listen", "auth_basic x; listen");
    let folder = folder(&[("open.conf", FRONT), ("closed.conf", &closed)]);
    let file = folder.path().join("out.yaml");
    let run = |arguments: &[&str]| import(folder.path(), arguments).status.code();
    assert_eq!(run(&["closed.conf", "-o", "out.yaml"]), Some(2));
    assert!(!file.exists());
    assert_eq!(run(&["open.conf", "-o", "out.yaml"]), Some(0));
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("http://10.0.0.1:9000/mcp"));
    fs::write(&file, "kept").unwrap();
    assert_eq!(run(&["open.conf", "-o", "out.yaml"]), Some(2));
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert_eq!(run(&["open.conf", "-o", "out.yaml", "--force"]), Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert_eq!(run(&["open.conf", "-o", "none/out.yaml"]), Some(1));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert_eq!(run(&["open.conf", "--force"]), Some(2));
}

#[test]
fn standard_input_is_read_and_what_is_printed_passes_the_check() {
    let published = programs::root().join("tests/fixtures/nginx/published.conf");
    let folder = folder(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["import-nginx", "-"])
        .current_dir(folder.path())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let conf = fs::read_to_string(published).unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(conf.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let yaml = text(&output.stdout).replace("gw.pem", "gw.example.com.pem");
    assert!(
        !yaml.contains("s3cret") && yaml.contains(&sha256("s3cret")),
        "{yaml}"
    );
    assert!(yaml.contains("# standard input:3"), "{yaml}");
    // `check` reads the certificate, which is no part of this test.
    let without_tls: Vec<_> = yaml
        .lines()
        .filter(|line| !line.contains("gw.") && !line.contains("tls:"))
        .collect();
    fs::write(
        folder.path().join("out.yaml"),
        without_tls.join("\n").replace("hosts:", "hosts: []"),
    )
    .unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["check", "-c", "out.yaml"])
        .current_dir(folder.path())
        .env_clear()
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", text(&check.stderr));
}

/// A front of two servers, with a token for each and one for both.
fn front(one: &Backend, other: &Backend, listen: &str) -> String {
    format!(
        r#"
limit_req_zone $http_authorization zone=busy:1m rate=1r/s;
map $http_authorization $search_client {{
    default "";
    "Bearer token-of-both" both;
    "Bearer token-of-search" search;
}}
map $http_authorization $files_client {{
    default "";
    "Bearer token-of-both" both;
    "Bearer token-of-files" files;
}}
map $http_origin $page {{ default 0; "" 1; "https://chat.example.com" 1; }}
upstream files {{ server {files}; }}
server {{
    listen {listen};
    server_name gw.example.com;
    client_max_body_size 8k;
    if ($page = 0) {{ return 403; }}
    allow 127.0.0.0/8;
    deny all;
    include locations/*.conf;
    location /search/ {{
        if ($search_client = "") {{ return 401; }}
        proxy_pass http://{search}/;
        proxy_set_header Authorization "Bearer hunter2";
    }}
}}
"#,
        files = other.address,
        search = one.address,
    )
}

const FILES: &str = "location /files/ { if ($files_client = '') { return 401; } limit_req zone=busy burst=3 nodelay; proxy_pass http://files/mcp; }";

#[tokio::test]
async fn a_gateway_lets_in_whom_the_imported_nginx_let_in() {
    let (one, other) = (
        Backend::start("search").await,
        Backend::start("files").await,
    );
    let (core, metrics) = (free_address(), free_address());
    let folder = folder(&[
        ("nginx.conf", &front(&one, &other, &core.to_string())),
        ("locations/files.conf", FILES),
    ]);
    let output = import(folder.path(), &["nginx.conf"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let yaml = text(&output.stdout);
    assert!(
        !yaml.contains("token-of") && !said.contains("hunter2"),
        "{yaml}{said}"
    );
    let mut config: Value = yaml::from_str(&yaml).unwrap();
    assert_eq!(config["listeners"][1]["profile"], "metrics");
    config["listeners"][1]["address"] = json!(metrics.to_string());
    let gateway = Gateway::empty()
        .without_tokens()
        .env("SEARCH_TOKEN", "given by the operator")
        .listening(core, metrics)
        .config(config)
        .start()
        .await;
    let ask = |path: &str, headers: &[(&str, &str)], size: usize| {
        let filler = "x".repeat(size);
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": filler, "version": "1"}}});
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/mcp/{path}"),
        };
        let request = gateway.client.post(gateway.url(&path));
        let request = request
            .header("Accept", "application/json, text/event-stream")
            .json(&message);
        let request = headers
            .iter()
            .fold(request, |it, (name, value)| it.header(*name, *value));
        async move { request.send().await.unwrap().status().as_u16() }
    };
    let token = |token: &'static str| ("Authorization", token);
    let both = token("Bearer token-of-both");
    for (namespace, headers, size, status) in [
        ("search", &[both][..], 1, 200),
        ("files", &[both], 1, 200),
        ("search", &[token("Bearer token-of-search")], 1, 200),
        ("files", &[token("Bearer token-of-files")], 1, 200),
        // The paths of nginx.
        ("/search/mcp", &[both], 1, 200),
        ("/search/mcp/", &[both], 1, 200),
        ("/search/mcp", &[], 1, 401),
        ("/search/mcp", &[token("Bearer token-of-files")], 1, 403),
        ("/search/other", &[both], 1, 404),
        ("/files", &[], 1, 401),
        ("search", &[], 1, 401),
        ("search", &[token("Bearer token-of-nobody")], 1, 401),
        ("search", &[token("Bearer token-of-files")], 1, 403),
        ("files", &[token("Bearer token-of-search")], 1, 403),
        (
            "search",
            &[both, ("Origin", "https://chat.example.com")],
            1,
            200,
        ),
        (
            "search",
            &[both, ("Origin", "https://evil.example.com")],
            1,
            403,
        ),
        ("search", &[both, ("Host", "gw.example.com")], 1, 200),
        ("search", &[both, ("Host", "evil.example.com")], 1, 403),
        ("search", &[both], 9_000, 413),
    ] {
        assert_eq!(
            ask(namespace, headers, size).await,
            status,
            "{namespace} {headers:?}"
        );
    }
    // A call has been counted already.
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(ask("files", &[token("Bearer token-of-files")], 1).await);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    let asked = one.requests("initialize");
    assert!(!asked.is_empty());
    for (head, _) in asked {
        assert!(head.starts_with("POST /mcp "), "{head}");
        assert_eq!(
            backend::header(&head, "authorization").as_deref(),
            Some("Bearer given by the operator")
        );
    }
    assert!(
        other
            .requests("initialize")
            .iter()
            .all(|(head, _)| backend::header(head, "authorization").is_none())
    );
}

/// An nginx of an operator who reads its log, probes it by address and has clients with slow calls.
fn operated(server: &Backend, listen: &str, log: &Path) -> String {
    format!(
        r#"
log_format mcp '$remote_addr $client "$request" $status';
map $http_authorization $client {{
    default "";
    "Bearer 0d4b31aa-ci-77f0" ci;
    "Bearer 77aa02c3d9" desk;
}}
upstream files {{ server {server}; }}
server {{
    listen {listen};
    server_name gw.example.com;
    access_log {log} mcp;
    location = /healthz {{ access_log off; return 200 ok; }}
    location /files/ {{
        if ($client = "") {{ return 401; }}
        proxy_pass http://files/;
        proxy_set_header X-Client $client;
    }}
}}
"#,
        server = server.address,
        log = log.display(),
    )
}

#[tokio::test]
async fn an_operator_finds_after_the_import_what_nginx_had() {
    let server = Backend::start("files").await;
    let (core, metrics) = (free_address(), free_address());
    let folder = folder(&[]);
    let log = folder.path().join("access.log");
    let conf = operated(&server, &core.to_string(), &log);
    fs::write(folder.path().join("nginx.conf"), conf).unwrap();
    let output = import(folder.path(), &["nginx.conf"]);
    let said = text(&output.stderr);
    // The server learns the names of clients no longer.
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("proxy_set_header: security: ") && said.contains("1 of them about security"),
        "{said}"
    );
    assert!(
        said.contains("nothing is served at /healthz: probes ask /health"),
        "{said}"
    );
    assert!(
        said.contains("access_log: every request has a line in the access log"),
        "{said}"
    );
    let mut config: Value = yaml::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(
        config["listeners"][1],
        json!({"name": "metrics", "address": "127.0.0.1:9090", "profile": "metrics"})
    );
    config["listeners"][1]["address"] = json!(metrics.to_string());
    let gateway = Gateway::empty()
        .without_tokens()
        .listening(core, metrics)
        .config(config)
        .start()
        .await;

    // A balancer knows addresses alone.
    let probe = gateway
        .client
        .get(gateway.url("/health"))
        .header("Host", "10.1.2.3:8080");
    assert_eq!(probe.send().await.unwrap().status(), 200);
    assert!(gateway.metrics_text().await.contains("tooldock_"));

    let post = |message: Value, session: &str| {
        let request = gateway
            .client
            .post(gateway.url("/files/mcp"))
            .header("Accept", "application/json, text/event-stream")
            .bearer_auth("0d4b31aa-ci-77f0")
            .json(&message);
        match session {
            "" => request,
            session => request
                .header("Mcp-Session-Id", session)
                .header("MCP-Protocol-Version", "2025-11-25"),
        }
    };
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let opened = post(initialize, "").send().await.unwrap();
    assert_eq!(opened.status(), 200);
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(ready, &session).send().await.unwrap().status(), 202);

    // nginx had no limit of calls at once: all are with the server before one is answered.
    let calls: Vec<_> = (0..30)
        .map(|id| {
            let call = json!({"jsonrpc": "2.0", "id": 10 + id, "method": "tools/call",
                "params": {"name": "wait", "arguments": {}}});
            tokio::spawn(post(call, &session).send())
        })
        .collect();
    eventually("all calls are with the server", || async {
        (server.requests("tools/call").len() == 30).then_some(())
    })
    .await;
    for call in calls {
        call.abort();
    }

    let line = "127.0.0.1 ci \"POST /files/mcp HTTP/1.1\" 200";
    eventually("the log names the client", || async {
        let lines = fs::read_to_string(&log).ok()?;
        lines.lines().any(|it| it == line).then_some(())
    })
    .await;
}

/// The gateway of the import of `operated`, whose servers it is in front of.
async fn operated_gateway(server: &Backend) -> (Gateway, tempfile::TempDir) {
    let (core, metrics) = (free_address(), free_address());
    let folder = folder(&[]);
    let log = folder.path().join("access.log");
    let conf = operated(server, &core.to_string(), &log);
    fs::write(folder.path().join("nginx.conf"), conf).unwrap();
    let output = import(folder.path(), &["nginx.conf"]);
    let mut config: Value = yaml::from_str(&text(&output.stdout)).unwrap();
    config["listeners"][1]["address"] = json!(metrics.to_string());
    let gateway = Gateway::empty()
        .without_tokens()
        .listening(core, metrics)
        .config(config)
        .start()
        .await;
    (gateway, folder)
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;

fn post(gateway: &Gateway, token: &str, message: &str) -> reqwest::RequestBuilder {
    gateway
        .client
        .post(gateway.url("/files/mcp"))
        .header("Accept", "application/json, text/event-stream")
        .header("Content-Type", "application/json")
        .bearer_auth(token)
        .body(message.to_owned())
}

#[tokio::test]
async fn each_client_has_a_session_of_its_own_at_an_imported_server() {
    let server = Backend::start("files").await;
    let (gateway, _folder) = operated_gateway(&server).await;
    for token in ["0d4b31aa-ci-77f0", "77aa02c3d9"] {
        let opened = post(&gateway, token, INITIALIZE).send().await.unwrap();
        let session = opened.headers()["mcp-session-id"].clone();
        let say = |message: &str| {
            post(&gateway, token, message)
                .header("Mcp-Session-Id", session.clone())
                .header("MCP-Protocol-Version", "2025-11-25")
                .send()
        };
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(say(ready).await.unwrap().status(), 202);
        let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"look","arguments":{}}}"#;
        assert_eq!(say(call).await.unwrap().status(), 200);
    }
    let calls = server.requests("tools/call");
    let sessions: Vec<_> = calls
        .iter()
        .map(|(head, _)| backend::header(head, "mcp-session-id").unwrap())
        .collect();
    assert_eq!(sessions.len(), 2, "{calls:?}");
    assert_ne!(sessions[0], sessions[1], "clients share a session");
}

#[tokio::test]
async fn pages_of_an_imported_server_may_call_and_others_are_refused() {
    let server = Backend::start("files").await;
    let (gateway, _folder) = operated_gateway(&server).await;
    let own = gateway.url("").replace("127.0.0.1", "gw.example.com");
    for (origin, status) in [(own, 200), ("https://elsewhere.example".to_owned(), 403)] {
        let asked = post(&gateway, "77aa02c3d9", INITIALIZE).header("Origin", &origin);
        assert_eq!(asked.send().await.unwrap().status(), status, "{origin}");
    }
}

#[test]
fn an_output_that_is_a_pipe_is_written_to_and_not_replaced() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("open.conf");
    fs::write(
        &file,
        "events {}\nhttp { server { listen 127.0.0.1:8080; location / { proxy_pass http://127.0.0.1:9001; } } }\n",
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .arg("import-nginx")
        .arg(&file)
        .args(["-o", "/dev/stdout"])
        .current_dir(folder.path())
        .env_clear()
        .output()
        .unwrap();
    let written = text(&output.stdout);
    assert!(written.contains("127.0.0.1:9001"), "{output:?}");
}
