//! Requests that have to be refused, each with its status and code.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::scene::Scene;
use crate::message::{Envelope, Expect};
use crate::servers::gateway::{NAMESPACE, WRONG_TOKEN};
use crate::wire::{Connection, Target};

const PAUSE: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "refusals";

pub(super) async fn ask(scene: Arc<Scene>) {
    let envelope = scene.envelope(NAMESPACE);
    let target = Target::Http(envelope.to);
    let requests = requests(envelope);
    let mut connection = None;
    let mut turn = requests.iter().cycle();
    while scene.goes_on_after(PAUSE).await {
        let Some((request, expect)) = turn.next() else {
            return;
        };
        let asked = async {
            let mut open: Connection = match connection.take() {
                Some(open) => open,
                None => Connection::open(&target).await?,
            };
            let answer = open.ask(request).await?;
            let fault = expect.mismatch(&answer, 0);
            if !answer.closes {
                connection = Some(open);
            }
            anyhow::Ok(fault)
        };
        match timeout(LIMIT, asked).await {
            Ok(Ok(None)) => scene.books().right(NAME),
            Ok(Ok(Some(fault))) => scene.books().wrong(NAME, fault),
            Ok(Err(error)) => scene.books().wrong(NAME, format!("{error:#}")),
            Err(_) => scene.books().wrong(NAME, "no answer in time".to_owned()),
        }
    }
}

fn requests(envelope: Envelope<'static>) -> Vec<(Vec<u8>, Expect)> {
    const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let refused = |status, contains| Expect {
        status,
        id: false,
        contains,
        numbered: false,
    };
    let wrong_token = Envelope {
        token: WRONG_TOKEN,
        ..envelope
    };
    let no_such_namespace = Envelope {
        namespace: "nowhere",
        ..envelope
    };
    let no_such_session = Envelope {
        session: Some("none"),
        ..envelope
    };
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
