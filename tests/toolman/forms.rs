//! Owners of active sets: a session, a handle, a principal; both eras at once.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{House, SERVERS, activate, lists, names, said, tools_of, write};
use crate::support::manager::{Manager, with_manager};
use crate::support::{Gateway, TOKEN, sha256};

const MODERN: &str = "2026-07-28";

/// A client of 2026-07-28 with a handle of its own, in the address or in `_meta`.
struct Modern<'a> {
    house: &'a House,
    /// Empty for none.
    token: &'a str,
    capabilities: Value,
    address: Option<String>,
    meta: Option<String>,
}

impl<'a> Modern<'a> {
    fn of(house: &'a House) -> Self {
        Self {
            house,
            token: TOKEN,
            capabilities: json!({}),
            address: None,
            meta: None,
        }
    }

    async fn request(&self, method: &str, params: Value) -> (u16, Value) {
        let mut params = params;
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        if let Some(handle) = &self.meta {
            params["_meta"]["tooldock/toolset"] = handle.as_str().into();
        }
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let query = self
            .address
            .as_ref()
            .map_or_else(String::new, |it| format!("?toolset={it}"));
        let url = self.house.gateway.url(&format!("/mcp/toolman{query}"));
        let mut request = self
            .house
            .gateway
            .client
            .post(url)
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", MODERN)
            .header("Mcp-Method", method);
        if !self.token.is_empty() {
            request = request.bearer_auth(self.token);
        }
        if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
            request = request.header("Mcp-Name", name);
        }
        let answer = request.json(&message).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.request(method, params).await;
        assert!(
            status == 200 && answer["result"].is_object(),
            "{method}: {status} {answer}"
        );
        answer["result"].clone()
    }

    async fn tools(&self) -> Vec<String> {
        names(&self.result("tools/list", json!({})).await["tools"], "name")
    }

    /// Activates, and gives the handle of the changed set.
    async fn activate(&self, given: Value) -> String {
        let params = json!({"name": "toolman_activate", "arguments": lists(given)});
        let result = self.result("tools/call", params).await;
        assert_eq!(said(&result)["success"], true, "{result}");
        let handle = result["_meta"]["tooldock/toolset"]
            .as_str()
            .expect("a handle")
            .to_owned();
        assert_eq!(result["structuredContent"]["toolset"], handle);
        assert!(result["content"][0]["text"].as_str().unwrap().len() <= 200);
        handle
    }
}

fn has(tools: &[String], name: &str) -> bool {
    tools.iter().any(|it| it == name)
}

#[tokio::test]
async fn a_modern_client_carries_its_set_in_a_handle_that_is_its_own() {
    let tokens = json!({"admission": {"tokens": [{"name": "bob", "sha256": sha256("bobs-token"), "namespaces": ["*"]}]}});
    let house = House::with(SERVERS, tokens).await;
    let plain = Modern::of(&house);
    let listed = plain.result("tools/list", json!({})).await;
    assert_eq!(
        (
            &listed["cacheScope"],
            listed["ttlMs"].as_u64().unwrap() <= 5000
        ),
        (&json!("private"), true)
    );
    assert!(!has(&plain.tools().await, "vec_index"));
    let found = plain.result("server/discover", json!({})).await;
    assert_eq!(
        found["capabilities"]["resources"],
        json!({"listChanged": true})
    );

    let handle = plain.activate(json!({"tools_on": ["vec_index"]})).await;
    for modern in [
        Modern {
            address: Some(handle.clone()),
            ..Modern::of(&house)
        },
        Modern {
            meta: Some(handle.clone()),
            ..Modern::of(&house)
        },
    ] {
        assert!(has(&modern.tools().await, "vec_index"));
        let called = modern
            .result("tools/call", json!({"name": "vec_index", "arguments": {}}))
            .await;
        assert_eq!(
            (&called["content"][0]["text"], &called["resultType"]),
            (&json!("vec ran index"), &json!("complete"))
        );
        // A further change goes on from there, and makes a further handle.
        let further = modern.activate(json!({"tools_off": ["vec_search"]})).await;
        let further = Modern {
            meta: Some(further),
            ..Modern::of(&house)
        }
        .tools()
        .await;
        assert!(has(&further, "vec_index") && !has(&further, "vec_search"));
        assert!(has(&modern.tools().await, "vec_search"));
    }
    // Without the handle nothing has changed.
    assert!(!has(&plain.tools().await, "vec_index"));
    let inactive = plain
        .result("tools/call", json!({"name": "vec_index", "arguments": {}}))
        .await;
    assert_eq!(
        (&inactive["isError"], &said(&inactive)["success"]),
        (&json!(true), &json!(false))
    );
    let (status, inactive) = plain
        .request("resources/read", json!({"uri": "note://1"}))
        .await;
    assert_eq!(
        (status, &inactive["error"]["data"]["success"]),
        (200, &json!(false)),
        "{inactive}"
    );

    // Changed, cut, another principal's, or invented.
    let mut changed = handle.clone().into_bytes();
    changed[20] = if changed[20] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap();
    for (token, handle) in [
        (TOKEN, changed.as_str()),
        (TOKEN, &handle[..handle.len() - 4]),
        (TOKEN, "invented"),
        ("bobs-token", &handle),
    ] {
        for by_address in [true, false] {
            let (address, meta) = match by_address {
                true => (Some(handle.to_owned()), None),
                false => (None, Some(handle.to_owned())),
            };
            let client = Modern {
                token,
                address,
                meta,
                ..Modern::of(&house)
            };
            let (status, answer) = client.request("tools/list", json!({})).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (200, &json!(-32602)),
                "{answer}"
            );
            assert!(
                answer["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("toolman_activate")
            );
        }
    }

    // Both eras at once, each with its own set.
    let session = house.session().await;
    activate(&session, json!({"tools_off": ["pjpd_list_projects"]})).await;
    let (of_session, of_handle) = (
        tools_of(&session).await,
        Modern {
            meta: Some(handle.clone()),
            ..Modern::of(&house)
        },
    );
    assert!(!has(&of_session, "pjpd_list_projects") && !has(&of_session, "vec_index"));
    let of_handle_tools = of_handle.tools().await;
    assert!(has(&of_handle_tools, "pjpd_list_projects") && has(&of_handle_tools, "vec_index"));

    // The servers change: removed entries are gone, new entries are as in the start set, the rest of the handle holds.
    super::write(
        house.folder.path(),
        &SERVERS
            .replace("\"vec_search\"]", "\"vec_search\", \"echo\"]")
            .replace("namespace = \"pjpd\"", "namespace = \"other\""),
    );
    house.gateway.reload().await;
    let listed = of_handle.tools().await;
    assert!(
        has(&listed, "vec_index") && has(&listed, "echo") && !has(&listed, "pjpd_create_task"),
        "{listed:?}"
    );
}

/// The call of `toolman_activate` that a hint shows; the hint says where its handle goes.
fn hinted(error: &str) -> Value {
    assert!(error.contains("?toolset=HANDLE"), "{error}");
    let (_, shown) = error
        .split_once("call toolman_activate with ")
        .expect(error);
    let mut calls = serde_json::Deserializer::from_str(shown).into_iter();
    calls.next().expect("a call").expect("JSON")
}

#[tokio::test]
async fn a_rest_client_follows_a_hint_by_the_handle_in_its_address() {
    let house = House::of("").await;
    let gateway = &house.gateway;
    let listed = async |path: &str| {
        let listed = gateway
            .request("GET", path)
            .header("X-Namespace", "toolman");
        let listed = listed.send().await.unwrap();
        let listed: Value = listed.json().await.unwrap();
        listed
    };
    // Lists wait for the servers.
    assert!(!has(&names(&listed("/tools").await, "name"), "vec_index"));
    let (status, refused) = gateway.call("toolman", "vec_index", json!({})).await;
    assert_eq!(status, 404, "{refused}");
    let activation = hinted(refused["error"]["message"].as_str().unwrap());
    let (status, done) = gateway
        .call("toolman", "toolman_activate", activation)
        .await;
    assert_eq!(status, 200, "{done}");
    let handle = done["toolset"].as_str().expect("a handle");

    let with_handle = format!("vec_index?toolset={handle}");
    let called = gateway.call("toolman", &with_handle, json!({})).await;
    assert_eq!(called, (200, json!("vec ran index")));
    let tools = listed(&format!("/tools?toolset={handle}")).await;
    assert!(has(&names(&tools, "name"), "vec_index"));
    let own = tools.as_array().unwrap().iter();
    let own = own
        .map(|it| &it["description"])
        .find(|it| it.to_string().contains("?toolset="));
    assert!(
        own.is_some(),
        "toolman_activate says where its handle goes: {tools}"
    );
    let schema = listed(&format!("/tools/vec_index/schema?toolset={handle}")).await;
    assert_eq!(schema["type"], "object", "{schema}");
    let documented = listed(&format!("/openapi.json?toolset={handle}")).await;
    assert!(
        documented["paths"]["/tools/vec_search"].is_object(),
        "{documented}"
    );
    assert!(
        documented["paths"]["/tools/vec_index"].is_null(),
        "{documented}"
    );

    let refused = gateway
        .call("toolman", "vec_index?toolset=invented", json!({}))
        .await;
    assert_eq!(
        (refused.0, &refused.1["error"]["code"]),
        (422, &json!("invalid_arguments")),
        "{refused:?}"
    );
    // Other namespaces know no toolsets.
    let added = gateway
        .call("calc", "add?toolset=invented", json!({"a": 1, "b": 2}))
        .await;
    assert_eq!(added.0, 200, "{added:?}");
}

#[tokio::test]
async fn a_client_of_2025_03_26_without_a_session_follows_a_hint_by_the_handle_in_its_address() {
    let house = House::of("").await;
    let call = async |query: &str, tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let request = house
            .gateway
            .request("POST", &format!("/mcp/toolman{query}"));
        let answer = request.json(&message).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer["result"].clone()
    };
    let refused = said(&call("", "vec_index", json!({})).await);
    let activation = hinted(refused["error"].as_str().unwrap());
    let done = call("", "toolman_activate", activation).await;
    let handle = done["_meta"]["tooldock/toolset"]
        .as_str()
        .expect("a handle");
    let called = call(&format!("?toolset={handle}"), "vec_index", json!({})).await;
    assert_eq!(called["content"][0]["text"], "vec ran index", "{called}");
}

#[tokio::test]
async fn a_manager_follows_a_hint_by_the_toolset_of_test_tool() {
    let folder = TempDir::new().expect("a temporary directory");
    write(folder.path(), SERVERS);
    let keys = json!({"toolman": {"toolman": {"config": folder.path().join("tools.toml")}}});
    let (gateway, address) = with_manager(Gateway::empty().config(keys));
    let gateway = gateway.start().await;
    // Lists wait for the servers.
    let listed = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "toolman");
    assert_eq!(listed.send().await.unwrap().status(), 200);
    let manager = Manager::open(address).await;
    let tried = async |tool: &str, input: Value, toolset: Value| {
        let trial =
            json!({"namespace": "toolman", "tool_name": tool, "input": input, "toolset": toolset});
        manager.call("test_tool", trial).await
    };
    let refused = tried("vec_index", json!({}), Value::Null).await.value();
    let error = refused["error"].as_str().unwrap();
    assert!(
        error.contains("the parameter toolset of test_tool"),
        "{error}"
    );
    let done = tried("toolman_activate", hinted(error), Value::Null).await;
    let toolset = done.value()["result"]["toolset"].clone();
    let called = tried("vec_index", json!({}), toolset).await.value();
    assert_eq!(called["result"], "vec ran index", "{called}");
    let wrong = tried("vec_index", json!({}), json!("a b")).await;
    assert!(wrong.error().contains("toolset: "), "{}", wrong.error());
}

#[tokio::test]
async fn no_hint_names_an_activation_that_the_caller_may_not_make() {
    let policy =
        json!({"namespaces": {"overrides": {"toolman": {"tools_deny": ["toolman_activate"]}}}});
    let house = House::with(SERVERS, policy).await;
    // The servers are there.
    tools_of(&house.session().await).await;
    let (status, refused) = house.gateway.call("toolman", "vec_index", json!({})).await;
    assert_eq!(status, 404, "{refused}");
    let error = refused["error"]["message"].as_str().unwrap();
    assert!(
        error.contains("is not active") && !error.contains("call toolman_activate"),
        "{error}"
    );
}

#[tokio::test]
async fn a_principals_set_is_that_of_all_its_clients() {
    let tokens = json!({"admission": {"tokens": [{"name": "bob", "sha256": sha256("bobs-token"), "namespaces": ["*"]}]}});
    let house = House::with(
        &format!("activation_scope = \"principal\"\n{SERVERS}"),
        tokens,
    )
    .await;
    let (ada, bob) = (
        Modern::of(&house),
        Modern {
            token: "bobs-token",
            ..Modern::of(&house)
        },
    );
    let params =
        json!({"name": "toolman_activate", "arguments": lists(json!({"tools_on": ["vec_index"]}))});
    let result = ada.result("tools/call", params).await;
    assert!(result["_meta"]["tooldock/toolset"].is_null(), "{result}");
    assert!(has(&ada.tools().await, "vec_index"));
    assert!(!has(&bob.tools().await, "vec_index"));
    let session = house.session().await;
    assert!(has(&tools_of(&session).await, "vec_index"));
}

#[tokio::test]
async fn clients_without_a_token_each_have_a_set_of_their_own() {
    let file = format!("activation_scope = \"principal\"\n{SERVERS}");
    let open = json!({"auth": ["bearer", "none"]});
    let house = House::behind(open, &file, json!({"admission": {"origins": []}})).await;
    let strangers = || Modern {
        token: "",
        ..Modern::of(&house)
    };
    let mut one = strangers();
    let handle = one.activate(json!({"tools_on": ["vec_index"]})).await;
    assert!(!has(&one.tools().await, "vec_index"));
    one.meta = Some(handle);
    assert!(has(&one.tools().await, "vec_index"));
    assert!(!has(&strangers().tools().await, "vec_index"));
}

/// A question of a call that `toolman_call` passes on is answered by a retry that names `toolman_call`.
#[tokio::test]
async fn a_call_by_way_of_toolman_call_goes_on_with_its_clients_answers() {
    let house = House::of("toolman_call = true").await;
    let client = Modern {
        capabilities: json!({"elicitation": {"form": {}}}),
        ..Modern::of(&house)
    };
    for arguments in [
        json!({"tool": "pjpd_ask"}),
        json!({"tool": "pjpd_ask", "arguments": {}}),
    ] {
        let mut params = json!({"name": "toolman_call", "arguments": arguments});
        let asked = client.result("tools/call", params.clone()).await;
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let key = asked["inputRequests"].as_object().unwrap().keys().next();
        let key = key.expect("a question");
        params["requestState"] = asked["requestState"].clone();
        params["inputResponses"] = json!({key: {"action": "accept", "content": {}}});
        // The state is good for no other call.
        let mut other = params.clone();
        other["arguments"] = json!({"tool": "pjpd_ask", "arguments": {"x": 1}});
        let (_, refused) = client.request("tools/call", other).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let ended = client.result("tools/call", params).await;
        assert_eq!(ended["content"][0]["text"], "accept", "{ended}");
    }
}

/// A template's expressions take what its server says they take (K-42).
#[tokio::test]
async fn any_uri_with_the_text_of_a_template_goes_to_its_server() {
    let file = SERVERS.replace(
        "active_toolsets = [",
        "active_toolsets = [\"pjpd_item://{id}\", ",
    );
    let house = House::with(&file, json!({})).await;
    let client = Modern::of(&house);
    let read = client
        .result("resources/read", json!({"uri": "pjpd_item://4/5?x"}))
        .await;
    assert_eq!(read["contents"][0]["text"], "read item://4/5?x", "{read}");
}

#[tokio::test]
async fn changes_are_announced_to_the_session_that_made_them_and_rest_sees_the_start_set() {
    let house = House::of("").await;
    let (session, other) = (house.session().await, house.session().await);
    let mut stream = session.listen().await;
    let mut others = other.listen().await;
    // The servers are there: what follows is announced for the activation.
    tools_of(&session).await;
    activate(
        &session,
        json!({"tools_on": ["vec_index"], "resources_on": ["note://1"]}),
    )
    .await;
    let mut heard = Vec::new();
    while !heard.contains(&json!("notifications/resources/list_changed")) {
        heard.push(stream.message().await["method"].clone());
    }
    assert!(
        heard.contains(&json!("notifications/tools/list_changed")),
        "{heard:?}"
    );

    // REST and other sessions are as at the start.
    let (status, refused) = house.gateway.call("toolman", "vec_index", json!({})).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (404, &json!("tool_not_found")),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("toolman_activate"),
        "{refused}"
    );
    let (status, refused) = house
        .gateway
        .call("toolman", "toolman_activate", lists(json!({})))
        .await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (422, &json!("invalid_arguments")),
        "{refused}"
    );
    let called = house
        .gateway
        .call("toolman", "vec_search", json!({"x": 1}))
        .await;
    assert_eq!(called, (200, json!("vec ran search")));
    let listed = house
        .gateway
        .request("GET", "/tools")
        .header("X-Namespace", "toolman");
    let listed: Value = listed.send().await.unwrap().json().await.unwrap();
    let listed = names(&listed, "name");
    assert!(
        has(&listed, "vec_search")
            && has(&listed, "toolman_activate")
            && !has(&listed, "vec_index")
    );
    assert!(!has(&tools_of(&other).await, "vec_index"));

    // A server that reports changed tools: all clients are notified, and the tool is there.
    activate(&other, json!({"tools_on": ["vec_index"]})).await;
    super::call(&session, "pjpd_grow", json!({})).await;
    crate::support::eventually("the new tool", async || {
        has(&tools_of(&session).await, "pjpd_grown").then_some(())
    })
    .await;
    loop {
        if others.message().await["method"] == "notifications/tools/list_changed" {
            break;
        }
    }
    assert!(house.asked("pjpd", "initialize") == 1);
    // The catalogue was made anew for the new tool; its known faults are not reported again.
    let log = house.gateway.log();
    assert_eq!(
        log.matches("an earlier server has the name already")
            .count(),
        1
    );
}

/// The Python and TypeScript SDKs, in a session and with a handle in the address.
#[tokio::test]
async fn real_clients_turn_a_tool_on_in_both_eras() {
    use crate::support::programs::{node, python, root, run};
    let house = House::of("").await;
    for mode in ["legacy", MODERN] {
        for script in ["activating_mcp2.py", "activating_typescript2.mjs"] {
            let url = house.gateway.url("");
            let printed = tokio::task::spawn_blocking(move || {
                let mut command = if script.ends_with(".py") {
                    let mut python = python("clients-mcp2");
                    python.arg(root().join("tests/clients").join(script));
                    python
                } else {
                    let (mut node, packages) = node();
                    node.args(["--preserve-symlinks", "--preserve-symlinks-main"])
                        .arg(packages.join("clients").join(script));
                    node
                };
                run(command.args([&url, TOKEN, "toolman", mode]))
            });
            let printed = printed.await.expect("not cancelled");
            let mut seen: Value = serde_json::from_str(printed.trim()).expect(&printed);
            let version = seen["version"].take();
            assert_eq!(version == MODERN, mode == MODERN, "{script}: {version}");
            let expected = json!({
                "version": null, "before": false, "said": true, "after": true, "called": "vec ran index",
                "read": "read item://42", "prompts": ["pjpd_summarize", "vec_explain"],
            });
            assert_eq!(seen, expected, "{script} {mode}");
        }
    }
}
