//! Several backends, and how pools follow their configuration.

use tooldock_upstream::http_client::SendErrorKind;
use tooldock_workers::remote::BackendId;

use super::super::health::HealthEvent;
use super::super::upkeep;
use super::*;

const QUIET: &str = "health: { active: { every: 1h }, passive: { failures: 2, eject: 1h } }";

/// The address of a backend that does not listen, and the socket that keeps its port from others.
fn dead() -> (String, TcpSocket) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = socket.local_addr().expect("an address");
    (format!("http://{address}/mcp"), socket)
}

fn picked(pool: &Pool, times: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for hash in 0..times {
        let backend = pool.pick(&[], hash as u64).expect("a backend");
        *counts.entry(backend.id().to_string()).or_default() += 1;
    }
    counts
}

/// Whether these backends are that pool.
fn is(backends: &Arc<dyn Backends>, pool: &Arc<Pool>) -> bool {
    Arc::as_ptr(backends).cast::<()>() == Arc::as_ptr(pool).cast()
}

fn id(scripted: &ScriptedBackend) -> BackendId {
    BackendId::new(&scripted.address.to_string())
}

#[tokio::test]
async fn a_backend_that_fails_is_left_out_and_the_others_share_its_work() {
    let (good, bad) = (
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
        ScriptedBackend::start(&[Answer::Say(
            "HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n",
        )])
        .await,
    );
    let server = server(&[good.url(), bad.url()], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    assert_eq!(picked(&pool, 10).len(), 2);
    let backend = pool.get(&id(&bad)).expect("there");
    for _ in 0..2 {
        send(&backend).await.expect("an answer");
    }
    assert!(!backend.is_healthy() && !backend.accepts_new());
    assert_eq!(
        picked(&pool, 10),
        BTreeMap::from([(id(&good).to_string(), 10)])
    );
    let states = pool.states();
    assert_eq!(
        states[1].problem.as_deref(),
        Some("it answered 503 Service Unavailable")
    );
    assert!(states[0].healthy && !states[1].healthy);
}

#[tokio::test]
async fn answers_below_500_are_no_failures() {
    let scripted =
        ScriptedBackend::start(&[Answer::Say("HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")])
            .await;
    let server = server(&[scripted.url()], QUIET);
    let (backend, _pool) = only(&server);
    for _ in 0..5 {
        send(&backend).await.expect("an answer");
    }
    assert!(backend.is_healthy());
}

#[tokio::test]
async fn backups_are_used_while_nothing_else_is_left_and_a_dead_pool_is_tried_now_and_then() {
    let backup = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let (primary, _port) = dead();
    let entry = format!("{{ url: '{}', backup: true }}", backup.url());
    let server = server(&[format!("'{primary}'"), entry], QUIET);
    let client = client_with(SystemNames);
    let pool = client.serve(&server);
    eventually("the check of the dead backend", || {
        !pool.states()[0].healthy
    })
    .await;
    assert_eq!(
        picked(&pool, 5),
        BTreeMap::from([(id(&backup).to_string(), 5)])
    );
    assert!(
        pool.pick(&[id(&backup)], 0).is_none(),
        "nothing else is left"
    );
}

#[tokio::test]
async fn a_backup_gets_the_request_that_no_primary_took_before_any_is_left_out() {
    let primary = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let backup = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let entry = format!("{{ url: '{}', backup: true }}", backup.url());
    let server = server(&[format!("'{}'", primary.url()), entry], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    assert_eq!(
        picked(&pool, 5),
        BTreeMap::from([(id(&primary).to_string(), 5)])
    );
    let tried = [id(&primary)];
    assert!(pool.can_pick(&tried));
    let next = pool.pick(&tried, 0).expect("the backup");
    assert_eq!(*next.id(), id(&backup));
    let tried = [id(&primary), id(&backup)];
    assert!(!pool.can_pick(&tried) && pool.pick(&tried, 0).is_none());
}

#[tokio::test]
async fn looking_for_a_further_backend_uses_up_no_trial() {
    let [(first, _port), (second, _other_port)] = [dead(), dead()];
    let urls = [first, second].map(|url| format!("'{url}'"));
    let server = server(&urls, QUIET);
    let client = client_with(SystemNames);
    let pool = client.serve(&server);
    eventually("the checks of the dead backends", || {
        pool.states().iter().all(|it| !it.healthy)
    })
    .await;
    tokio::time::pause();
    assert!(pool.can_pick(&[]) && pool.can_pick(&[]));
    let tried = pool.pick(&[], 0).expect("a trial").id().clone();
    let tried = [tried];
    assert!(pool.can_pick(&tried) && pool.can_pick(&tried));
    assert!(pool.pick(&tried, 0).is_some(), "a trial of the other");
    assert!(!pool.can_pick(&[]), "both were tried just now");
}

#[tokio::test]
async fn while_no_backend_is_healthy_one_request_a_second_tries() {
    let (url, _port) = dead();
    let server = server(&[format!("'{url}'")], QUIET);
    let client = client_with(SystemNames);
    let pool = client.serve(&server);
    eventually("the check of the dead backend", || {
        !pool.states()[0].healthy
    })
    .await;
    tokio::time::pause();
    assert!(pool.pick(&[], 0).is_some(), "the first tries");
    assert!(
        pool.pick(&[], 0).is_none(),
        "the second does not wait for it"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(pool.pick(&[], 0).is_some());
}

#[tokio::test]
async fn the_same_server_has_the_same_pool_and_another_version_keeps_what_it_can() {
    let (kept, gone) = (
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
        ScriptedBackend::start(&[
            Answer::Say(OK),
            Answer::Say(OK),
            Answer::Say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"),
        ])
        .await,
    );
    let before = server(&[kept.url(), gone.url()], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &before).await;
    assert!(is(&client.backends(&before), &pool));
    let backend = pool.get(&id(&kept)).expect("there");
    read(send(&backend).await.expect("a response"))
        .await
        .expect("a body");
    let connections = kept.connections();
    let leaving = pool.get(&id(&gone)).expect("there");
    let _ = read(send(&leaving).await.expect("a response")).await;
    let running = send(&leaving).await.expect("a stream");

    let after = server(&[kept.url()], &format!("balance: random, {QUIET}"));
    let next = checked(&client, &after).await;
    assert!(!Arc::ptr_eq(&pool, &next));
    assert!(
        is(&client.backends(&before), &pool),
        "requests of before go on"
    );
    let backend = next.get(&id(&kept)).expect("there");
    read(send(&backend).await.expect("a response"))
        .await
        .expect("a body");
    assert_eq!(kept.connections(), connections, "the connection is used on");
    assert_eq!(picked(&next, 20).len(), 1);
    let left = next.get(&id(&gone)).expect("it still works on a stream");
    assert!(!left.accepts_new());
    assert!(
        next.states()
            .iter()
            .any(|it| it.draining && it.in_flight == 1)
    );
    drop((running, leaving, left));
    assert!(
        next.get(&id(&gone)).is_none(),
        "nothing runs there any more"
    );
}

#[tokio::test]
async fn only_what_is_served_is_checked_and_a_request_of_before_a_reload_does_not_change_that() {
    let scripted = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let before = server(&[scripted.url()], QUIET);
    let after = server(&[scripted.url()], &format!("balance: random, {QUIET}"));
    let client = client_with(SystemNames);
    let held = checked(&client, &before).await;
    let upkeep = client.upkeep(&before).expect("it is served");
    let next = checked(&client, &after).await;
    eventually("the checks of before end", || upkeep.is_finished()).await;
    drop(held);
    let late = client.backends(&before);
    assert!(!is(&late, &next), "its own rules hold for it");
    assert!(client.upkeep(&before).is_none());
    let now = client.current(&before.name).expect("it is served");
    assert!(is(&now, &next) && is(&client.backends(&after), &next));
    assert!(!client.upkeep(&after).expect("it is served").is_finished());
    let shared = late.get(&id(&scripted)).expect("a backend");
    read(send(&shared).await.expect("a response"))
        .await
        .expect("a body");
    client.forget_all();
    assert!(client.current(&before.name).is_none());
    assert!(client.backends(&after).pick(&[], 0).is_some());
    assert!(client.current(&before.name).is_none());
}

#[tokio::test]
async fn slow_answers_leave_out_no_backend_that_nothing_stands_in_for() {
    let (one, other, spare) = (
        ScriptedBackend::start(&[Answer::Silence]).await,
        ScriptedBackend::start(&[Answer::Silence]).await,
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
    );
    let entry = format!("{{ url: '{}', backup: true }}", spare.url());
    let keys = format!("timeouts: {{ head: 20ms }}, {QUIET}");
    let server = server(&[one.url(), other.url(), entry], &keys);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    for (scripted, healthy) in [(&one, false), (&other, true)] {
        let backend = pool.get(&id(scripted)).expect("there");
        for _ in 0..4 {
            let error = send(&backend).await.expect_err("silence");
            assert_eq!(error.kind, SendErrorKind::HeadTimeout);
        }
        assert_eq!(backend.is_healthy(), healthy, "{}", backend.id());
    }
    assert_eq!(
        picked(&pool, 5),
        BTreeMap::from([(id(&other).to_string(), 5)])
    );
}

#[tokio::test]
async fn bad_answers_leave_out_no_backend_that_nothing_stands_in_for() {
    const BAD: &str = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n";
    let scripted = ScriptedBackend::start(&[Answer::Say(BAD)]).await;
    let server = server(&[scripted.url()], QUIET);
    let (backend, pool) = only(&server);
    for _ in 0..5 {
        send(&backend).await.expect("an answer");
    }
    assert!(backend.is_healthy() && pool.pick(&[], 0).is_some());
}

#[tokio::test]
async fn the_only_backend_is_sent_each_request_while_its_checks_time_out() {
    let keys = "health: { active: { every: 1h, timeout: 20ms } }";
    let (one, other) = (
        ScriptedBackend::with_checks(&[Answer::Silence]).await,
        ScriptedBackend::with_checks(&[Answer::Silence]).await,
    );
    let client = client_with(SystemNames);
    for (backends, trials) in [(vec![one.url()], 3), (vec![one.url(), other.url()], 2)] {
        let pool = client.serve(&server(&backends, keys));
        eventually("the checks are over", || {
            pool.states().iter().all(|it| !it.healthy)
        })
        .await;
        let picked = (0..3).filter(|_| pool.can_pick(&[]) && pool.pick(&[], 0).is_some());
        assert_eq!(picked.count(), trials, "{backends:?}");
    }
}

#[tokio::test]
async fn a_backend_of_weight_0_takes_nothing_new_and_serves_what_it_has() {
    let (drained, other) = (
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
        ScriptedBackend::start(&[Answer::Say(OK)]).await,
    );
    let entry = format!("{{ url: '{}', weight: 0 }}", drained.url());
    let server = server(&[entry, other.url()], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    assert_eq!(
        picked(&pool, 10),
        BTreeMap::from([(id(&other).to_string(), 10)])
    );
    let backend = pool.get(&id(&drained)).expect("configured");
    assert!(!backend.accepts_new() && backend.is_healthy());
    assert!(send(&backend).await.is_ok());
}

#[tokio::test]
async fn a_check_asks_mcp_or_a_path() {
    const FOUND: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    const MISSING: &str = "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n";
    const DOWN: &str = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n";
    const OPEN_STREAM: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
    for (path, answer, passes) in [
        ("off", FOUND, true),
        ("off", OPEN_STREAM, true),
        ("/health", OPEN_STREAM, true),
        ("off", MISSING, true),
        ("off", DOWN, false),
        ("/health", FOUND, true),
        ("/health", MISSING, false),
        ("/health", DOWN, false),
    ] {
        let scripted = ScriptedBackend::with_checks(&[Answer::Say(answer)]).await;
        let keys = format!("health: {{ active: {{ path: {path}, every: 1h }} }}");
        let server = server(&[scripted.url()], &keys);
        let client = client_with(SystemNames);
        let pool = client.serve(&server);
        let event = within(upkeep::checked(&pool.members[0])).await;
        assert_eq!(
            event == HealthEvent::CheckPassed,
            passes,
            "{path}: {event:?}"
        );
        let request = scripted.requests().remove(0);
        match path {
            "off" => assert!(request.contains("\"method\":\"ping\""), "{request}"),
            path => assert!(request.starts_with(&format!("get {path} ")), "{request}"),
        }
    }
}

#[tokio::test]
async fn checks_find_a_backend_that_goes_and_comes_back() {
    let scripted = ScriptedBackend::with_checks(&[
        Answer::Say(OK),
        Answer::Say("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"),
        Answer::Say("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"),
        Answer::Say(OK),
    ])
    .await;
    let server = server(&[scripted.url()], "health: { active: { every: 10ms } }");
    let client = client_with(SystemNames);
    let pool = client.serve(&server);
    eventually("it goes", || !pool.states()[0].healthy).await;
    eventually("it comes back", || pool.states()[0].healthy).await;
}

/// A client and the registry of its metrics.
fn measured() -> (prometheus::Registry, Arc<RemoteClient>) {
    let registry = prometheus::Registry::new();
    let metrics = Arc::new(RemoteMetrics::new(&registry).expect("fresh"));
    let client = RemoteClient::new(
        Arc::new(SystemNames),
        metrics,
        Handle::current(),
        Arc::default(),
        None,
    );
    (registry, client)
}

#[tokio::test]
async fn a_dead_backend_is_shown_as_down_only_while_it_takes_new_requests() {
    let (registry, client) = measured();
    let ((drained, _drained_port), (used, _used_port)) = (dead(), dead());
    let shown = |url: &str| {
        let id = url
            .strip_prefix("http://")
            .and_then(|it| it.strip_suffix("/mcp"));
        let families = registry.gather();
        let family = families
            .iter()
            .find(|it| it.name() == "tooldock_upstream_backend_up");
        let mut series = family.map(|it| it.get_metric()).unwrap_or_default().iter();
        let found = series.find(|it| it.get_label().iter().any(|label| Some(label.value()) == id));
        found.map(|it| it.get_gauge().value() > 0.5)
    };
    let without = server(
        &[format!("{{ url: '{drained}', weight: 0 }}"), used.clone()],
        QUIET,
    );
    checked(&client, &without).await;
    eventually("the other one is down", || shown(&used) == Some(false)).await;
    assert_eq!(shown(&drained), None);
    let with = server(&[drained.clone(), used.clone()], QUIET);
    client.serve(&with);
    eventually("it is used, and down", || shown(&drained) == Some(false)).await;
    client.serve(&without);
    eventually("it is not used", || shown(&drained).is_none()).await;
}

#[tokio::test]
async fn the_series_of_a_backend_go_with_it() {
    let (registry, client) = measured();
    let scripted = ScriptedBackend::start(&[Answer::Say(OK)]).await;
    let server = server(&[scripted.url()], QUIET);
    let backend = client.backends(&server).pick(&[], 0).expect("a backend");
    read(send(&backend).await.expect("a response"))
        .await
        .expect("a body");
    let shown = |name: &str| {
        let families = registry.gather();
        let family = families.iter().find(|it| it.name() == name);
        family.map_or(0, |it| it.get_metric().len())
    };
    assert_eq!(shown("tooldock_upstream_backend_up"), 1);
    assert_eq!(shown("tooldock_upstream_backend_requests_total"), 1);
    drop(backend);
    client.forget_all();
    eventually("the series go", || {
        shown("tooldock_upstream_backend_up") == 0
    })
    .await;
    assert_eq!(shown("tooldock_upstream_backend_requests_total"), 0);
}

#[tokio::test]
async fn a_backend_that_starts_after_the_gateway_is_found_long_before_the_next_usual_check() {
    let (url, socket) = dead();
    let server = server(&[url], QUIET);
    let client = client_with(SystemNames);
    let pool = checked(&client, &server).await;
    assert!(!pool.states()[0].healthy);
    let listener = socket.listen(16).expect("listening");
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                while read_request(&mut connection).await.is_some() {
                    let _ = connection.write_all(OK.as_bytes()).await;
                }
            });
        }
    });
    // The configured pause between checks is an hour.
    eventually("the backend is used", || pool.states()[0].healthy).await;
}
