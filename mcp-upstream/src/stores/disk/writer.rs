//! The thread that reads and writes the file. Operations that wait for it are done together, in one transaction.

use std::thread;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::events::Growth;
use super::{Bounds, failed};
use crate::stream::StoreError;

/// Operations that may wait for the thread; beyond it requests wait to hand theirs over.
const QUEUE: usize = 1024;

/// Operations of one transaction.
const GROUP: usize = 256;

/// Makes an operation, and gives back what is to be told once it is committed.
type Operation = Box<dyn FnOnce(&Connection, &mut Growth) -> Outcome + Send>;

/// Tells the request how its operation went: `None` says that it was committed.
type Outcome = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// The end of the queue to which requests write. The thread ends when it is dropped and the queue is empty.
pub(super) struct Writer(mpsc::Sender<Operation>);

impl Writer {
    /// Starts the thread.
    pub(super) fn start(connection: Connection, bounds: Bounds) -> Result<Self, StoreError> {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let run = move || work(connection, waiting, Growth::within(bounds));
        let thread = thread::Builder::new().name("session-store".into());
        let started = thread.spawn(run);
        started.map_err(|error| StoreError(format!("no thread: {error}")))?;
        Ok(Self(queue))
    }

    /// Makes an operation and waits until it is committed. It is made even if nobody waits any more.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connection, &mut Growth) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let operation: Operation = Box::new(move |connection, growth| {
            let made = operation(connection, growth).map_err(failed);
            Box::new(move |failure| {
                let outcome = match failure {
                    Some(StoreError(cause)) => Err(StoreError(cause.clone())),
                    None => made,
                };
                let _ = answer.send(outcome);
            })
        });
        let ended = || StoreError("the thread of the session store has ended".into());
        self.0.send(operation).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

fn work(mut connection: Connection, mut waiting: mpsc::Receiver<Operation>, mut growth: Growth) {
    let mut group = Vec::with_capacity(GROUP);
    while waiting.blocking_recv_many(&mut group, GROUP) > 0 {
        let mut outcomes = Vec::with_capacity(group.len());
        let committed = commit(&mut connection, &mut growth, &mut group, &mut outcomes);
        let failure = committed.map_err(failed).err();
        // Operations that were not begun are not made at all.
        group.clear();
        for outcome in outcomes {
            outcome(failure.as_ref());
        }
    }
}

/// Makes a group of operations in one transaction. An operation that fails takes nothing from the others.
fn commit(
    connection: &mut Connection,
    growth: &mut Growth,
    group: &mut Vec<Operation>,
    outcomes: &mut Vec<Outcome>,
) -> rusqlite::Result<()> {
    // The lock is taken at once: a transaction that reads first may not be able to write later.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for operation in group.drain(..) {
        outcomes.push(operation(&transaction, growth));
    }
    transaction.commit()
}
