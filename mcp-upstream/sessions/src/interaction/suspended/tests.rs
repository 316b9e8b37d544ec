use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Counts its drops; has its answer once `over` is notified.
struct Call {
    name: u32,
    over: Arc<tokio::sync::Notify>,
    dropped: Arc<AtomicUsize>,
}

impl Suspendable for Call {
    async fn go_on(&mut self) {
        self.over.notified().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

struct Scene {
    calls: SuspendedCalls<Call>,
    namespace: NamespaceName,
    over: Arc<tokio::sync::Notify>,
    dropped: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Self {
        Self {
            calls: SuspendedCalls::new(
                SessionKey::from_text("a key of some length"),
                Replicas::alone(),
            ),
            namespace: "shared".parse().expect("a name"),
            over: Arc::default(),
            dropped: Arc::default(),
        }
    }

    fn bound(&self) -> BoundRequest<'_> {
        BoundRequest {
            principal: Some("ada"),
            namespace: &self.namespace,
            method: "tools/call",
            subject: "ask",
            arguments: br#"{"city": "Ulm", "n": 1}"#,
        }
    }

    fn suspend(&self, name: u32, expires: Instant, max: usize) -> Result<String, SuspendRefusal> {
        let call = Call {
            name,
            over: Arc::clone(&self.over),
            dropped: Arc::clone(&self.dropped),
        };
        self.calls.suspend(call, self.bound(), expires, max)
    }

    fn suspend_as(&self, principal: &str, max: usize) -> Result<String, SuspendRefusal> {
        let call = Call {
            name: 0,
            over: Arc::default(),
            dropped: Arc::clone(&self.dropped),
        };
        let bound = BoundRequest {
            principal: Some(principal),
            ..self.bound()
        };
        self.calls.suspend(call, bound, soon(), max)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }
}

/// A call that panics while it waits for its client.
struct Panics;

impl Suspendable for Panics {
    async fn go_on(&mut self) {
        panic!("a call that waits for its client panics, as this test wants it to");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_call_that_panics_gives_its_place_back() {
    let scene = Scene::new();
    let calls = SuspendedCalls::new(
        SessionKey::from_text("a key of some length"),
        Replicas::alone(),
    );
    for _ in 0..3 {
        let state = calls.suspend(Panics, scene.bound(), soon(), 1);
        let state = state.expect("the one place is free");
        // Runs the task of the call.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(calls.count(), 0);
        let taken = calls.take(&state, scene.bound()).await;
        assert_eq!(taken.err(), Some(ResumeRefusal::Gone));
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test(start_paused = true)]
async fn a_state_takes_its_call_out_once() {
    let scene = Scene::new();
    let one = scene.suspend(1, soon(), 8).expect("room");
    let two = scene.suspend(2, soon(), 8).expect("room");
    assert_ne!(one, two);
    let taken = scene
        .calls
        .take(&two, scene.bound())
        .await
        .expect("suspended");
    assert_eq!(taken.name, 2);
    let again = scene.calls.take(&two, scene.bound()).await;
    assert_eq!(again.err(), Some(ResumeRefusal::Gone));
    assert_eq!(scene.calls.count(), 1);
    // A single one of two concurrent retries wins.
    let (first, second) = tokio::join!(
        scene.calls.take(&one, scene.bound()),
        scene.calls.take(&one, scene.bound())
    );
    assert_eq!(first.map(|call| call.name).ok(), Some(1));
    assert_eq!(second.err(), Some(ResumeRefusal::Gone));
    assert_eq!(scene.calls.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_state_is_good_for_its_own_request_only() {
    let scene = Scene::new();
    let state = scene.suspend(1, soon(), 8).expect("room");
    let other: NamespaceName = "other".parse().expect("a name");
    let own = scene.bound();
    for bound in [
        BoundRequest {
            principal: Some("eve"),
            ..own
        },
        BoundRequest {
            principal: None,
            ..own
        },
        BoundRequest {
            namespace: &other,
            ..own
        },
        BoundRequest {
            method: "prompts/get",
            ..own
        },
        BoundRequest {
            subject: "other",
            ..own
        },
        BoundRequest {
            arguments: br#"{"city": "Bonn", "n": 1}"#,
            ..own
        },
        BoundRequest {
            arguments: b"{}",
            ..own
        },
        BoundRequest {
            method: "tools/calla",
            subject: "sk",
            ..own
        },
    ] {
        let refused = scene.calls.take(&state, bound).await.err();
        assert_eq!(refused, Some(ResumeRefusal::Invalid), "{bound:?}");
    }
    let respelled = BoundRequest {
        arguments: br#"{"city":"Ulm","n":1}"#,
        ..own
    };
    assert!(scene.calls.take(&state, respelled).await.is_ok());
    let state = scene.suspend(2, soon(), 8).expect("room");
    let elsewhere = Scene {
        calls: SuspendedCalls::new(
            SessionKey::from_text("another key of some length"),
            Replicas::alone(),
        ),
        ..Scene::new()
    };
    for bad in [
        "",
        "x",
        &state[1..],
        &format!("{state}-TAMPERED"),
        &format!("A{}", &state[1..]),
    ] {
        if bad != state {
            assert_eq!(
                scene.calls.take(bad, own).await.err(),
                Some(ResumeRefusal::Invalid),
                "{bad}"
            );
        }
    }
    let foreign = elsewhere.calls.take(&state, own).await.err();
    assert_eq!(foreign, Some(ResumeRefusal::Invalid));
    assert!(
        scene.calls.take(&state, own).await.is_ok(),
        "none of them took it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_nobody_comes_for_is_dropped_in_time() {
    let scene = Scene::new();
    let state = scene.suspend(1, soon(), 8).expect("room");
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!((scene.calls.count(), scene.dropped()), (1, 0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((scene.calls.count(), scene.dropped()), (0, 1));
    assert_eq!(
        scene.calls.take(&state, scene.bound()).await.err(),
        Some(ResumeRefusal::Gone)
    );
    // A state from the past by the wall clock, which a paused clock does not move.
    let past = scene.suspend(2, Instant::now(), 8).expect("room");
    let then = unix_millis(Duration::ZERO);
    while unix_millis(Duration::ZERO) == then {
        std::hint::spin_loop();
    }
    assert_eq!(
        scene.calls.take(&past, scene.bound()).await.err(),
        Some(ResumeRefusal::Expired)
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_namespace_suspends_no_more_until_a_call_is_over() {
    let scene = Scene::new();
    let first = scene.suspend(1, soon(), 1).expect("room");
    assert_eq!(
        scene.suspend(2, soon(), 1).err(),
        Some(SuspendRefusal::Full(ParkingFull::Namespace))
    );
    assert_eq!(scene.dropped(), 1, "the one that found no room");
    // The first call has its answer and only waits to be fetched, so it makes room.
    scene.over.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let third = scene.suspend(3, soon(), 1).expect("room");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((scene.calls.count(), scene.dropped()), (1, 2));
    assert_eq!(
        scene.calls.take(&first, scene.bound()).await.err(),
        Some(ResumeRefusal::Gone)
    );
    assert!(scene.calls.take(&third, scene.bound()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_principal_suspends_no_more_than_its_share_and_pushes_out_only_its_own() {
    let scene = Scene::new();
    let full = Some(SuspendRefusal::Full(ParkingFull::Principal));
    let one = scene.suspend(1, soon(), 8).expect("room");
    for _ in 0..7 {
        assert!(scene.suspend_as("eve", 8).is_ok());
    }
    assert_eq!(scene.suspend_as("eve", 8).err(), full);
    scene.over.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(
        scene.suspend_as("eve", 8).err(),
        full,
        "what is over is another's"
    );
    assert!(scene.suspend(2, soon(), 8).is_ok(), "its own makes room");
    let gone = scene.calls.take(&one, scene.bound()).await;
    assert_eq!(gone.err(), Some(ResumeRefusal::Gone));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_still_waits_to_be_fetched() {
    let scene = Scene::new();
    let state = scene.suspend(1, soon(), 8).expect("room");
    scene.over.notify_one();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = scene
        .calls
        .take(&state, scene.bound())
        .await
        .expect("suspended");
    assert_eq!((taken.name, scene.dropped()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_left_while_it_took_the_call_drops_it() {
    let scene = Scene::new();
    let state = scene.suspend(1, soon(), 8).expect("room");
    let mut take = Box::pin(scene.calls.take(&state, scene.bound()));
    assert!(futures_util::poll!(&mut take).is_pending());
    drop(take);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((scene.calls.count(), scene.dropped()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_calls_of_a_lost_principal_end_and_no_others() {
    let scene = Scene::new();
    scene.suspend_as("eve", 8).expect("room");
    scene.suspend_as("eve", 8).expect("room");
    let kept = scene.suspend(1, soon(), 8).expect("room");
    scene.calls.end_of(|principal| principal == "eve");
    assert_eq!(scene.calls.count(), 1);
    while scene.dropped() < 2 {
        tokio::task::yield_now().await;
    }
    let taken = scene.calls.take(&kept, scene.bound()).await;
    assert_eq!(taken.map(|call| call.name).ok(), Some(1));
}
