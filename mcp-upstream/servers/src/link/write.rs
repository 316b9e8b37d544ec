//! Writes the gateway's messages as lines, and contains the task that sends all lines. JSON from clients and callers is copied
//! once, into the outbox, and not parsed.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use serde_json::value::RawValue;
use tokio::net::unix::pipe;
use tooldock_process::child::pipe::{LARGE, widen};
use tooldock_protocol::jsonrpc::splice::{Edit, splice};
use tooldock_protocol::jsonrpc::{RawId, RpcError};

use super::LinkEnd;
use super::shared::{FEW, LinkCore, PipeEnd, Wire};
use crate::pipes::{Batch, DirectWrite, WriteTurn};

/// Time to wait for further responses from a server that no longer reads its input.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Writes a request. The progress token in its parameters, if any, is replaced by the request's id.
pub(super) fn request(
    out: &mut BytesMut,
    id: u64,
    method: &str,
    params: Option<&RawValue>,
    token: Option<&str>,
) {
    let digits_of_id = &mut [0; DIGITS];
    let id = digits(id, digits_of_id);
    out.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.put_slice(id.as_bytes());
    out.put_slice(b",\"method\":");
    string(out, method);
    if let Some(params) = params.map(RawValue::get) {
        out.put_slice(b",\"params\":");
        let mut edits: Vec<_> = token
            .map(|token| Edit::new(params, token, id))
            .into_iter()
            .collect();
        splice(out, params.as_bytes(), &mut edits);
    }
    out.put_u8(b'}');
}

/// Writes a notification to the server.
pub(super) fn notification(out: &mut BytesMut, method: &str, params: Option<&RawValue>) {
    out.put_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    string(out, method);
    if let Some(params) = params {
        out.put_slice(b",\"params\":");
        out.put_slice(params.get().as_bytes());
    }
    out.put_u8(b'}');
}

/// Writes the response to a request of the server.
pub(super) fn answer(out: &mut BytesMut, id: &RawId, outcome: Result<&RawValue, RpcError<'_>>) {
    out.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.put_slice(id.as_str().as_bytes());
    match outcome {
        Ok(result) => {
            out.put_slice(b",\"result\":");
            out.put_slice(result.get().as_bytes());
        }
        Err(RpcError { code, message }) => {
            out.put_slice(b",\"error\":{\"code\":");
            out.put_slice(code.to_string().as_bytes());
            out.put_slice(b",\"message\":");
            string(out, message);
            out.put_u8(b'}');
        }
    }
    out.put_u8(b'}');
}

/// Maximum number of decimal digits of a request's id.
pub(super) const DIGITS: usize = 20;

/// Writes a request's id in decimal.
pub(super) fn digits(mut id: u64, out: &mut [u8; DIGITS]) -> &str {
    let mut at = out.len();
    loop {
        at -= 1;
        out[at] = b'0' + u8::try_from(id % 10).expect("a digit");
        id /= 10;
        if id == 0 {
            break;
        }
    }
    std::str::from_utf8(&out[at..]).expect("digits")
}

/// Writes the cancellation of a request of the gateway.
pub(super) fn cancelled(out: &mut BytesMut, id: u64) {
    out.put_slice(br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#);
    out.put_slice(id.to_string().as_bytes());
    out.put_slice(b"}}");
}

fn string(out: &mut BytesMut, text: &str) {
    serde_json::to_writer(out.writer(), text).expect("a string into memory");
}

/// Task that writes the lines which calls appended and did not write themselves. It is woken by the first line. With several
/// pending calls, it first lets these append their lines as well, so that one write sends many lines. It ends with the link, or
/// with the pipe.
pub(super) async fn flush(shared: Arc<LinkCore>) {
    let Wire::Pipe(end) = &shared.wire else {
        return;
    };
    let mut batch = BytesMut::new();
    let mut wide = false;
    loop {
        end.filled.notified().await;
        if shared.calls().pending.len() > FEW {
            tokio::task::yield_now().await;
        }
        let turn = end.outbox().turn();
        let pipe = match turn {
            WriteTurn::Write(pipe) => pipe,
            WriteTurn::Wait => continue,
            WriteTurn::Over => return,
        };
        loop {
            let taken = end.outbox().take(&mut batch);
            match taken {
                Batch::Nothing => break,
                Batch::Finished => return,
                Batch::From(start) => {
                    if batch.len() > LARGE && !std::mem::replace(&mut wide, true) {
                        widen(&pipe);
                    }
                    if write(end, &pipe, start, &batch).await.is_err() {
                        drop(pipe);
                        end.outbox().end();
                        shared.calls().closed = true;
                        tokio::time::sleep(LAST_ANSWERS).await;
                        shared.close(LinkEnd::Disconnected);
                        return;
                    }
                }
            }
        }
        // Lines that were appended since the last `take` have woken this task again, so none is forgotten.
        let unwanted = end.outbox().rest(pipe);
        drop(unwanted);
    }
}

/// Writes as much of the waiting lines as the pipe accepts without blocking. The flusher writes the rest, and handles errors of
/// the pipe.
pub(super) fn own_turn(end: &PipeEnd, turn: DirectWrite<pipe::Sender>) {
    let written = turn.pipe.try_write(&turn.batch).unwrap_or(0);
    let (more, unwanted) = end.outbox().own_turn_over(turn, written);
    drop(unwanted);
    if more {
        end.filled.notify_one();
    }
}

/// Writes a batch of lines to the pipe. `start`: position of its first byte in the pipe's byte stream. The outbox is told how far
/// the pipe may have accepted the bytes.
async fn write(
    end: &PipeEnd,
    pipe: &pipe::Sender,
    start: u64,
    batch: &[u8],
) -> std::io::Result<()> {
    let all = start + batch.len() as u64;
    let mut written = 0;
    while written < batch.len() {
        pipe.writable().await?;
        if !end.outbox().reach(all) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let outcome = pipe.try_write(&batch[written..]);
        if let Ok(taken) = outcome {
            written += taken;
        }
        end.outbox().settle(start + written as u64);
        match outcome {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).expect("JSON")
    }

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).expect("text")
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for id in [0, 7, 10, 65_536, (1 << 53) - 1, u64::MAX] {
            assert_eq!(digits(id, &mut [0; DIGITS]), id.to_string());
        }
    }

    #[test]
    fn lines_carry_names_escaped_and_json_untouched() {
        let params = raw(r#"{"_meta":{"progressToken" : "a","x":1.50}, "b":2}"#);
        let token = Some("\"a\"");
        // The token must be the very span in the parameters.
        let token = token.map(|token| {
            let at = params.get().find(token).expect("there");
            &params.get()[at..at + token.len()]
        });
        assert_eq!(
            written(|out| request(out, 70000, "a\"b", Some(params), token)),
            r#"{"jsonrpc":"2.0","id":70000,"method":"a\"b","params":{"_meta":{"progressToken" : 70000,"x":1.50}, "b":2}}"#
        );
        assert_eq!(
            written(|out| notification(out, "notifications/initialized", None)),
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#
        );
        assert_eq!(
            written(|out| cancelled(out, 1)),
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#
        );
        let id = RawId::new("\"s-1\"");
        for (outcome, expected) in [
            (
                Ok(raw("{ }")),
                r#"{"jsonrpc":"2.0","id":"s-1","result":{ }}"#,
            ),
            (
                Err(RpcError {
                    code: -32603,
                    message: "\"",
                }),
                r#"{"jsonrpc":"2.0","id":"s-1","error":{"code":-32603,"message":"\""}}"#,
            ),
        ] {
            assert_eq!(written(|out| answer(out, &id, outcome)), expected);
        }
    }
}
