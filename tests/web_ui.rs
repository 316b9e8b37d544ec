//! The web interface as a person sees it: headless Chromium drives the page that the binary embeds.

use std::env;
use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::ports::free_address;
use crate::support::programs::{chromium, node, python, root, run};
use crate::support::{Gateway, TOKEN};

#[tokio::test]
async fn a_person_manages_the_gateway_in_a_browser() {
    let Some(chromium) = chromium() else {
        eprintln!("skipped: chromium is not installed (apt-get install chromium)");
        return;
    };
    let folder = TempDir::new().unwrap();
    let server = root()
        .join("tests/fixtures/servers/hostile.py")
        .canonicalize()
        .unwrap();
    let python = python("base").get_program().to_owned();
    let python = std::path::absolute(python).unwrap();
    let command = json!({"command": python, "args": [server]});
    fs::write(folder.path().join("server.json"), command.to_string()).unwrap();

    let (core, web, metrics) = (free_address(), free_address(), free_address());
    let gateway = Gateway::empty()
        .env(
            "SECRETS_KEY",
            "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        )
        .listening(core, metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": core.to_string(), "profile": "core"},
            {"name": "web", "address": web.to_string(), "profile": "v1-web"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}))
        .start()
        .await;

    let url = format!("http://{web}");
    let place = folder.path().to_owned();
    let printed = tokio::task::spawn_blocking(move || {
        let (mut node, packages) = node();
        node.args(["--preserve-symlinks", "--preserve-symlinks-main"])
            .arg(packages.join("clients/web_ui.mjs"))
            .args([&url, TOKEN])
            .arg(place)
            .args(env::var_os("TOOLDOCK_SCREENSHOTS"))
            .env("CHROMIUM", chromium);
        run(&mut node)
    })
    .await
    .expect("not cancelled");
    let seen: Value = serde_json::from_str(&printed).expect("JSON");

    assert_eq!(seen["result"], json!({"counted": 2, "style": "plain"}));
    let pages = seen["axe"].as_object().expect("the pages");
    assert!(pages.len() > 15, "{pages:?}");
    for (page, findings) in pages {
        assert_eq!(findings, &json!([]), "axe on {page}");
    }
    assert_eq!(seen["wide"], json!([]), "at 360 pixels");
    assert_eq!(seen["strangers"], json!([]), "requests to others");
    assert_eq!(seen["complaints"], json!([]), "of the browser");
    assert_eq!(seen["hurt"], Value::Null, "a script ran");
    assert_eq!(seen["kept"], json!([]), "in storage that outlives the tab");
    assert_eq!(seen["theme"], "dark");
    assert!(
        seen["last"].as_str().unwrap().contains("tool_9997"),
        "{seen}"
    );
    for list in ["elements", "elements_of_5_mb"] {
        let elements = seen[list].as_u64().unwrap();
        assert!(elements < 2000, "{list}: {elements}");
    }

    // The browser's changes are on the disk.
    let file = gateway.tools_dir().join("team/counting.py");
    let source = fs::read_to_string(file).unwrap();
    assert!(source.contains("\"counted\""), "{source}");
    assert!(source.ends_with("# kept over the login\n"), "{source}");
    let servers = gateway.data_dir().join("external/config.yaml");
    let servers = fs::read_to_string(servers).unwrap();
    assert!(servers.contains("hostile.py"), "{servers}");
    assert!(!gateway.log().contains("canary-of-the-page"));
}
