//! Counts of correct, excused and wrong responses.
//!
//! A correct response has the status, the id and the text that belong to its request. While a worker or server is down because
//! it was killed, an error with the stable code `worker_unavailable` and the request's own id is excused, since it reports the
//! state to the client. Any other error at that time, the same error at any other time, and a missing response are wrong.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// Time after a kill during which calls of the killed process may fail.
pub(super) const EXCUSED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of stored descriptions of wrong responses.
const WRONG_MAX: usize = 20;
const UNAVAILABLE: &str = "worker_unavailable";

/// Outcomes of one kind of traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    pub(super) right: u64,
    pub(super) excused: u64,
    pub(super) wrong: u64,
    /// Requests whose client disconnected, so that there is no response.
    pub(super) left: u64,
}

/// A process that was killed.
#[derive(Debug, Clone)]
pub(super) struct Kill {
    pub(super) namespace: &'static str,
    at: Instant,
    /// Milliseconds from the kill until a later call had a correct response; `None` before that.
    pub(super) back_ms: Option<f64>,
}

#[derive(Default)]
struct Pages {
    counts: BTreeMap<&'static str, Count>,
    wrong: Vec<String>,
    kills: Vec<Kill>,
}

#[derive(Default)]
pub(super) struct Books(Mutex<Pages>);

impl Books {
    pub(super) fn right(&self, kind: &'static str) {
        self.pages().counts.entry(kind).or_default().right += 1;
    }

    pub(super) fn left(&self, kind: &'static str) {
        self.pages().counts.entry(kind).or_default().left += 1;
    }

    pub(super) fn wrong(&self, kind: &'static str, what: String) {
        let mut pages = self.pages();
        pages.counts.entry(kind).or_default().wrong += 1;
        if pages.wrong.len() < WRONG_MAX {
            pages.wrong.push(format!("{kind}: {what}"));
        }
    }

    pub(super) fn outcome(&self, kind: &'static str, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) => self.right(kind),
            Err(error) => self.wrong(kind, format!("{error:#}")),
        }
    }

    /// Counts an answer of a namespace to a call sent at `sent`. `fault` describes a wrong answer.
    pub(super) fn answer(
        &self,
        kind: &'static str,
        namespace: &str,
        sent: Instant,
        id: u64,
        fault: Option<String>,
        body: &[u8],
    ) {
        let Some(fault) = fault else {
            self.right(kind);
            self.pages().back(namespace, sent);
            return;
        };
        let excused = self.pages().is_excused(namespace, sent, Instant::now());
        if excused && is_unavailable(body, id) {
            self.pages().counts.entry(kind).or_default().excused += 1;
        } else {
            self.wrong(kind, fault);
        }
    }

    pub(super) fn killed(&self, namespace: &'static str) {
        self.pages().kills.push(Kill {
            namespace,
            at: Instant::now(),
            back_ms: None,
        });
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, Count> {
        self.pages().counts.clone()
    }

    pub(super) fn wrong_so_far(&self) -> u64 {
        self.pages().counts.values().map(|count| count.wrong).sum()
    }

    pub(super) fn first_wrong(&self) -> Vec<String> {
        self.pages().wrong.clone()
    }

    pub(super) fn kills(&self) -> Vec<Kill> {
        self.pages().kills.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// Returns true if a call in flight in this time may have met a killed process.
    fn is_excused(&self, namespace: &str, sent: Instant, answered: Instant) -> bool {
        self.kills.iter().any(|kill| {
            kill.namespace == namespace && sent <= kill.at + EXCUSED_FOR && answered >= kill.at
        })
    }

    fn back(&mut self, namespace: &str, sent: Instant) {
        for kill in &mut self.kills {
            if kill.namespace == namespace && kill.back_ms.is_none() && sent >= kill.at {
                kill.back_ms = Some(kill.at.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
}

/// Returns true if the response reports, for this request, that its worker is unavailable. Protocol versions without structured
/// content have the code at the beginning of the text.
fn is_unavailable(body: &[u8], id: u64) -> bool {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return false;
    };
    let code = |place| answer.pointer(place).and_then(Value::as_str);
    let text = code("/result/content/0/text").and_then(|text| text.split_once(": "));
    answer["id"] == id
        && [
            code("/error/data/code"),
            code("/result/_meta/tooldock~1error/code"),
            text.map(|(code, _)| code),
        ]
        .contains(&Some(UNAVAILABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDED: &[u8] =
        br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"x","data":{"code":"worker_unavailable"}}}"#;
    const TOOL: &[u8] =
        br#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"_meta":{"tooldock/error":{"code":"worker_unavailable"}},"isError":true}}"#;

    const OLD_TOOL: &[u8] =
        br#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"worker_unavailable: it ended"}],"isError":true}}"#;

    fn fault() -> Option<String> {
        Some("the tool failed".to_owned())
    }

    fn after(books: &Books, namespace: &str, id: u64, body: &[u8]) -> (u64, u64, u64) {
        books.answer("calls", namespace, Instant::now(), id, fault(), body);
        let count = books.counts()["calls"].clone();
        (count.right, count.excused, count.wrong)
    }

    #[test]
    fn an_error_is_excused_only_with_its_code_and_id_while_its_own_namespace_is_down() {
        let books = Books::default();
        assert_eq!(
            after(&books, "load", 7, TOOL),
            (0, 0, 1),
            "nothing was killed"
        );
        books.killed("load");
        assert_eq!(after(&books, "load", 7, TOOL), (0, 1, 1));
        assert_eq!(after(&books, "load", 7, FORWARDED), (0, 2, 1));
        assert_eq!(after(&books, "load", 7, OLD_TOOL), (0, 3, 1));
        assert_eq!(after(&books, "load", 8, TOOL), (0, 3, 2), "another's");
        assert_eq!(after(&books, "echo", 7, TOOL), (0, 3, 3), "not killed");
        assert_eq!(after(&books, "load", 7, b"{\"id\":7}"), (0, 3, 4));
        assert_eq!(books.first_wrong().len(), 4);
    }

    #[test]
    fn an_excuse_runs_out_but_covers_a_call_that_was_under_way() {
        let killed = Instant::now() + Duration::from_secs(100);
        let pages = Pages {
            kills: vec![Kill {
                namespace: "load",
                at: killed,
                back_ms: None,
            }],
            ..Pages::default()
        };
        let second = Duration::from_secs(1);
        assert!(!pages.is_excused("load", killed - second * 2, killed - second));
        assert!(pages.is_excused("load", killed - second, killed + second * 60));
        let late = killed + EXCUSED_FOR + second;
        assert!(!pages.is_excused("load", late, late));
    }

    #[test]
    fn a_killed_one_is_back_with_the_first_right_answer_to_a_call_after_it() {
        let books = Books::default();
        let before = Instant::now();
        books.killed("echo");
        books.answer("calls", "echo", before, 7, None, b"");
        assert_eq!(books.kills()[0].back_ms, None, "sent before");
        books.answer("calls", "echo", Instant::now(), 7, None, b"");
        assert!(books.kills()[0].back_ms.is_some());
    }
}
