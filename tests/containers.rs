//! The files that build and start containers: their promises are read from them, and what needs no container is run.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tooldock_workers::yaml;

use crate::support::manager::Manager;
use crate::support::ports::free_address;
use crate::support::{Gateway, programs};

fn text(name: &str) -> String {
    fs::read_to_string(programs::root().join("conf/container").join(name)).unwrap()
}

/// `tooldock check` of the configuration inside the image, with some variables.
fn check(variables: &BTreeMap<String, String>) -> Output {
    let folder = tempfile::TempDir::new().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["check", "-c"])
        .arg(programs::root().join("conf/container/tooldock.yaml"))
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
        json!({"test": ["CMD", "curl", "-f", "http://localhost:8000/health"],
            "interval": "10s", "timeout": "5s", "retries": 3})
    );
    assert_eq!(
        manager["depends_on"]["tooldock-core"]["condition"],
        "service_healthy"
    );
    assert_eq!(manager["tmpfs"], json!(["/dev/shm"]));
    let address =
        |service: &Value| service["networks"]["tooldock-internal"]["ipv4_address"].clone();
    assert_eq!(address(&core), "172.30.0.11");
    assert_eq!(address(&manager), "172.30.0.10");
    let internal = &compose["networks"]["tooldock-internal"];
    assert_eq!(internal["internal"], true);
    assert_eq!(internal["ipam"]["config"][0]["subnet"], "172.30.0.0/24");
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

/// What compose does when the core is quicker than its health check: both find an empty volume.
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
