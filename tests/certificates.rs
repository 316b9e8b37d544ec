//! Certificates that clients would refuse, and messages about reloads.

use std::fs;
use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::programs;
use crate::support::{Gateway, eventually};
use crate::tls::{Secure, secure_with, shown};

/// Writes a certificate for these names that is valid from the first year to the second.
fn write(folder: &Path, names: &[&str], (from, until): (i32, i32)) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

/// A certificate of the oldest format, which has no names.
fn write_version_1(folder: &Path) {
    let fixtures = programs::root().join("tests/fixtures/tls");
    fs::copy(fixtures.join("version1.pem"), folder.join("cert.pem")).unwrap();
    fs::copy(fixtures.join("version1.key"), folder.join("key.pem")).unwrap();
}

fn metric(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok())
}

/// Reloads that were counted, by result.
async fn reloads(gateway: &Gateway) -> [u64; 3] {
    let text = gateway.metrics_text().await;
    ["complete", "partial", "rejected"].map(|result| {
        let name = format!("tooldock_reloads_total{{result=\"{result}\"}} ");
        metric(&text, &name).unwrap_or_default() as u64
    })
}

/// Tells the gateway to reload and waits until the reload is counted.
async fn hang_up(gateway: &Gateway) {
    let before: u64 = reloads(gateway).await.iter().sum();
    gateway.signal(Signal::HUP);
    eventually("the reload is counted", || async {
        (reloads(gateway).await.iter().sum::<u64>() > before).then_some(())
    })
    .await;
}

/// The text of `problem` in `/ready` on the metrics listener; null without a problem.
async fn problem(gateway: &Gateway) -> Value {
    let url = format!("http://{}/ready", gateway.metrics);
    let ready = gateway.client.get(url).send().await.unwrap();
    let ready: Value = ready.json().await.unwrap();
    ready["problem"]["message"].clone()
}

#[tokio::test]
async fn keys_that_wait_for_the_next_start_are_a_problem_until_they_are_taken_back() {
    let gateway = Gateway::empty().start().await;
    gateway.reconfigure(json!({"threads": 7}));
    hang_up(&gateway).await;
    let told = problem(&gateway).await;
    assert_eq!(
        told,
        "threads: changed, but takes effect only at the next start"
    );
    gateway.replace_configuration(|it| drop(it.as_object_mut().unwrap().remove("threads")));
    hang_up(&gateway).await;
    assert_eq!(problem(&gateway).await, Value::Null);
}

#[tokio::test]
async fn a_certificate_clients_would_refuse_does_not_replace_a_good_one() {
    let Secure {
        gateway,
        folder,
        certificate,
        port,
    } = secure_with(json!({"hosts": ["gw.example.com"]})).await;
    let trusted = [certificate.clone()];
    let ends = metric(
        &gateway.metrics_text().await,
        "tooldock_certificate_not_after_seconds{listener=\"secure\"} ",
    );
    for (number, (told, names, years)) in [
        ("expired on", ["localhost"], (2020, 2021)),
        ("not valid before", ["localhost"], (4000, 4001)),
        (
            "for gw.example.org, and for none of admission.hosts",
            ["gw.example.org"],
            (2020, 4000),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        write(folder.path(), &names, years);
        hang_up(&gateway).await;
        assert!(gateway.log().contains(told), "{told}");
        let problem = problem(&gateway).await;
        let problem = problem.as_str().expect("the certificate is not in force");
        assert!(
            problem.contains(told) && problem.contains("secure"),
            "{problem}"
        );
        assert_eq!(reloads(&gateway).await, [1, number as u64 + 1, 0]);
        assert_eq!(shown(port, &trusted).await, Some(certificate.clone()));
    }
    write_version_1(folder.path());
    hang_up(&gateway).await;
    assert!(
        gateway.log().contains("an X.509 certificate of version 1"),
        "told for what it is"
    );
    let text = gateway.metrics_text().await;
    let name = "tooldock_certificate_not_after_seconds{listener=\"secure\"} ";
    assert_eq!(metric(&text, name), ends);
    assert_eq!(
        metric(&text, "tooldock_config_last_reload_successful "),
        Some(0.0)
    );

    // For a name of a loopback listener, and for one of the configured hosts.
    write(
        folder.path(),
        &["gw.example.com", "localhost"],
        (2020, 4000),
    );
    hang_up(&gateway).await;
    assert_eq!(problem(&gateway).await, Value::Null);
    assert_eq!(reloads(&gateway).await, [2, 4, 0]);
    let text = gateway.metrics_text().await;
    assert_eq!(
        metric(&text, "tooldock_config_last_reload_successful "),
        Some(1.0)
    );
    assert_eq!(metric(&text, name), Some(64_060_588_800.0));
}

#[tokio::test]
async fn a_reload_is_counted_by_the_worst_of_its_parts() {
    let gateway = Gateway::empty().start().await;
    let time = "tooldock_config_last_reload_success_timestamp_seconds ";
    let text = gateway.metrics_text().await;
    let started = metric(&text, time).unwrap();
    assert!(started >= metric(&text, "process_start_time_seconds ").unwrap());
    assert_eq!(reloads(&gateway).await, [1, 0, 0]);

    gateway.reconfigure(json!({"admission": {"no_such_key": 1}}));
    hang_up(&gateway).await;
    assert_eq!(reloads(&gateway).await, [1, 0, 1]);
    let text = gateway.metrics_text().await;
    assert_eq!(
        metric(&text, "tooldock_config_last_reload_successful "),
        Some(0.0)
    );
    assert_eq!(metric(&text, time), Some(started));

    gateway.reconfigure(json!({}));
    gateway.drop_tool("broken", "tooldock.yaml", "timeout: [");
    hang_up(&gateway).await;
    assert_eq!(reloads(&gateway).await, [1, 1, 1]);
    let text = gateway.metrics_text().await;
    assert_eq!(
        metric(&text, "tooldock_config_last_reload_successful "),
        Some(1.0)
    );
    assert!(metric(&text, time).unwrap() > started);

    fs::remove_dir_all(gateway.tools_dir().join("broken")).unwrap();
    hang_up(&gateway).await;
    assert_eq!(reloads(&gateway).await, [2, 1, 1]);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_makes_a_reload_unsuccessful() {
    let gateway = Gateway::empty().start().await;
    let successful = async || {
        hang_up(&gateway).await;
        let text = gateway.metrics_text().await;
        metric(&text, "tooldock_config_last_reload_successful ")
    };
    assert_eq!(successful().await, Some(1.0));
    for (file, damaged) in [("keys.json", "{"), ("secrets.enc", "damaged")] {
        let path = gateway.data.path().join(file);
        let before = fs::read(&path).ok();
        fs::write(&path, damaged).unwrap();
        assert_eq!(successful().await, Some(0.0), "{file}");
        let told = "values read before stay, and a restart would fail";
        assert!(gateway.log().contains(told), "{file}: {}", gateway.log());
        match before {
            Some(before) => fs::write(&path, before).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        assert_eq!(successful().await, Some(1.0), "{file}");
    }
}

#[tokio::test]
async fn a_file_of_servers_that_cannot_be_used_is_a_problem_at_a_reload_and_at_a_start() {
    let mut gateway = Gateway::empty().start().await;
    let file = gateway.data_dir().join("external/config.yaml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    async fn state(gateway: &Gateway) -> (Option<f64>, Value) {
        let text = gateway.metrics_text().await;
        let ready = format!("http://{}/ready", gateway.metrics);
        let ready = gateway.client.get(ready).send().await.unwrap();
        let ready: Value = ready.json().await.unwrap();
        let successful = metric(&text, "tooldock_config_last_reload_successful ");
        (successful, ready["problem"].clone())
    }
    for damaged in ["servers: [", "servers:\n\tx: {}\n"] {
        fs::write(&file, damaged).unwrap();
        hang_up(&gateway).await;
        let (successful, problem) = state(&gateway).await;
        assert_eq!(successful, Some(0.0), "{damaged}");
        assert_eq!(
            problem["subject"], "external/config.yaml",
            "{damaged}: {problem}"
        );
    }
    gateway.kill();
    gateway.started_again().await;
    let (successful, problem) = state(&gateway).await;
    assert_eq!(successful, Some(0.0));
    let message = problem["message"].as_str().unwrap_or_default();
    assert!(message.contains("no server of it is served"), "{problem}");
    fs::remove_file(&file).unwrap();
    hang_up(&gateway).await;
    assert_eq!(state(&gateway).await, (Some(1.0), Value::Null));
}

#[tokio::test]
async fn an_emptied_configuration_is_not_taken() {
    let gateway = Gateway::empty().start().await;
    fs::write(gateway.data.path().join("tooldock.test.yaml"), "").unwrap();
    hang_up(&gateway).await;
    let text = gateway.metrics_text().await;
    let successful = metric(&text, "tooldock_config_last_reload_successful ");
    assert_eq!(successful, Some(0.0));
    assert!(
        gateway.log().contains("is empty, and was not before"),
        "{}",
        gateway.log()
    );
}

#[tokio::test]
async fn the_build_and_the_process_are_in_the_metrics() {
    let gateway = Gateway::empty().start().await;
    let text = gateway.metrics_text().await;
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("tooldock_build_info{{arch=\"{}\"", std::env::consts::ARCH);
    let line = text.lines().find(|line| line.starts_with(&build)).unwrap();
    assert!(line.contains(&format!("version=\"{version}\"")) && line.ends_with(" 1"));
    for name in [
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_virtual_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
        "process_threads ",
    ] {
        assert!(
            metric(&text, name).is_some_and(|value| value > 0.0),
            "{name}"
        );
    }
}

#[test]
fn check_refuses_a_certificate_clients_would_refuse_and_serve_would_say_so() {
    let folder = tempfile::TempDir::new().unwrap();
    let config = folder.path().join("tooldock.yaml");
    let yaml: Value = json!({"listeners": [{"name": "secure", "address": "127.0.0.1:1", "profile": "core",
        "tls": {"cert": folder.path().join("cert.pem"), "key": folder.path().join("key.pem")}}]});
    fs::write(&config, yaml.to_string()).unwrap();
    let check = || {
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["check", "-c"])
            .arg(&config)
            .env("DATA_DIR", folder.path().join("data"))
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), told)
    };
    write(folder.path(), &["localhost"], (2020, 4000));
    assert_eq!(check().0, Some(0), "{}", check().1);
    write(folder.path(), &["localhost"], (2020, 2021));
    let (status, told) = check();
    assert_eq!(status, Some(2));
    assert!(
        told.contains(": listeners[0].tls: ") && told.contains("cert.pem: expired on"),
        "{told}"
    );
    write_version_1(folder.path());
    let (status, told) = check();
    assert_eq!(status, Some(2));
    assert!(told.contains("an X.509 certificate of version 1"), "{told}");
}
