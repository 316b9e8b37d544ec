//! The task that runs the state machine: it converts reports of processes into events, and carries out the resulting actions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::worker_state::WorkerState;

use super::instance::{Instance, Report};
use super::member::{PublishedState, Status};
use super::rpc::Links;
use super::state::{Action, LifecycleEvent, LifecyclePhase, LifecycleState, Rules};
use super::{Declarations, WorkerHost};
use crate::child::output::printable_text;

/// Maximum number of concurrent processes that one supervisor runs. More than two exist only if earlier processes do not end.
const INSTANCES_MAX: usize = 4;
/// Maximum number of unread reports; an instance waits before it sends a further one.
const REPORTS: usize = 16;

/// Supervises one worker process and its successors until it is retired. Dropping the future ends every process.
pub(super) async fn run(
    shared: Arc<PublishedState>,
    host: Arc<WorkerHost>,
    retire: watch::Receiver<Option<Instant>>,
    wanted: watch::Receiver<bool>,
) {
    let (reports_sender, reports) = mpsc::channel(REPORTS);
    let (state, actions) = LifecycleState::start();
    let mut supervisor = Supervisor {
        rules: Rules::from(&host.config),
        shared,
        host,
        state,
        retire,
        wanted,
        reports_sender,
        tasks: JoinSet::new(),
        instances: HashMap::new(),
        current: None,
        blocked: None,
        replacement: None,
        woken: None,
        timer: None,
        spawned: 0,
    };
    supervisor.obey(actions);
    supervisor.run(reports).await;
}

struct Supervisor {
    shared: Arc<PublishedState>,
    host: Arc<WorkerHost>,
    rules: Rules,
    state: LifecycleState,
    /// Channel with the time by which the worker must have ended; `None` while it is needed.
    retire: watch::Receiver<Option<Instant>>,
    /// Channel that is set to false when the worker had no calls for long, and to true when a call waits for it.
    wanted: watch::Receiver<bool>,
    reports_sender: mpsc::Sender<(u64, Report)>,
    /// The instances' tasks; a task ends when its process tree has ended.
    tasks: JoinSet<u64>,
    instances: HashMap<u64, Handle>,
    /// Number of the instance that accepts calls, or will when it is ready.
    current: Option<u64>,
    /// Number of the instance that last reported a blocked event loop.
    blocked: Option<u64>,
    /// Number of the instance that starts in order to replace the current one.
    replacement: Option<u64>,
    /// Number of the instance that was last started for waiting calls, after the worker was idle.
    woken: Option<u64>,
    timer: Option<Instant>,
    /// Number of instances started so far, which is also the number of the latest instance.
    spawned: u64,
}

/// The supervisor's handle of an instance.
struct Handle {
    task: Id,
    pid: u32,
    finish: watch::Sender<Option<Instant>>,
    booted: Option<(Arc<Declarations>, Arc<Links>)>,
}

impl Supervisor {
    /// Runs until the worker has stopped. Handles:
    /// - reports of instances;
    /// - the end of an instance, whose process tree has ended then;
    /// - the end of a delay before the next start;
    /// - the order to retire, and a shorter time limit for it;
    /// - the order to stop for lack of calls, or to start for a call.
    async fn run(&mut self, mut reports: mpsc::Receiver<(u64, Report)>) {
        while self.state.phase != LifecyclePhase::Stopped {
            if self.state.phase == LifecyclePhase::Stopping && self.tasks.is_empty() {
                self.advance(LifecycleEvent::AllGone);
                continue;
            }
            tokio::select! {
                // Checked in this order, so that the reports of an instance are handled before its end.
                biased;
                Some((number, report)) = reports.recv() => self.on_report(number, report),
                Some(ended) = self.tasks.join_next_with_id() => {
                    self.on_gone(match ended {
                        Ok((task, _)) => task,
                        Err(error) => {
                            tracing::error!(%error, "the task of a worker process failed");
                            error.id()
                        }
                    });
                }
                () = sleep_until(self.timer.unwrap_or_else(Instant::now)), if self.timer.is_some() => {
                    self.timer = None;
                    self.advance(LifecycleEvent::TimerElapsed);
                }
                Ok(()) = self.wanted.changed() => {
                    let wanted = *self.wanted.borrow_and_update();
                    self.advance(match wanted {
                        true => LifecycleEvent::Wanted,
                        false => LifecycleEvent::Unused,
                    });
                }
                changed = self.retire.changed() => {
                    if changed.is_err() {
                        // The worker was dropped, which also ends this task.
                        return;
                    }
                    if self.state.phase == LifecyclePhase::Stopping {
                        self.finish_all();
                    } else {
                        self.advance(LifecycleEvent::Retire);
                    }
                }
            }
        }
    }

    fn on_report(&mut self, number: u64, report: Report) {
        let is_current = self.current == Some(number);
        let is_replacement = self.replacement == Some(number);
        let namespace = self.shared.spec.namespace.clone();
        match report {
            Report::Started { pid } => {
                if let Some(handle) = self.instances.get_mut(&number) {
                    handle.pid = pid;
                }
                if is_current {
                    self.shared.pid.store(pid, Ordering::Relaxed);
                }
                if number > 1 && self.woken != Some(number) {
                    self.shared.restarts.fetch_add(1, Ordering::Relaxed);
                    self.shared.metrics.restarted();
                }
            }
            Report::Outdated => {
                self.refuse(number, "its files are no longer those that were loaded")
            }
            Report::Booted { declared, links } => {
                if !is_current && !is_replacement {
                    return;
                }
                let first = self.shared.declared.get_or_init(|| Arc::clone(&declared));
                if number == 1 && !first.has_the_names_of(&declared) {
                    // Calls may go to any of the worker's processes, so all processes must declare the same functions.
                    let what = "declares other functions than another process of the same files";
                    self.finish(number, Instant::now());
                    self.boot_failed(number, self.unavailable(what), false);
                    return;
                }
                if number > 1 && !first.lists_what(&declared) {
                    self.refuse(
                        number,
                        "it declares other functions than those that are listed",
                    );
                    return;
                }
                self.shared.outdated.store(false, Ordering::Relaxed);
                if let Some(handle) = self.instances.get_mut(&number) {
                    handle.booted = Some((declared, links));
                }
                if is_current {
                    self.advance(LifecycleEvent::Booted);
                } else if is_replacement {
                    self.advance(LifecycleEvent::ReplacementBooted);
                }
            }
            Report::BootFailed { error, permanent } => {
                self.boot_failed(number, error, permanent);
            }
            Report::Recycle { reason } if is_current => {
                tracing::info!(
                    namespace = namespace.as_str(),
                    "the worker of namespace {namespace} asks to be replaced: {reason}"
                );
                self.advance(LifecycleEvent::RecycleAsked);
            }
            Report::Recycle { .. } => {}
            Report::Blocked(blocked) => {
                tracing::warn!(
                    namespace = namespace.as_str(),
                    tool = blocked.subject,
                    request_id = printable_text(&blocked.request),
                    place = blocked.place,
                    "{} keeps every other call of namespace {namespace} waiting: it computes on the event loop at {}; await \
                     there, or make it a plain function, which runs in a thread",
                    blocked.named(),
                    blocked.place
                );
                self.blocked = Some(number);
                self.publish();
            }
            Report::Unblocked { after } => {
                tracing::info!(
                    namespace = namespace.as_str(),
                    seconds = after.as_secs_f32(),
                    "the calls of namespace {namespace} go on"
                );
                self.blocked = self.blocked.filter(|blocked| *blocked != number);
                self.publish();
            }
            Report::Hung { subject } => {
                tracing::warn!(
                    namespace = namespace.as_str(),
                    tool = subject,
                    "the worker of namespace {namespace} is replaced: {subject} is past its time limit and keeps every \
                     other call waiting"
                );
                if is_current {
                    self.forget_current();
                    self.advance(LifecycleEvent::Hung);
                } else {
                    self.lost(number);
                }
            }
            Report::Ended { cause } => {
                if is_current {
                    tracing::warn!(
                        namespace = namespace.as_str(),
                        cause,
                        "the worker of namespace {namespace} ended: {cause}"
                    );
                }
                self.lost(number);
            }
        }
    }

    fn boot_failed(&mut self, number: u64, error: CallError, permanent: bool) {
        let namespace = &self.shared.spec.namespace;
        tracing::warn!(
            namespace = namespace.as_str(),
            code = error.code.as_str(),
            "the worker of namespace {namespace} did not start: {}",
            error.message
        );
        if self.current == Some(number) {
            self.forget_current();
            self.shared.first_boot(Err(error));
            self.advance(LifecycleEvent::BootFailed { permanent });
        } else if self.replacement == Some(number) {
            self.replacement = None;
            self.advance(LifecycleEvent::ReplacementFailed);
        }
    }

    /// Refuses an instance with other files or functions than those with which the worker was started: its functions would differ
    /// from the tools that clients list. It gets no calls, and the owner of the worker is notified.
    fn refuse(&mut self, number: u64, reason: &str) {
        self.finish(number, Instant::now());
        let event = if self.current == Some(number) {
            self.forget_current();
            LifecycleEvent::Outdated
        } else if self.replacement == Some(number) {
            self.replacement = None;
            LifecycleEvent::ReplacementFailed
        } else {
            return;
        };
        let namespace = &self.shared.spec.namespace;
        tracing::warn!(
            namespace = namespace.as_str(),
            reason,
            "a process of namespace {namespace} is not started again: {reason}; the namespace has to be reloaded"
        );
        self.shared.outdated.store(true, Ordering::Relaxed);
        self.advance(event);
        self.shared.refused.send_replace(());
    }

    /// Handles the end of an instance's task. Reports of the instance that are still in the queue are ignored.
    fn on_gone(&mut self, task: Id) {
        let number = self
            .instances
            .iter()
            .find_map(|(number, handle)| (handle.task == task).then_some(*number));
        if let Some(number) = number {
            self.instances.remove(&number);
            self.lost(number);
        }
    }

    /// Handles an instance that no longer accepts calls, whether it was ordered to end or not.
    fn lost(&mut self, number: u64) {
        if self.current == Some(number) {
            self.forget_current();
            self.shared
                .first_boot(Err(self.unavailable("ended while it was starting")));
            self.advance(LifecycleEvent::Ended);
        } else if self.replacement == Some(number) {
            self.replacement = None;
            self.advance(LifecycleEvent::ReplacementFailed);
        }
    }

    fn forget_current(&mut self) {
        self.current = None;
        self.shared.links.store(None);
        self.shared.pid.store(0, Ordering::Relaxed);
    }

    fn unavailable(&self, what: &str) -> CallError {
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!(
                "the worker of namespace {} {what}",
                self.shared.spec.namespace
            ),
        )
    }

    fn advance(&mut self, event: LifecycleEvent) {
        let (next, actions) =
            self.state
                .clone()
                .step(event, Instant::now(), &self.rules, fastrand::f64());
        let newly_looping = next.crash_loop && !self.state.crash_loop;
        self.state = next;
        if newly_looping {
            let namespace = &self.shared.spec.namespace;
            tracing::error!(
                namespace = namespace.as_str(),
                "the worker of namespace {namespace} keeps failing; from now on it is retried every {}s at most",
                self.rules.max.as_secs()
            );
        }
        // The connections are published before the state, so that a caller that reads the state `Ready` finds one.
        self.obey(actions);
        self.publish();
    }

    fn publish(&self) {
        let (state, retry_at) = match self.state.phase {
            LifecyclePhase::Starting => (WorkerState::Starting, None),
            LifecyclePhase::Ready { .. }
                if self.blocked.is_some() && self.blocked == self.current =>
            {
                (WorkerState::Degraded, None)
            }
            LifecyclePhase::Ready { .. } => (WorkerState::Ready, None),
            LifecyclePhase::Idle => (WorkerState::Idle, None),
            LifecyclePhase::Backoff { until } => {
                let crash_loop = self.state.crash_loop;
                (WorkerState::Backoff { crash_loop }, Some(until))
            }
            LifecyclePhase::Stopping => (WorkerState::Stopping, None),
            LifecyclePhase::Stopped => (WorkerState::Stopped, None),
            LifecyclePhase::Failed => (WorkerState::Failed, None),
        };
        self.shared.enter(Status { state, retry_at });
    }

    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Spawn => {
                    self.current = self.spawn();
                    if self.current.is_none() {
                        self.advance(LifecycleEvent::BootFailed { permanent: false });
                    }
                }
                Action::Wake => {
                    self.current = self.spawn();
                    self.woken = self.current;
                    if self.current.is_none() {
                        self.advance(LifecycleEvent::BootFailed { permanent: false });
                    }
                }
                Action::StopUnused => self.stop_unused(),
                Action::SpawnReplacement => {
                    self.replacement = self.spawn();
                    if self.replacement.is_none() {
                        self.advance(LifecycleEvent::ReplacementFailed);
                    }
                }
                Action::Publish => self.publish_current(),
                Action::Switch => {
                    let old = std::mem::replace(&mut self.current, self.replacement.take());
                    self.publish_current();
                    if let Some(old) = old {
                        self.finish(old, Instant::now() + self.shared.spec.drain);
                    }
                }
                Action::Promote => {
                    self.current = self.replacement.take();
                    let pid = self.current.and_then(|number| self.instances.get(&number));
                    let pid = pid.map_or(0, |handle| handle.pid);
                    self.shared.pid.store(pid, Ordering::Relaxed);
                }
                Action::Schedule(delay) => self.timer = Some(Instant::now() + delay),
                Action::FinishAll => self.finish_all(),
            }
        }
    }

    /// Starts an instance. Returns `None` if too many earlier ones still run.
    fn spawn(&mut self) -> Option<u64> {
        let namespace = &self.shared.spec.namespace;
        if self.instances.len() >= INSTANCES_MAX {
            tracing::error!(
                namespace = namespace.as_str(),
                "no new worker process for namespace {namespace}: {} old ones have not ended",
                self.instances.len()
            );
            return None;
        }
        self.spawned += 1;
        let (finish, finish_receiver) = watch::channel(None);
        let instance = Instance {
            number: self.spawned,
            spec: Arc::clone(&self.shared.spec),
            host: Arc::clone(&self.host),
            metrics: Arc::clone(&self.shared.metrics),
            boots: Arc::clone(&self.shared.boots),
            sync_waits: Arc::clone(&self.shared.sync_waits),
            reports: self.reports_sender.clone(),
            finish: finish_receiver,
        };
        let number = instance.number;
        let task = self.tasks.spawn(async move {
            instance.run().await;
            number
        });
        let handle = Handle {
            task: task.id(),
            pid: 0,
            finish,
            booted: None,
        };
        self.instances.insert(number, handle);
        Some(number)
    }

    /// Makes the current instance accept calls.
    fn publish_current(&mut self) {
        let handle = self
            .current
            .and_then(|number| self.instances.get_mut(&number));
        let Some(handle) = handle else { return };
        let Some((declared, links)) = handle.booted.take() else {
            return;
        };
        let namespace = &self.shared.spec.namespace;
        tracing::info!(
            namespace = namespace.as_str(),
            pid = handle.pid,
            tools = declared.tools.len(),
            resources = declared.resources.len() + declared.resource_templates.len(),
            prompts = declared.prompts.len(),
            "the worker of namespace {namespace} is ready"
        );
        self.shared.pid.store(handle.pid, Ordering::Relaxed);
        // The time without calls counts from here.
        self.shared.mark_used();
        self.shared.links.store(Some(links));
        self.shared.first_boot(Ok(()));
    }

    /// Ends the current process and its replacement. Calls that began meanwhile are finished.
    fn stop_unused(&mut self) {
        let namespace = &self.shared.spec.namespace;
        tracing::info!(
            namespace = namespace.as_str(),
            "the worker of namespace {namespace} is stopped, since it had no call for the time workers.idle_stop; the next call \
             starts it"
        );
        let until = Instant::now() + self.shared.spec.drain;
        let numbers = [self.current, self.replacement.take()];
        self.forget_current();
        for number in numbers.into_iter().flatten() {
            self.finish(number, until);
        }
    }

    fn finish_all(&mut self) {
        let until = self.retire.borrow_and_update().unwrap_or_else(Instant::now);
        let numbers: Vec<u64> = self.instances.keys().copied().collect();
        for number in numbers {
            self.finish(number, until);
        }
    }

    /// Orders an instance to end, and allows its calls to continue until the time `until`. The earliest order applies.
    fn finish(&mut self, number: u64, until: Instant) {
        let Some(handle) = self.instances.get(&number) else {
            return;
        };
        handle.finish.send_if_modified(|current| {
            let sooner = current.is_none_or(|current| until < current);
            if sooner {
                *current = Some(until);
            }
            sooner
        });
    }
}

impl Drop for Supervisor {
    /// Tells the tasks that wait for the worker that it will not become ready, however the supervisor ended.
    fn drop(&mut self) {
        self.forget_current();
        self.shared
            .first_boot(Err(self.unavailable("was stopped before it was ready")));
        self.shared.enter(Status {
            state: WorkerState::Stopped,
            retry_at: None,
        });
    }
}
