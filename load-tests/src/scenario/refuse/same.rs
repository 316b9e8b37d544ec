//! Checks that the bare filter gives the gateway's 401: otherwise the two could not be compared.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::timeout;

use super::UNAUTHORIZED;
use crate::message::FIRST_ID;
use crate::wire::{Connection, Target};

const LIMIT: Duration = Duration::from_secs(10);
/// Headers whose values differ in each answer.
const OWN: [&str; 2] = ["x-request-id", "date"];

/// Compares the two 401 answers, bytes and order of the headers included.
///
/// # Errors
///
/// When one of the servers does not answer, or a description of the difference.
pub(super) async fn check(gateway: SocketAddr, bare: SocketAddr) -> anyhow::Result<()> {
    let gateway = refusal(gateway).await.context("the gateway")?;
    let bare = refusal(bare).await.context("the bare filter")?;
    match difference(&lines(&gateway), &lines(&bare)) {
        Some(difference) => bail!(difference),
        None => Ok(()),
    }
}

/// Requests a refusal; returns head and body as received.
async fn refusal(to: SocketAddr) -> anyhow::Result<String> {
    let asked = async {
        let mut connection = Connection::open(&Target::Http(to)).await?;
        let mut request = UNAUTHORIZED.request(to);
        let answer = connection.ask(request.with_id(FIRST_ID)).await?;
        let raw = [answer.head, answer.body].concat();
        anyhow::Ok(String::from_utf8_lossy(&raw).into_owned())
    };
    timeout(LIMIT, asked).await.context("no answer in time")?
}

/// The lines of a response, without the values of the [`OWN`] headers.
fn lines(answer: &str) -> Vec<&str> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let own = |name: &str| OWN.iter().any(|own| name.eq_ignore_ascii_case(own));
    let head = head.split("\r\n").map(|line| match line.split_once(':') {
        Some((name, _)) if own(name) => name,
        _ => line,
    });
    head.chain([body]).collect()
}

fn difference(gateway: &[&str], bare: &[&str]) -> Option<String> {
    let longer = gateway.len().max(bare.len());
    let pair = |at| (gateway.get(at), bare.get(at));
    let (gateway, bare) = (0..longer)
        .map(pair)
        .find(|(gateway, bare)| gateway != bare)?;
    Some(format!(
        "{gateway:?} of the gateway, {bare:?} of the bare filter"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.1 401 Unauthorized\r\nX-Request-Id: a-1\r\nDate: now\r\n\r\n{}";

    #[test]
    fn answers_differ_in_their_request_id_and_date_only() {
        let of = |other: &str| difference(&lines(ANSWER), &lines(other));
        assert_eq!(
            of(&ANSWER.replace("a-1", "b-22").replace("now", "then")),
            None
        );
        for (from, to) in [
            ("401", "403"),
            ("X-Request-Id", "x-request-id"),
            ("Date: now\r\n", ""),
            ("now", "now\r\nConnection: close"),
            ("{}", "{ }"),
        ] {
            assert!(of(&ANSWER.replace(from, to)).is_some(), "{from}");
        }
    }
}
