//! Thread that reads and writes the file. It runs all operations that are queued in one transaction.

use std::thread;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::events::Growth;
use super::{Bounds, failed};
use crate::stream::StoreError;

/// Maximum number of operations in the queue. When the queue is full, requests wait until they can add theirs.
const QUEUE: usize = 1024;

/// Maximum number of operations in one transaction.
const GROUP: usize = 256;

/// Operation on the file. It receives the connection, or the error if no transaction could be started.
type Operation =
    Box<dyn FnOnce(Result<&Connection, &StoreError>, &mut Growth) -> UncommittedOperation + Send>;

/// An operation that has run in a transaction which is not committed yet.
struct UncommittedOperation {
    failure: Option<StoreError>,
    tell: OutcomeCallback,
}

/// Function that reports the outcome of an operation to its request. Its argument is the error if the transaction was not
/// committed.
type OutcomeCallback = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// Sender of the writer's queue. The thread ends when the sender is dropped and the queue is empty.
pub(super) struct Writer(mpsc::Sender<Operation>);

impl Writer {
    /// Starts the writer thread.
    pub(super) fn start(connection: Connection, bounds: Bounds) -> Result<Self, StoreError> {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let run = move || work(connection, waiting, Growth::within(bounds));
        let thread = thread::Builder::new().name("session-store".into());
        let started = thread.spawn(run);
        started.map_err(|error| StoreError(format!("no thread: {error}")))?;
        Ok(Self(queue))
    }

    /// Queues an operation and waits until its transaction is committed. The operation runs even if the waiting request is
    /// dropped.
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
            UncommittedOperation {
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

/// Runs operations in one transaction. A failed operation does not affect the others, unless SQLite ends the transaction because
/// of it, for example when the disk is full. Then all operations of the transaction so far fail, and the remaining operations
/// are run in the next transaction.
fn transact(
    connection: &mut Connection,
    growth: &mut Growth,
    operations: &mut impl Iterator<Item = Operation>,
) {
    // The write lock is acquired at the start, because a transaction that begins by reading may be unable to acquire it later.
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
