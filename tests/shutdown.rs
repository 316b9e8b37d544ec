//! How a gateway stops: requests in flight finish, then the process ends at once, children first told, none left.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Gateway, eventually, tools};

#[tokio::test]
async fn sigterm_and_sigint_finish_what_runs_and_end_as_soon_as_it_is_done() {
    for signal in [Signal::TERM, Signal::INT] {
        let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
            .start()
            .await;
        let call = gateway.call("faulty", "slow", json!({"seconds": 1.5}));
        let stop = async {
            gateway.in_flight("faulty", 1).await;
            gateway.signal(signal);
            eventually("new connections are refused", || async {
                tokio::net::TcpStream::connect(gateway.address)
                    .await
                    .is_err()
                    .then_some(())
            })
            .await;
            let ready = gateway
                .client
                .get(format!("http://{}/ready", gateway.metrics))
                .send()
                .await
                .unwrap();
            assert_eq!(ready.status(), 503);
            let health = gateway
                .client
                .get(format!("http://{}/health", gateway.metrics))
                .send()
                .await
                .unwrap();
            assert_eq!(health.status(), 200);
        };
        let ((status, answer), ()) = tokio::join!(call, stop);
        assert_eq!((status, answer), (200, json!("done")));
        let answered = Instant::now();
        let exit = gateway.ended().await;
        assert_eq!(exit.code(), Some(0));
        assert!(
            answered.elapsed() < Duration::from_secs(25),
            "the grace period of 30 s is not slept through"
        );
    }
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .start()
        .await;
    let call = gateway
        .request("POST", "/tools/slow")
        .header("X-Namespace", "faulty")
        .json(&json!({"seconds": 25}))
        .send();
    let stop = async {
        gateway.in_flight("faulty", 1).await;
        gateway.signal(Signal::TERM);
        eventually("the drain has begun", || async {
            gateway.log().contains("stopping").then_some(())
        })
        .await;
        gateway.signal(Signal::TERM);
        let exit = gateway.ended().await;
        assert_eq!(exit.code(), Some(1));
    };
    let (call, ()) = tokio::join!(call, stop);
    assert!(call.is_err(), "the call was cut off");
}

#[tokio::test]
async fn an_idle_kept_connection_does_not_hold_the_drain() {
    let gateway = Gateway::empty().start().await;
    // The client keeps its connection after this.
    assert_eq!(gateway.call("shared", "say_hello", json!({})).await.0, 200);
    let begun = Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "the grace period is 30 s"
    );
}

#[tokio::test]
async fn the_grace_period_bounds_the_drain() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"replicas": {"grace": "1s"}}))
        .start()
        .await;
    let call = gateway
        .request("POST", "/tools/slow")
        .header("X-Namespace", "faulty")
        .json(&json!({"seconds": 29}))
        .send();
    let stop = async {
        gateway.in_flight("faulty", 1).await;
        let begun = Instant::now();
        gateway.signal(Signal::TERM);
        gateway.ended().await;
        assert!(
            begun.elapsed() < Duration::from_secs(25),
            "the call takes 29 s"
        );
    };
    let _ = tokio::join!(call, stop);
}
