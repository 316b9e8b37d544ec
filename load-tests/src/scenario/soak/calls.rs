//! Calls of every kind, each on a separate connection, and calls whose client disconnects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::scene::{DUAL, ECHO, SLOW, Scene};
use crate::message::{EchoCall, Envelope, Expect, Request};
use crate::servers::gateway::{ASYNC_TOOL, NAMESPACE, SYNC_TOOL};
use crate::session;
use crate::wire::{Caller, Target};

/// Pause between two requests of one client. Forty clients send some 1,500 requests per second, which does not saturate
/// two cores.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit of an answer, including a restart of its worker.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Times after which a client disconnects, used in turn. The slow tool takes 300 ms.
const STAYS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(60),
    Duration::from_millis(299),
];
const BODY: usize = 16 * 1024;

/// The code of a namespace with a slow tool.
pub(super) const SLOW_CODE: &str = include_str!("../../../tools/slow.py");

/// A kind of call.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    namespace: &'static str,
    call: EchoCall<'static>,
    form: Form,
    clients: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Session,
    Sessionless,
    Modern,
}

#[rustfmt::skip]
const KINDS: [Kind; 9] = [
    kind("Python, async", NAMESPACE, ASYNC_TOOL, 0, Form::Session, 8),
    kind("Python, sync", NAMESPACE, SYNC_TOOL, 0, Form::Sessionless, 4),
    kind("Python, 16 KB", NAMESPACE, ASYNC_TOOL, BODY, Form::Session, 4),
    kind("Python, 2026-07-28", NAMESPACE, ASYNC_TOOL, 0, Form::Modern, 4),
    kind("stdio", ECHO, "echo", 0, Form::Session, 8),
    kind("stdio, 16 KB", ECHO, "echo", BODY, Form::Sessionless, 4),
    kind("stdio, bridged", ECHO, "echo", 0, Form::Modern, 4),
    kind("stdio, 2026-07-28", DUAL, "echo", 0, Form::Modern, 4),
    kind("slow", SLOW, "wait", 0, Form::Session, 2),
];

const fn kind(
    name: &'static str,
    namespace: &'static str,
    tool: &'static str,
    length: usize,
    form: Form,
    clients: usize,
) -> Kind {
    Kind {
        name,
        namespace,
        call: EchoCall { tool, length },
        form,
        clients,
    }
}

/// Makes a call of every kind, which starts every worker and server.
pub(super) async fn one_of_each(scene: &Scene) -> anyhow::Result<()> {
    for kind in KINDS {
        let mut client = Client::new(scene, kind).await?;
        client.call(scene).await;
        client.end(scene).await;
    }
    let wrong = scene.books().first_wrong();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

pub(super) fn spawn(clients: &mut JoinSet<()>, scene: &Arc<Scene>) {
    for kind in KINDS {
        for _ in 0..kind.clients {
            clients.spawn(drive(Arc::clone(scene), kind));
        }
    }
    for namespace in [SLOW, ECHO] {
        clients.spawn(leave(Arc::clone(scene), namespace));
    }
}

async fn drive(scene: Arc<Scene>, kind: Kind) {
    let mut client = match Client::new(&scene, kind).await {
        Ok(client) => client,
        Err(error) => return scene.books().wrong(kind.name, format!("{error:#}")),
    };
    while scene.goes_on_after(PAUSE).await {
        client.call(&scene).await;
    }
    client.end(&scene).await;
}

struct Client {
    kind: Kind,
    session: Option<String>,
    request: Request,
    caller: Caller,
}

impl Client {
    async fn new(scene: &Scene, kind: Kind) -> anyhow::Result<Self> {
        let envelope = scene.envelope(kind.namespace);
        let session = match kind.form {
            Form::Session => Some(session::open(envelope).await?),
            Form::Sessionless | Form::Modern => None,
        };
        let with_session = envelope.in_session(session.as_deref());
        let request = match kind.form {
            Form::Modern => envelope.modern_echo(kind.call),
            Form::Session | Form::Sessionless => with_session.echo(kind.call),
        };
        Ok(Self {
            kind,
            session,
            request,
            caller: Caller::new(Target::Http(envelope.to)),
        })
    }

    async fn call(&mut self, scene: &Scene) {
        let (id, sent) = (scene.next_id(), Instant::now());
        let Kind {
            name, namespace, ..
        } = self.kind;
        let asked = self.caller.ask(self.request.with_id(id), |answer| {
            let fault = Expect::NUMBERED_ECHO.mismatch(answer, id);
            let body = fault.as_ref().map(|_| answer.body.to_vec());
            (fault, body.unwrap_or_default())
        });
        let asked = timeout(ANSWER_LIMIT, asked).await;
        let books = scene.books();
        match asked.context("no answer in time").flatten() {
            Ok((fault, body)) => books.answer(name, namespace, sent, id, fault, &body),
            Err(error) => books.wrong(name, format!("{error:#}")),
        }
    }

    async fn end(self, scene: &Scene) {
        if let Some(session) = &self.session {
            super::sessions::close(scene, self.kind.namespace, session).await;
        }
    }
}

/// Makes calls, and disconnects before the response or in the middle of it.
async fn leave(scene: Arc<Scene>, namespace: &'static str) {
    let (name, tool, length) = match namespace {
        SLOW => ("slow, client leaves", "wait", 0),
        _ => ("stdio, client leaves", "echo", BODY),
    };
    let envelope = scene.envelope(namespace);
    let mut request = envelope.echo(EchoCall { tool, length });
    let mut stays = STAYS.iter().cycle();
    while scene.goes_on_after(PAUSE).await {
        let bytes = request.with_id(scene.next_id());
        let stay = stays.next().copied().unwrap_or_default();
        match begin(envelope, bytes, stay).await {
            Ok(()) => scene.books().left(name),
            wrong => scene.books().outcome(name, wrong),
        }
    }
}

async fn begin(envelope: Envelope<'_>, bytes: &[u8], stay: Duration) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(envelope.to)
        .await
        .context("connecting")?;
    stream.write_all(bytes).await.context("sending")?;
    // Some bytes of a long answer; none of a slow one.
    let mut some = [0; 512];
    let read = timeout(stay, stream.read(&mut some)).await;
    if let Ok(Ok(read @ 1..)) = read {
        let head = String::from_utf8_lossy(&some[..read]);
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    Ok(())
}
