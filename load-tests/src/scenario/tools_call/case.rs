//! A case: the server, the kind of client and the length of the text, which make a row of the tables.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::message::{EchoCall, Envelope, Expect, Request};
use crate::options::Options;
use crate::servers::echo::Era;
use crate::servers::gateway::{ASYNC_TOOL, NAMESPACE, SYNC_TOOL};
use crate::session;
use crate::wire::Target;

/// Number of concurrent clients before a stdio server and the fronts compared with it.
pub(super) const MANY: usize = 64;
/// Number of concurrent clients with bodies of a mebibyte: more would measure the memory of the machine.
const FEW: usize = 4;
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);
/// The gateway's namespaces of the stdio echo server. `conf.yaml` has their limits.
pub(super) const LEGACY: &str = "echo";
pub(super) const DUAL: &str = "dual";

/// The server that executes the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// No server: a `ping`, `server/discover` in revisions without ping, or nginx's fixed response.
    None,
    /// The Python worker, with an `async def`, or with a `def` on a thread.
    Async,
    Sync,
    Stdio(Era),
    /// The small HTTP application.
    App,
}

/// The protocol of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Each client has a session of 2025-11-25.
    Session,
    /// Messages of 2025-11-25 and before, without a session.
    Sessionless,
    /// 2026-07-28, which has no sessions.
    Modern,
    /// The client writes lines to the pipes of the server's process.
    Pipes,
}

/// The length of the text that is sent and returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    Words,
    Kb16,
    Mb1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) server: Server,
    pub(super) client: Client,
    pub(super) text: Text,
}

impl Text {
    fn length(self) -> usize {
        match self {
            Self::Words => 0,
            Self::Kb16 => 16 * 1024,
            Self::Mb1 => 1024 * 1024,
        }
    }
}

impl Case {
    pub(super) const fn new(server: Server, client: Client) -> Self {
        Self {
            server,
            client,
            text: Text::Words,
        }
    }

    pub(super) const fn with(self, text: Text) -> Self {
        Self { text, ..self }
    }

    /// The number of concurrent clients.
    pub(super) fn clients(self, options: &Options) -> usize {
        match (self.server, self.text) {
            (_, Text::Mb1) => FEW,
            (Server::Stdio(_) | Server::App, Text::Words) => MANY,
            _ => options.connections,
        }
    }

    pub(super) fn expect(self) -> Expect {
        match (self.server, self.client) {
            (Server::None, Client::Modern) => Expect::DISCOVERED,
            (Server::None, _) => Expect::PONG,
            _ => Expect::NUMBERED_ECHO,
        }
    }

    fn namespace(self) -> &'static str {
        match self.server {
            Server::None | Server::Async | Server::Sync => NAMESPACE,
            Server::Stdio(Era::Legacy) | Server::App => LEGACY,
            Server::Stdio(Era::Dual) => DUAL,
        }
    }

    fn call(self, echo_tool: &'static str) -> EchoCall {
        let tool = match self.server {
            Server::Async => ASYNC_TOOL,
            Server::Sync => SYNC_TOOL,
            _ => echo_tool,
        };
        EchoCall {
            tool,
            length: self.text.length(),
        }
    }

    /// A request for each client, in a separate session if the case has sessions and the server offers them. `echo_tool` is the
    /// name of the echo server's tool.
    pub(super) async fn requests(
        self,
        envelope: Envelope<'_>,
        echo_tool: &'static str,
        clients: usize,
    ) -> anyhow::Result<Vec<Request>> {
        let envelope = envelope.of(self.namespace());
        let mut requests = Vec::with_capacity(clients);
        for _ in 0..clients {
            let session = match self.client {
                Client::Session => session::offered(envelope).await?,
                _ => None,
            };
            let envelope = envelope.in_session(session.as_deref());
            requests.push(match (self.server, self.client) {
                (_, Client::Pipes) => bail!("nobody is at the pipes of a server behind something"),
                (Server::None, Client::Modern) => envelope.discover(),
                (Server::None, _) => envelope.ping(),
                (_, Client::Modern) => envelope.modern_echo(self.call(echo_tool)),
                (_, Client::Session | Client::Sessionless) => envelope.echo(self.call(echo_tool)),
            });
        }
        Ok(requests)
    }

    /// Sends the request once, so that a server that starts with its first call is running afterwards.
    pub(super) async fn once(self, target: &Target, request: &Request) -> anyhow::Result<()> {
        let asked = self
            .expect()
            .asked(target, request.clone(), FIRST_CALL_LIMIT);
        asked.await.context("the first call")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Async => "Python, async",
            Self::Sync => "Python, sync",
            Self::Stdio(Era::Legacy) => "stdio",
            Self::Stdio(Era::Dual) => "stdio, 2026-07-28",
            Self::App => "HTTP",
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::Sessionless => "no session",
            Self::Modern => "2026-07-28",
            Self::Pipes => "its pipes",
        })
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Words => "small",
            Self::Kb16 => "16 KB",
            Self::Mb1 => "1 MB",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.server, self.client, self.text)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::message::FIRST_ID;

    #[test]
    fn large_bodies_are_sent_by_few_and_small_ones_by_many() {
        let options = Options::parse_from(["x"]);
        let stdio = Case::new(Server::Stdio(Era::Legacy), Client::Session);
        let python = Case::new(Server::Async, Client::Session);
        assert_eq!(stdio.clients(&options), MANY);
        assert_eq!(python.clients(&options), options.connections);
        assert_eq!(
            stdio.with(Text::Kb16).clients(&options),
            options.connections
        );
        for case in [stdio, python] {
            assert_eq!(case.with(Text::Mb1).clients(&options), FEW);
        }
    }

    #[tokio::test]
    async fn requests_without_a_session_need_no_server() {
        let envelope = Envelope::new("127.0.0.1:1".parse().unwrap(), "t", "overwritten");
        for (server, client, parts) in [
            (
                Server::None,
                Client::Sessionless,
                [r#""ping""#, "X-Namespace: load"],
            ),
            (
                Server::None,
                Client::Modern,
                [r#""server/discover""#, "X-Namespace: load"],
            ),
            (
                Server::Sync,
                Client::Sessionless,
                [SYNC_TOOL, "X-Namespace: load"],
            ),
            (
                Server::Async,
                Client::Modern,
                ["Mcp-Name: echo_async", "2026-07-28"],
            ),
            (
                Server::Stdio(Era::Dual),
                Client::Modern,
                ["Mcp-Name: echo\r\n", "X-Namespace: dual"],
            ),
        ] {
            let case = Case::new(server, client);
            let mut all = case.requests(envelope, "echo", 2).await.unwrap();
            let text = String::from_utf8(all[1].with_id(FIRST_ID).to_vec()).unwrap();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        let long = Case::new(Server::Async, Client::Modern).with(Text::Mb1);
        let mut request = long.requests(envelope, "echo", 1).await.unwrap();
        assert!(request[0].with_id(FIRST_ID).len() > 1024 * 1024);
    }
}
