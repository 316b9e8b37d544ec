//! `docs/from-nginx.md`: each configuration on the page is checked as it stands there, and started on addresses of this
//! machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tooldock_base::yaml;

use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN, eventually, programs};

/// The files that the page names, with the names that their certificates are for.
const CERTIFICATES: [(&str, &str); 3] = [
    ("gw", "gw.example.com"),
    ("tools", "*.tools.example.com"),
    ("clients", "clients.example.com"),
];

fn page() -> String {
    fs::read_to_string(programs::root().join("docs/from-nginx.md")).unwrap()
}

/// The blocks of code in a language, each under its heading.
fn blocks(page: &str, language: &str) -> Vec<(String, String)> {
    let fence = format!("```{language}");
    let (mut heading, mut blocks) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text.to_owned();
        } else if line == fence {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((heading.clone(), block.join("\n")));
        }
    }
    blocks
}

fn write_certificates(folder: &Path) {
    for (file, name) in CERTIFICATES {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn each_configuration_of_the_page_passes_the_check_as_it_is() {
    let folder = tempfile::TempDir::new().unwrap();
    write_certificates(folder.path());
    let blocks = blocks(&page(), "yaml");
    assert!(blocks.len() >= 10, "{} blocks", blocks.len());
    for (heading, block) in blocks {
        fs::write(folder.path().join("tooldock.yaml"), &block).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["check", "-c", "tooldock.yaml"])
            .current_dir(folder.path())
            .env_clear()
            .env("BEARER_TOKEN", TOKEN)
            .env("GITHUB_TOKEN", "a token")
            .env("SEARCH_TOKEN", "another token")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{heading}: {said}");
    }
}

/// A configuration with addresses and files of a test.
fn local(mut config: Value, folder: &Path, metrics: &str) -> Value {
    let absolute = |file: &mut Value| {
        let name = file.as_str().unwrap();
        *file = json!(folder.join(name));
    };
    if config.get("listeners").is_none() {
        config["listeners"] = json!([
            {"name": "core", "address": "127.0.0.1:8000", "profile": "core"}]);
    }
    let listeners = config["listeners"].as_array_mut().unwrap();
    for listener in listeners.iter_mut() {
        let address = listener["address"].as_str().unwrap();
        listener["address"] = match address.strip_prefix("unix:") {
            Some(_) => json!(format!("unix:{}", folder.join("mcp.sock").display())),
            None => json!(free_address().to_string()),
        };
        let Some(tls) = listener.get_mut("tls").and_then(Value::as_object_mut) else {
            continue;
        };
        for (key, value) in tls {
            match key.as_str() {
                "cert" | "key" | "client_ca" => absolute(value),
                "certificates" => {
                    for pair in value.as_array_mut().unwrap() {
                        absolute(&mut pair["cert"]);
                        absolute(&mut pair["key"]);
                    }
                }
                _ => {}
            }
        }
    }
    listeners.push(json!({"name": "metrics", "address": metrics, "profile": "metrics"}));
    config
}

#[tokio::test]
async fn each_configuration_of_the_page_starts() {
    for (heading, block) in blocks(&page(), "yaml") {
        let folder = tempfile::TempDir::new().unwrap();
        write_certificates(folder.path());
        let config: Value = yaml::from_str(&block).unwrap();
        let metrics = free_address();
        let config = local(config, folder.path(), &metrics.to_string());
        let gateway = Gateway::empty()
            .env("GITHUB_TOKEN", "a token")
            .env("SEARCH_TOKEN", "another token")
            .config(config)
            .spawn();
        let health = format!("http://{metrics}/health");
        eventually("the gateway runs", || async {
            if let Some(status) = gateway.exited() {
                panic!("{heading}: ended with {status}:\n{}", gateway.log());
            }
            let answer = gateway.client.get(&health).send().await.ok()?;
            // The networks of the page may leave this machine out.
            [200, 403].contains(&answer.status().as_u16()).then_some(())
        })
        .await;
    }
}

#[test]
fn what_is_said_of_nginx_stands_beside_a_configuration() {
    let page = page();
    let (nginx, ours) = (blocks(&page, "nginx"), blocks(&page, "yaml"));
    for (heading, _) in &nginx {
        assert!(ours.iter().any(|(other, _)| other == heading), "{heading}");
    }
    assert!(nginx.len() >= 9, "{} blocks", nginx.len());
}
