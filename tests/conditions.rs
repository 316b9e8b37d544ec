//! The state of a namespace: `/ready`, the metrics, `explain` and the web UI tell the same.

use serde_json::{Value, json};

use crate::support::backend::Backend;
use crate::support::gateway::MANAGER_TOKEN;
use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN, eventually};

/// The state of a namespace as `/ready` tells it.
pub async fn ready(gateway: &Gateway, namespace: &str) -> Value {
    let answer = gateway.request("GET", "/ready").send().await.unwrap();
    let ready: Value = answer.json().await.unwrap();
    let namespaces = ready["namespaces"].as_array().unwrap();
    let found = namespaces.iter().find(|it| it["name"] == namespace);
    found.cloned().unwrap_or_default()
}

/// Waits until `/ready` tells that state, and looks that the others tell it, too.
pub async fn is_everywhere(gateway: &Gateway, namespace: &str, state: &str) -> Value {
    let told = eventually(state, || async {
        let told = ready(gateway, namespace).await;
        (told["state"] == state).then_some(told)
    })
    .await;
    let metrics = gateway.metrics_text().await;
    let line = format!("tooldock_namespaces{{state=\"{state}\"}} 1\n");
    assert!(metrics.contains(&line), "{line}{metrics}");
    for member in told["members"].as_array().into_iter().flatten() {
        let (name, state) = (
            member["name"].as_str().unwrap(),
            member["state"].as_str().unwrap(),
        );
        let labels = format!("member=\"{name}\",namespace=\"{namespace}\",state=\"{state}\"");
        let line = format!("tooldock_member_state{{{labels}}} 1\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let explained = gateway
        .request("POST", "/explain")
        .header("X-Manager-Token", MANAGER_TOKEN)
        .json(&json!({"as": "bearer", "namespace": namespace}));
    let explained: Value = explained.send().await.unwrap().json().await.unwrap();
    assert_eq!(explained["state"], state, "{explained}");
    let url = format!("http://{}/api/namespaces/{namespace}", gateway.web());
    let page = reqwest::Client::new()
        .get(url)
        .bearer_auth(TOKEN)
        .header("X-ToolDock-Request", "1");
    let page: Value = page.send().await.unwrap().json().await.unwrap();
    assert_eq!(page["state"], state, "{page}");
    let members = |of: &Value| of["members"].as_array().cloned().unwrap_or_default();
    assert_eq!(members(&page), members(&told), "{page}");
    told
}

#[tokio::test]
async fn a_remote_namespace_is_degraded_without_one_backend_and_failed_without_all_in_both_modes() {
    for mode in ["client", "pass_through"] {
        let live = Backend::start("live").await;
        let gone = format!("http://{}/mcp", free_address());
        let remote = json!({"far": {
            "backends": [live.url(), gone],
            "mode": mode,
            "health": {"active": {"every": "100ms", "timeout": "5s"}},
        }});
        let gateway = Gateway::empty()
            .with_web()
            .config(json!({
                "upstreams": {"remote": remote},
                "namespaces": {"starter": false},
            }))
            .start()
            .await;
        let told = is_everywhere(&gateway, "far", "degraded").await;
        let healthy: Vec<_> = told["backends"].as_array().unwrap().iter().collect();
        assert_eq!(healthy.len(), 2, "{mode}: {told}");
        assert_eq!(healthy[1]["healthy"], false, "{mode}: {told}");
        live.end().await;
        is_everywhere(&gateway, "far", "failed").await;
        let health = gateway.request("GET", "/health").send().await.unwrap();
        let health: Value = health.json().await.unwrap();
        assert_eq!(health["failing"][0]["name"], "far", "{mode}: {health}");
    }
}
