//! The reader of a link goes to the runtime that the calls of the link come from.
//!
//! An answer for a caller in another runtime wakes two threads, the reader's and then the caller's. With many callers
//! answers go over together and that costs little; with one client, which waits for each answer before its next call,
//! it is a good part of the call. So when a while of reads has brought one answer each, all for the same other runtime,
//! the link is read on there.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::deliver::{Batch, Lane, Whereto};

/// So many reads in a row make a reader move: enough that two clients which take turns do not make it go to and fro.
pub(super) const READS: u32 = 16;

/// The runtimes that a link's tasks may live in.
pub(crate) struct Homes {
    pub(super) first: Handle,
    /// Where the reader may go. Other runtimes that calls come from are not for messages.
    pub(super) all: Arc<[Handle]>,
}

impl Homes {
    /// Both tasks begin in `first`.
    pub(crate) fn new(first: Handle, all: Arc<[Handle]>) -> Self {
        Self { first, all }
    }

    /// The tasks stay in the runtime this is called in.
    #[cfg(test)]
    pub(crate) fn here() -> Self {
        Self::new(Handle::current(), Arc::default())
    }
}

/// What a reader has seen of its callers lately.
pub(super) struct Follow {
    homes: Arc<[Handle]>,
    /// Where the last answers went.
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

    /// Hears of the answers of a read. Gives the runtime in which the link is better read on, if that is another one.
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

/// The same pipe, read in another runtime.
///
/// # Errors
///
/// When there is no descriptor left for it, or the runtime is ending.
pub(super) fn moved(pipe: &pipe::Receiver, to: &Handle) -> io::Result<pipe::Receiver> {
    // The pipe is registered where it was until this one is.
    let pipe = pipe.as_fd().try_clone_to_owned()?;
    let _inside = to.enter();
    // It does not block: that belongs to the pipe's end, not to the descriptor.
    pipe::Receiver::from_owned_fd_unchecked(pipe)
}

/// The task that reads, wherever it is.
#[derive(Default)]
pub(super) struct Reading(Mutex<Task>);

#[derive(Default)]
enum Task {
    #[default]
    NotBegun,
    Runs(AbortHandle),
    Over,
}

impl Reading {
    /// Starts the task that reads, or the one that reads on in another runtime. Where the link is gone, none is started.
    pub(super) fn go_on(&self, spawn: impl FnOnce() -> AbortHandle) {
        let mut task = self.task();
        if !matches!(*task, Task::Over) {
            *task = Task::Runs(spawn());
        }
    }

    /// Ends the task.
    pub(super) fn end(&self) {
        let task = std::mem::replace(&mut *self.task(), Task::Over);
        if let Task::Runs(task) = task {
            task.abort();
        }
    }

    /// For a few instructions and the start of a task.
    fn task(&self) -> MutexGuard<'_, Task> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
