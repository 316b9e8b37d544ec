//! The running calls of a POST. A single call, which is the usual case, needs no allocation.

use std::pin::Pin;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::delivery::{Step, StreamedCall};

/// The running calls of a POST.
#[derive(Default)]
pub(super) enum RunningCalls {
    #[default]
    None,
    One(StreamedCall),
    /// The calls of a batch. The bound on a batch's messages limits their number.
    Many(FuturesUnordered<RunningCall>),
}

/// Future that runs a call of a batch until its next message or its response.
type RunningCall = Pin<Box<dyn Future<Output = (StreamedCall, Step)> + Send>>;

impl RunningCalls {
    pub(super) fn add(&mut self, call: StreamedCall) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(call),
            Self::One(first) => Self::Many([first, call].into_iter().map(running_call).collect()),
            Self::Many(running) => {
                running.push(running_call(call));
                Self::Many(running)
            }
        };
    }

    /// Returns the next message or response of any call; `None` when all calls have ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Step> {
        match self {
            Self::None => None,
            Self::One(call) => {
                let step = call.step().await;
                if let Step::Over(_) = step {
                    *self = Self::None;
                }
                Some(step)
            }
            Self::Many(running) => {
                let (call, step) = running.next().await?;
                if let Step::Said(_) = step {
                    running.push(running_call(call));
                }
                Some(step)
            }
        }
    }

    /// Returns true if no call runs.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(_) => false,
            Self::Many(running) => running.is_empty(),
        }
    }
}

fn running_call(mut call: StreamedCall) -> RunningCall {
    Box::pin(async move {
        let step = call.step().await;
        (call, step)
    })
}
