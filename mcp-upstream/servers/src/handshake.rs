//! Finds the protocol revisions of a server, and opens a connection in one of them.
//!
//! The gateway first sends `server/discover` as a probe. If the probe fails, by an error or a timeout, the server may need
//! `initialize`; no error code tells the two cases apart, so `initialize` is sent after any failure. A server that is too slow
//! for the probe is still recognized, since its late response is accepted while the gateway waits for that to `initialize`.
//!
//! The caller stores the result for the server, not for one process. If the probe ended the process, as `NotOpened` reports,
//! the caller starts another process.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{ClientIdentity, MODERN, ProtocolVersion, negotiated};

use super::link::{Link, LinkCall};

/// The protocol revisions of a server. They are the same for all its processes.
#[derive(Debug, Clone)]
pub(crate) struct ServerRevisions {
    /// The era or eras that the server supports.
    pub(crate) era: ProbedEra,
}

/// The eras of the protocol that a server supports. The results are the server's bytes, unchanged.
#[derive(Debug, Clone)]
pub(crate) enum ProbedEra {
    /// The server supports the legacy era only: each connection must be opened with `initialize`.
    Legacy {
        /// The protocol version that `initialize` negotiated.
        version: ProtocolVersion,
        /// The result of `initialize`, byte for byte as the server sent it.
        result: Bytes,
    },
    /// The server supports the modern era only: it accepts no `initialize`, and each request carries its own metadata.
    Modern {
        /// The result of `server/discover`, byte for byte as the server sent it.
        discover: Bytes,
    },
    /// The server supports both eras: it accepts `initialize`, and also requests with their own metadata.
    Dual {
        /// The result of `server/discover`, byte for byte as the server sent it.
        discover: Bytes,
    },
}

/// A server's response to `initialize`.
#[derive(Debug, Clone)]
pub struct InitializeReply {
    /// The protocol version that `initialize` negotiated.
    pub(crate) version: ProtocolVersion,
    /// The result of `initialize`, byte for byte as the server sent it.
    pub(crate) result: Bytes,
}

/// Result of probing a server by a new process.
#[derive(Debug, Clone)]
pub(crate) struct ProbeOutcome {
    /// The server's revisions that the probe found.
    pub(crate) facts: ServerRevisions,
    /// The server's response to `initialize`; `None` if the process was opened in the modern era. Some servers of both eras bind
    /// a process to the era of its first request, so a new process is started for the other era.
    pub(crate) initialized: Option<InitializeReply>,
}

/// Failure to open a connection to a server.
#[derive(Debug, Clone)]
pub(crate) struct NotOpened {
    /// The reason why the connection could not be opened.
    pub(crate) error: CallError,
    /// True if the process ended because of the probe, before any other request. The caller may then start a new process and open
    /// it with [`initialize`].
    pub(crate) ended_by_probe: bool,
}

impl From<CallError> for NotOpened {
    fn from(error: CallError) -> Self {
        Self {
            error,
            ended_by_probe: false,
        }
    }
}

/// Probes a server for its revisions by a new process, and opens the process: in the modern era if possible, else by
/// `initialize`. `probe`: time limit for the response to the probe; `limit`: time limit for everything. `heard` is called when
/// the wait for the probe's response is over, with true if the server refused the probe.
///
/// # Errors
///
/// [`NotOpened`].
pub(crate) async fn probe(
    link: &Link,
    identity: &ClientIdentity,
    probe: Duration,
    limit: Duration,
    heard: &(dyn Fn(bool) + Send + Sync),
) -> Result<ProbeOutcome, NotOpened> {
    let end = Instant::now() + limit;
    // The probe is abandoned without a cancellation: a server that does not know the probe would not understand that either.
    let params = identity.discover_params();
    let mut question = link
        .request("server/discover", Some(&params), None)?
        .of_gateway()
        .without_cancel_on_drop();
    let first = timeout_at(end.min(Instant::now() + probe), &mut question).await;
    let silent = first.is_err();
    heard(matches!(&first, Ok(Ok(reply)) if discovered(reply).is_none()));
    match first.map(|reply| reply.map(|reply| discovered(&reply))) {
        Ok(Ok(Some(era))) => {
            return Ok(ProbeOutcome {
                facts: ServerRevisions { era },
                initialized: None,
            });
        }
        Ok(Err(error)) if link.is_closed() => {
            return Err(NotOpened {
                error,
                ended_by_probe: true,
            });
        }
        // Over HTTP an error means that the server was not reached, so the opening fails. It does not mean that the server
        // refused the probe. After a response that is too large, as after any invalid response, `initialize` is tried.
        Ok(Err(error)) if !link.is_piped() && error.code != CallErrorCode::ResultTooLarge => {
            return Err(error.into());
        }
        _ => {}
    }
    let outcome = initialize_until(link, &identity.initialize_params(), end).await;
    // The response to the probe may have arrived while `initialize` was answered.
    let late = if silent {
        late_discovery(&mut question, outcome.is_err(), end).await
    } else {
        None
    };
    let (initialized, era) = match (outcome, late) {
        (Ok(initialized), Some(discover)) => (Some(initialized), ProbedEra::Dual { discover }),
        (Ok(initialized), None) => {
            let era = ProbedEra::Legacy {
                version: initialized.version,
                result: initialized.result.clone(),
            };
            (Some(initialized), era)
        }
        (Err(_), Some(discover)) => (None, ProbedEra::Modern { discover }),
        (Err(error), None) => return Err(error.into()),
    };
    Ok(ProbeOutcome {
        facts: ServerRevisions { era },
        initialized,
    })
}

/// Returns the late response to the probe if it has arrived. If `wait` is set, waits for it until `end`.
async fn late_discovery(question: &mut LinkCall, wait: bool, end: Instant) -> Option<Bytes> {
    let until = if wait { end } else { Instant::now() };
    let reply = timeout_at(until, question).await.ok()?.ok()?;
    match discovered(&reply)? {
        ProbedEra::Modern { discover } | ProbedEra::Dual { discover } => Some(discover),
        ProbedEra::Legacy { .. } => None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoverResult {
    supported_versions: Vec<String>,
}

/// Reads a response to `server/discover`. Returns `None` unless the server supports the modern era.
fn discovered(reply: &ResponseOutcome) -> Option<ProbedEra> {
    let ResponseOutcome::Result(result) = reply else {
        return None;
    };
    let DiscoverResult { supported_versions } = serde_json::from_slice(result).ok()?;
    let discover = result.clone();
    let legacy = |version: &String| version.parse::<ProtocolVersion>().is_ok();
    if !supported_versions.iter().any(|version| version == MODERN) {
        None
    } else if supported_versions.iter().any(legacy) {
        Some(ProbedEra::Dual { discover })
    } else {
        Some(ProbedEra::Modern { discover })
    }
}

/// Opens a new process in the modern era. `server/discover` is sent to make sure that the process works.
///
/// # Errors
///
/// When the server does not respond in time, refuses, or does not support the revision.
pub(crate) async fn discover(
    link: &Link,
    identity: &ClientIdentity,
    limit: Duration,
) -> Result<Bytes, CallError> {
    let end = Instant::now() + limit;
    let call = link.request("server/discover", Some(&identity.discover_params()), None)?;
    let reply = within(call, end, "server/discover").await?;
    match discovered(&reply) {
        Some(ProbedEra::Modern { discover } | ProbedEra::Dual { discover }) => Ok(discover),
        _ => Err(unusable(format!(
            "the server does not speak {MODERN}{}",
            quoted(&reply)
        ))),
    }
}

/// Opens a new process by `initialize` and `notifications/initialized`. `params`: the parameters of `initialize`, of the gateway
/// or of a client.
///
/// # Errors
///
/// When the server does not respond in time, refuses, or negotiates a revision that is not supported.
pub(crate) async fn initialize(
    link: &Link,
    params: &RawValue,
    limit: Duration,
) -> Result<InitializeReply, CallError> {
    initialize_until(link, params, Instant::now() + limit).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult<'a> {
    #[serde(borrow)]
    protocol_version: &'a RawValue,
}

async fn initialize_until(
    link: &Link,
    params: &RawValue,
    end: Instant,
) -> Result<InitializeReply, CallError> {
    let call = link.request("initialize", Some(params), None)?;
    let reply = within(call, end, "initialize").await?;
    let ResponseOutcome::Result(result) = &reply else {
        return Err(unusable(format!(
            "the server refused initialize{}",
            quoted(&reply)
        )));
    };
    let version = serde_json::from_slice::<InitializeResult<'_>>(result)
        .ok()
        .map(|read| read.protocol_version);
    let version = negotiated(version)
        .map_err(|why| unusable(format!("the server's answer to initialize {why}")))?;
    link.opened(Some(version));
    link.notify("notifications/initialized", None)?;
    Ok(InitializeReply {
        version,
        result: result.clone(),
    })
}

async fn within(call: LinkCall, end: Instant, method: &str) -> Result<ResponseOutcome, CallError> {
    timeout_at(end, call).await.unwrap_or_else(|_| {
        Err(unusable(format!(
            "the server did not answer {method} in time"
        )))
    })
}

fn unusable(message: String) -> CallError {
    CallError::new(CallErrorCode::WorkerUnavailable, message)
}

/// Returns the message of a server's error at full length. Before a caller shows it to a client, it removes secrets and then
/// shortens the text.
fn quoted(reply: &ResponseOutcome) -> String {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    let ResponseOutcome::Error(error) = reply else {
        return String::new();
    };
    match serde_json::from_slice::<Message>(error) {
        Ok(Message { message }) => format!(": {message}"),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
