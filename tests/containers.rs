//! The files that build and start containers: their promises are read from them, and what needs no container is run.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tooldock_base::yaml;

use crate::support::manager::Manager;
use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, programs};

fn text(name: &str) -> String {
    fs::read_to_string(programs::root().join("conf/container").join(name)).unwrap()
}

fn root_text(name: &str) -> String {
    fs::read_to_string(programs::root().join(name)).unwrap()
}

/// `tooldock check` of the configuration inside the image, with some variables.
fn check(variables: &BTreeMap<String, String>) -> Output {
    check_of("tooldock.yaml", variables)
}

/// `tooldock check` of a configuration for containers.
fn check_of(name: &str, variables: &BTreeMap<String, String>) -> Output {
    let folder = tempfile::TempDir::new().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["check", "-c"])
        .arg(programs::root().join("conf/container").join(name))
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(variables)
        .output()
        .unwrap()
}

// DEP-01 … DEP-06
#[test]
fn compose_starts_the_core_and_then_the_manager_on_one_volume() {
    let compose: Value = yaml::from_str(&text("compose.yaml")).unwrap();
    let service = |name: &str| compose["services"][name].clone();
    let (core, manager) = (service("tooldock-core"), service("tooldock-manager"));
    for (name, service) in [("tooldock-core", &core), ("tooldock-manager", &manager)] {
        assert_eq!(service["container_name"], name);
        assert_eq!(service["image"], "tooldock", "one image for both");
        assert_eq!(
            service["user"],
            "${TOOLDOCK_UID:-1000}:${TOOLDOCK_GID:-1000}"
        );
        assert_eq!(service["volumes"], json!(["tooldock-data:/data"]));
        assert_eq!(service["env_file"], ".env");
        assert_eq!(service["restart"], "unless-stopped");
    }
    assert_eq!(core["ports"], json!(["${CORE_PORT:-8000}:8000"]));
    assert_eq!(manager["ports"], json!(["${MANAGER_PORT:-8001}:8001"]));
    assert_eq!(core["command"], json!(["serve", "--role", "core"]));
    assert_eq!(manager["command"], json!(["serve", "--role", "manager"]));
    assert_eq!(
        core["healthcheck"],
        json!({"test": ["CMD", "curl", "-f", "http://localhost:9090/health"],
            "interval": "10s", "timeout": "5s", "retries": 3})
    );
    assert_eq!(
        manager["depends_on"]["tooldock-core"]["condition"],
        "service_healthy"
    );
    assert_eq!(manager["tmpfs"], json!(["/dev/shm", "/tmp"]));
    let address =
        |service: &Value| service["networks"]["tooldock-internal"]["ipv4_address"].clone();
    assert_eq!(address(&core), "172.30.0.11");
    assert_eq!(address(&manager), "172.30.0.10");
    let internal = &compose["networks"]["tooldock-internal"];
    assert_eq!(internal["internal"], true);
    assert_eq!(internal["ipam"]["config"][0]["subnet"], "172.30.0.0/24");
}

/// A time of compose, in seconds.
fn seconds(time: &Value) -> u64 {
    let text = time.as_str().unwrap();
    text.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn both_services_are_confined_and_are_given_time_to_end() {
    let compose: Value = yaml::from_str(&text("compose.yaml")).unwrap();
    let config: Value = yaml::from_str(&root_text("conf/tooldock.yaml")).unwrap();
    let grace = seconds(&config["replicas"]["grace"]);
    for name in ["tooldock-core", "tooldock-manager"] {
        let service = &compose["services"][name];
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], json!(["ALL"]), "{name}");
        assert_eq!(
            service["security_opt"],
            json!(["no-new-privileges:true"]),
            "{name}"
        );
        assert!(
            service["mem_limit"].as_str().unwrap().ends_with("g}"),
            "{name}"
        );
        let tmpfs = service["tmpfs"].as_array().unwrap();
        assert!(tmpfs.contains(&json!("/tmp")), "{name}");
        // The gateway ends by itself before the container is killed.
        assert!(seconds(&service["stop_grace_period"]) > 2 * grace, "{name}");
    }
}

#[test]
fn secrets_of_both_services_are_files() {
    let compose: Value = yaml::from_str(&text("compose.yaml")).unwrap();
    let example = text(".env.example");
    for (variable, secret) in [
        ("BEARER_TOKEN", "bearer_token"),
        ("MANAGER_INTERNAL_TOKEN", "manager_internal_token"),
        ("SECRETS_KEY", "secrets_key"),
    ] {
        let file = compose["secrets"][secret]["file"].as_str().unwrap();
        assert_eq!(file, format!("./secrets/{secret}"));
        assert!(
            example.lines().any(|line| line == format!("{variable}=")),
            "{variable}"
        );
        assert!(example.contains(secret), "{secret}");
        for name in ["tooldock-core", "tooldock-manager"] {
            let service = &compose["services"][name];
            let given = service["secrets"].as_array().unwrap();
            assert!(given.contains(&json!(secret)), "{name}: {secret}");
            let environment: Vec<_> = service["environment"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap())
                .collect();
            let named = format!("{variable}_FILE=${{{variable}_FILE:-/run/secrets/{secret}}}");
            assert!(environment.contains(&&*named), "{name}: {environment:?}");
            // The gateway refuses both at once.
            assert!(
                !environment
                    .iter()
                    .any(|it| it.starts_with(&format!("{variable}="))),
                "{name}"
            );
        }
    }
    // Neither the repository nor the image gets them.
    assert!(
        root_text(".gitignore")
            .lines()
            .any(|line| line == "/conf/container/secrets/")
    );
    assert!(
        text("Containerfile.dockerignore")
            .lines()
            .any(|line| line == "conf/container/secrets")
    );
}

#[test]
fn the_replicas_of_the_compose_file_have_one_store_and_an_address_each_and_nginx_has_both() {
    let compose: Value = yaml::from_str(&text("replicas.yaml")).unwrap();
    let nginx = text("replicas.nginx.conf");
    let mut stores = Vec::new();
    for number in ["1", "2"] {
        let service = format!("gateway-{number}");
        assert_eq!(
            compose["services"][&service]["environment"]["REPLICA_ID"],
            json!(service)
        );
        assert!(
            nginx.contains(&format!("server {service}:8000 ")),
            "{nginx}"
        );
        let name = format!("replica-{number}.yaml");
        let config: Value = yaml::from_str(&text(&name)).unwrap();
        assert_eq!(
            config["replicas"]["address"],
            json!(format!("{service}:7100"))
        );
        stores.push(config["sessions"]["store"].clone());
        let mounted = compose["services"][&service]["volumes"].to_string();
        assert!(mounted.contains(&name), "{mounted}");
        let variables = [
            ("BEARER_TOKEN", "a-token-of-sixteen-or-more"),
            ("MANAGER_INTERNAL_TOKEN", "another-of-sixteen-or-more"),
            ("SESSION_KEY", "a secret of thirty-two characters"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let checked = check_of(&name, &variables.into());
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{said}");
    }
    assert_eq!(stores[0], stores[1]);
    assert!(compose["services"]["valkey"].is_object());
}

/// The port of the metrics listener in the configuration of the image.
fn metrics_address() -> SocketAddr {
    let config: Value = yaml::from_str(&text("tooldock.yaml")).unwrap();
    let mut listeners = config["listeners"].as_array().unwrap().iter();
    let metrics = listeners.find(|it| it["profile"] == "metrics").unwrap();
    assert_eq!(metrics.get("tls"), None);
    metrics["address"].as_str().unwrap().parse().unwrap()
}

#[test]
fn health_checks_and_prometheus_reach_the_metrics_listener_and_the_host_does_not() {
    let compose: Value = yaml::from_str(&text("compose.yaml")).unwrap();
    let metrics = metrics_address();
    assert!(metrics.ip().is_unspecified(), "{metrics}");
    let asked = format!("http://localhost:{}/health", metrics.port());
    for name in ["tooldock-core", "tooldock-manager"] {
        let service = &compose["services"][name];
        let test = service["healthcheck"]["test"].as_array().unwrap();
        assert_eq!(test.last().unwrap(), &asked, "{name}");
        for published in service["ports"].as_array().unwrap() {
            let published = published.as_str().unwrap();
            assert!(
                !published.ends_with(&format!(":{}", metrics.port())),
                "{published}"
            );
        }
        assert!(service["networks"].get("tooldock-internal").is_some());
    }
    let recipe = text("Containerfile");
    let check = recipe.split("HEALTHCHECK").nth(1).unwrap();
    assert!(
        check.contains(&format!("for port in {} ", metrics.port())),
        "{check}"
    );
}

/// A gateway whose clients speak TLS, asked as the health check of the container asks it.
#[tokio::test]
async fn the_metrics_listener_tells_the_health_of_a_gateway_that_speaks_tls() {
    let folder = tempfile::TempDir::new().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    fs::write(folder.path().join("gw.pem"), certificate.pem()).unwrap();
    fs::write(folder.path().join("gw.key"), key.serialize_pem()).unwrap();
    let metrics = free_address();
    let gateway = Gateway::empty()
        .listening(free_address(), metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": free_address().to_string(), "profile": "core",
             "tls": {"cert": folder.path().join("gw.pem"), "key": folder.path().join("gw.key")}},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}))
        .spawn();
    eventually("the gateway is healthy", || async {
        let health = format!("http://{metrics}/health");
        let answer = gateway.client.get(&health).send().await.ok()?;
        (answer.status() == 200).then_some(())
    })
    .await;
}

/// Each variable of `.env.example`, and of both services, with a value that a person would give.
fn variables() -> BTreeMap<String, String> {
    let compose: Value = yaml::from_str(&text("compose.yaml")).unwrap();
    let env = text(".env.example");
    let said = env
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut all: BTreeMap<_, _> = said.collect();
    for service in ["tooldock-core", "tooldock-manager"] {
        for line in compose["services"][service]["environment"]
            .as_array()
            .unwrap()
        {
            let (name, value) = line.as_str().unwrap().split_once('=').unwrap();
            if !value.contains("${") {
                all.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    all.insert("BEARER_TOKEN".into(), "t-0123456789abcdef".into());
    all.insert("MANAGER_INTERNAL_TOKEN".into(), "m-0123456789abcdef".into());
    all.insert("SECRETS_KEY".into(), "k-0123456789abcdef".into());
    all
}

#[test]
fn the_configuration_of_the_image_is_valid_with_every_variable_of_the_example() {
    let output = check(&variables());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("0.0.0.0:8000"), "{stdout}");
    assert!(stdout.contains("0.0.0.0:8001"), "{stdout}");
}

#[test]
fn a_wrong_value_of_a_variable_of_the_example_is_named() {
    let mut variables = variables();
    variables.insert("MCP_SESSION_TTL_HOURS".into(), "soon".into());
    let output = check(&variables);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("MCP_SESSION_TTL_HOURS"), "{stderr}");
}

// BLD-11, DEP-07, K-07
#[test]
fn the_image_is_made_of_files_that_exist_and_holds_git_and_the_documented_command() {
    let recipe = text("Containerfile");
    let copied: Vec<&str> = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|rest| !rest.starts_with("--from"))
        .filter_map(|rest| rest.split(' ').next())
        .collect();
    assert!(copied.contains(&"workers/python/app/cli"), "{copied:?}");
    for path in copied {
        assert!(programs::root().join(path).exists(), "{path}");
    }
    assert!(recipe.contains("ca-certificates curl git"));
    assert!(recipe.contains("python:3.12"));
    assert!(recipe.contains("WORKDIR /app"));
}

/// A start by compose in which the core is quicker than its health check: both processes find an empty volume.
#[tokio::test]
async fn core_and_manager_can_start_at_once_on_a_new_volume() {
    let volume = tempfile::TempDir::new().unwrap();
    let data = volume.path().to_str().unwrap();
    let core = Gateway::empty()
        .arguments(&["--role", "core"])
        .env("SECRETS_KEY", "k-0123456789abcdef")
        .env("DATA_DIR", data);
    let (address, metrics) = (free_address(), free_address());
    let manager = Gateway::empty()
        .listening(address, metrics)
        .config(json!({"listeners": [
            {"name": "manager", "address": address.to_string(), "profile": "manager"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}))
        .arguments(&["--role", "manager"])
        .env("SECRETS_KEY", "k-0123456789abcdef")
        .env("DATA_DIR", data);
    let (core, manager) = tokio::join!(core.start(), manager.start());
    let tools = Manager::open(manager.address).await;
    let made = tools
        .call("create_namespace", json!({"name": "greet"}))
        .await;
    assert_eq!(made.value()["created"], true);
    assert!(volume.path().join("tools/greet").is_dir());
    drop((core, manager));
}
