//! Delivery of `notifications/initialized`, without which a server refuses every request of a session.

use super::*;

/// Opens a session at a backend that answers 503 to the first `times` notifications `notifications/initialized`, and calls a
/// tool. Returns the scene, the result of the call, and the number of times that the notification was sent.
async fn opened_while_unavailable(times: usize) -> (Scene, Called, usize) {
    let left = Arc::new(AtomicUsize::new(0));
    let unavailable = Arc::clone(&left);
    let scene = Scene::new(1, move |seen: Seen| {
        let left = Arc::clone(&unavailable);
        async move {
            let one_less = |left: usize| left.checked_sub(1);
            if seen.what() == "notifications/initialized"
                && left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
                    .is_ok()
            {
                return Ok(text(503, ""));
            }
            legacy(seen, |seen| Ok(json(&done(seen)))).await
        }
    });
    // A first session reads the server's era and lists, so that the second session sends only its own messages.
    let other = session(&scene, "other").await;
    assert!(call(&other).await.outcome.is_ok());
    let backend = &scene.backends[0];
    let before = backend.count("notifications/initialized");
    left.store(times, Ordering::SeqCst);
    let leased = session(&scene, "a").await;
    let called = call(&leased).await;
    let sent = backend.count("notifications/initialized") - before;
    (scene, called, sent)
}

#[tokio::test(start_paused = true)]
async fn the_notification_is_repeated_in_the_same_session_while_the_server_is_unavailable() {
    let (_scene, called, sent) = opened_while_unavailable(2).await;
    assert_eq!(called.outcome.as_deref(), Ok(DONE));
    assert_eq!(sent, 3);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_notification_is_never_accepted_is_dropped_and_its_call_is_not_sent() {
    let (scene, called, sent) = opened_while_unavailable(6).await;
    assert!(called.outcome.is_err() && called.unsent && called.session_gone);
    assert_eq!((sent, scene.backends[0].count("tools/call")), (6, 1));
    let again = session(&scene, "a").await;
    assert_eq!(call(&again).await.outcome.as_deref(), Ok(DONE));
}
