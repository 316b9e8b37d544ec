//! Moves the reader of a link to the runtime that the link's calls come from.
//!
//! A response for a caller in another runtime wakes two threads, the reader's and then the caller's. With many callers,
//! responses are delivered together and that costs little; with a single client, which waits for each response before its next
//! call, it is a significant part of the call's cost. So after [`READS`] consecutive reads with one response each, all for the
//! same other runtime, the reader moves there.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::deliver::{Batch, Lane, Whereto};

/// Number of such consecutive reads before the reader moves: enough that two alternating clients do not move it back and forth.
pub(super) const READS: u32 = 16;

/// The runtimes in which a link's tasks may run.
pub(crate) struct Homes {
    pub(super) first: Handle,
    /// The runtimes that the reader may move to. Other runtimes that make calls do not process messages.
    pub(super) all: Arc<[Handle]>,
}

impl Homes {
    /// Reader and writer begin in `first`.
    pub(crate) fn new(first: Handle, all: Arc<[Handle]>) -> Self {
        Self { first, all }
    }

    /// Reader and writer are not moved from the current runtime.
    #[cfg(test)]
    pub(crate) fn here() -> Self {
        Self::new(Handle::current(), Arc::default())
    }
}

/// The recent callers of a link, as its reader saw them.
pub(super) struct Follow {
    homes: Arc<[Handle]>,
    /// The lane of the latest responses.
    lane: Option<Arc<Lane>>,
    reads: u32,
}

impl Follow {
    pub(super) fn new(homes: Arc<[Handle]>) -> Self {
        Self {
            homes,
            lane: None,
            reads: 0,
        }
    }

    /// Records the responses of a read. Returns the runtime to move the reader to, if another one is better.
    pub(super) fn heard(&mut self, answers: &Batch) -> Option<Handle> {
        match answers.whereto() {
            Whereto::Nowhere => return None,
            Whereto::Here => {
                self.reads = 0;
                return None;
            }
            Whereto::Lane(lane) => {
                let same = self.lane.as_ref().is_some_and(|it| Arc::ptr_eq(it, lane));
                if !same {
                    self.lane = Some(Arc::clone(lane));
                    self.reads = 0;
                }
            }
        }
        self.reads += 1;
        if self.reads < READS {
            return None;
        }
        self.reads = 0;
        let id = self.lane.take()?.runtime().id();
        self.homes.iter().find(|home| home.id() == id).cloned()
    }
}

/// Registers the same pipe with another runtime.
///
/// # Errors
///
/// When no descriptor is available, or the runtime is shutting down.
pub(super) fn moved(pipe: &pipe::Receiver, to: &Handle) -> io::Result<pipe::Receiver> {
    // The descriptor is cloned, so the pipe stays registered with its former runtime until the new registration is done.
    let pipe = pipe.as_fd().try_clone_to_owned()?;
    let _inside = to.enter();
    // Non-blocking mode belongs to the end of the pipe, not to the descriptor, so the copy has it, too.
    pipe::Receiver::from_owned_fd_unchecked(pipe)
}

/// Handle of the task that reads the link, in whichever runtime it runs.
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
    /// Starts the reading task, or its successor in another runtime. If the link was dropped, no task is started.
    pub(super) fn go_on(&self, spawn: impl FnOnce() -> AbortHandle) {
        let mut task = self.task();
        if !matches!(*task, ReadTaskState::Over) {
            *task = ReadTaskState::Runs(spawn());
        }
    }

    /// Ends the reading task; no successor is started.
    pub(super) fn end(&self) {
        let task = std::mem::replace(&mut *self.task(), ReadTaskState::Over);
        if let ReadTaskState::Runs(task) = task {
            task.abort();
        }
    }

    /// The lock is held for a few instructions and the start of a task only.
    fn task(&self) -> MutexGuard<'_, ReadTaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
