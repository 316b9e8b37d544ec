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

/// An operation on the file. In place of the file it may be given the reason why it is not made.
type Operation = Box<dyn FnOnce(Result<&Connection, &StoreError>, &mut Growth) -> Made + Send>;

/// An operation that was made in a transaction which is not committed yet.
struct Made {
    failure: Option<StoreError>,
    tell: Tell,
}

/// Tells the request how its operation went, given the reason why the transaction was not committed.
type Tell = Box<dyn FnOnce(Option<&StoreError>) + Send>;

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

    /// Queues an operation and waits until its transaction is committed. The operation is made even if the request that
    /// waits is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connection, &mut Growth) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let operation: Operation = Box::new(move |file, growth| {
            let made = match file {
                Ok(connection) => operation(connection, growth).map_err(failed),
                Err(reason) => Err(reason.clone()),
            };
            Made {
                failure: made.as_ref().err().cloned(),
                tell: Box::new(move |failure| {
                    let _ = answer.send(failure.cloned().map_or(made, Err));
                }),
            }
        });
        let ended = || StoreError("the thread of the session store has ended".into());
        self.0.send(operation).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

fn work(mut connection: Connection, mut waiting: mpsc::Receiver<Operation>, mut growth: Growth) {
    let mut group = Vec::with_capacity(GROUP);
    while waiting.blocking_recv_many(&mut group, GROUP) > 0 {
        let mut operations = group.drain(..);
        while operations.len() > 0 {
            transact(&mut connection, &mut growth, &mut operations);
        }
    }
}

/// Makes operations in one transaction. An operation that fails takes nothing from the others, unless SQLite ends the
/// transaction with it, as where the disk is full: then the others of the transaction fail, too, and the rest is left.
fn transact(
    connection: &mut Connection,
    growth: &mut Growth,
    operations: &mut impl Iterator<Item = Operation>,
) {
    // The lock is taken at once: a transaction that reads first may not be able to write later.
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = match begun {
        Ok(transaction) => transaction,
        Err(error) => {
            let reason = failed(error);
            for operation in operations {
                (operation(Err(&reason), growth).tell)(None);
            }
            return;
        }
    };
    let mut told = Vec::new();
    let mut failure = None;
    for operation in operations {
        let made = operation(Ok(&transaction), growth);
        told.push(made.tell);
        if transaction.is_autocommit() {
            failure = made.failure;
            break;
        }
    }
    let failure = failure.or_else(|| transaction.commit().err().map(failed));
    for tell in told {
        tell(failure.as_ref());
    }
}
