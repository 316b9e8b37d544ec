//! The calls of one POST that run. Mostly that is one, and then nothing is kept beside it.

use std::pin::Pin;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::driver::{CallDriver, Step};

/// The calls that run.
#[derive(Default)]
pub(super) enum Members {
    #[default]
    None,
    One(CallDriver),
    /// Of a batch, which is bounded in its messages.
    Many(FuturesUnordered<Member>),
}

/// A call of a batch on its way to its next message.
type Member = Pin<Box<dyn Future<Output = (CallDriver, Step)> + Send>>;

impl Members {
    pub(super) fn add(&mut self, talk: CallDriver) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(talk),
            Self::One(first) => Self::Many([first, talk].into_iter().map(member).collect()),
            Self::Many(running) => {
                running.push(member(talk));
                Self::Many(running)
            }
        };
    }

    /// The next message of one of them; `None` when all are done. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Step> {
        match self {
            Self::None => None,
            Self::One(talk) => {
                let step = talk.step().await;
                if let Step::Over(_) = step {
                    *self = Self::None;
                }
                Some(step)
            }
            Self::Many(running) => {
                let (talk, step) = running.next().await?;
                if let Step::Said(_) = step {
                    running.push(member(talk));
                }
                Some(step)
            }
        }
    }

    /// Whether none runs.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(_) => false,
            Self::Many(running) => running.is_empty(),
        }
    }
}

fn member(mut talk: CallDriver) -> Member {
    Box::pin(async move {
        let step = talk.step().await;
        (talk, step)
    })
}
