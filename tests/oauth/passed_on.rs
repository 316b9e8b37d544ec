//! Remote servers that are sent the access tokens of clients, and no other credential of the gateway.

use super::*;
use crate::support::backend::{Backend, header};
use crate::support::session::Session;
use crate::support::sha256;

const KEY: &str = "a-token-of-the-configuration-0123456789";

#[tokio::test]
async fn access_tokens_alone_are_passed_on_and_only_where_the_server_says_so() {
    for mode in ["client", "pass_through"] {
        let (passes, keeps) = (
            Backend::start("passes").await,
            Backend::start("keeps").await,
        );
        let issuer = Issuer::start("one").await;
        let mut config = config(&[&issuer]);
        config["admission"]["tokens"] =
            json!([{"name": "ada", "sha256": sha256(KEY), "namespaces": ["*"]}]);
        let server = |backend: &Backend| {
            json!({
                "backends": [backend.url()], "mode": mode, "headers": {"pass": ["x-tenant"]},
                "health": {"active": {"every": "1h"}},
            })
        };
        let mut passing = server(&passes);
        passing["credentials"] = json!("pass");
        config["upstreams"] = json!({"remote": {"passes": passing, "keeps": server(&keeps)}});
        let gateway = Gateway::empty()
            .env("IDP_SECRET", "hunter2")
            .config(config)
            .start()
            .await;
        has_keys(&gateway, &[&issuer]).await;
        let token = issuer.token(json!({}));
        for (credential, goes_up) in [(&*token, true), (KEY, false), (TOKEN, false)] {
            for (namespace, backend) in [("passes", &passes), ("keeps", &keeps)] {
                let session =
                    Session::start_as(&gateway, namespace, "2025-11-25", credential, json!({}));
                let session = session.await;
                let called = json!({"name": "x", "arguments": {}});
                let answer = session.request(2, "tools/call", called).await;
                assert!(
                    answer.get("error").is_none(),
                    "{mode} {namespace}: {answer}"
                );
                let (head, _) = backend.requests("tools/call").pop().expect("a call");
                let passed = goes_up && namespace == "passes";
                let expected = passed.then(|| format!("Bearer {credential}"));
                assert_eq!(
                    header(&head, "authorization"),
                    expected,
                    "{mode} {namespace}"
                );
            }
        }
        for (head, body) in passes.all().into_iter().chain(keeps.all()) {
            for own in [KEY, TOKEN] {
                assert!(!head.contains(own) && !body.contains(own), "{mode}: {head}");
            }
        }
    }
}
