//! TLS between replicas (`replicas.tls`): both sides show a certificate of one authority, and renew it by a reload.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LATEST, both_up, member, ping};
use crate::client_certificates::Authority;
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, tools};

/// A replica with the certificates of a folder.
async fn replica(redis: &Redis, name: &str, folder: &Path) -> Gateway {
    let file = |name: &str| folder.join(name);
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    let tls = json!({"ca": file("ca.pem"), "cert": file("cert.pem"), "key": file("key.pem"),
        "server_name": "gateways.example"});
    let gateway = gateway.config(json!({"replicas": {"tls": tls}}));
    member(gateway, redis, name).start().await
}

/// Two replicas with the certificates of these folders, once they have heard of each other.
async fn replicas(redis: &Redis, first: &TempDir, second: &TempDir) -> (Gateway, Gateway) {
    let one = replica(redis, "one", first.path());
    let two = replica(redis, "two", second.path());
    both_up(tokio::join!(one, two)).await
}

/// A folder with a certificate of that authority.
fn signed(authority: &Authority) -> TempDir {
    let folder = TempDir::new().expect("a temporary directory");
    authority.write_for_both_sides(folder.path(), "gateways.example");
    folder
}

/// The port of `replicas.address`.
fn port(gateway: &Gateway) -> u16 {
    let address = &gateway.configured()["replicas"]["address"];
    let (_, port) = address
        .as_str()
        .expect("an address")
        .rsplit_once(':')
        .expect("a port");
    port.parse().expect("a port")
}

#[tokio::test]
async fn requests_between_replicas_are_encrypted_and_both_sides_prove_who_they_are() {
    let redis = Redis::start().await;
    let authority = Authority::new("replicas");
    let (first, second) = (signed(&authority), signed(&authority));
    let (one, two) = replicas(&redis, &first, &second).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    assert_eq!(ping(&there).await, 200);
    assert!(there.call(2, "logs", json!({})).await.is_events());
    let forwarded = two.metrics_text().await;
    assert!(
        forwarded.contains("tooldock_replica_forwards_total{outcome=\"answered\"} 2\n"),
        "{forwarded}"
    );

    // The port answers no client without TLS and a certificate of the authority, and admits none without a passport.
    let port = port(&one);
    let status = async |client: reqwest::ClientBuilder, scheme: &str| {
        let client = client.resolve("gateways.example", ([127, 0, 0, 1], port).into());
        let request = client
            .build()
            .unwrap()
            .get(format!("{scheme}://gateways.example:{port}/health"));
        request.send().await.ok().map(|it| it.status().as_u16())
    };
    let trusting = || {
        let authority = reqwest::Certificate::from_pem(authority.pem.as_bytes()).unwrap();
        reqwest::Client::builder().tls_certs_only([authority])
    };
    let identity = |authority: &Authority| {
        let folder = signed(authority);
        let read = |file| fs::read(folder.path().join(file)).unwrap();
        reqwest::Identity::from_pem(&[read("cert.pem"), read("key.pem")].concat()).unwrap()
    };
    let stranger = Authority::new("another");
    assert_eq!(status(reqwest::Client::builder(), "http").await, None);
    assert_eq!(status(trusting(), "https").await, None);
    let shown = trusting().identity(identity(&stranger));
    assert_eq!(status(shown, "https").await, None);
    let shown = trusting().identity(identity(&authority));
    assert_eq!(status(shown, "https").await, Some(403));
    let ends = one.metrics_text().await;
    assert!(
        ends.contains("tooldock_certificate_not_after_seconds{listener=\"replicas.address\"}"),
        "{ends}"
    );
}

#[tokio::test]
async fn certificates_between_replicas_are_renewed_by_a_reload() {
    let redis = Redis::start().await;
    let authority = Authority::new("replicas");
    let (first, second) = (signed(&authority), signed(&authority));
    let (one, two) = replicas(&redis, &first, &second).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    assert_eq!(ping(&there).await, 200);

    // Both get certificates of another authority, one after the other: in between they refuse each other.
    let next = Authority::new("replicas of next year");
    next.write_for_both_sides(first.path(), "gateways.example");
    one.signal(Signal::HUP);
    eventually(
        "the connections of the old authority are closed",
        || async { (ping(&there).await == 503).then_some(()) },
    )
    .await;
    assert_eq!(ping(&here).await, 200);
    next.write_for_both_sides(second.path(), "gateways.example");
    two.signal(Signal::HUP);
    eventually("they trust each other again", || async {
        (ping(&there).await == 200).then_some(())
    })
    .await;
    // The first line is of the start. The files are read before the second, and may be replaced after it alone.
    eventually("the reload is over", || async {
        let reloads = two.log().matches("namespaces loaded").count();
        (reloads >= 2).then_some(())
    })
    .await;

    // Files that cannot be used are logged, and those read before stay.
    fs::write(second.path().join("key.pem"), "no key").unwrap();
    two.signal(Signal::HUP);
    eventually("the reload is over", || async {
        let told = "the files of replicas.tls cannot be used";
        two.log().contains(told).then_some(())
    })
    .await;
    assert_eq!(ping(&there).await, 200);
}

/// The `problem` of the other replica in `/ready`.
async fn problem(gateway: &Gateway) -> String {
    let url = format!("http://{}/ready", gateway.metrics);
    let ready = reqwest::get(url).await.expect("answered");
    let ready: Value = ready.json().await.expect("JSON");
    let problem = &ready["replicas"]["others"][0]["problem"];
    problem.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_replica_that_refuses_the_certificate_of_another_is_named_by_both_until_it_accepts_it() {
    let redis = Redis::start().await;
    let (authority, stranger) = (Authority::new("replicas"), Authority::new("another"));
    let (first, second) = (signed(&authority), signed(&stranger));
    // The first accepts the certificate of the second, and not the reverse: TLS 1.3 tells it after the handshake.
    let both_authorities = format!("{}{}", authority.pem, stranger.pem);
    fs::write(first.path().join("ca.pem"), both_authorities).unwrap();
    let (one, two) = replicas(&redis, &first, &second).await;
    let there = Session::start(&two, "talk", LATEST).await;
    let here = there.at(&one);
    for _ in 0..5 {
        assert_eq!(ping(&here).await, 503);
    }
    eventually("the first names what is wrong", || async {
        let metrics = one.metrics_text().await;
        let counted = metrics.contains("tooldock_replicas_unreachable 1\n");
        let named = problem(&one).await.contains("after the TLS handshake");
        (counted && named).then_some(())
    })
    .await;
    let told = "replica two is up and does not answer at ";
    assert!(one.log().contains(told), "{}", one.log());
    let refused = "a TLS handshake at replicas.address failed: ";
    assert!(two.log().contains(refused), "{}", two.log());

    authority.write_for_both_sides(second.path(), "gateways.example");
    two.signal(Signal::HUP);
    eventually("the first sees that the second answers", || async {
        let metrics = one.metrics_text().await;
        let counted = metrics.contains("tooldock_replicas_unreachable 0\n");
        (counted && problem(&one).await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(ping(&here).await, 200);
    assert!(
        one.log().contains("replica two answers at "),
        "{}",
        one.log()
    );
}

#[tokio::test]
async fn a_certificate_that_other_replicas_would_refuse_is_not_put_into_force() {
    let redis = Redis::start().await;
    let authority = Authority::new("replicas");
    let (first, second) = (signed(&authority), signed(&authority));
    let (one, two) = replicas(&redis, &first, &second).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    assert_eq!(ping(&there).await, 200);

    authority.write_for_both_sides(first.path(), "another.example");
    one.signal(Signal::HUP);
    eventually("the reload is over", || async {
        let told = "it is not for gateways.example: set replicas.tls.server_name";
        one.log().contains(told).then_some(())
    })
    .await;
    assert_eq!(ping(&there).await, 200);
    assert!(
        one.log().contains("those read before stay"),
        "{}",
        one.log()
    );
}
