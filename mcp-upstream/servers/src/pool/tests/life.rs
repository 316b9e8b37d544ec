//! Lifetime of processes, and the reasons for their start and end.

use tokio::time::timeout;
use tooldock_base::secret::Secret;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_says_when_it_refuses_to_start_shows_no_secret_nor_half_of_one() {
    const SCRIPT: &str = r#"
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        text = "y" * int(sys.argv[1]) + os.environ["TOKEN"] + "\n" + "z" * 500
        error = {"code": -32000, "message": text}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"#;
    let secret = "hunter2-\"quoted\"-and-much-longer";
    // In the middle, and where the text is cut.
    for place in [0, 240, 250, 260] {
        let mut house = House::new();
        let args = ["-S", "-E", "-c", SCRIPT, &place.to_string()].map(Into::into);
        let mut spec = house.spec("python3", args.into(), quiet()).spec.clone();
        spec.env.push(("TOKEN".into(), Secret::new(secret)));
        spec.secrets.push(Secret::new(secret));
        let server = Arc::new(ExternalServer::new("ns".parse().expect("a name"), spec));
        house.publish(Some(&server));
        let open = shared(Era::Legacy);
        let leased = within(house.pools.lease(&server, ConnectionKey::Shared, open)).await;
        let error = leased.expect_err("it does not start");
        let shown = &error.message;
        assert!(shown.contains("refused initialize: "), "{shown}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("quoted"),
            "{shown}"
        );
        let (shown, _) = shown.split_once(". Try again").expect("what to do");
        assert!(shown.len() < 400 && !shown.contains('\n'), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_counts_on_a_subscription_that_is_refused_asks_for_it_again() {
    let (house, server) = House::with("legacy", quiet());
    let lease = || house.lease(&server, ConnectionKey::Shared, shared(Era::Legacy));
    let (one, other) = (lease().await, lease().await);
    let uri = "test://second";
    let both = async { tokio::join!(one.subscribe(uri), other.subscribe(uri)) };
    let (refused, granted) = within(both).await;
    assert!(
        matches!(refused, Ok(Some(ResponseOutcome::Error(_)))),
        "{refused:?}"
    );
    assert!(
        matches!(granted, Ok(Some(ResponseOutcome::Result(_)))),
        "{granted:?}"
    );
    assert!(matches!(one.subscribe(uri).await, Ok(None)));
    let seen = call(&one, "look").await.expect("answered");
    assert_eq!(seen["subscribed"], json!([uri]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_first_requests_start_one_process() {
    for key in [ConnectionKey::Shared, ConnectionKey::Session("tag".into())] {
        let mut house = House::new();
        let server = house.server("legacy", quiet());
        house.publish(Some(&server));
        let leases = (0..100).map(|_| house.lease(&server, key.clone(), client(json!({}), None)));
        let leases = futures_util::future::join_all(leases).await;
        assert!(leases.iter().all(|it| it.pid() == leases[0].pid()));
        // The shared process, which shows the facts about all, and the session's.
        let expected = if key == ConnectionKey::Shared {
            1.0
        } else {
            2.0
        };
        house
            .until("tooldock_server_processes_started_total", expected)
            .await;
        house
            .until_live(if key == ConnectionKey::Shared { 1 } else { 2 })
            .await;
        assert!(house.metric("tooldock_server_waiting").abs() < 0.1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_process_stops_and_the_next_request_starts_another() {
    let settings = StdioSettings {
        idle_stop: Duration::from_millis(300),
        ..quiet()
    };
    let (house, server) = House::with("legacy", settings);
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = leased.pid();
    drop(leased);
    house.until_live(0).await;
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_ne!(leased.pid(), pid);
    assert!(house.metric("tooldock_server_restarts_total") < 0.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_process_ends_its_call_and_then_itself_while_another_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut house = House::new();
    let settings = StdioSettings {
        max_lifetime: Duration::from_millis(700),
        ..quiet()
    };
    let server = house.server_with("legacy", folder.path(), settings);
    house.publish(Some(&server));
    let old = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = old.pid();
    let holds = old.request("tools/call", Some(&params("hold")), None);
    let holds = holds.expect("sent");
    within(async {
        loop {
            let leased = house
                .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
                .await;
            if leased.pid() != pid {
                break;
            }
            drop(leased);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    std::fs::write(folder.path().join("go"), "").expect("written");
    let reply = within(holds).await.expect("it was not cut short");
    assert!(matches!(reply, ResponseOutcome::Result(_)));
    drop(old);
    house.until_gone(pid).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_server_takes_over_what_lasts_and_lets_calls_end_where_they_began() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut house = House::new();
    let old = house.server_with("legacy", folder.path(), quiet());
    house.publish(Some(&old));
    let leased = house
        .lease(&old, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = leased.pid();
    leased.subscribe("test://a").await.expect("subscribed");
    leased.set_log_level(LogLevel::Info).await.expect("set");
    let holds = leased.request("tools/call", Some(&params("hold")), None);
    let holds = holds.expect("sent");
    let settings = StdioSettings {
        idle_stop: Duration::from_secs(500),
        ..quiet()
    };
    let new = house.server_with("legacy", folder.path(), settings);
    house.publish(Some(&new));
    let served = within(async {
        loop {
            let served = house
                .lease(&new, ConnectionKey::Shared, shared(Era::Legacy))
                .await;
            if served.pid() != pid {
                return served;
            }
        }
    })
    .await;
    let seen = call(&served, "look").await.expect("answered");
    assert_eq!(seen["subscribed"], json!(["test://a"]));
    assert_eq!(seen["level"], "info");
    std::fs::write(folder.path().join("go"), "").expect("written");
    let reply = within(holds).await.expect("it ends where it began");
    assert!(matches!(reply, ResponseOutcome::Result(_)));
    drop(leased);
    house.until_live(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_process_ends_with_the_client_that_left() {
    let (house, server) = House::with("legacy", quiet());
    let open = client(json!({ "elicitation": {} }), None);
    let leased = house.lease(&server, ConnectionKey::Exclusive, open).await;
    house.until_live(2).await;
    let begun = leased.request("tools/call", Some(&params("ask")), None);
    drop((begun, leased));
    house.until_live(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_client_is_away_gives_way_and_is_opened_again_when_the_client_returns() {
    /// A client that has been away for the given time.
    struct Away(Option<Duration>);
    impl Inbound for Away {
        fn notification(&self, _: Notification<'_>) {}
        fn request(&self, _: ServerRequest) {}
        fn away_since(&self, now: Instant) -> Option<Instant> {
            now.checked_sub(self.0?)
        }
    }
    let settings = StdioSettings {
        // The shared process, and one more.
        max_processes: 2,
        ..quiet()
    };
    let (house, server) = House::with("legacy", settings);
    house.until_live(1).await;
    let key = |tag: &str| ConnectionKey::Session(tag.into());
    let open = |away: Option<u64>| {
        let inbound = Arc::new(Away(away.map(Duration::from_secs)));
        client(json!({"roots": {}}), Some(inbound))
    };
    let gone = house.lease(&server, key("gone"), open(Some(61))).await;
    let uri = "test://a";
    gone.subscribe(uri).await.expect("asked");
    gone.set_log_level(LogLevel::Debug).await.expect("asked");
    let late = house.pools.lease(&server, key("late"), open(None));
    tokio::pin!(late);
    // While a request of its session is under way, the process stays, however long its client is away.
    let early = timeout(Duration::from_millis(200), &mut late).await;
    assert!(early.is_err(), "it waits");
    let pid = gone.pid();
    assert!(!gone.is_closed());
    drop(gone);
    let late = within(late).await.expect("the other one gave way");
    house.until_gone(pid).await;
    drop(late);
    // A process whose client is there does not give way.
    let back = house.pools.lease(&server, key("gone"), open(None));
    let refused = within(back).await.expect_err("no place");
    assert_eq!(refused.code, CallErrorCode::Overloaded);
    house.pools.session_closed("late");
    let back = house.lease(&server, key("gone"), open(None)).await;
    let seen = call(&back, "look").await.expect("answered");
    assert_eq!(seen["subscribed"], json!([uri]), "{seen}");
    assert_eq!(seen["level"], "debug", "{seen}");
    assert_eq!(seen["client"], json!({"roots": {}}), "{seen}");
}
