//! Requests that must be refused, each with its status and code.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::timeout;

use super::scene::Scene;
use crate::message::{Envelope, Expect};
use crate::servers::gateway::{NAMESPACE, WRONG_TOKEN};
use crate::wire::{Caller, Target};

const PAUSE: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "refusals";

pub(super) async fn ask(scene: Arc<Scene>) {
    let envelope = scene.envelope(NAMESPACE);
    let mut caller = Caller::new(Target::Http(envelope.to));
    let requests = requests(envelope);
    let mut turn = requests.iter().cycle();
    while scene.goes_on_after(PAUSE).await {
        let Some((request, expect)) = turn.next() else {
            return;
        };
        let asked = timeout(
            LIMIT,
            caller.ask(request, |answer| expect.mismatch(answer, 0)),
        );
        let asked = asked.await.context("no answer in time").flatten();
        let right = asked.and_then(|fault| fault.map_or(Ok(()), |it| Err(anyhow::Error::msg(it))));
        scene.books().outcome(NAME, right);
    }
}

fn requests(envelope: Envelope<'static>) -> Vec<(Vec<u8>, Expect)> {
    const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let refused = Expect::refusal;
    let wrong_token = envelope.with_token(WRONG_TOKEN);
    let no_such_namespace = envelope.of("nowhere");
    let no_such_session = envelope.in_session(Some("none"));
    vec![
        (wrong_token.post(PING), Expect::REFUSED),
        (
            no_such_namespace.post(PING),
            refused(404, "namespace_not_found"),
        ),
        (
            no_such_session.post(PING),
            refused(404, "session_not_found"),
        ),
        (envelope.post("{\"jsonrpc\":"), refused(400, "parse_error")),
        (envelope.post("{}"), refused(400, "invalid_request")),
    ]
}
