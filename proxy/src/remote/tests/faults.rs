//! A backend and its faults.

use http::StatusCode;
use tooldock_upstream::http_client::SendErrorKind;

use super::*;

/// The pool checks its backends once in a test.
const QUIET: &str = "health: { active: { every: 1h } }";

async fn answered(answers: &[Answer], keys: &str) -> Result<BackendResponse, SendError> {
    let backend = ScriptedBackend::start(answers).await;
    let server = server(&[backend.url()], &format!("{keys} {QUIET}"));
    let (backend, _pool) = only(&server);
    send(&backend).await
}

#[tokio::test]
async fn a_response_is_read_and_its_connection_used_again() {
    let scripted = ScriptedBackend::start(&[
        Answer::Say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-a: b\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
        Answer::Say(OK),
    ])
    .await;
    let server = server(&[scripted.url()], QUIET);
    let (backend, _pool) = only(&server);
    let response = send(&backend).await.expect("a response");
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(response.headers["x-a"], "b");
    assert!(!response.headers.contains_key("transfer-encoding"));
    assert_eq!(read(response).await.as_deref(), Ok("abcde"));
    let response = send(&backend).await.expect("a response");
    assert_eq!(read(response).await.as_deref(), Ok("{}"));
    let request = scripted.requests().remove(0);
    assert_eq!(scripted.connections(), 1);
    assert!(request.starts_with("post /mcp http/1.1\r\n"), "{request}");
    assert!(
        request.contains(&format!("host: {}\r\n", scripted.address)),
        "{request}"
    );
    assert!(request.contains("mcp-session-id: s1\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"a\":1}"), "{request}");
    assert!(!request.contains("the-clients-own"), "{request}");
}

#[tokio::test]
async fn credentials_and_headers_of_the_configuration_go_up() {
    let scripted = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let keys = "credentials: 'Bearer ${TOKEN}', headers: { set: { X-Key: 'k ${TOKEN}' }, remove: [user-agent] },";
    let server = server(&[scripted.url()], &format!("{keys} {QUIET}"));
    let (backend, _pool) = only(&server);
    send(&backend).await.expect("a response");
    let request = scripted.requests().remove(0);
    assert!(
        request.contains("authorization: bearer hunter2\r\n"),
        "{request}"
    );
    assert!(request.contains("x-key: k hunter2\r\n"), "{request}");
    assert!(!request.contains("user-agent"), "{request}");
}

#[tokio::test]
async fn a_refused_connection_is_told_and_nothing_was_sent() {
    // Bound, so that no other process gets the port, and not listening.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = socket.local_addr().expect("an address");
    let server = server(&[format!("http://{address}/mcp")], QUIET);
    let (backend, _pool) = only(&server);
    let error = send(&backend).await.expect_err("refused");
    assert_eq!((error.kind, error.unsent), (SendErrorKind::Connect, true));
    assert_eq!(
        error.message,
        format!("{address}: the connection was refused")
    );
}

#[tokio::test]
async fn silence_and_a_head_that_drips_end_in_time() {
    let keys = "timeouts: { head: 100ms },";
    for answer in [
        Answer::Silence,
        Answer::Endless("X-Slow: a\r\n"),
        Answer::Endless("H"),
    ] {
        let error = answered(&[answer], keys).await.expect_err("no head");
        assert!(!error.unsent, "{error:?}");
        let kind = error.kind;
        assert!(
            matches!(kind, SendErrorKind::HeadTimeout | SendErrorKind::Malformed),
            "{answer:?}: {error:?}"
        );
    }
    let error = answered(&[Answer::Silence], keys)
        .await
        .expect_err("no head");
    assert_eq!(error.kind, SendErrorKind::HeadTimeout);
    assert!(
        error
            .message
            .ends_with("no response came within 0.1 s (timeouts.head)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_that_ends_without_a_response_may_have_been_heard() {
    let error = answered(&[Answer::Last("")], "")
        .await
        .expect_err("no response");
    assert_eq!((error.kind, error.unsent), (SendErrorKind::Closed, false));
}

#[tokio::test]
async fn what_is_no_response_is_refused() {
    for text in [
        "SSH-2.0-OpenSSH_9\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ] {
        let error = answered(&[Answer::Last(text)], "").await.expect_err(text);
        assert_eq!(error.kind, SendErrorKind::Malformed, "{text}: {error}");
    }
}

#[tokio::test]
async fn a_response_that_is_cut_is_never_as_if_it_were_complete() {
    for text in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n30\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n3\r\nabc\r\nzz\r\n",
    ] {
        let response = answered(&[Answer::Last(text)], "").await.expect(text);
        assert_eq!(read(response).await, Err(BodyError::Cut), "{text}");
    }
}

#[tokio::test]
async fn a_body_whose_end_nobody_told_is_one_that_may_be_cut() {
    for (text, expected) in [
        (OK, false),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            false,
        ),
        ("HTTP/1.1 200 OK\r\n\r\nabc", true),
    ] {
        let response = answered(&[Answer::Last(text)], "").await.expect(text);
        assert_eq!(response.body.may_be_cut(), expected, "{text}");
        assert!(read(response).await.is_ok(), "{text}");
    }
}

#[tokio::test]
async fn an_endless_response_ends_after_its_time_and_a_stream_does_not() {
    let endless = "HTTP/1.1 200 OK\r\n\r\n";
    let keys = "timeouts: { call: 200ms, idle: 1h },";
    let response = answered(&[Answer::Endless(endless)], keys).await;
    let read_all = read(response.expect("a head")).await;
    assert_eq!(
        read_all,
        Err(BodyError::Timeout(Duration::from_millis(200)))
    );
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
    let keys = "timeouts: { call: 1ms, idle: 1h },";
    let mut response = answered(&[Answer::Endless(stream)], keys)
        .await
        .expect("a head");
    for _ in 0..10 {
        assert!(within(response.body.chunk()).await.expect("more").is_some());
    }
}

#[tokio::test]
async fn a_stream_that_says_nothing_for_long_is_cut() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let keys = "timeouts: { idle: 100ms },";
    let response = answered(&[Answer::Say(stream)], keys)
        .await
        .expect("a head");
    assert_eq!(
        read(response).await,
        Err(BodyError::Timeout(Duration::from_millis(100)))
    );
}

#[tokio::test]
async fn a_standing_stream_may_say_nothing_for_longer_than_the_stream_of_a_call() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let scripted = ScriptedBackend::start(&[Answer::Say(stream), Answer::Say(stream)]).await;
    let keys = format!("timeouts: {{ idle: 100ms }}, {QUIET}");
    let server = server(&[scripted.url()], &keys);
    let (backend, _pool) = only(&server);
    let standing = BackendRequest {
        standing: true,
        ..request()
    };
    let response = within(backend.send(standing)).await.expect("a head");
    let standing = tokio::spawn(read(response));
    // The task above reads before the response of the call arrives, so its time began earlier.
    let of_call = send(&backend).await.expect("a head");
    assert_eq!(
        read(of_call).await,
        Err(BodyError::Timeout(Duration::from_millis(100)))
    );
    assert!(!standing.is_finished());
    standing.abort();
}

#[tokio::test]
async fn waiting_for_a_piece_may_be_given_up_and_taken_up_again() {
    let backend = ScriptedBackend::start(&[Answer::Endless(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nabc",
    )])
    .await;
    let server = server(&[backend.url()], QUIET);
    let (backend, _pool) = only(&server);
    let mut response = send(&backend).await.expect("a head");
    let mut text = String::new();
    while text.len() < 300 {
        let piece = tokio::time::timeout(Duration::from_millis(1), response.body.chunk()).await;
        if let Ok(piece) = piece {
            let piece = piece.expect("no cut").expect("no end");
            text.push_str(&String::from_utf8_lossy(&piece));
        }
    }
    let whole = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nabc".repeat(20);
    assert!(
        whole["HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".len()..]
            .starts_with(&text[..300])
    );
}

#[tokio::test]
async fn redirects_and_errors_are_responses_like_any_other() {
    for (text, status) in [
        (
            "HTTP/1.1 307 Moved\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            307,
        ),
        (
            "HTTP/1.1 401 No\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\r\n",
            401,
        ),
        (
            "HTTP/1.1 429 Slow\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n",
            429,
        ),
        ("HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n", 503),
        (
            "HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 202 Taken\r\ncontent-length: 0\r\n\r\n",
            202,
        ),
    ] {
        let response = answered(&[Answer::Say(text)], "").await.expect(text);
        assert_eq!(response.status.as_u16(), status);
        assert_eq!(read(response).await.as_deref(), Ok(""));
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_backend_closed_is_replaced_unnoticed() {
    let closing = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let scripted = ScriptedBackend::start(&[Answer::Last(closing)]).await;
    let server = server(&[scripted.url()], &format!("keepalive: 1, {QUIET}"));
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    let backend = pool.pick(&[], 0).expect("a backend");
    let idle = &pool.members[0].core.idle;
    for _ in 0..5 {
        let response = send(&backend).await.expect("a response");
        assert_eq!(read(response).await.as_deref(), Ok("{}"));
        eventually("the end of the connection is there", || {
            idle.sweep(|_| true);
            idle.is_empty()
        })
        .await;
    }
    assert_eq!(scripted.connections(), 5);
}

#[tokio::test]
async fn a_backend_that_closes_or_says_too_much_is_not_asked_on_that_connection_again() {
    for text in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let scripted = ScriptedBackend::start(&[Answer::Say(text)]).await;
        let server = server(&[scripted.url()], QUIET);
        let (backend, _pool) = only(&server);
        for _ in 0..2 {
            let response = send(&backend).await.expect("a response");
            assert_eq!(read(response).await.as_deref(), Ok("{}"), "{text}");
        }
        assert_eq!(scripted.connections(), 2, "{text}");
    }
}

#[tokio::test]
async fn a_response_that_nobody_reads_to_its_end_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let server = server(&[format!("http://{address}/mcp")], QUIET);
    let (backend, _pool) = only(&server);
    let accepting = async {
        loop {
            let (mut connection, _) = listener.accept().await.expect("a connection");
            let request = read_request(&mut connection).await.expect("a request");
            // The pool's own check comes on a connection of its own.
            if !request.contains("tooldock-check") {
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                connection.write_all(head).await.expect("written");
                return connection;
            }
        }
    };
    let (response, mut connection) = tokio::join!(send(&backend), accepting);
    drop(response.expect("a head"));
    let mut rest = Vec::new();
    let read = within(connection.read_to_end(&mut rest)).await;
    assert!(read.is_ok() && rest.is_empty(), "{read:?}");
}

#[tokio::test]
async fn a_socket_of_the_system_is_reached_by_its_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("bind");
    let script = Script::new(&[Answer::Say(OK)]);
    let requests = Arc::clone(&script.requests);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(script.clone().serve(connection));
        }
    });
    let server = server(&[format!("'unix:{}:/tools'", path.display())], QUIET);
    let (backend, _pool) = only(&server);
    assert_eq!(backend.id().as_str(), format!("unix:{}", path.display()));
    for _ in 0..2 {
        let response = send(&backend).await.expect("a response");
        assert_eq!(read(response).await.as_deref(), Ok("{}"));
    }
    let ours = |it: &&String| it.contains("s1") && it.starts_with("post /tools ");
    assert_eq!(lock(&requests).iter().filter(ours).count(), 2);
    std::fs::remove_file(&path).expect("removed");
    let gone = only(&server).0;
    let error = send(&gone).await.expect_err("no socket");
    assert_eq!((error.kind, error.unsent), (SendErrorKind::Connect, true));
}

#[tokio::test]
async fn a_request_that_a_kept_connection_takes_half_of_goes_up_on_another() {
    let scripted = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let server = server(&[scripted.url()], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    let (ours, mut theirs) = tokio::io::duplex(16);
    pool.members[0].core.idle.put(Box::new(ours), None, None);
    let reset = tokio::spawn(async move {
        let mut beginning = [0; 16];
        theirs.read_exact(&mut beginning).await.map(|_| beginning)
    });
    let backend = pool.pick(&[], 0).expect("a backend");
    let response = send(&backend).await.expect("a response");
    assert_eq!(read(response).await.as_deref(), Ok("{}"));
    let beginning = within(reset).await.expect("no panic").expect("a beginning");
    assert_eq!(&beginning, b"POST /mcp HTTP/1");
    assert_eq!(scripted.requests().len(), 1);
}

#[tokio::test]
async fn a_name_that_leads_to_this_machine_needs_the_operators_word() {
    let scripted = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let url = format!("http://localhost:{}/mcp", scripted.address.port());
    let refused = server(std::slice::from_ref(&url), QUIET);
    let error = send(&only(&refused).0).await.expect_err("private");
    assert_eq!((error.kind, error.unsent), (SendErrorKind::Resolve, true));
    assert!(error.message.contains("which is not public"), "{error}");
    assert_eq!(scripted.connections(), 0);
    let allowed = server(&[url], &format!("allow_private: true, {QUIET}"));
    let response = send(&only(&allowed).0).await.expect("a response");
    assert_eq!(response.status, StatusCode::OK);
}

/// A redirect to the path with its slash.
const WITH_SLASH: &str =
    "HTTP/1.1 307 Temporary Redirect\r\nlocation: /mcp/\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_redirect_that_only_adds_a_slash_is_followed_once_and_remembered() {
    let permanent =
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: /mcp/\r\ncontent-length: 0\r\n\r\n";
    for redirect in [WITH_SLASH, permanent] {
        let answers = [Answer::Say(redirect), Answer::Say(OK), Answer::Say(OK)];
        let scripted = ScriptedBackend::start(&answers).await;
        let server = server(&[scripted.url()], QUIET);
        let (backend, _pool) = only(&server);
        for _ in 0..2 {
            let response = send(&backend).await.expect("a response");
            assert_eq!(response.status, StatusCode::OK);
            assert_eq!(read(response).await.as_deref(), Ok("{}"));
        }
        let requests = scripted.requests();
        let targets: Vec<_> = requests
            .iter()
            .filter_map(|it| it.split(' ').nth(1))
            .collect();
        assert_eq!(targets, ["/mcp", "/mcp/", "/mcp/"]);
        for request in requests {
            assert!(
                request.starts_with("post ") && request.ends_with("{\"a\":1}"),
                "{request}"
            );
        }
    }
}

#[tokio::test]
async fn a_remembered_target_that_is_gone_or_leads_back_is_forgotten() {
    const BACK: Answer =
        Answer::Say("HTTP/1.1 308 Moved\r\nlocation: /mcp\r\ncontent-length: 0\r\n\r\n");
    const GONE: Answer = Answer::Say("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    const MOVED: Answer = Answer::Say(WITH_SLASH);
    const FINE: Answer = Answer::Say(OK);
    for (answers, statuses, expected) in [
        (
            &[MOVED, FINE, GONE, FINE][..],
            [200, 200, 200],
            &["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp"][..],
        ),
        (
            &[MOVED, FINE, GONE, MOVED, FINE],
            [200, 200, 200],
            &["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp/", "/mcp/"],
        ),
        (
            &[MOVED, FINE, GONE],
            [200, 404, 404],
            &["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp"],
        ),
        (
            &[MOVED, FINE, BACK, FINE],
            [200, 200, 200],
            &["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp"],
        ),
        // In a circle.
        (
            &[MOVED, FINE, BACK, MOVED, FINE],
            [200, 307, 200],
            &["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp"],
        ),
    ] {
        let scripted = ScriptedBackend::start(answers).await;
        let server = server(&[scripted.url()], QUIET);
        let (backend, _pool) = only(&server);
        for status in statuses {
            let response = send(&backend).await.expect("a response");
            assert_eq!(response.status.as_u16(), status, "{answers:?}");
            read(response).await.expect("a body");
        }
        let requests = scripted.requests();
        let targets: Vec<_> = requests
            .iter()
            .filter_map(|it| it.split(' ').nth(1))
            .collect();
        assert_eq!(targets, expected, "{answers:?}");
    }
}

#[tokio::test]
async fn no_other_redirect_is_followed_and_its_target_is_told_without_its_query() {
    for (answer, told) in [
        (
            "HTTP/1.1 307 x\r\nlocation: https://elsewhere.example/mcp/?t=hunter2\r\ncontent-length: 0\r\n\r\n",
            "https://elsewhere.example/mcp/",
        ),
        (
            "HTTP/1.1 302 x\r\nlocation: /hunter2/login?next=x\r\ncontent-length: 0\r\n\r\n",
            "/[secret]/login",
        ),
        (
            "HTTP/1.1 301 x\r\nlocation: /mcp/\r\ncontent-length: 0\r\n\r\n",
            "/mcp/",
        ),
    ] {
        let scripted = ScriptedBackend::start(&[Answer::Say(answer)]).await;
        let keys = "credentials: 'Bearer ${TOKEN}',";
        let server = server(&[scripted.url()], &format!("{keys} {QUIET}"));
        let (backend, _pool) = only(&server);
        let response = send(&backend).await.expect("a response");
        assert!(response.status.is_redirection());
        let location = response.headers["location"].to_str().expect("text");
        assert_eq!(location.replace("[redacted]", "[secret]"), told);
        assert_eq!(scripted.requests().len(), 1);
    }
    // A second redirect is not followed.
    let scripted = ScriptedBackend::start(&[Answer::Say(WITH_SLASH)]).await;
    let server = server(&[scripted.url()], QUIET);
    let (backend, _pool) = only(&server);
    let response = send(&backend).await.expect("a response");
    assert_eq!(response.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(scripted.requests().len(), 2);
}
