//! The operator's pages at the web API: keys, the log, export of the audit log, and search.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{ADD, SUBTRACT, Web, answer, code, sent, with_web};
use crate::support::sse::Answering;
use crate::support::{DEADLINE, Gateway, eventually};

/// Makes a key by the API, and returns it with its row.
async fn made(web: &Web, wanted: Value) -> (String, Value) {
    let (status, made) = web.send("POST", "/api/keys", wanted).await;
    assert_eq!(status, 201, "{made}");
    let key = made["key"].as_str().expect("the key").to_owned();
    (key, made)
}

/// Every path of these pages, with a method.
const PATHS: [(&str, &str); 9] = [
    ("GET", "/api/keys"),
    ("POST", "/api/keys"),
    ("GET", "/api/keys/000000000000"),
    ("DELETE", "/api/keys/000000000000"),
    ("GET", "/api/keys/000000000000/namespaces/shared"),
    ("GET", "/api/log"),
    ("GET", "/api/log/events"),
    ("GET", "/api/activity/export"),
    ("GET", "/api/search?q=a"),
];

#[tokio::test]
async fn the_operators_paths_are_for_credentials_that_open_them() {
    let (builder, address) = with_web(Gateway::with_tools([("shared", "math.py", ADD)]));
    let gateway = builder.start().await;
    let web = Web::at(address);
    let key = async |name: &str, scope: &str, namespace: &str| {
        let wanted = json!({"name": name, "scopes": [scope], "namespaces": [namespace]});
        made(&web, wanted).await.0
    };
    let caller = key("caller", "admin", "shared").await;
    let reader = key("reader", "read", "_system").await;
    let admin = key("admin", "admin", "_system").await;
    for (method, path) in PATHS {
        let row = format!("{method} {path}");
        assert_eq!(sent(web.bare(method, path)).await.status(), 401, "{row}");
        let by = |key: &str| web.bare(method, path).bearer_auth(key);
        let refused = answer(by(&caller)).await;
        assert_eq!(code(&refused), (403, "namespace_forbidden"), "{row}");
        let open = path.starts_with("/api/search");
        let status = sent(by(&reader)).await.status();
        assert_eq!(status == 403, !open, "{row}: {status}");
        let status = sent(by(&admin)).await.status();
        assert!(![401, 403].contains(&status.as_u16()), "{row}: {status}");
    }
    // A browser adds a password by itself: a change needs the page's own header.
    let foreign = |method: &str, path: &str| -> RequestBuilder {
        let request = web
            .bare(method, path)
            .header("Sec-Fetch-Site", "same-origin");
        request.basic_auth("admin", Some(crate::support::TOKEN))
    };
    for (method, path) in [("POST", "/api/keys"), ("DELETE", "/api/keys/000000000000")] {
        let refused = answer(foreign(method, path).json(&json!({}))).await;
        assert_eq!(code(&refused), (403, "csrf"), "{method} {path}");
    }
    assert!(!gateway.log().contains(&caller));
}

#[tokio::test]
async fn a_key_is_made_shown_once_used_explained_and_revoked() {
    let tools = [("shared", "math.py", ADD), ("other", "math.py", SUBTRACT)];
    let (builder, address) = with_web(Gateway::with_tools(tools));
    let scopes = json!({"sums": ["add*"]});
    let builder = builder.config(json!({"relay": {"scopes": scopes}}));
    let gateway = builder.start().await;
    let web = Web::at(address);
    let wanted = json!({"name": "ci", "scopes": ["sums"], "namespaces": ["shared"], "networks": ["127.0.0.0/8"],
        "expires": "90d", "limits": ["10/20"]});
    let (key, row) = made(&web, wanted).await;
    assert_eq!(
        (
            &row["principal"],
            &row["state"],
            &row["scopes"],
            &row["limits"]
        ),
        (
            &json!("key:ci"),
            &json!("active"),
            &json!(["sums"]),
            &json!(["10/20"])
        )
    );
    assert!(row["expires"].is_string(), "{row}");
    let id = row["id"].as_str().expect("an id");

    // The list and the key's own page have everything but the key.
    let listed = web.get("/api/keys?q=CI&state=active").await.1;
    assert_eq!(
        (&listed["total"], &listed["keys"][0]["id"]),
        (&json!(1), &json!(id))
    );
    let known: Vec<_> = listed["scopes"]
        .as_array()
        .expect("scopes")
        .iter()
        .collect();
    assert!(
        known.contains(&&json!({"name": "sums", "tools": ["add*"]})),
        "{listed}"
    );
    assert_eq!(web.get("/api/keys?state=revoked").await.1["total"], 0);
    let shown = web.get(&format!("/api/keys/{id}")).await.1;
    let opens = json!([{"namespace": "shared", "open": 1, "tools": 1}]);
    assert_eq!(
        (&shown["opens"], &shown["notes"]),
        (&opens, &json!([])),
        "{shown}"
    );
    let path = format!("/api/keys/{id}/namespaces");
    let rules = web.get(&format!("{path}/shared")).await.1;
    assert_eq!(
        (&rules["allowed"], &rules["tools"][0]["name"]),
        (&json!(true), &json!("add"))
    );
    assert_eq!(web.get(&format!("{path}/other")).await.1["allowed"], false);
    let texts = [listed, shown, rules].map(|it| it.to_string());
    assert!(texts.iter().all(|text| !text.contains(&key)), "{texts:?}");

    let call = async |namespace: &str, tool: &str| {
        let url = gateway.url(&format!("/tools/{tool}"));
        let request = web.client.post(url).bearer_auth(&key);
        let request = request.header("X-Namespace", namespace);
        sent(request.json(&json!({"a": 1, "b": 2})))
            .await
            .status()
            .as_u16()
    };
    assert_eq!(call("shared", "add").await, 200);
    assert_eq!(call("other", "subtract").await, 403);
    let revoked = web.delete(&format!("/api/keys/{id}")).await;
    assert_eq!((revoked.0, &revoked.1["state"]), (200, &json!("revoked")));
    assert_eq!(call("shared", "add").await, 401);
    let notes = web.get(&format!("/api/keys/{id}")).await.1["notes"].clone();
    assert!(notes.to_string().contains("opens nothing"), "{notes}");
    // Both changes are in the audit log, and the key is in neither log.
    eventually("the changes are in the audit log", async || {
        let known = web.get("/api/activity?tool=token_").await.1;
        let known = known["records"].as_array().expect("records").clone();
        let tools: Vec<_> = known.iter().map(|it| it["tool"].clone()).collect();
        assert!(!json!(known).to_string().contains(&key));
        let both = ["token_create", "token_revoke"].map(Value::from);
        both.iter().all(|tool| tools.contains(tool)).then_some(())
    })
    .await;
    assert!(!gateway.log().contains(&key));
}

#[tokio::test]
async fn wrong_keys_are_refused_with_the_field_and_nothing_is_made() {
    let (builder, address) = with_web(Gateway::empty());
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let good = || json!({"name": "ci", "scopes": ["read"]});
    let with = |key: &str, value: Value| {
        let mut wanted = good();
        wanted[key] = value;
        wanted
    };
    for (wanted, named) in [
        (json!({"scopes": ["read"]}), "name"),
        (with("name", json!("a b")), "name"),
        (with("scopes", json!(["nothing"])), "nothing"),
        (with("scopes", json!([])), "scopes"),
        (with("namespaces", json!(["["])), "namespaces"),
        (with("networks", json!(["10.0.0.0/99"])), "networks"),
        (with("expires", json!("soon")), "expires"),
        (with("limits", json!(["fast"])), "limits"),
        (with("secret", json!("x")), "secret"),
    ] {
        let refused = web.send("POST", "/api/keys", wanted.clone()).await;
        assert_eq!(code(&refused), (400, "invalid_request"), "{wanted}");
        assert!(
            refused.1.to_string().contains(named),
            "{wanted}: {}",
            refused.1
        );
    }
    assert_eq!(web.get("/api/keys").await.1["total"], 0);
    for (path, wanted) in [
        ("/api/keys?state=odd", (400, "invalid_request")),
        ("/api/keys/tdk_not-an-id", (400, "invalid_request")),
        ("/api/keys/000000000000", (404, "key_not_found")),
        (
            "/api/keys/000000000000/namespaces/a",
            (404, "key_not_found"),
        ),
    ] {
        let refused = web.get(path).await;
        assert_eq!(code(&refused), wanted, "{path}");
        assert!(!refused.1.to_string().contains("not-an-id"), "{path}");
    }
    assert_eq!(
        code(&web.delete("/api/keys/000000000000").await),
        (404, "key_not_found")
    );
    // A key is not sent over a connection that others may read.
    let forwarded = web.request("POST", "/api/keys").json(&good());
    let forwarded = forwarded.header("X-Forwarded-For", "192.0.2.7");
    let (status, _) = answer(forwarded).await;
    assert!([201, 403].contains(&status));
}

#[tokio::test]
async fn the_gateways_log_is_shown_by_level_and_followed() {
    let (builder, address) = with_web(Gateway::with_tools([("shared", "math.py", ADD)]));
    let gateway = builder.start().await;
    let web = Web::at(address);
    let kept = web.get("/api/log?limit=500").await.1;
    let lines = kept["lines"].as_array().expect("lines");
    assert!(!lines.is_empty());
    let levels = ["error", "warn", "info", "debug", "trace"].map(Value::from);
    assert!(
        lines.iter().all(|line| levels.contains(&line["level"])),
        "{kept}"
    );
    let warnings = web.get("/api/log?level=warn").await.1;
    let warnings = warnings["lines"].as_array().expect("lines");
    assert!(warnings.len() < lines.len());
    assert_eq!(web.get("/api/log?q=no-line-says-this").await.1["total"], 0);
    for path in [
        "/api/log?level=odd",
        "/api/log?limit=0",
        "/api/log/events?after=x",
    ] {
        assert_eq!(
            code(&web.get(path).await),
            (400, "invalid_request"),
            "{path}"
        );
    }
    let newest = &kept["newest"];
    let path = format!("/api/log/events?after={newest}&q=configuration");
    let mut stream = web.events(&path).await;
    gateway.signal(rustix::process::Signal::HUP);
    let event = stream.event().await.expect("a line");
    assert_eq!(event.name.as_deref(), Some("line"));
    let line = event.json();
    assert!(
        line["text"]
            .as_str()
            .expect("text")
            .contains("configuration read again"),
        "{line}"
    );
    assert!(line["number"].as_u64() > newest.as_u64(), "{line}");
}

#[tokio::test]
async fn the_audit_log_is_exported_as_json_lines_and_csv() {
    let (builder, address) = with_web(Gateway::with_tools([("shared", "math.py", ADD)]));
    let gateway = builder.start().await;
    let web = Web::at(address);
    for _ in 0..3 {
        assert_eq!(
            gateway
                .call("shared", "add", json!({"a": 1, "b": 2}))
                .await
                .0,
            200
        );
    }
    eventually("the calls are recorded", async || {
        let known = web.get("/api/activity?namespace=shared").await.1;
        (known["records"].as_array()?.len() == 3).then_some(())
    })
    .await;
    let file = async |query: &str| {
        let answer = sent(web.request("GET", &format!("/api/activity/export?{query}"))).await;
        assert_eq!(answer.status(), 200, "{query}");
        let text = |name: &str| {
            let value = answer.headers().get(name);
            value.map(|it| it.to_str().expect("text").to_owned())
        };
        let head = (
            text("content-type"),
            text("content-disposition"),
            text("x-next-cursor"),
        );
        (head, answer.text().await.expect("text"))
    };
    let (head, lines) = file("namespace=shared&tool=add").await;
    let lines: Vec<Value> = lines
        .lines()
        .map(|it| serde_json::from_str(it).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines
            .iter()
            .all(|it| it["tool"] == "add" && it["id"].is_string())
    );
    assert_eq!(head.0.as_deref(), Some("application/jsonl"));
    assert_eq!(
        head.1.as_deref(),
        Some("attachment; filename=\"audit.jsonl\"")
    );
    assert_eq!(head.2, None);

    let (head, table) = file("namespace=shared&format=csv&limit=2").await;
    let rows: Vec<_> = table.split_terminator("\r\n").collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert!(rows[0].starts_with("ts,namespace,via,tool,"), "{table}");
    assert!(
        rows[1].contains(",shared,") && rows[1].contains(",add,"),
        "{table}"
    );
    assert_eq!(head.0.as_deref(), Some("text/csv; charset=utf-8"));
    let next = head.2.expect("one record is left");
    let (head, rest) = file(&format!("namespace=shared&format=csv&cursor={next}")).await;
    assert_eq!(
        (rest.split_terminator("\r\n").count(), head.2),
        (2, None),
        "{rest}"
    );
    for query in [
        "format=xml",
        "limit=0",
        "limit=100001",
        "from=now",
        "cursor=x",
    ] {
        let refused = web.get(&format!("/api/activity/export?{query}")).await;
        assert_eq!(code(&refused), (400, "invalid_request"), "{query}");
    }
}

#[tokio::test]
async fn a_search_finds_what_the_credential_opens_and_nothing_else() {
    let tools = [("shared", "math.py", ADD), ("hidden", "math.py", SUBTRACT)];
    let (builder, address) = with_web(Gateway::with_tools(tools));
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let secret = json!({"key": "ADD_TOKEN", "scope": "global", "value": super::CANARY});
    assert_eq!(web.send("PUT", "/api/secrets", secret).await.0, 200);
    made(&web, json!({"name": "adder", "scopes": ["read"]})).await;
    let wanted =
        json!({"name": "partial", "scopes": ["read"], "namespaces": ["_system", "shared"]});
    let (partial, _) = made(&web, wanted).await;
    let kinds = |found: &Value| {
        let results = found["results"].as_array().expect("results").iter();
        let kinds: Vec<_> = results
            .map(|it| {
                let name = match it["kind"] == "key" {
                    true => &it["about"],
                    false => &it["name"],
                };
                format!(
                    "{} {}",
                    it["kind"].as_str().expect("a kind"),
                    name.as_str().expect("a name")
                )
            })
            .collect();
        kinds
    };
    let found = web.get("/api/search?q=add").await.1;
    assert_eq!(
        kinds(&found),
        ["tool add", "secret ADD_TOKEN", "key key:adder"],
        "{found}"
    );
    assert_eq!(found["results"][0]["of"], "shared");
    assert_eq!(
        kinds(&web.get("/api/search?q=hidden").await.1),
        ["namespace hidden", "folder hidden"]
    );
    let by = async |path: &str| answer(web.bare("GET", path).bearer_auth(&partial)).await.1;
    assert_eq!(kinds(&by("/api/search?q=subtract").await), [""; 0]);
    assert_eq!(kinds(&by("/api/search?q=adder").await), [""; 0]);
    assert_eq!(
        web.get("/api/search?q=a&limit=1").await.1["results"]
            .as_array()
            .expect("one")
            .len(),
        1
    );
    for path in ["/api/search", "/api/search?q=", "/api/search?q=a&limit=0"] {
        assert_eq!(
            code(&web.get(path).await),
            (400, "invalid_request"),
            "{path}"
        );
    }
    let long = format!("/api/search?q={}", "a".repeat(300));
    assert_eq!(code(&web.get(&long).await), (400, "invalid_request"));
}

/// Header with the page's half of a login.
const HALF: &str = "X-ToolDock-Login";

/// Opens a login. Returns its cookie with the attributes, and the half that the page keeps.
async fn login(request: RequestBuilder) -> (String, String) {
    let opened = sent(request).await;
    assert_eq!(opened.status(), 200);
    let cookie = opened.headers()["set-cookie"].to_str().expect("text");
    let cookie = cookie.to_owned();
    let body: Value = opened.json().await.expect("JSON");
    assert_eq!(body["seconds"], 43_200);
    let half = body["login"].as_str().expect("a half");
    (cookie, half.to_owned())
}

#[tokio::test]
async fn a_login_has_two_halves_and_ends_and_other_pages_cannot_use_it() {
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder.start().await;
    let web = Web::at(address);
    // The login's page and its files are open; what the page shows is not.
    for path in ["/login", "/assets/app.js"] {
        assert_eq!(sent(web.bare("GET", path)).await.status(), 200, "{path}");
    }
    let wrong = web.bare("POST", "/api/login").bearer_auth("wrong");
    assert_eq!(sent(wrong).await.status(), 401);
    assert_eq!(sent(web.bare("POST", "/api/login")).await.status(), 401);
    let (cookie, half) = login(web.request("POST", "/api/login")).await;
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(crate::support::TOKEN), "{cookie}");
    assert!(!cookie.contains("Secure") && !cookie.contains(&half));
    // A proxy that ends TLS is seen by the origin of the page.
    let proxied = web.request("POST", "/api/login");
    let proxied = proxied.header("Origin", format!("https://{}", web.address));
    assert!(login(proxied).await.0.contains("; Secure"));
    let (pair, _) = cookie.split_once(';').expect("attributes");
    let by_cookie = |method: &str, path: &str| {
        let request = web.bare(method, path).header("Cookie", pair);
        request.header("Sec-Fetch-Site", "same-origin")
    };
    let by = |method: &str, path: &str| by_cookie(method, path).header(HALF, &half);
    // Servers at other ports of the host get the cookie. It opens the page alone, which has no secrets, and ends nothing.
    assert_eq!(sent(by_cookie("GET", "/")).await.status(), 200);
    for (method, path) in [
        ("GET", "/api/me"),
        ("POST", "/mcp"),
        ("DELETE", "/api/login"),
    ] {
        let alone = by_cookie(method, path).header("X-ToolDock-Request", "1");
        assert_eq!(sent(alone).await.status(), 401, "{method} {path}");
    }
    let alone = web.bare("GET", "/api/me").header(HALF, &half);
    assert_eq!(sent(alone).await.status(), 401);
    let me = answer(by("GET", "/api/me")).await;
    assert_eq!((me.0, &me.1["principal"]), (200, &json!("bearer")));
    assert_eq!(sent(by("GET", "/")).await.status(), 200);
    // A change needs the page's own header, which no other page can send.
    let make = |name: &str| by("POST", "/api/folders").json(&json!({ "name": name }));
    assert_eq!(code(&answer(make("forged")).await), (403, "csrf"));
    let proven = |request: RequestBuilder| request.header("X-ToolDock-Request", "1");
    assert_eq!(answer(proven(make("own"))).await.0, 201);
    // Other credentials count alone, and no other listener knows the cookie.
    assert_eq!(
        sent(by("GET", "/api/me").bearer_auth("wrong"))
            .await
            .status(),
        401
    );
    let core = web
        .client
        .get(gateway.url("/namespaces"))
        .header("Cookie", pair)
        .header(HALF, &half);
    assert_eq!(sent(core).await.status(), 401);

    assert_eq!(
        code(&answer(by("DELETE", "/api/login")).await),
        (403, "csrf")
    );
    let closed = sent(proven(by("DELETE", "/api/login"))).await;
    assert_eq!(closed.status(), 200);
    assert!(
        closed.headers()["set-cookie"]
            .to_str()
            .expect("text")
            .contains("Max-Age=0")
    );
    assert_eq!(sent(by("GET", "/api/me")).await.status(), 401);
    let (_, id) = pair.split_once('=').expect("a value");
    let log = gateway.log();
    assert!(!log.contains(id) && !log.contains(&half));
}

#[tokio::test]
async fn the_streams_of_a_login_end_with_it_and_those_of_others_go_on() {
    let (builder, address) = with_web(Gateway::empty());
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let (cookie, half) = login(web.request("POST", "/api/login")).await;
    let (pair, _) = cookie.split_once(';').expect("attributes");
    let request = format!(
        "GET /api/events HTTP/1.1\r\nHost: localhost\r\nCookie: {pair}\r\n{HALF}: {half}\r\nAccept: text/event-stream\r\n\r\n"
    );
    let mut own = Answering::open(address, &request).await;
    let mut others = web.events("/api/events").await;
    assert_eq!((own.status, others.status), (200, 200));
    let logout = web.bare("DELETE", "/api/login").header("Cookie", pair);
    assert_eq!(sent(logout.header(HALF, &half)).await.status(), 200);
    let ended = tokio::time::timeout(DEADLINE, own.end()).await;
    assert!(ended.is_ok(), "the stream goes on");
    let folder = json!({"name": "later"});
    assert_eq!(web.send("POST", "/api/folders", folder).await.0, 201);
    loop {
        let event = others.event().await.expect("the other stream goes on");
        if event.data.contains("\"later\"") {
            break;
        }
    }
}

#[tokio::test]
async fn a_login_ends_with_the_key_that_opened_it() {
    let (builder, address) = with_web(Gateway::empty());
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let wanted = json!({"name": "operator", "scopes": ["admin"], "namespaces": ["_system"]});
    let (key, row) = made(&web, wanted).await;
    let (cookie, half) = login(web.bare("POST", "/api/login").bearer_auth(&key)).await;
    let by = || {
        let request = web.bare("GET", "/api/me").header("Cookie", &cookie);
        request.header(HALF, &half)
    };
    assert_eq!(answer(by()).await.1["principal"], "key:operator");
    let id = row["id"].as_str().expect("an id");
    assert_eq!(web.delete(&format!("/api/keys/{id}")).await.0, 200);
    assert_eq!(sent(by()).await.status(), 401);
}

#[tokio::test]
async fn the_configuration_is_shown_with_its_sources_and_what_a_reload_would_change() {
    let (builder, address) = with_web(Gateway::empty());
    let builder = builder
        .config(json!({"namespaces": {"defaults": {"timeout": "77s"}},
            "upstreams": {"stdio": {"db": {"command": "false", "enabled": false, "env": {"API_KEY": super::CANARY}}}}}))
        .env("LOG_LEVEL", "debug");
    let gateway = builder.start().await;
    let web = Web::at(address);
    let shown = web.get("/api/configuration?set=true&limit=500").await.1;
    let of = |key: &str| {
        let mut values = shown["values"].as_array().expect("values").iter();
        values
            .find(|it| it["key"] == key)
            .cloned()
            .unwrap_or_default()
    };
    let timeout = of("namespaces.defaults.timeout");
    assert!(
        timeout["source"]
            .as_str()
            .is_some_and(|it| it.ends_with("tooldock.test.yaml")),
        "{timeout}"
    );
    assert_eq!(of("observability.log.level")["source"], "LOG_LEVEL");
    assert_eq!(of("admission.limits.body"), Value::Null);
    let whole = web
        .get("/api/configuration?q=admission.limits.body")
        .await
        .1;
    assert_eq!(whole["values"][0]["source"], "default", "{whole}");
    assert_eq!(web.get("/api/configuration/changes").await.1["total"], 0);
    gateway.reconfigure(
        json!({"namespaces": {"defaults": {"timeout": "78s"}}, "work_stealing": true}),
    );
    let changes = web.get("/api/configuration/changes").await.1;
    let told: Vec<_> = changes["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(|it| (&it["key"], &it["waits_for_start"]))
        .collect();
    let expected = [
        (&json!("namespaces.defaults.timeout"), &json!(false)),
        (&json!("work_stealing"), &json!(true)),
    ];
    assert_eq!(told, expected, "{changes}");
    gateway.reconfigure(json!({"work_stealing": "perhaps"}));
    let refused = web.get("/api/configuration/changes").await.1;
    assert!(
        refused["refused"]
            .as_str()
            .is_some_and(|it| it.contains("work_stealing")),
        "{refused}"
    );
    assert_eq!(
        code(&web.get("/api/configuration?set=maybe").await),
        (400, "invalid_request")
    );
    let (key, _) = made(
        &web,
        json!({"name": "reader", "scopes": ["read"], "namespaces": ["_system"]}),
    )
    .await;
    for path in ["/api/configuration", "/api/configuration/changes"] {
        assert_eq!(sent(web.bare("GET", path)).await.status(), 401);
        let refused = answer(web.bare("GET", path).bearer_auth(&key)).await;
        assert_eq!(code(&refused), (403, "insufficient_scope"), "{path}");
    }
}
