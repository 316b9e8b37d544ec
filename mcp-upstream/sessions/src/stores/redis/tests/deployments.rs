//! Tests with Redis behind Sentinels, as a cluster, and over TLS.

use super::*;
use crate::stores::contract::{self, inserted};

/// Makes a store in a cluster of one node. Redis refuses commands across slots even there, so this tests that all keys of a
/// session are in one slot.
async fn cluster(log: EventLogConfig) -> Made {
    let server = RedisServer::cluster();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    made(store_at(&url, &log), server)
}

contract::holds_for!(cluster);

#[tokio::test]
async fn sessions_live_on_when_the_sentinels_choose_another_primary() {
    let mut primary = RedisServer::listening(&[]);
    let replica = RedisServer::replica_of(&primary);
    let sentinel = RedisServer::sentinel_of(&primary);
    sentinel.until(&["SENTINEL", "replicas", "main"], "master-link-status\nok");
    let url = format!("redis+sentinel://127.0.0.1:{}/main/0", sentinel.port());
    let store = store_at(&url, &EventLogConfig::default());
    let made = made(store.clone(), replica);
    let session = inserted(&made).await;
    let replica: &RedisServer = made.guard.downcast_ref().expect("the replica");
    replica.until(&["DBSIZE"], "2");
    primary.kill();
    let told = store.ping().await.expect_err("it is away").to_string();
    assert!(told.contains("main of the Sentinels 127.0.0.1:"), "{told}");
    sentinel.promote(replica);
    answers(&store).await;
    let record = store.load(session.as_str()).await.expect("works");
    assert!(record.is_some(), "it was on the replica");
    let removed = store.remove(&session).await;
    assert!(removed.expect("the replica takes writes now"));
}

#[tokio::test]
async fn a_name_that_the_sentinels_do_not_know_is_told() {
    let primary = RedisServer::listening(&[]);
    let sentinel = RedisServer::sentinel_of(&primary);
    let port = sentinel.port();
    let told = refusal(&format!("redis+sentinel://127.0.0.1:{port}/other")).await;
    assert!(told.contains("is unknown to the Sentinels"), "{told}");
}

#[tokio::test]
async fn a_server_over_tls_is_used_if_its_authority_is_known() {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let certificate = file("certificate.pem", certified.cert.pem());
    let key = file("key.pem", certified.signing_key.serialize_pem());
    let port = server::free_port();
    let _server = RedisServer::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://localhost:{port}?ca_file={certificate}");
    let store = store_at(&url, &EventLogConfig::default());
    store.ping().await.expect("answers");
    let told = refusal(&format!("rediss://localhost:{port}")).await;
    assert!(told.contains("cannot be reached"), "{told}");
}
