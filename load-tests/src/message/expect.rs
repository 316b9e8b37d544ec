//! Checks whether an answer is the right one.

use std::time::Duration;

use anyhow::Context;
use tokio::time::timeout;

use super::{FIRST_ID, Request, TEXT};
use crate::wire::{Answer, Connection, Target};

/// The properties of a right answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expect {
    pub(crate) status: u16,
    /// True if the answer's id must be that of the request.
    pub(crate) id: bool,
    pub(crate) contains: &'static str,
    /// True if the request's id must follow `contains` in the response, so that the response to another call is detected
    /// regardless of its JSON-RPC id.
    pub(crate) numbered: bool,
}

impl Expect {
    pub(crate) const PONG: Self = Self::result(r#""result":{}"#);
    /// The answer to `server/discover`.
    pub(crate) const DISCOVERED: Self = Self::result("\"supportedVersions\":");
    pub(crate) const ECHO: Self = Self::result(TEXT);
    pub(crate) const NUMBERED_ECHO: Self = Self {
        numbered: true,
        ..Self::ECHO
    };
    pub(crate) const ANNOUNCED: Self = Self::result("announced");
    pub(crate) const REFUSED: Self = Self::refusal(401, "-32010");
    /// nginx answers every request with the same text.
    pub(crate) const FIXED: Self = Self {
        id: false,
        ..Self::PONG
    };

    const fn result(contains: &'static str) -> Self {
        Self {
            status: 200,
            id: true,
            contains,
            numbered: false,
        }
    }

    /// A refusal before the body is read, so without the request's id.
    pub(crate) const fn refusal(status: u16, contains: &'static str) -> Self {
        Self {
            status,
            id: false,
            contains,
            numbered: false,
        }
    }

    /// The reason why an answer is not the right one to the request `id`; `None` if it is.
    pub(crate) fn mismatch(&self, answer: &Answer<'_>, id: u64) -> Option<String> {
        let fault = if answer.status != self.status {
            format!("status {} instead of {}", answer.status, self.status)
        } else if self.id && id_of(answer.body) != Some(id) {
            format!("not the answer to {id}")
        } else if find(answer.body, br#""isError":true"#).is_some() {
            "the tool failed".to_owned()
        } else if find(answer.body, self.contains.as_bytes()).is_none() {
            format!("without {:?}", self.contains)
        } else if self.numbered && self.number_in(answer.body) != Some(id) {
            "the text of another call".to_owned()
        } else {
            return None;
        };
        let shown = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]);
        Some(format!("{fault}: {shown}"))
    }

    /// Sends the request once, on a separate connection, and checks the response.
    pub(crate) async fn asked(
        self,
        target: &Target,
        mut request: Request,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let asked = async {
            let mut connection = Connection::open(target).await?;
            let answer = connection.ask(request.with_id(FIRST_ID)).await?;
            let fault = self.mismatch(&answer, FIRST_ID);
            fault.map_or(Ok(()), |fault| Err(anyhow::Error::msg(fault)))
        };
        timeout(limit, asked).await.context("no answer in time")?
    }

    fn number_in(&self, body: &[u8]) -> Option<u64> {
        let at = find(body, self.contains.as_bytes())? + self.contains.len();
        number(&body[at..])
    }
}

/// The first numeric `id` of a message.
fn id_of(body: &[u8]) -> Option<u64> {
    let start = find(body, br#""id":"#)? + br#""id":"#.len();
    number(&body[start..])
}

/// The number at the start of a text, after spaces.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii_start();
    let length = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(&digits[..length]).ok()?.parse().ok()
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer<'_> {
        Answer {
            status,
            head: b"",
            body: body.as_bytes(),
            closes: false,
        }
    }

    #[test]
    fn the_answer_to_another_request_is_a_fault() {
        let right = r#"{"jsonrpc":"2.0","id": 1000000001,"result":{}}"#;
        assert_eq!(
            Expect::PONG.mismatch(&answer(200, right), FIRST_ID + 1),
            None
        );
        assert!(
            Expect::PONG
                .mismatch(&answer(200, right), FIRST_ID)
                .is_some()
        );
        assert!(
            Expect::PONG
                .mismatch(&answer(503, right), FIRST_ID + 1)
                .is_some()
        );
    }

    #[test]
    fn a_failed_tool_is_a_fault_though_its_status_is_200() {
        let text = format!(r#"{{"id":{FIRST_ID},"result":{{"isError":true,"content":"{TEXT}"}}}}"#);
        let fault = Expect::ECHO
            .mismatch(&answer(200, &text), FIRST_ID)
            .unwrap();
        assert!(fault.starts_with("the tool failed"), "{fault}");
    }

    #[test]
    fn a_numbered_text_must_carry_the_id_of_its_call() {
        let with = |number: u64| {
            format!(r#"{{"id":{FIRST_ID},"result":{{"content":[{{"text":"{TEXT} {number}"}}]}}}}"#)
        };
        let fault = |body: &str| Expect::NUMBERED_ECHO.mismatch(&answer(200, body), FIRST_ID);
        assert_eq!(fault(&with(FIRST_ID)), None);
        let swapped = fault(&with(FIRST_ID + 1)).unwrap();
        assert!(swapped.starts_with("the text of another call"), "{swapped}");
    }

    #[test]
    fn an_answer_without_an_id_or_with_a_text_id_matches_no_number() {
        for body in [
            "",
            "{}",
            r#"{"id":null}"#,
            r#"{"id":"1000000000"}"#,
            r#"{"id":"#,
        ] {
            assert_eq!(id_of(body.as_bytes()), None, "{body}");
        }
    }
}
