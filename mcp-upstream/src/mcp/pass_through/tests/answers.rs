//! Passing on the answers of servers.

use super::*;

/// The reply to a call whose server gave this answer.
async fn answered(
    make: impl Fn() -> tooldock_servers::http::port::BackendResponse + Send + Sync + 'static,
) -> (House, Reply) {
    let house = house(1, |_| {});
    let session = house.open().await;
    house.pool.backends[0].act(move |request| {
        let call = memchr::memmem::find(&request.body, b"tools/call").is_some();
        call.then(|| Ok(make()))
    });
    let reply = house.reply(head(Some(&session), None), CALL).await;
    (house, reply)
}

fn text(text: &str) -> Result<Bytes, BodyError> {
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test]
async fn what_a_server_says_to_the_gateway_is_not_its_clients_answer() {
    for (status, kind, expected, code, counted) in [
        (401, JSON, 502, "upstream_error", "upstream_error"),
        (403, JSON, 502, "upstream_error", "upstream_error"),
        (302, JSON, 502, "upstream_error", "upstream_error"),
        (500, JSON, 502, "upstream_error", "upstream_error"),
        (503, JSON, 503, "worker_unavailable", "worker_unavailable"),
        (429, JSON, 429, "rate_limited", "rate_limited"),
        (
            200,
            ("content-type", "text/html"),
            502,
            "upstream_error",
            "upstream_error",
        ),
    ] {
        let make = move || response(status, &[kind, ("retry-after", "9")], "{\"secret\":1}");
        let (house, reply) = answered(make).await;
        let (got, body) = parts(&reply);
        assert_eq!(got.as_u16(), expected, "{status}");
        assert_eq!(body["error"]["data"]["code"], code);
        assert_eq!(body["id"].to_string(), "100.0");
        assert!(body.get("secret").is_none());
        let told = reply
            .head()
            .headers
            .iter()
            .find(|(name, _)| *name == "retry-after");
        let told = told.map(|(_, value)| value.to_str().expect("ASCII"));
        assert_eq!(told, matches!(expected, 429 | 503).then_some("9"));
        assert_eq!(house.harness.metrics.calls_of("search", counted), 1);
    }
}

#[tokio::test]
async fn what_a_server_refuses_about_a_message_is_passed_on() {
    let refusal = r#"{"jsonrpc":"2.0","id":1e2,"error":{"code":-32602,"message":"m"}}"#;
    let (house, reply) = answered(move || response(400, &[JSON], refusal)).await;
    assert_eq!(reply.head().status, StatusCode::BAD_REQUEST);
    assert_eq!(body_of(&reply), refusal);
    assert_eq!(
        house.harness.metrics.calls_of("search", "upstream_error"),
        1
    );
}

#[tokio::test]
async fn json_goes_on_under_its_own_label_and_other_types_are_named() {
    let answer = "{\"jsonrpc\":\"2.0\",\"id\":1e2,\"result\":{}}";
    let marked = "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1e2,\"result\":{}}";
    for (status, media, body, error) in [
        (200, "application/jsonrequest", answer, None),
        (200, "application/json, application/json", answer, None),
        (200, "application/json", marked, None),
        (200, "text/plain", marked, None),
        (200, "", answer, None),
        (200, "text/html", answer, Some("the media type text/html,")),
        (
            200,
            "text/plain",
            "Hello",
            Some("the media type text/plain,"),
        ),
        (204, "application/json", "", Some("it has no body")),
    ] {
        let kind = [("content-type", media)];
        let count = usize::from(!media.is_empty());
        let (_, reply) = answered(move || response(status, &kind[..count], body)).await;
        let Some(error) = error else {
            assert_eq!(body_of(&reply), answer, "{media}");
            let mut headers = reply.head().headers.iter();
            let label = headers.find(|(name, _)| *name == "content-type");
            assert_eq!(label.expect("a label").1, "application/json");
            continue;
        };
        let (status, body) = parts(&reply);
        assert_eq!(status, StatusCode::BAD_GATEWAY);
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains(error), "{message}");
    }
}

#[tokio::test]
async fn an_error_without_an_id_goes_on_with_that_of_its_request() {
    for (status, body) in [
        (
            200,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32042,"message":"no such city"}}"#,
        ),
        (400, r#"{"error":{"code":-32042,"message":"no such city"}}"#),
    ] {
        let (_, reply) = answered(move || response(status, &[JSON], body)).await;
        let expected =
            r#"{"jsonrpc":"2.0","id":1e2,"error":{"code":-32042,"message":"no such city"}}"#;
        assert_eq!(body_of(&reply), expected);
        assert_eq!(reply.head().status.as_u16(), status);
    }
}

#[tokio::test]
async fn a_coded_answer_goes_on_as_it_came_only_where_it_is_not_rewritten() {
    let plain = r#"{"jsonrpc":"2.0","id":1e2,"result":{}}"#;
    let odd_method = r#"{"jsonrpc":"2.0","id":1e2,"method":null,"result":{}}"#;
    let odd_error = r#"{"jsonrpc":"2.0","id":1e2,"result":{},"error":null}"#;
    for (answer, goes_on) in [(plain, true), (odd_method, false), (odd_error, false)] {
        let make = move || coded(&[JSON], answer, "gzip", "the coded bytes");
        let (_, reply) = answered(make).await;
        let mut headers = reply.head().headers.iter();
        let coding = headers.find(|(name, _)| *name == "content-encoding");
        assert_eq!(coding.is_some(), goes_on, "{answer}");
        match goes_on {
            true => assert_eq!(body_of(&reply), "the coded bytes"),
            false => {
                let (status, body) = parts(&reply);
                assert_eq!(status, StatusCode::OK);
                assert_eq!(body["id"].to_string(), "100.0", "{body}");
                assert!(body.get("error").is_none() && body.get("method").is_none());
            }
        }
    }
}

#[tokio::test]
async fn a_short_answer_that_is_cut_is_a_typed_error() {
    let make = || {
        in_pieces(
            200,
            &[JSON],
            vec![text("{\"jso"), Err(BodyError::Cut)],
            Then::Ends,
        )
    };
    let (_, reply) = answered(make).await;
    let (status, body) = parts(&reply);
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(body["error"]["data"]["code"], "upstream_error");
}

#[tokio::test]
async fn a_long_answer_comes_in_pieces_and_is_broken_off_where_it_is_cut() {
    let long = "x".repeat(100_000);
    for cut in [false, true] {
        let long = long.clone();
        let make = move || {
            let begin = r#"{"jsonrpc":"2.0","id":1e2,"result":{"isError":true,"t":""#;
            let end = if cut {
                Err(BodyError::Cut)
            } else {
                text("\"}}")
            };
            in_pieces(
                200,
                &[JSON],
                vec![text(begin), text(&long), text(&long), end],
                Then::Ends,
            )
        };
        let (house, reply) = answered(make).await;
        let (pieces, broken) = streamed(reply).await;
        assert_eq!(broken, cut);
        assert!(pieces.concat().len() > 200_000);
        let counted = if cut { "upstream_error" } else { "tool_error" };
        assert_eq!(house.harness.metrics.calls_of("search", counted), 1);
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_told_before_it_is_read() {
    let make = || response(200, &[JSON, ("content-length", "1000000000")], "{");
    let (_, reply) = answered(make).await;
    let (status, body) = parts(&reply);
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(body["error"]["data"]["code"], "result_too_large");
}

#[tokio::test]
async fn events_come_as_they_are_and_a_cut_stream_ends_with_an_error_of_ours() {
    let progress = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n";
    let answer = "data: {\"jsonrpc\":\"2.0\",\"id\":1e2,\"result\":{\"isError\":true}}\r\n\r\n";
    let whole = format!("{progress}{answer}");
    let make = move || {
        let pieces = whole
            .as_bytes()
            .chunks(7)
            .map(|it| Ok(Bytes::copy_from_slice(it)));
        in_pieces(200, &[EVENTS], pieces.collect(), Then::Ends)
    };
    let (house, reply) = answered(make).await;
    let (events, broken) = streamed(reply).await;
    // A line feed after its carriage return, in a later piece, may become an event by itself.
    assert_eq!(
        (events.concat(), broken),
        (format!("{progress}{answer}"), false)
    );
    assert_eq!(events[0], progress);
    assert_eq!(house.harness.metrics.calls_of("search", "tool_error"), 1);

    for end in [Some(BodyError::Cut), None] {
        let make = move || {
            let mut pieces = vec![text(progress), text("data: {\"jsonr")];
            pieces.extend(end.map(Err));
            in_pieces(200, &[EVENTS], pieces, Then::Ends)
        };
        let (house, reply) = answered(make).await;
        let (events, broken) = streamed(reply).await;
        assert!(!broken);
        assert_eq!(events[0], progress);
        let told = events[1]
            .lines()
            .find_map(|line| line.strip_prefix("data: "))
            .expect("an event");
        let told: Value = serde_json::from_str(told).expect("JSON");
        assert_eq!(told["error"]["data"]["code"], "upstream_error");
        assert_eq!(
            house.harness.metrics.calls_of("search", "upstream_error"),
            1
        );
    }
}

#[tokio::test]
async fn a_stream_that_can_be_resumed_is_broken_off_where_it_is_cut() {
    let make = || {
        in_pieces(
            200,
            &[EVENTS],
            vec![text("id: 1\ndata:\n\n"), Err(BodyError::Cut)],
            Then::Ends,
        )
    };
    let (_, reply) = answered(make).await;
    assert_eq!(
        streamed(reply).await,
        (vec!["id: 1\ndata:\n\n".to_owned()], true)
    );
    // The server expects its client to come back for the answer.
    let make = || in_pieces(200, &[EVENTS], vec![text("id: 1\ndata:\n\n")], Then::Ends);
    let (_, reply) = answered(make).await;
    assert!(!streamed(reply).await.1);
}

#[tokio::test(start_paused = true)]
async fn who_drops_an_answer_ends_its_call() {
    let make = || in_pieces(200, &[EVENTS], vec![text(": x\n\n")], Then::Waits);
    let (house, reply) = answered(make).await;
    let registry = &house.harness.service.core().registry;
    let namespace = registry.namespace("search").expect("there");
    assert_eq!(namespace.gate.in_flight(), 1);
    drop(reply);
    assert_eq!(namespace.gate.in_flight(), 0);
    assert_eq!(house.harness.metrics.calls_of("search", "cancelled"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_of_the_server_gives_its_client_time_to_answer() {
    let question =
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"elicitation/create\",\"params\":{}}\n\n";
    let make = move || in_pieces(200, &[EVENTS], vec![text(question)], Then::Waits);
    let (house, reply) = answered(make).await;
    let registry = &house.harness.service.core().registry;
    let limits = &registry.namespace("search").expect("there").limits;
    let began = tokio::time::Instant::now();
    let (events, broken) = streamed(reply).await;
    assert!(!broken);
    assert!(events[1].contains("execution_timeout"));
    assert_eq!(began.elapsed(), limits.timeout + limits.ask_timeout);
}
