//! Lists and activation in one legacy session, and the way of requests to their servers.

use serde_json::{Value, json};

use super::{
    House, SERVERS, activate, answer, call, catalogue, lists, names, result, said, tools_of,
};
use crate::support::eventually;

/// AGG-02 to AGG-23 and AGG-28 to AGG-34: one gateway, many facts.
#[tokio::test]
async fn the_model_sees_what_is_active_and_a_catalogue_of_all() {
    let house = House::of("").await;
    let session = house.session().await;
    let before = result(&session, "tools/list", json!({})).await;
    let listed = names(&before["tools"], "name");
    assert_eq!(
        listed[..3],
        ["toolman_activate", "pjpd_list_projects", "pjpd_create_task"]
    );
    assert!(listed.contains(&"vec_search".to_owned()) && !listed.contains(&"vec_index".to_owned()));
    let own = &before["tools"][0];
    assert_eq!(
        own["inputSchema"]["required"],
        json!(["tools_on", "tools_off", "resources_on", "resources_off"])
    );
    assert_eq!(
        before["tools"][1]["inputSchema"]["properties"]["x"]["maximum"],
        json!(1.5)
    );
    assert_eq!(before["tools"][1]["annotations"]["readOnlyHint"], true);

    // The catalogue: a marker for active entries, descriptions cut to 132 characters, the first of two equal names.
    let lines = catalogue(&before["tools"]);
    let line = |name: &str| {
        let found: Vec<_> = lines
            .iter()
            .filter(|it| it.contains(&format!("{name}:")))
            .collect();
        assert_eq!(found.len(), 1, "{name} in {lines:#?}");
        found[0].clone()
    };
    assert!(
        line("pjpd_create_task").starts_with(&format!("* pjpd_create_task: {}", "ä".repeat(132)))
    );
    assert!(!line("pjpd_create_task").contains(&"ä".repeat(133)));
    assert!(
        line("vec_index").starts_with("vec_index: Adds to the index"),
        "{}",
        line("vec_index")
    );
    assert!(line("pjpd_list_projects").starts_with("* pjpd_list_projects: Lists all projects"));
    assert!(line("pjpd_item://{id}").starts_with("* pjpd_item://{id}"));
    assert!(line("note://1").starts_with("note://1"));
    let short = lines
        .iter()
        .find(|it| it.starts_with(&"x".repeat(55)))
        .expect("a long name");
    assert_eq!(short.split(':').next().unwrap().len(), 64);

    // Resources, templates and prompts.
    let resources = result(&session, "resources/list", json!({})).await;
    assert_eq!(
        names(&resources["resources"], "uri"),
        ["pjpd_projects://list"]
    );
    let templates = result(&session, "resources/templates/list", json!({})).await;
    assert_eq!(
        names(&templates["resourceTemplates"], "uriTemplate"),
        ["pjpd_item://{id}"]
    );
    let prompts = result(&session, "prompts/list", json!({})).await;
    assert_eq!(
        names(&prompts["prompts"], "name"),
        ["pjpd_summarize", "vec_explain"]
    );

    // Lists are kept: asking again asks no server.
    let asked = house.asked("pjpd", "resources/list");
    assert_eq!(result(&session, "tools/list", json!({})).await, before);
    assert_eq!(house.asked("pjpd", "resources/list"), asked);

    // On and off; entries that are not named stay.
    let answer = activate(&session, json!({"tools_on": ["vec_index"], "tools_off": ["pjpd_create_task"], "resources_on": ["note://1"], "resources_off": ["pjpd_item://{id}"]})).await;
    assert_eq!(answer["isError"], false, "{answer}");
    assert_eq!(said(&answer)["success"], true);
    assert!(
        answer["content"][0]["text"].as_str().unwrap().len() <= 200,
        "{answer}"
    );
    let schemas: serde_json::Value =
        serde_json::from_str(answer["content"][1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(names(&schemas["tools"], "name"), ["vec_index"]);
    assert_eq!(names(&schemas["resources"], "uri"), ["note://1"]);
    assert!(schemas["tools"][0]["inputSchema"].is_object());
    let after = result(&session, "tools/list", json!({})).await;
    let listed = names(&after["tools"], "name");
    assert!(listed.contains(&"vec_index".to_owned()) && listed.contains(&"vec_search".to_owned()));
    assert!(!listed.contains(&"pjpd_create_task".to_owned()));
    let lines = catalogue(&after["tools"]);
    assert!(
        lines.iter().any(|it| it.starts_with("* vec_index:")),
        "{lines:#?}"
    );
    assert!(
        lines.iter().any(|it| it.starts_with("pjpd_create_task:")),
        "{lines:#?}"
    );
    let resources = result(&session, "resources/list", json!({})).await;
    assert_eq!(
        names(&resources["resources"], "uri"),
        ["pjpd_projects://list", "note://1"]
    );
    let templates = result(&session, "resources/templates/list", json!({})).await;
    assert_eq!(templates["resourceTemplates"], json!([]));

    // With everything off only the aggregate's own tool is left, prompts stay, and so do the servers.
    let on: Vec<_> = tools_of(&session)
        .await
        .into_iter()
        .filter(|it| it != "toolman_activate")
        .collect();
    activate(&session, json!({"tools_off": on})).await;
    assert_eq!(tools_of(&session).await, ["toolman_activate"]);
    let prompts = result(&session, "prompts/list", json!({})).await;
    assert_eq!(
        names(&prompts["prompts"], "name"),
        ["pjpd_summarize", "vec_explain"]
    );
    assert_eq!(house.asked("pjpd", "initialize"), 1);

    // Another session begins with the start set.
    let other = house.session().await;
    assert_eq!(result(&other, "tools/list", json!({})).await, before);
}

/// AGG-14, AGG-16, AGG-17, AGG-39: faults are reported in the convention's form, and nothing is half applied.
#[tokio::test]
async fn a_wrong_activation_says_what_to_do_and_changes_nothing() {
    let house = House::of("").await;
    let session = house.session().await;
    let before = tools_of(&session).await;
    let names: Vec<String> = (0..10_000).map(|number| format!("no_{number}")).collect();
    for (arguments, words) in [
        (lists(json!({})), vec!["empty", "at least one"]),
        (
            json!({"tools_on": ["vec_index"]}),
            vec!["tools_off is missing", "resources_on", "resources_off"],
        ),
        (
            lists(json!({"tools_on": "vec_index"})),
            vec!["tools_on must be a list of strings"],
        ),
        (
            lists(json!({"tools_on": ["vec_index", 7]})),
            vec!["tools_on must be a list of strings"],
        ),
        (
            lists(json!({"tools_on": ["vec_index", "vec_serch"]})),
            vec!["vec_serch", "vec_search"],
        ),
        (
            lists(json!({"tools_on": ["vec_index", "vec_*"]})),
            vec!["vec_*"],
        ),
        (
            lists(json!({"tools_on": ["vec_index", "note://1"]})),
            vec!["note://1", "it is a resource"],
        ),
        (
            lists(json!({"tools_on": ["vec_index"], "tools_off": ["vec_index"]})),
            vec!["both on and off"],
        ),
        (lists(json!({"tools_on": names})), vec!["no_0", "9990 more"]),
    ] {
        let answer = call(&session, "toolman_activate", arguments).await;
        assert_eq!(answer["isError"], true, "{answer}");
        let said = said(&answer);
        assert_eq!(
            (&said["success"], &said["result"]),
            (&json!(false), &json!(null))
        );
        let error = said["error"].as_str().unwrap();
        assert!(
            words.iter().all(|it| error.contains(it)),
            "{words:?}: {error}"
        );
        assert!(error.len() < 3000, "{}", error.len());
    }
    let params = json!({"name": "toolman_activate", "arguments": ["vec_index"]});
    let answer = session.request(9, "tools/call", params).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(tools_of(&session).await, before);
}

/// AGG-14: an error that names a call of `toolman_activate` shows it whole, and the call that it shows succeeds.
#[tokio::test]
async fn the_call_that_a_hint_shows_succeeds_as_it_stands() {
    let house = House::of("toolman_call = true").await;
    let bare = json!({"tools_on": ["vec_index"]});
    let text = lists(json!({"tools_on": "vec_index"}));
    let misspelt = lists(json!({"tools_on": ["vec_serch", "vec_indx"]}));
    let misplaced =
        lists(json!({"tools_on": ["note://1"], "resources_off": ["pjpd_projects://list"]}));
    let by_call = json!({"tool": "vec_index", "arguments": {}});
    let read = json!({"uri": "note://1"});
    let complete = json!({
        "ref": {"type": "ref/resource", "uri": "note://1"}, "argument": {"name": "a", "value": ""},
    });
    let tool = |name: &str, arguments: &Value| {
        ("tools/call", json!({"name": name, "arguments": arguments}))
    };
    for ((method, params), changed) in [
        (("tools/list", json!({})), "vec_index"),
        (tool("vec_index", &json!({})), "vec_index"),
        (tool("toolman_call", &by_call), "vec_index"),
        (tool("toolman_activate", &lists(json!({}))), "vec_index"),
        (tool("toolman_activate", &json!({})), "vec_index"),
        (tool("toolman_activate", &bare), "vec_index"),
        (tool("toolman_activate", &text), "vec_index"),
        (tool("toolman_activate", &misspelt), "vec_index, vec_search"),
        (tool("toolman_activate", &misplaced), "note://1"),
        (("resources/read", read), "note://1"),
        (("completion/complete", complete), "note://1"),
    ] {
        let session = house.session().await;
        let hint = answer(&session, method, params.clone()).await;
        let (_, shown) = texts(&hint)
            .iter()
            .find_map(|text| text.split_once("call toolman_activate with "))
            .map(|(before, shown)| (before.to_owned(), shown.to_owned()))
            .unwrap_or_else(|| panic!("{method} {params} shows no call: {hint}"));
        let mut calls = serde_json::Deserializer::from_str(&shown).into_iter::<Value>();
        let arguments = calls.next().expect("a call").expect("JSON");
        let done = call(&session, "toolman_activate", arguments.clone()).await;
        assert_eq!(done["isError"], false, "{arguments}: {done}");
        let result = said(&done)["result"].to_string();
        assert!(result.contains(changed), "{method} {params}: {result}");
    }
}

/// Errors about the arguments of `toolman_call` and `toolman_search` show a call that succeeds.
#[tokio::test]
async fn an_error_about_the_arguments_of_an_own_tool_shows_a_call_of_it_that_succeeds() {
    let house = House::of("toolman_call = true\ntoolman_search = true").await;
    let session = house.session().await;
    for (tool, arguments) in [
        ("toolman_call", json!({})),
        ("toolman_call", json!({"name": "vec_search"})),
        ("toolman_call", json!({"tool": 7})),
        (
            "toolman_call",
            json!({"tool": "vec_search", "arguments": []}),
        ),
        (
            "toolman_call",
            json!({"tool": "vec_serch", "arguments": {}}),
        ),
        ("toolman_call", json!({"tool": "nothing like it"})),
        ("toolman_search", json!({})),
        ("toolman_search", json!({"query": ["index"]})),
    ] {
        let refused = call(&session, tool, arguments.clone()).await;
        assert_eq!(refused["isError"], true, "{tool} {arguments}: {refused}");
        let error = said(&refused)["error"].as_str().unwrap().to_owned();
        let (_, shown) = error
            .split_once(&format!("call {tool} with "))
            .unwrap_or_else(|| panic!("{tool} {arguments} shows no call: {error}"));
        let mut calls = serde_json::Deserializer::from_str(shown).into_iter::<Value>();
        let shown = calls.next().expect("a call").expect("JSON");
        let done = call(&session, tool, shown).await;
        assert_ne!(done["isError"], true, "{done}");
    }
    let misspelt = json!({"tool": "vec_indx", "arguments": {}});
    let error = said(&call(&session, "toolman_call", misspelt).await);
    assert!(
        error["error"]
            .as_str()
            .unwrap()
            .contains("call toolman_activate with"),
        "{error}"
    );
}

/// All texts of an answer; those that are JSON with their own texts.
fn texts(answer: &Value) -> Vec<String> {
    match answer {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ Value::Object(_)) => texts(&inner),
            _ => vec![text.clone()],
        },
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        Value::Object(members) => members.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// AGG-24 to AGG-31, AGG-33, AGG-38: requests reach their server under its own names, and answers come back as they are.
#[tokio::test]
async fn requests_reach_their_server_and_answers_come_back_as_they_are() {
    let house = House::of("").await;
    let session = house.session().await;

    let mixed = call(&session, "pjpd_mixed", json!({})).await;
    assert_eq!(mixed["content"][0], json!({"type": "text", "text": "1.50"}));
    assert_eq!(mixed["content"][1]["mimeType"], "image/png");
    // References to entries of the server are published, others are not.
    assert_eq!(mixed["content"][2]["uri"], "pjpd_projects://list");
    assert_eq!(mixed["content"][3]["uri"], "https://example.com/");
    assert_eq!(mixed["content"][4]["resource"]["uri"], "pjpd_item://7");
    assert_eq!(
        mixed["structuredContent"],
        json!({"n": 1.5, "uri": "projects://list"})
    );
    assert_eq!(
        (&mixed["isError"], &mixed["_meta"]),
        (&json!(false), &json!({"own": true}))
    );
    let called = house.journal();
    assert!(
        called
            .iter()
            .any(|it| it["method"] == "tools/call" && it["name"] == "mixed"),
        "{called:?}"
    );

    // The first of two equal names.
    let first = call(&session, "pjpd_list_projects", json!({})).await;
    assert_eq!(first["content"][0]["text"], "pjpd ran list_projects");

    let read = result(
        &session,
        "resources/read",
        json!({"uri": "pjpd_projects://list"}),
    )
    .await;
    assert_eq!(
        read["contents"][0],
        json!({"uri": "pjpd_projects://list", "text": "read projects://list"})
    );
    let read = result(&session, "resources/read", json!({"uri": "pjpd_item://42"})).await;
    assert_eq!(read["contents"][0]["text"], "read item://42");
    let prompt = result(&session, "prompts/get", json!({"name": "pjpd_summarize"})).await;
    assert_eq!(prompt["messages"][0]["content"]["text"], "summarize");
    let completed = json!({"ref": {"type": "ref/prompt", "name": "pjpd_summarize"}, "argument": {"name": "topic", "value": "a"}});
    let completed = result(&session, "completion/complete", completed).await;
    assert!(
        completed["completion"]["values"][0]
            .as_str()
            .unwrap()
            .contains("\"summarize\""),
        "{completed}"
    );

    // A server's own error is relayed unwrapped.
    let refused = session
        .request(
            8,
            "tools/call",
            json!({"name": "pjpd_refuse", "arguments": {}}),
        )
        .await;
    assert_eq!(
        refused["error"],
        json!({"code": -32099, "message": "upstream says no", "data": {"k": 1}})
    );

    // Inactive and unknown ones say what to do.
    let inactive = said(&call(&session, "vec_index", json!({})).await);
    let error = inactive["error"].as_str().unwrap();
    assert!(
        error.contains("toolman_activate") && error.contains("tools_on"),
        "{error}"
    );
    let unknown = said(&call(&session, "pjpd_list_project", json!({})).await);
    assert!(
        unknown["error"]
            .as_str()
            .unwrap()
            .contains("pjpd_list_projects"),
        "{unknown}"
    );
    let inactive = session
        .request(8, "resources/read", json!({"uri": "note://1"}))
        .await;
    let error = &inactive["error"];
    assert!(
        error["message"].as_str().unwrap().contains("resources_on"),
        "{inactive}"
    );
    assert_eq!(error["data"]["success"], false);
    let unknown = session
        .request(8, "prompts/get", json!({"name": "pjpd_sumarize"}))
        .await;
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("pjpd_summarize"),
        "{unknown}"
    );

    // There are no resource subscriptions.
    let subscribed = session
        .request(
            8,
            "resources/subscribe",
            json!({"uri": "pjpd_projects://list"}),
        )
        .await;
    assert_eq!(subscribed["error"]["code"], -32601, "{subscribed}");
    let level = result(&session, "logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(level, json!({}));
    assert_eq!(house.asked("vec", "logging/setLevel"), 1);
    assert_eq!(house.asked("pjpd", "resources/subscribe"), 0);
}

/// `toolman_search`, `toolman_call` and patterns are there where the file says so.
#[tokio::test]
async fn switches_add_a_search_a_stable_call_and_patterns() {
    let switches = "toolman_search = true\ntoolman_call = true\nactivation_patterns = true\nactivation_schemas = false\ntoken_estimates = false";
    let house = House::of(switches).await;
    let session = house.session().await;
    let listed = result(&session, "tools/list", json!({})).await;
    assert_eq!(
        names(&listed["tools"], "name")[..3],
        ["toolman_activate", "toolman_search", "toolman_call"]
    );
    assert!(
        !catalogue(&listed["tools"])
            .iter()
            .any(|it| it.contains("tokens]"))
    );

    let found = said(
        &call(
            &session,
            "toolman_search",
            json!({"query": "add to an index"}),
        )
        .await,
    );
    assert_eq!(found["result"][0]["name"], "vec_index", "{found}");
    assert_eq!(found["result"][0]["active"], false);

    let not_yet = said(&call(&session, "toolman_call", json!({"tool": "vec_index"})).await);
    assert!(
        not_yet["error"].as_str().unwrap().contains("tools_on"),
        "{not_yet}"
    );
    let answer = activate(
        &session,
        json!({"tools_on": ["vec_*"], "tools_off": ["pjpd_*"]}),
    )
    .await;
    assert_eq!(answer["content"].as_array().unwrap().len(), 1, "{answer}");
    let listed = tools_of(&session).await;
    assert!(
        listed.contains(&"vec_index".to_owned())
            && !listed.iter().any(|it| it.starts_with("pjpd_"))
    );
    let called = call(
        &session,
        "toolman_call",
        json!({"tool": "vec_index", "arguments": {"x": 1}}),
    )
    .await;
    assert_eq!(called["content"][0]["text"], "vec ran index");
    let metrics = house.gateway.metrics_text().await;
    assert!(
        metrics.contains(r#"tooldock_toolman_calls_total{namespace="toolman"} 1"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(
            r#"tooldock_toolman_activations_total{form="session",namespace="toolman"} 1"#
        ),
        "{metrics}"
    );
    assert!(metrics.contains("tooldock_toolman_toolsets 1"), "{metrics}");
}

#[tokio::test]
async fn the_tools_that_a_session_turned_on_are_on_after_a_restart_of_the_gateway() {
    let durable = json!({"sessions": {"store": "disk"}});
    let mut house = House::with(SERVERS, durable).await;
    let session = house.session().await;
    let is_on = async || {
        let tools = tools_of(&session).await;
        tools.contains(&"vec_index".to_owned())
    };
    assert!(!is_on().await);
    activate(&session, json!({"tools_on": ["vec_index"]})).await;
    assert!(is_on().await);
    house.gateway.killed_and_started_again().await;
    eventually("the tool is listed", || async {
        is_on().await.then_some(())
    })
    .await;
}
