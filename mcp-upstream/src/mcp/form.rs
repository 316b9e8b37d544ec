//! Converts responses to the media type that the client accepts, on listeners with `accept: lenient`: to JSON, or to events for a
//! client that accepts nothing else.
//!
//! ```text
//!   Accept                         JSON response      stream of events (of a server, passed through)
//!   JSON and events, by name       unchanged          unchanged
//!   JSON, a wildcard, or nothing   unchanged          its last message as JSON
//!   events alone                   one event          unchanged
//! ```
//!
//! Refusals with an error status remain JSON, since clients recognize them by the status.

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use smallvec::SmallVec;
use tooldock_base::answers::{AnswerAccount, NoAnswerRoom};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::profile::{AcceptRule, Profile};
use tooldock_sessions::stream::frame;

use super::head::AcceptFlags;
use super::{events_head, pass_through};
use crate::jsonrpc::RequestError;
use crate::reply::{BodyStream, Head, JSON, Reply};

/// Returns true if responses to a POST with this `Accept` may have to be converted.
pub(super) fn may_change(accept: AcceptFlags, profile: &Profile) -> bool {
    profile.accept == AcceptRule::Lenient && !(accept.json_acceptable && accept.sse_named)
}

/// Converts a response to a media type that the client accepts. `answers` counts the memory of a stream of events that is
/// buffered for the conversion.
pub(super) async fn accepted(reply: Reply, accept: AcceptFlags, answers: &AnswerAccount) -> Reply {
    let kind = AnswerMedia::of(reply.head());
    match kind {
        Some(AnswerMedia::Json) if !accept.json_acceptable => as_events(reply),
        Some(AnswerMedia::Events) if accept.json_acceptable && !accept.sse_named => {
            let answered = as_json(reply, answers).await;
            answered.unwrap_or_else(no_room)
        }
        _ => reply,
    }
}

/// Media type of a successful response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerMedia {
    Json,
    Events,
}

impl AnswerMedia {
    fn of(head: &Head) -> Option<Self> {
        let typed = |(name, value): &(http::HeaderName, http::HeaderValue)| {
            let value = value.as_bytes();
            let begins = |media: &[u8]| {
                let found = value.get(..media.len());
                found.is_some_and(|found| found.eq_ignore_ascii_case(media))
            };
            match *name == CONTENT_TYPE {
                true if begins(b"application/json") => Some(Self::Json),
                true if begins(b"text/event-stream") => Some(Self::Events),
                _ => None,
            }
        };
        let headers = head.headers.iter();
        headers.filter(|_| head.status.is_success()).find_map(typed)
    }
}

/// Converts a JSON response to a single event.
fn as_events(reply: Reply) -> Reply {
    match reply {
        Reply::Full { head, body } if !body.is_empty() => Reply::Full {
            head: of_events(head),
            body: frame::message(None, &body),
        },
        Reply::Opening {
            head,
            body,
            session,
        } => Reply::Opening {
            head: of_events(head),
            body: frame::message(None, &body),
            session,
        },
        Reply::Body { head, body } => Reply::Body {
            head: of_events(head),
            body: one_event(body),
        },
        other => other,
    }
}

/// Converts a JSON text that arrives in pieces to a single event. Line breaks become spaces: in JSON they occur only between
/// tokens.
fn one_event(body: BodyStream) -> BodyStream {
    let begin = stream::once(async { Ok(Bytes::from_static(b"event: message\ndata: ")) });
    let end = stream::once(async { Ok(Bytes::from_static(b"\n\n")) });
    let lines = body.map(|piece| piece.map(in_one_line));
    // If the body breaks off, the event is left without its end.
    let mut broken = false;
    let whole = begin.chain(lines).chain(end);
    Box::pin(whole.take_while(move |piece| {
        let goes_on = !broken;
        broken |= piece.is_err();
        std::future::ready(goes_on)
    }))
}

fn in_one_line(piece: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &piece).is_none() {
        return piece;
    }
    let mut line = BytesMut::with_capacity(piece.len());
    for byte in piece {
        line.put_u8(if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            byte
        });
    }
    line.freeze()
}

/// Converts a stream of events to JSON: its last message. Earlier messages of the server are lost for a client that accepts no
/// events.
///
/// # Errors
///
/// [`NoAnswerRoom`], if the memory for buffered responses is used up.
async fn as_json(reply: Reply, answers: &AnswerAccount) -> Result<Reply, NoAnswerRoom> {
    Ok(match reply {
        Reply::Full { head, body } => match pass_through::answer_of(&body, answers)? {
            Some(answer) => Reply::Full {
                head: of_json(head),
                body: answer,
            },
            None => unanswered(),
        },
        Reply::Opening {
            head,
            body,
            session,
        } => match pass_through::answer_of(&body, answers)? {
            Some(answer) => Reply::Opening {
                head: of_json(head),
                body: answer,
                session,
            },
            None => unanswered(),
        },
        Reply::Body { head, body } => match pass_through::answer_in(body, answers).await? {
            Some(answer) => Reply::Full {
                head: of_json(head),
                body: answer,
            },
            None => unanswered(),
        },
        other @ (Reply::Events { .. } | Reply::Elsewhere { .. }) => other,
    })
}

/// Builds the error response for a server's stream that ended without a response.
fn unanswered() -> Reply {
    let message = "The server's stream of events ended without an answer";
    let failure = RequestError::Upstream(CallError::new(CallErrorCode::InternalError, message));
    Reply::json(StatusCode::OK, failure.body(None))
}

/// Builds the error response for the case that the memory for buffered responses is used up.
fn no_room(error: NoAnswerRoom) -> Reply {
    let failure = RequestError::Upstream(error.into());
    Reply::Full {
        head: Head::json(StatusCode::SERVICE_UNAVAILABLE).with(RETRY_AFTER, 1_u64.into()),
        body: failure.body(None).into(),
    }
}

fn of_events(head: Head) -> Head {
    let mut of_events = events_head();
    of_events.status = head.status;
    of_events.headers.extend(of_the_answer(head));
    of_events
}

fn of_json(head: Head) -> Head {
    let mut of_json = Head::new(head.status).with(CONTENT_TYPE, JSON);
    of_json.headers.extend(of_the_answer(head));
    of_json
}

/// Returns the headers that do not depend on the response's media type.
fn of_the_answer(head: Head) -> SmallVec<[(http::HeaderName, http::HeaderValue); 2]> {
    let of_the_form = |name: &http::HeaderName| {
        [CONTENT_TYPE, CACHE_CONTROL].contains(name) || *name == "x-accel-buffering"
    };
    let headers = head.headers.into_iter();
    headers.filter(|(name, _)| !of_the_form(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::TryStreamExt;
    use http::HeaderValue;
    use tooldock_base::answers::{AnswerBudget, AnswerMetrics};

    use super::*;

    const SSE_ALONE: AcceptFlags = AcceptFlags {
        json_named: false,
        sse_named: true,
        json_acceptable: false,
        sse_acceptable: true,
    };

    fn account(total: usize) -> (Arc<AnswerBudget>, AnswerAccount) {
        let metrics = AnswerMetrics::new(&prometheus::Registry::new()).expect("metrics");
        let budget = AnswerBudget::new(total, metrics);
        let account = AnswerAccount::new(&budget, None, Ipv4Addr::LOCALHOST.into());
        (budget, account)
    }

    /// Pieces of a stream, of 64 KiB each, with the number of pieces that were read and the most memory that the budget held.
    fn counted(
        text: String,
        budget: &Arc<AnswerBudget>,
    ) -> (Reply, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        let (read, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (reads, mosts, budget) = (Arc::clone(&read), Arc::clone(&most), Arc::clone(budget));
        let bytes = Bytes::from(text);
        let begins = (0..bytes.len()).step_by(PIECE);
        let pieces = begins.collect::<Vec<_>>().into_iter().map(move |begin| {
            reads.fetch_add(1, Ordering::Relaxed);
            mosts.fetch_max(budget.bytes(), Ordering::Relaxed);
            Ok(bytes.slice(begin..bytes.len().min(begin + PIECE)))
        });
        let reply = Reply::Body {
            head: Head::new(StatusCode::OK)
                .with(CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            body: Box::pin(stream::iter(pieces)),
        };
        (reply, read, most)
    }

    const PIECE: usize = 64 * 1024;

    fn answer_of(size: usize) -> String {
        let text = "x".repeat(size);
        format!("data: {{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{{\"t\":\"{text}\"}}}}\n\n")
    }

    #[tokio::test]
    async fn what_is_held_of_a_stream_counts_and_beyond_the_total_the_answer_is_refused() {
        let (budget, account) = account(10 * PIECE);
        let (stream, read, most) = counted(answer_of(40 * PIECE), &budget);
        let reply = accepted(stream, AcceptFlags::default(), &account).await;
        assert_eq!(reply.head().status, StatusCode::SERVICE_UNAVAILABLE);
        let headers = &reply.head().headers;
        assert!(
            headers.contains(&(RETRY_AFTER, 1_u64.into())),
            "{headers:?}"
        );
        assert!(text(reply).await.contains("\"code\":\"overloaded\""));
        let read = read.load(Ordering::Relaxed);
        assert!((10..=11).contains(&read), "{read} pieces were read");
        assert_eq!(most.load(Ordering::Relaxed), 10 * PIECE);
        assert_eq!(budget.bytes(), 0);

        let whole = Reply::Full {
            head: Head::new(StatusCode::OK)
                .with(CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            body: answer_of(11 * PIECE).into(),
        };
        let reply = accepted(whole, AcceptFlags::default(), &account).await;
        assert_eq!(reply.head().status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(budget.bytes(), 0);
    }

    #[tokio::test]
    async fn events_that_have_passed_count_no_more() {
        let (budget, account) = account(10 * PIECE);
        let told = "y".repeat(4 * PIECE + 100);
        let event =
            format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":\"{told}\"}}\n\n");
        let answer = answer_of(3 * PIECE);
        let (stream, _, most) = counted(event.repeat(8) + &answer, &budget);
        let reply = accepted(stream, AcceptFlags::default(), &account).await;
        assert_eq!(reply.head().status, StatusCode::OK);
        let json = answer["data: ".len()..].trim_end();
        assert!(text(reply).await == json, "the answer as it is");
        let most = most.load(Ordering::Relaxed);
        assert!((4 * PIECE..=6 * PIECE).contains(&most), "{most}");
        assert_eq!(budget.bytes(), 0);
    }

    fn streamed(kind: &'static str, pieces: &[&'static str]) -> Reply {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|it| Ok(Bytes::from_static(it.as_bytes())))
            .collect();
        Reply::Body {
            head: Head::new(StatusCode::OK).with(CONTENT_TYPE, HeaderValue::from_static(kind)),
            body: Box::pin(stream::iter(pieces)),
        }
    }

    async fn text(reply: Reply) -> String {
        let bytes = match reply {
            Reply::Full { body, .. } => body.to_vec(),
            Reply::Body { body, .. } => {
                let pieces: Vec<Bytes> = body.try_collect().await.expect("whole");
                pieces.concat()
            }
            other => panic!("{other:?}"),
        };
        String::from_utf8(bytes).expect("text")
    }

    #[tokio::test]
    async fn a_long_json_answer_is_one_event_as_it_comes() {
        let pretty = streamed(
            "application/json; charset=utf-8",
            &["{\n \"a\":", "1\r\n}", "\n"],
        );
        let reply = accepted(pretty, SSE_ALONE, &account(usize::MAX).1).await;
        assert_eq!(reply.head().headers[0].1, "text/event-stream");
        assert_eq!(
            text(reply).await,
            "event: message\ndata: {  \"a\":1  } \n\n"
        );
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_ends_no_event() {
        let pieces = [Ok(Bytes::from_static(b"{")), Err("cut".into())];
        let cut = Reply::Body {
            head: Head::json(StatusCode::OK),
            body: Box::pin(stream::iter(pieces)),
        };
        let Reply::Body { body, .. } = accepted(cut, SSE_ALONE, &account(usize::MAX).1).await
        else {
            panic!("no stream");
        };
        let pieces: Vec<_> = body.collect().await;
        assert_eq!(pieces.len(), 3);
        assert!(pieces[2].is_err());
    }

    #[tokio::test]
    async fn of_a_stream_a_client_without_streams_gets_the_answer() {
        let question = r#"data: {"jsonrpc":"2.0","id":1,"method":"roots/list"}"#;
        let told = "\u{feff}id: 1\ndata:\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n";
        let answer =
            "event: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":7,\"result\":{}}\n\n";
        let (first, second) = answer.split_at(30);
        for accept in [
            AcceptFlags::default(),
            AcceptFlags {
                sse_acceptable: false,
                ..AcceptFlags::default()
            },
        ] {
            let stream = streamed(
                "text/event-stream",
                &[told, question, "\n\n", first, second],
            );
            let reply = accepted(stream, accept, &account(usize::MAX).1).await;
            assert_eq!(reply.head().headers[0].1, "application/json");
            assert_eq!(
                text(reply).await,
                "{\"jsonrpc\":\"2.0\",\n\"id\":7,\"result\":{}}"
            );
        }
        let stream = streamed("text/event-stream", &[told]);
        let reply = accepted(stream, AcceptFlags::default(), &account(usize::MAX).1).await;
        assert!(text(reply).await.contains("without an answer"));
    }

    #[tokio::test]
    async fn refusals_keep_their_form() {
        let refused = Reply::json(StatusCode::NOT_FOUND, "{}");
        let reply = accepted(refused, SSE_ALONE, &account(usize::MAX).1).await;
        assert_eq!(reply.head().headers[0].1, "application/json");
        let taken = accepted(
            Reply::empty(StatusCode::ACCEPTED),
            SSE_ALONE,
            &account(usize::MAX).1,
        )
        .await;
        assert!(taken.head().headers.is_empty());
    }
}
