//! Owners of a server's tasks, as its clients see them.

use super::*;

/// A client with a session of its own.
struct Person<'a> {
    house: &'a House,
    name: &'static str,
    session: String,
}

fn caller_of(name: &str) -> Caller {
    Caller {
        principal: Some(name.into()),
        ..caller()
    }
}

impl<'a> Person<'a> {
    async fn new(house: &'a House, name: &'static str) -> Self {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "c", "version": "1" } } });
        let reply = house
            .post_as(caller_of(name), head(None, None), &body)
            .await;
        let headers = &reply.head().headers;
        let id = headers.iter().find(|(name, _)| name == "mcp-session-id");
        let session = id.expect("a session").1.to_str().expect("ASCII").to_owned();
        delivered(reply);
        let person = Self {
            house,
            name,
            session,
        };
        person
            .tells(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
        person
    }

    async fn tells(&self, message: &Value) {
        let head = head(Some(&self.session), None);
        let reply = self.house.post_as(caller_of(self.name), head, message);
        assert_eq!(reply.await.head().status, StatusCode::ACCEPTED);
    }

    async fn asks(&self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params });
        let head = head(Some(&self.session), None);
        body(
            &self
                .house
                .post_as(caller_of(self.name), head, &message)
                .await,
        )
    }

    /// Sends a request without a session.
    async fn asks_modern(&self, method: &str, params: Value) -> Value {
        let message = modern(method, params);
        let head = modern_head(&message);
        body(
            &self
                .house
                .post_as(caller_of(self.name), head, &message)
                .await,
        )
    }

    async fn begins(&self, id: &str) {
        let params = json!({ "name": "begin", "arguments": { "id": id }, "task": {} });
        let answer = self.asks("tools/call", params).await;
        assert!(answer["result"].to_string().contains(id), "{answer}");
    }

    async fn listens(&self) -> Wire {
        let service = &self.house.harness.service;
        let stream = service.get(caller_of(self.name), head(Some(&self.session), None));
        Wire::of(stream.await)
    }
}

/// Number of requests to the server that name a task.
fn asked(house: &House) -> usize {
    let requests = house.seen.requests.lock().expect("not poisoned");
    let named = requests.iter().map(|it| &it.params);
    named
        .filter(|params| params.contains("t1") && !params.contains("begin"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_task_is_unknown_to_everybody_but_the_principal_that_began_it() {
    for isolation in [
        Isolation::Auto,
        Isolation::Shared,
        Isolation::Principal,
        Isolation::Session,
    ] {
        for speaks in ERAS {
            let mut fake = Fake::new(speaks);
            fake.isolation = isolation;
            let house = house_of(fake);
            let (ada, also_ada) = (
                Person::new(&house, "ada").await,
                Person::new(&house, "ada").await,
            );
            let bob = Person::new(&house, "bob").await;
            ada.begins("t1").await;
            for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
                let named = || json!({ "taskId": "t1" });
                let before = asked(&house);
                for answer in [
                    bob.asks(method, named()).await,
                    bob.asks_modern(method, named()).await,
                ] {
                    assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
                    // The response does not reveal if there is such a task.
                    let forged = bob.asks(method, json!({ "taskId": "forged" })).await;
                    assert_eq!(answer["error"], forged["error"]);
                }
                assert_eq!(asked(&house), before, "{isolation:?} {method}");
                let mut answers = vec![ada.asks(method, named()).await];
                // With a process for each session, each process has its own tasks.
                if isolation != Isolation::Session {
                    answers.push(also_ada.asks(method, named()).await);
                    answers.push(ada.asks_modern(method, named()).await);
                }
                for answer in answers {
                    let told = &answer["result"]["params"]["taskId"];
                    assert_eq!(told, "t1", "{isolation:?} {speaks:?} {method}: {answer}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_named_in_metadata_or_among_other_parameters_must_be_the_clients_own() {
    let house = house(EraSupport::Legacy);
    let (ada, bob) = (
        Person::new(&house, "ada").await,
        Person::new(&house, "bob").await,
    );
    ada.begins("t1").await;
    let related = json!({ "name": "echo", "_meta": {
        "io.modelcontextprotocol/related-task": { "taskId": "t1" } } });
    let beside = json!({ "taskId": "t1" });
    for (method, params) in [
        ("tools/call", &related),
        ("custom/echo", &related),
        ("custom/echo", &beside),
    ] {
        let before = asked(&house);
        let answer = bob.asks(method, params.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert_eq!(asked(&house), before);
        let answer = ada.asks(method, params.clone()).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    for named in [json!({ "taskId": "t1", "x": 1 }), related["_meta"].clone()] {
        let params = match named.get("taskId") {
            Some(_) => named,
            None => json!({ "_meta": named }),
        };
        for (person, told) in [(&bob, 0), (&ada, 1)] {
            let news = json!({ "jsonrpc": "2.0", "method": "x/news", "params": params });
            person.tells(&news).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut heard = house.seen.notifications.lock().expect("not poisoned");
            assert_eq!(std::mem::take(&mut *heard).len(), told, "{params}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_tasks_holds_its_readers_own_and_goes_on_where_it_ended() {
    for speaks in ERAS {
        let house = house(speaks);
        let (ada, bob) = (
            Person::new(&house, "ada").await,
            Person::new(&house, "bob").await,
        );
        ada.begins("t1").await;
        bob.begins("t2").await;
        let listed = ada.asks("tasks/list", json!({})).await["result"].clone();
        assert_eq!(listed["tasks"], json!([{ "taskId": "t1", "n": 1.50 }]));
        let cursor = listed["nextCursor"].clone();
        // The server's own cursor names another client's task.
        assert!(!cursor.to_string().contains("after-t2"), "{cursor}");
        let listed = bob.asks("tasks/list", json!({ "cursor": cursor })).await["result"].clone();
        assert_eq!(
            (&listed["tasks"], &listed["by"]),
            (&json!([{ "taskId": "t2" }]), &json!("after-t2"))
        );
        // A server that accepts only some cursors may reveal its tasks.
        for forged in [json!("after-t2"), json!(7)] {
            let answer = bob.asks("tasks/list", json!({ "cursor": forged })).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_hears_of_its_tasks_on_its_own_stream_and_no_other_session_does() {
    let house = house(EraSupport::Legacy);
    let (ada, bob) = (
        Person::new(&house, "ada").await,
        Person::new(&house, "bob").await,
    );
    let mut of_bob = bob.listens().await;
    ada.begins("t1").await;
    bob.begins("t2").await;
    let says = |method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        house.seen.shared().say(&message.to_string());
        message
    };
    let related = |id: &str, level: &str| {
        json!({ "level": level, "data": id, "_meta": {
        "io.modelcontextprotocol/related-task": { "taskId": id } } })
    };
    let status = says(
        "notifications/tasks/status",
        json!({ "taskId": "t1", "status": "working" }),
    );
    // Sessions get messages from `info` on by default.
    says("notifications/message", related("t1", "debug"));
    let log = says("notifications/message", related("t1", "error"));
    let last = says(
        "notifications/tasks/status",
        json!({ "taskId": "t2", "status": "failed" }),
    );
    assert_eq!(of_bob.message().await, Some(last));
    // The message waited for the stream.
    let mut of_ada = ada.listens().await;
    assert_eq!(of_ada.message().await, Some(status));
    assert_eq!(of_ada.message().await, Some(log));
}

#[tokio::test(start_paused = true)]
async fn a_client_tells_a_process_of_its_own_how_the_clients_tasks_are() {
    let house = house(EraSupport::Legacy);
    let status = json!({ "jsonrpc": "2.0", "method": "notifications/tasks/status",
        "params": { "taskId": "the client's", "status": "working" } });
    for (capabilities, told) in [(json!({ "sampling": {} }), 1), (json!({}), 0)] {
        let (session, _) = house.open(capabilities).await;
        house.post(head(Some(&session), None), &status).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut heard = house.seen.notifications.lock().expect("not poisoned");
        assert_eq!(std::mem::take(&mut *heard).len(), told);
    }
}
