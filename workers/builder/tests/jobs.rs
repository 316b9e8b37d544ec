//! Jobs of the builder in separate processes: `tooldock __builder` under the guard, as the gateway starts it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::repositories::{
    Builder, BuilderConfig, BuilderErrorCode, BuilderHost, GitScheme,
};

/// On an idle machine every step needs less than a tenth of this.
const DEADLINE: Duration = Duration::from_secs(60);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("in time")
}

struct Bench {
    temp: tempfile::TempDir,
    builder: Arc<Builder>,
    exported: prometheus::Registry,
}

impl Bench {
    fn new(config: BuilderConfig) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let exported = prometheus::Registry::new();
        let host = BuilderHost {
            program: env!("CARGO_BIN_EXE_tooldock-test-builder").into(),
            control: tokio::runtime::Handle::current(),
            metrics: Arc::new(WorkerMetrics::new(&exported).unwrap()),
            repos: temp.path().join("repos"),
        };
        Self {
            builder: Arc::new(Builder::new(host, config)),
            temp,
            exported,
        }
    }

    fn repository(&self) -> String {
        let path = self.temp.path().join("origin");
        std::fs::create_dir(&path).unwrap();
        let server = "from fastmcp import FastMCP\n@mcp.tool\ndef add(a: int, b: int) -> int:\n    '''Add.'''\n";
        std::fs::write(path.join("server.py"), server).unwrap();
        git(&path, &["init", "--quiet"]);
        git(&path, &["add", "."]);
        git(&path, &["commit", "--quiet", "--message=x"]);
        format!("file://{}", path.display())
    }

    /// Child processes that run now.
    fn live(&self) -> f64 {
        let families = self.exported.gather();
        let live = families
            .iter()
            .find(|it| it.name() == "tooldock_processes_live");
        live.unwrap().get_metric()[0].get_gauge().value()
    }

    async fn ended(&self) {
        within(async {
            while self.live() != 0.0 || !self.unfinished().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Trees that are being built.
    fn unfinished(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.temp.path().join("repos"));
        let paths = entries.into_iter().flatten().map(|it| it.unwrap().path());
        paths
            .filter(|it| {
                it.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with(".building")
            })
            .collect()
    }
}

fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@h"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(status.success(), "{arguments:?}");
}

fn files_allowed() -> BuilderConfig {
    BuilderConfig {
        git_schemes: vec![GitScheme::File],
        ..BuilderConfig::default()
    }
}

/// A git server that takes a request and never answers.
fn silent_server() -> (BuilderConfig, String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = BuilderConfig {
        git_schemes: vec![GitScheme::Http],
        private_hosts: vec!["127.0.0.1".into()],
        ..BuilderConfig::default()
    };
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    (config, url, listener)
}

#[tokio::test]
async fn a_repository_is_analysed_and_read_by_a_child_process_that_is_gone_afterwards() {
    let bench = Bench::new(files_allowed());
    let url = bench.repository();
    let not_yet = bench.builder.read_repo_file(&url, "server.py").await;
    assert_eq!(not_yet.unwrap_err().code, BuilderErrorCode::NotFound);
    let mut steps = Vec::new();
    let analysis = within(
        bench
            .builder
            .analyze_repo(&url, &mut |it| steps.push(it.message)),
    )
    .await;
    let analysis = analysis.unwrap();
    assert_eq!(
        (analysis.repo_url.as_str(), analysis.framework.as_str()),
        (url.as_str(), "fastmcp")
    );
    assert_eq!(analysis.tools_found[0].name, "add");
    assert!(steps.contains(&"cloning".to_owned()), "{steps:?}");
    let file = bench
        .builder
        .read_repo_file(&url, "server.py")
        .await
        .unwrap();
    assert!(file.content.starts_with("from fastmcp"));
    bench.ended().await;

    let refused = within(
        bench
            .builder
            .analyze_repo("https://localhost/x", &mut |_| {}),
    )
    .await;
    assert_eq!(refused.unwrap_err().code, BuilderErrorCode::Refused);
    bench.builder.reconfigure(BuilderConfig {
        git_schemes: vec![GitScheme::Https],
        ..BuilderConfig::default()
    });
    let refused = within(bench.builder.analyze_repo(&url, &mut |_| {}))
        .await
        .unwrap_err();
    assert!(refused.message.contains("allows https"), "{refused}");
}

#[tokio::test]
async fn a_cancelled_clone_leaves_no_process_and_no_tree() {
    let (config, url, listener) = silent_server();
    let bench = Bench::new(config);
    let builder = Arc::clone(&bench.builder);
    let job = tokio::spawn(async move { builder.analyze_repo(&url, &mut |_| {}).await });
    // git has sent its request, so all processes run.
    let asked = tokio::task::spawn_blocking(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (stream, line)
    });
    let (stream, line) = within(asked).await.unwrap();
    assert!(line.contains("/x/info/refs"), "{line}");
    assert_eq!((bench.live(), bench.unfinished().len()), (1.0, 1));
    job.abort();
    bench.ended().await;
    drop(stream);
}

#[tokio::test]
async fn a_clone_that_takes_too_long_is_ended_and_says_which_key_decides() {
    let (mut config, url, _listener) = silent_server();
    config.timeout = Duration::from_millis(300);
    let bench = Bench::new(config);
    let error = within(bench.builder.analyze_repo(&url, &mut |_| {}))
        .await
        .unwrap_err();
    assert_eq!(error.code, BuilderErrorCode::TimedOut);
    assert!(error.message.contains("builder.timeout"), "{error}");
    bench.ended().await;
}
