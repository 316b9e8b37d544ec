//! Probing a server for its revisions, and opening it in one of them.
//!
//! The gateway first sends `server/discover`. Any failure of this probe, an error or a timeout, means that the server may need
//! to be opened with `initialize`: no error code is conclusive. A server too slow for the probe is not misclassified, since its
//! late response is still accepted while `initialize` waits.
//!
//! The caller stores the result (it belongs to the server, not to a process), and starts another process if the probe ended
//! this one, as [`NotOpened`] reports.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};

use super::link::{Link, LinkCall};
use crate::jsonrpc::ResponseOutcome;
use crate::protocol::{ClientIdentity, MODERN, ProtocolVersion, negotiated};

/// Revisions and description of a server, equal for all its processes.
#[derive(Debug, Clone)]
pub(crate) struct ServerRevisions {
    /// The server's era.
    pub(crate) era: ProbedEra,
}

/// The kinds of revisions that a server speaks. Results are spans of the server's bytes, unchanged.
#[derive(Debug, Clone)]
pub(crate) enum ProbedEra {
    /// The server must be opened with `initialize`.
    Legacy {
        /// The protocol version that was negotiated.
        version: ProtocolVersion,
        /// The result of `initialize`, byte for byte as the server sent it.
        result: Bytes,
    },
    /// The server accepts only requests with their own metadata.
    Modern {
        /// The result of `server/discover`, byte for byte as the server sent it.
        discover: Bytes,
    },
    /// The server accepts `initialize` and also requests with their own metadata.
    Dual {
        /// The result of `server/discover`, byte for byte as the server sent it.
        discover: Bytes,
    },
}

/// A server's response to `initialize`.
#[derive(Debug, Clone)]
pub(crate) struct InitializeReply {
    /// The protocol version that was negotiated.
    pub(crate) version: ProtocolVersion,
    /// The result of `initialize`, byte for byte as the server sent it.
    pub(crate) result: Bytes,
}

/// Result of probing a process.
#[derive(Debug, Clone)]
pub(crate) struct ProbeOutcome {
    /// The server's revisions, which the probe found.
    pub(crate) facts: ServerRevisions,
    /// The result of `initialize`; `None` if the process serves requests with their own metadata. Some servers of both eras
    /// bind a process to the era of its first request: a new process is opened for the other era.
    pub(crate) initialized: Option<InitializeReply>,
}

/// Failure to open a process.
#[derive(Debug, Clone)]
pub(crate) struct NotOpened {
    /// The reason for the failure.
    pub(crate) error: CallError,
    /// True if the process ended because of the probe, before any other request: a new process may be opened by [`initialize`].
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

/// Probes a new process for its revisions, and opens it: in the modern era if possible, else by `initialize`. `probe` limits
/// the wait for the response to the probe, `limit` the whole opening. `heard` is called when the wait for the probe's response
/// is over, with true if the server refused the probe.
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
    // Dropping the probe sends no cancellation, which a server that does not know the probe would not understand.
    let params = identity.discover_params();
    let mut question = link
        .request("server/discover", Some(&params), None)?
        .of_gateway()
        .quietly();
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
        // Over HTTP, a server that was not reached has not refused the question, so the opening fails. After a response that is
        // too large, as after any odd response, `initialize` is tried.
        Ok(Err(error)) if !link.is_piped() && error.code != CallErrorCode::ResultTooLarge => {
            return Err(error.into());
        }
        _ => {}
    }
    let outcome = initialize_until(link, &identity.initialize_params(), end).await;
    // The probe may have been answered meanwhile.
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

/// The late response to the probe: taken if it has arrived, or waited for if `wait` is set.
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

/// Reads a response to `server/discover`; `None` unless the server speaks the modern revision.
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

/// Opens a new process in the modern era: sends `server/discover`, to make sure that the process works.
///
/// # Errors
///
/// When the server does not respond in time, refuses, or does not speak the revision.
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

/// Opens a new process by `initialize` and `notifications/initialized`. `params` may be those of a client.
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

/// The message of a server's error, at full length: callers that pass it on first remove secrets, and then cut it short.
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
