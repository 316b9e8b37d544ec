//! One connection of a closed loop over HTTP, or lines of a socket.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use crate::message::{Expect, Request};
use crate::wire::{Connection, Target};

/// One connection until the time is over or it fails.
pub(super) async fn drive(
    mut connection: Connection,
    target: Target,
    mut request: Request,
    expect: Expect,
    shared: Arc<Shared>,
) {
    while let Some(id) = shared.next_id() {
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
                    return;
                }
                closes
            }
            Err(error) => {
                shared.fault(format!("{error:#}"));
                return;
            }
        };
        if closes {
            shared.closed();
            match Connection::open(&target).await {
                Ok(again) => connection = again,
                Err(error) => {
                    shared.fault(format!("connecting again: {error:#}"));
                    return;
                }
            }
        }
    }
}
