//! Moves the reader of a link to the runtime from which the link's calls come.
//!
//! A response for a caller in another runtime wakes two threads, first the reader's and then the caller's. With many callers
//! this costs little, since responses are delivered together. With a single client, which waits for each response before its
//! next call, it is a significant share of the call's cost. So after [`READS`] consecutive reads with a single response, all
//! for the same other runtime, the reader moves there.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::deliver::{Batch, DeliveryQueue, DeliveryTarget};

/// Number of consecutive reads, each with a single response for the same other runtime, after which the reader moves there. It is
/// so high that two alternating clients do not move the reader back and forth.
pub(super) const READS: u32 = 16;

/// The runtimes in which the tasks of a link may run.
pub struct LinkRuntimes {
    pub(super) first: Handle,
    /// The runtimes to which the reader may move. Other runtimes may make calls but do not process messages.
    pub(super) all: Arc<[Handle]>,
}

impl LinkRuntimes {
    /// Creates the list of runtimes. The link's reader and writer are started in `first`.
    pub(crate) fn new(first: Handle, all: Arc<[Handle]>) -> Self {
        Self { first, all }
    }

    /// Creates a list without other runtimes, for tests: reader and writer stay in the current runtime.
    #[cfg(any(test, feature = "testing"))]
    pub fn here() -> Self {
        Self::new(Handle::current(), Arc::default())
    }
}

/// Record of the runtimes of a link's recent callers, kept by the reader to decide whether it moves.
pub(super) struct Follow {
    homes: Arc<[Handle]>,
    /// The delivery queue of the latest read with a single response.
    queue: Option<Arc<DeliveryQueue>>,
    reads: u32,
}

impl Follow {
    pub(super) fn new(homes: Arc<[Handle]>) -> Self {
        Self {
            homes,
            queue: None,
            reads: 0,
        }
    }

    /// Records the responses of a read. Returns the runtime to which the reader should move, if any.
    pub(super) fn record_answers(&mut self, answers: &Batch) -> Option<Handle> {
        match answers.delivery_target() {
            DeliveryTarget::Nowhere => return None,
            DeliveryTarget::Here => {
                self.reads = 0;
                return None;
            }
            DeliveryTarget::Queue(queue) => {
                let same = self.queue.as_ref().is_some_and(|it| Arc::ptr_eq(it, queue));
                if !same {
                    self.queue = Some(Arc::clone(queue));
                    self.reads = 0;
                }
            }
        }
        self.reads += 1;
        if self.reads < READS {
            return None;
        }
        self.reads = 0;
        let id = self.queue.take()?.runtime().id();
        self.homes.iter().find(|home| home.id() == id).cloned()
    }
}

/// Registers the same pipe with another runtime.
///
/// # Errors
///
/// When no file descriptor is available, or the runtime is shutting down.
pub(super) fn moved(pipe: &pipe::Receiver, to: &Handle) -> io::Result<pipe::Receiver> {
    // The file descriptor is cloned, so that the pipe stays registered with its former runtime until it is registered with the
    // new one.
    let pipe = pipe.as_fd().try_clone_to_owned()?;
    let _inside = to.enter();
    // The copy is in non-blocking mode as well, since that mode belongs to the open file, not to the descriptor.
    pipe::Receiver::from_owned_fd_unchecked(pipe)
}

/// Handle of the task that reads the link, whichever runtime it runs in.
#[derive(Default)]
pub(super) struct ReadTask(Mutex<ReadTaskState>);

#[derive(Default)]
enum ReadTaskState {
    #[default]
    NotBegun,
    Runs(AbortHandle),
    Over,
}

impl ReadTask {
    /// Starts the reading task, or its continuation in another runtime. If the link was dropped, no task is started.
    pub(super) fn go_on(&self, spawn: impl FnOnce() -> AbortHandle) {
        let mut task = self.task();
        if !matches!(*task, ReadTaskState::Over) {
            *task = ReadTaskState::Runs(spawn());
        }
    }

    /// Ends the reading task for good.
    pub(super) fn end(&self) {
        let task = std::mem::replace(&mut *self.task(), ReadTaskState::Over);
        if let ReadTaskState::Runs(task) = task {
            task.abort();
        }
    }

    /// Locks the state. The lock is held only for a few instructions and for spawning a task.
    fn task(&self) -> MutexGuard<'_, ReadTaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
