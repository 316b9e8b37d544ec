//! The journey of `docs/from-nginx.md` beside a real nginx: nginx and the gateway of its import stand over the same
//! servers, and a table lists the findings of clients and operators at each. The page has the same table.

mod client;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use reqwest::{Client, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tooldock_base::yaml;

use crate::conditions::ready;
use crate::import_nginx::{import, text};
use crate::support::backend::Backend;
use crate::support::nginx::Nginx;
use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, programs};
use crate::tls::{trusting, write_certificate};
use crate::toolman::{pid_of, server};
use client::{Session, refused, refused_further};

/// Number of calls that the server holds until all of them are there.
const AT_ONCE: usize = 30;

const COMPARED: [[&str; 3]; 13] = [
    [
        "30 calls at once, held by the server until all are there",
        "30 answered",
        "30 answered",
    ],
    [
        "15 wrong tokens over HTTP/1.1, TLS",
        "15 whole answers with 401",
        "15 whole answers with 401",
    ],
    [
        "15 wrong tokens over HTTP/2, TLS",
        "15 whole answers with 401",
        "15 whole answers with 401",
    ],
    [
        "10 wrong tokens more from this address",
        "401 for all",
        "429 for most",
    ],
    [
        "a probe with an address as `Host`",
        "`/healthz`: 200, over TLS 200",
        "`/health`: 200, over TLS 200",
    ],
    [
        "a probe with another `Host`",
        "`/healthz`: 200, over TLS 200",
        "`/health`: 200, over TLS 200",
    ],
    [
        "the log of a call",
        r#"`"ci" "POST /files/mcp HTTP/1.1" 200 A "call/1.0"`"#,
        r#"`"ci" "POST /files/mcp HTTP/1.1" 200 A "call/1.0"`"#,
    ],
    [
        "the log of a call over HTTP/2",
        r#"`"desk" "POST /files/mcp HTTP/2.0" 200 A "secure/1.0"`"#,
        r#"`"desk" "POST /files/mcp HTTP/2.0" 200 A "secure/1.0"`"#,
    ],
    [
        "the log of a wrong token",
        r#"`"" "POST /files/mcp HTTP/1.1" 401 - "wrong/1.0"`"#,
        r#"`"-" "POST /files/mcp HTTP/1.1" 401 - "wrong/1.0"`"#,
    ],
    [
        "10 calls of a session after the end of its server A",
        "10 answered by B, 1 new session",
        "10 answered by B, 0 new sessions",
    ],
    [
        "the log of the first of them that is answered",
        r#"`"ci" "POST /files/mcp HTTP/1.1" 200 B "after/1.0"`"#,
        r#"`"ci" "POST /files/mcp HTTP/1.1" 200 A,\x20B "after/1.0"`"#,
    ],
    [
        "healthy servers, as `/ready` tells",
        "—",
        "A: false, B: true",
    ],
    [
        "a killed member of an aggregate",
        "—",
        "another process answers",
    ],
];

/// An nginx with a server that another one stands in for.
fn conf(folder: &Path, plain: SocketAddr, secure: SocketAddr, servers: [&Backend; 2]) -> String {
    format!(
        r#"
events {{}}
http {{
    client_body_temp_path temp/body;
    proxy_temp_path temp/proxy;
    fastcgi_temp_path temp/fastcgi;
    scgi_temp_path temp/scgi;
    uwsgi_temp_path temp/uwsgi;
    log_format mcp '"$client" [$time_local] "$request" $status $upstream_addr "$http_user_agent"';
    map $http_authorization $client {{
        default "";
        "Bearer 0d4b31aa-ci-77f0" ci;
        "Bearer 77aa02c3d9" desk;
    }}
    upstream files {{
        server {first} max_fails=1;
        server {second} max_fails=1 backup;
    }}
    server {{
        listen {plain};
        listen {secure} ssl http2;
        server_name localhost;
        ssl_certificate {folder}/cert.pem;
        ssl_certificate_key {folder}/key.pem;
        access_log {folder}/nginx.log mcp;
        location = /healthz {{ return 200 ok; }}
        location /files/ {{
            if ($client = "") {{ return 401; }}
            proxy_pass http://files/;
            proxy_buffering off;
        }}
    }}
}}
"#,
        folder = folder.display(),
        first = servers[0].address,
        second = servers[1].address,
    )
}

/// The tokens of the clients `ci` and `desk`.
const CI: &str = "0d4b31aa-ci-77f0";
const DESK: &str = "77aa02c3d9";

/// The addresses of nginx or the gateway, its path for probes, and its log.
struct Front {
    plain: SocketAddr,
    secure: SocketAddr,
    probed: &'static str,
    log: PathBuf,
}

impl Front {
    fn plain(&self, path: &str) -> String {
        format!("http://{}{path}", self.plain)
    }

    fn secure(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.secure.port())
    }

    /// The first line of the log with this user agent and status, without its time; servers by their letter.
    async fn line(&self, agent: &str, status: u16, servers: [SocketAddr; 2]) -> String {
        let line = eventually(agent, async || {
            let log = fs::read_to_string(&self.log).ok()?;
            let mut lines = log.lines();
            let agent = format!("\"{agent}\"");
            let status = format!("\" {status} ");
            let found = lines.find(|line| line.ends_with(&agent) && line.contains(&status));
            found.map(str::to_owned)
        })
        .await;
        let (name, rest) = line.split_once(" [").expect("a time");
        let (_, rest) = rest.split_once("] ").expect("a time");
        let line = format!("`{name} {rest}`");
        let line = line.replace(&servers[0].to_string(), "A");
        line.replace(&servers[1].to_string(), "B")
    }

    /// Statuses of a probe by this `Host`.
    async fn probe(&self, client: &Client, host: &str) -> String {
        let status = async |url: String| {
            let asked = client.get(url).header("Host", host).send().await;
            asked.expect("an answer").status().as_u16()
        };
        let plain = status(self.plain(self.probed)).await;
        let secure = status(self.secure(self.probed)).await;
        format!("`{}`: {plain}, over TLS {secure}", self.probed)
    }
}

/// The gateway of the import of `nginx.conf` on addresses and with a log of its own, with an aggregate beside.
async fn imported(folder: &Path, nginx: &Front, ours: &Front) -> Gateway {
    let output = import(folder, &["nginx.conf"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let metrics = free_address();
    let path = |log: &Path| log.to_str().expect("UTF-8").to_owned();
    let yaml = text(&output.stdout)
        .replace(&nginx.plain.to_string(), &ours.plain.to_string())
        .replace(&nginx.secure.to_string(), &ours.secure.to_string())
        .replace("127.0.0.1:9090", &metrics.to_string())
        .replace(&path(&nginx.log), &path(&ours.log));
    let config: Value = yaml::from_str(&yaml).expect("YAML");
    let command = server("pjpd", &folder.join("journal"));
    let member = format!("[[servers]]\nnamespace = \"pjpd\"\ncommand = \"{command}\"\n");
    let tools = folder.join("tools.toml");
    fs::write(&tools, format!("active_toolsets = [\"*\"]\n{member}")).expect("written");
    Gateway::empty()
        .listening(ours.plain, metrics)
        .config(config)
        .config(json!({"toolman": {"toolman": {"config": tools}}}))
        .start()
        .await
}

/// Kills the member of the aggregate and waits until another process answers.
async fn kill_member(gateway: &Gateway) -> &'static str {
    let pid = async || pid_of(gateway, "pjpd_pid").await.ok();
    let killed = eventually("a process", pid).await;
    kill_process(Pid::from_raw(killed).expect("a pid"), Signal::KILL).expect("killed");
    eventually("another process", async || {
        pid().await.filter(|pid| *pid != killed)
    })
    .await;
    "another process answers"
}

/// The health of both servers, as `/ready` tells it once a server is unhealthy.
async fn healthy(gateway: &Gateway) -> String {
    let told = eventually("a server is unhealthy", async || {
        let told = ready(gateway, "files").await;
        let states = told["backends"].as_array()?.iter();
        let states: Vec<_> = states.map(|it| it["healthy"].clone()).collect();
        states.contains(&json!(false)).then_some(states)
    })
    .await;
    format!("A: {}, B: {}", told[0], told[1])
}

#[tokio::test]
async fn the_gateway_of_an_import_does_beside_nginx_what_the_table_of_the_page_says() {
    let folder = tempfile::TempDir::new().unwrap();
    let certificate = write_certificate(folder.path());
    let first = Backend::start_meeting("A", AT_ONCE).await;
    let second = Backend::start("B").await;
    let servers = [first.address, second.address];
    let [nginx, ours] =
        [("nginx.log", "/healthz"), ("ours.log", "/health")].map(|(log, probed)| {
            let log = folder.path().join(log);
            let (plain, secure) = (free_address(), free_address());
            Front {
                plain,
                secure,
                probed,
                log,
            }
        });
    let conf = conf(folder.path(), nginx.plain, nginx.secure, [&first, &second]);
    fs::write(folder.path().join("nginx.conf"), conf).unwrap();
    let _nginx = Nginx::start(folder.path(), nginx.plain).await;
    let gateway = imported(folder.path(), &nginx, &ours).await;

    let older = || trusting(&certificate).http1_only().build().unwrap();
    let newer = || trusting(&certificate).build().unwrap();
    let (mut found, mut sessions) = (Vec::new(), Vec::new());
    for front in [&nginx, &ours] {
        let (plain, secure) = (front.plain("/files/mcp"), front.secure("/files/mcp"));
        let session = Session::open(&older(), plain, CI).await;
        session.call("call/1.0", "look").await;
        let of_desk = Session::open(&newer(), secure.clone(), DESK).await;
        of_desk.call("secure/1.0", "look").await;
        let refusals = refused(older, &secure, Version::HTTP_11).await;
        let line = async |agent, status| front.line(agent, status, servers).await;
        found.push(vec![
            session.call_at_once().await,
            refusals,
            refused(newer, &secure, Version::HTTP_2).await,
            refused_further(&older(), &secure).await,
            front.probe(&older(), &front.plain.to_string()).await,
            front.probe(&older(), "elsewhere.example").await,
            line("call/1.0", 200).await,
            line("secure/1.0", 200).await,
            line("wrong/1.0", 401).await,
        ]);
        sessions.push(session);
    }
    first.end().await;
    for ((front, session), found) in [&nginx, &ours]
        .into_iter()
        .zip(&mut sessions)
        .zip(&mut found)
    {
        found.push(session.call_after_its_server().await);
        found.push(front.line("after/1.0", 200, servers).await);
    }
    found[0].extend(["—".to_owned(), "—".to_owned()]);
    found[1].extend([
        healthy(&gateway).await,
        kill_member(&gateway).await.to_owned(),
    ]);

    let page = fs::read_to_string(programs::root().join("docs/from-nginx.md")).unwrap();
    assert_eq!(
        (found[0].len(), found[1].len()),
        (COMPARED.len(), COMPARED.len())
    );
    let rows = found[0].iter().zip(&found[1]);
    let rows: Vec<_> = COMPARED.iter().zip(rows).collect();
    for ([what, ..], (nginx, ours)) in &rows {
        println!("| {what} | {nginx} | {ours} |");
    }
    for ([what, in_nginx, here], (nginx, ours)) in rows {
        assert_eq!([nginx, ours], [in_nginx, here], "{what}");
        let row = format!("| {what} | {in_nginx} | {here} |");
        assert!(page.contains(&row), "the page has no line {row}");
    }
}
