//! A client of a closed loop: one connection over HTTP, or lines on a socket.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use crate::message::{Expect, Request};
use crate::wire::{Connection, Target};

/// Sends requests on one connection until the time is over or the connection fails.
pub(super) async fn drive(
    mut connection: Connection,
    target: Target,
    mut request: Request,
    expect: Expect,
    shared: Arc<Shared>,
) {
    while ask(&mut connection, &target, &mut request, expect, &shared).await {}
}

/// Sends each of the requests once on a connection.
pub(super) async fn each_once(
    mut connection: Connection,
    target: Target,
    requests: Vec<Request>,
    expect: Expect,
    shared: Arc<Shared>,
) {
    for mut request in requests {
        if !ask(&mut connection, &target, &mut request, expect, &shared).await {
            return;
        }
    }
}

/// Sends a request and reads the answer; connects again if the server has closed the connection. Returns true if the client may
/// continue.
async fn ask(
    connection: &mut Connection,
    target: &Target,
    request: &mut Request,
    expect: Expect,
    shared: &Shared,
) -> bool {
    let Some(id) = shared.next_id() else {
        return false;
    };
    let start = Instant::now();
    let closes = match connection.ask(request.with_id(id)).await {
        Ok(answer) => {
            let took = start.elapsed();
            let fault = expect.mismatch(&answer, id);
            if fault.is_none() {
                shared.answered(took);
            }
            let closes = answer.closes;
            if fault.is_some_and(|fault| !shared.fault(fault)) {
                return false;
            }
            closes
        }
        Err(error) => {
            shared.fault(format!("{error:#}"));
            return false;
        }
    };
    if closes {
        shared.closed();
        match Connection::open(target).await {
            Ok(again) => *connection = again,
            Err(error) => {
                shared.fault(format!("connecting again: {error:#}"));
                return false;
            }
        }
    }
    true
}
