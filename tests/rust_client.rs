//! The official Rust SDK through the same steps as the clients of `sdk.rs`, in both eras.

#![allow(
    deprecated,
    reason = "sampling, roots and logs are deprecated and still spoken"
)]

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, ClientConfig, ClientRequest, CreateMessageRequestParams,
    CreateMessageResult, ElicitRequestParams, ElicitResult, GetPromptRequestParams,
    ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ResourceUpdatedNotificationParam, ServerNotification,
    SubscriptionFilter,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RequestContext,
    RoleClient, RunningService,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ErrorData};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::sdk::every_step;
use crate::support::{Gateway, TOKEN, eventually};

const WATCHED: &str = "test://watched-resource";

/// Messages to the client outside of answers.
#[derive(Default)]
struct Heard {
    progress: Vec<i64>,
    logs: Vec<Value>,
    updated: bool,
    list_changed: bool,
}

#[derive(Clone, Default)]
struct Host(Arc<Mutex<Heard>>);

impl Host {
    fn note(&self, note: impl FnOnce(&mut Heard)) {
        note(&mut self.0.lock().expect("not poisoned"));
    }

    fn take_progress(&self) -> Vec<i64> {
        std::mem::take(&mut self.0.lock().expect("not poisoned").progress)
    }

    /// The messages so far, once there are this many: the SDK handles notifications beside answers.
    async fn heard<T: Clone>(&self, what: fn(&Heard) -> &Vec<T>, count: usize) -> Vec<T> {
        eventually("so much was heard", || async {
            let heard = what(&self.0.lock().expect("not poisoned")).clone();
            (heard.len() >= count).then_some(heard)
        })
        .await
    }
}

/// A value of the SDK, from JSON on the wire.
fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("as the specification says")
}

impl ClientHandler for Host {
    fn get_info(&self) -> ClientConfig {
        typed(
            json!({"protocolVersion": "2025-11-25", "clientInfo": {"name": "tests", "version": "1"},
            "capabilities": {"sampling": {}, "elicitation": {}, "roots": {}}}),
        )
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        Ok(typed(json!({"role": "assistant", "model": "none",
            "content": {"type": "text", "text": "hi from the client"}})))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(typed(json!({"action": "accept",
            "content": {"username": "ada", "email": "ada@example.org"}})))
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(typed(
            json!({"roots": [{"uri": "file:///workspace", "name": "workspace"}]}),
        ))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(|heard| heard.progress.push(params.progress as i64));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(|heard| heard.logs.push(params.data));
    }

    async fn on_resource_updated(
        &self,
        _: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(|heard| heard.updated = true);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.note(|heard| heard.list_changed = true);
    }
}

type Client = RunningService<RoleClient, Host>;

async fn connect(base: &str, namespace: &str, lifecycle: ClientLifecycleMode) -> Client {
    let mut config = StreamableHttpClientTransportConfig::with_uri(format!("{base}/mcp"));
    config.auth_header = Some(TOKEN.to_owned());
    config.custom_headers = HashMap::from([(
        "x-namespace".parse().expect("a name"),
        namespace.parse().expect("a value"),
    )]);
    // Without a proxy or a connection to anywhere but the gateway.
    let http = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    let transport = StreamableHttpClientTransport::with_client(http, config);
    Host::default()
        .serve_with_lifecycle(transport, lifecycle)
        .await
        .expect("the handshake")
}

fn call(tool: &str, arguments: Value) -> CallToolRequestParams {
    typed(json!({"name": tool, "arguments": arguments}))
}

async fn text(client: &Client, tool: &str, arguments: Value) -> String {
    let result = client
        .call_tool(call(tool, arguments))
        .await
        .expect("answered");
    serde_json::to_value(result).expect("JSON")["content"][0]["text"]
        .as_str()
        .expect("a text")
        .to_owned()
}

/// Does something again and again until a fact is true. A fact may need a moment to arrive.
async fn until<F: Future>(fact: impl Fn() -> bool, mut attempt: impl FnMut() -> F) -> bool {
    for _ in 0..40 {
        attempt().await;
        for _ in 0..10 {
            if fact() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    false
}

/// The steps of every client, as `sdk.rs` lists them.
async fn steps(client: &Client, modern: bool) -> Value {
    let host = client.service().clone();
    let mut seen = json!({});
    let tools = client.list_all_tools().await.expect("tools");
    seen["listed"] = ["test_simple_text", "slow", "update_resource"]
        .iter()
        .all(|name| tools.iter().any(|tool| tool.name == *name))
        .into();
    seen["text"] = text(client, "test_simple_text", json!({})).await.into();
    let failed = client
        .call_tool(call("test_error_handling", json!({})))
        .await
        .expect("a result");
    seen["failed"] = failed.is_error.into();
    host.take_progress();
    text(client, "test_tool_with_progress", json!({})).await;
    seen["progress"] = host.heard(|heard| &heard.progress, 3).await.into();
    if modern {
        let mut logging = call("test_tool_with_logging", json!({}));
        logging.meta = Some(typed(json!({"io.modelcontextprotocol/logLevel": "debug"})));
        client.call_tool(logging).await.expect("answered");
    } else {
        client
            .set_level(typed(json!({"level": "debug"})))
            .await
            .expect("set");
        text(client, "test_tool_with_logging", json!({})).await;
    }
    seen["logs"] = host.heard(|heard| &heard.logs, 3).await.into();
    let elicited = text(client, "test_elicitation", json!({"message": "Who?"})).await;
    seen["elicited"] = elicited.contains("ada@example.org").into();
    let sampled = text(client, "test_sampling", json!({"prompt": "Hi"})).await;
    seen["sampled"] = sampled.contains("hi from the client").into();
    let asks_roots = if modern {
        "test_input_required_result_list_roots"
    } else {
        "list_roots"
    };
    let roots = text(client, asks_roots, json!({})).await;
    seen["roots"] = roots.contains("file:///workspace").into();
    let completion = client
        .complete_prompt_argument("city_prompt", "city", "par", None)
        .await
        .expect("completed");
    seen["completed"] = completion.values.into();
    let read = async |uri: &str| {
        let params: ReadResourceRequestParams = typed(json!({"uri": uri}));
        let result = client.read_resource(params).await.expect("read");
        serde_json::to_value(result).expect("JSON")["contents"][0]["text"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    seen["resource"] = read("test://static-text").await.into();
    let template: Value =
        serde_json::from_str(&read("test://template/7/data").await).expect("JSON");
    seen["template"] = template["id"].clone();
    let params: GetPromptRequestParams = typed(json!({"name": "test_prompt_with_arguments",
        "arguments": {"arg1": "one", "arg2": "two"}}));
    let prompt = client.get_prompt(params).await.expect("a prompt");
    seen["prompt"] =
        serde_json::to_value(prompt).expect("JSON")["messages"][0]["content"]["text"].clone();
    hear_changes(client, &host, modern, &mut seen).await;
    host.take_progress();
    // A legacy client resumes streams that the gateway closes meanwhile; a modern stream stays open to the end.
    text(client, "slow", json!({"ms": 1000, "every": 100})).await;
    seen["resumed"] = host.heard(|heard| &heard.progress, 10).await.into();
    host.take_progress();
    seen["cancelled"] = cancel(client).await.into();
    seen
}

async fn hear_changes(client: &Client, host: &Host, modern: bool, seen: &mut Value) {
    let listening = if modern {
        let filter: SubscriptionFilter =
            typed(json!({"toolsListChanged": true, "resourceSubscriptions": [WATCHED]}));
        let mut subscription = client.listen(filter).await.expect("acknowledged");
        let host = host.clone();
        Some(tokio::spawn(async move {
            while let Ok(Some(notification)) = subscription.next().await {
                match notification {
                    ServerNotification::ResourceUpdatedNotification(_) => {
                        host.note(|heard| heard.updated = true);
                    }
                    ServerNotification::ToolListChangedNotification(_) => {
                        host.note(|heard| heard.list_changed = true);
                    }
                    _ => {}
                }
            }
        }))
    } else {
        client
            .subscribe(typed(json!({"uri": WATCHED})))
            .await
            .expect("subscribed");
        None
    };
    let fact = |fact: fn(&Heard) -> bool| {
        let host = host.clone();
        move || fact(&host.0.lock().expect("not poisoned"))
    };
    seen["updated"] = until(fact(|heard| heard.updated), || {
        text(client, "update_resource", json!({"uri": WATCHED}))
    })
    .await
    .into();
    seen["list_changed"] = until(fact(|heard| heard.list_changed), || {
        text(client, "test_trigger_tool_change", json!({}))
    })
    .await
    .into();
    if let Some(listening) = listening {
        listening.abort();
    }
}

async fn cancel(client: &Client) -> bool {
    let count = async || {
        let ids: Vec<Value> =
            serde_json::from_str(&text(client, "cancelled_ids", json!({})).await).expect("a list");
        ids.len()
    };
    let before = count().await;
    let slow: ClientRequest = typed(json!({"method": "tools/call", "params":
        {"name": "slow", "arguments": {"ms": 60_000, "every": 100}}}));
    let running = client
        .send_cancellable_request(slow, PeerRequestOptions::no_options())
        .await
        .expect("sent");
    eventually("it runs", || async {
        (!client.service().take_progress().is_empty()).then_some(())
    })
    .await;
    running
        .cancel(Some("enough".to_owned()))
        .await
        .expect("cancelled");
    eventually("the tool was cancelled", || async {
        (count().await == before + 1).then_some(true)
    })
    .await
}

/// An era of the protocol, as this client speaks it.
#[derive(Clone, Copy)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    fn lifecycle(self) -> ClientLifecycleMode {
        match self {
            Self::Legacy => ClientLifecycleMode::Initialize,
            Self::Modern => ClientLifecycleMode::Discover {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            },
        }
    }
}

/// Goes through the steps and closes.
pub async fn goes_through_every_step(era: Era, gateway: &Gateway, namespace: &str) {
    let client = connect(&gateway.url(""), namespace, era.lifecycle()).await;
    let seen = steps(&client, matches!(era, Era::Modern)).await;
    assert_eq!(seen, every_step(), "{namespace}");
    client.cancel().await.expect("closed");
    // Closing deletes the session.
    eventually("no session is left", || async {
        let metrics = gateway.metrics_text().await;
        metrics
            .lines()
            .any(|line| line == "tooldock_sessions 0")
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_rust_sdk_in_the_legacy_era() {
    let gateway = crate::sdk::everything().await;
    goes_through_every_step(Era::Legacy, &gateway, "everything").await;
}

#[tokio::test]
async fn the_rust_sdk_in_the_modern_era() {
    let gateway = crate::sdk::everything().await;
    goes_through_every_step(Era::Modern, &gateway, "everything").await;
}
