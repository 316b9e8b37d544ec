//! A hook with its target. One request has a permit, a time limit and an outcome, which is counted and logged.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tooldock_base::answers::{AnswerAccount, COUNTED_FROM};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;

use super::config::{FailRule, HookConfig, HookEvent, HookEvents, InvalidHook};
use super::message::{self, HookAnswer, HookVerdict};
use super::{HookMetrics, HookNote, HookOutcome, HookPath, HookSubject};

/// Maximum number of requests that one hook answers at the same time.
const RUNNING_MAX: usize = 256;
/// Maximum number of requests that wait for one hook. Further ones fail at once.
const WAITING_MAX: usize = 1024;
/// Size in bytes that an answer may always have. The answer about a larger value may have twice the value's size.
const ANSWER_MAX: u64 = 4 * 1024 * 1024;

/// The service or tool that a hook asks.
pub trait HookTarget: Send + Sync {
    /// Sends a request and returns the answer. Dropping the future cancels the request.
    fn ask<'a>(&'a self, query: HookQuery<'a>) -> BoxFuture<'a, Result<Bytes, HookFailure>>;
}

/// A request to the target of a hook.
pub struct HookQuery<'a> {
    /// The request as a JSON object.
    pub message: Bytes,
    /// Id of the request whose call or list the hook sees.
    pub request_id: &'a Arc<str>,
    /// Maximum size of the answer, in bytes.
    pub answer_max: u64,
    /// Account that counts the memory of a large answer.
    pub answers: &'a AnswerAccount,
}

/// Reason why a hook gave no usable answer. The texts are for the operator, and quote no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookFailure {
    /// The time limit has passed.
    Timeout(Duration),
    /// Too many requests to the hook run and wait.
    Busy,
    /// The target cannot be reached, or is not able to answer.
    Unreachable(String),
    /// The answer has not the documented form.
    Invalid(String),
}

impl HookFailure {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Busy => "busy",
            Self::Unreachable(_) => "unreachable",
            Self::Invalid(_) => "invalid",
        }
    }
}

impl fmt::Display for HookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(limit) => write!(f, "no answer within {} s", limit.as_secs_f64()),
            Self::Busy => f.write_str("too many requests to it run and wait"),
            Self::Unreachable(reason) | Self::Invalid(reason) => f.write_str(reason),
        }
    }
}

/// A configured hook.
pub struct Hook {
    /// Name of the hook in metrics and logs.
    label: String,
    events: HookEvents,
    scope: NamespaceScope,
    timeout: Duration,
    fail: FailRule,
    target: Arc<dyn HookTarget>,
    gate: Gate,
    metrics: HookMetrics,
    /// True while requests fail, so that the log has one line for the first failure and one for the recovery.
    is_failing: AtomicBool,
}

impl Hook {
    /// Creates the hook of a configuration.
    ///
    /// # Errors
    ///
    /// The invalid pattern of a namespace.
    pub fn new(
        config: &HookConfig,
        target: Arc<dyn HookTarget>,
        metrics: HookMetrics,
    ) -> Result<Self, InvalidHook> {
        Ok(Self {
            label: config.label(),
            events: config.on.clone(),
            scope: config.scope()?,
            timeout: config.timeout,
            fail: config.fail,
            target,
            gate: Gate::new(RUNNING_MAX, WAITING_MAX),
            metrics,
            is_failing: AtomicBool::new(false),
        })
    }

    pub(super) fn is_on(&self, event: HookEvent) -> bool {
        self.events.contains(event)
    }

    /// Returns true if the hook is for the namespace, or for an aggregate on the path to it. No hook is for the management
    /// tools, whose arguments contain secrets.
    pub(super) fn covers(&self, namespace: &NamespaceName, path: HookPath<'_>) -> bool {
        !namespace.is_system()
            && (self.scope.opens(namespace) || path.any(&|it| self.scope.opens(it)))
    }

    /// Asks the hook about a value.
    ///
    /// # Errors
    ///
    /// The refusal of the hook, or its failure if it fails closed.
    pub(super) async fn ask(
        &self,
        event: HookEvent,
        subject: &HookSubject<'_>,
        value: &str,
        note: &HookNote,
    ) -> Result<HookVerdict, CallError> {
        let began = Instant::now();
        let answer = timeout(self.timeout, self.answer(event, subject, value)).await;
        let answer = answer.unwrap_or(Err(HookFailure::Timeout(self.timeout)));
        let (word, outcome) = match &answer {
            Ok(HookAnswer::Verdict(HookVerdict::Passed)) => ("passed", HookOutcome::Passed),
            Ok(HookAnswer::Verdict(HookVerdict::Changed(_))) => ("changed", HookOutcome::Changed),
            Ok(HookAnswer::Refused(_)) => ("refused", HookOutcome::Refused),
            Err(failure) if self.fail == FailRule::Open => {
                (failure.outcome(), HookOutcome::Skipped)
            }
            Err(failure) => (failure.outcome(), HookOutcome::Failed),
        };
        self.metrics
            .count(&self.label, event, word, began.elapsed());
        self.log(answer.as_ref().err());
        note.record(outcome);
        match answer {
            Ok(HookAnswer::Verdict(verdict)) => Ok(verdict),
            Ok(HookAnswer::Refused(reason)) => {
                let refused = CallError::new(CallErrorCode::HookRefused, reason);
                // The reason may repeat a value, so the audit log contains the name of the hook instead.
                Err(refused.caused_by("hook_refused", self.label.clone()))
            }
            Err(_) if self.fail == FailRule::Open => Ok(HookVerdict::Passed),
            Err(failure) => {
                let failed = CallError::new(CallErrorCode::HookFailed, withheld(event));
                Err(failed.caused_by("hook_failed", format!("{}: {failure}", self.label)))
            }
        }
    }

    async fn answer(
        &self,
        event: HookEvent,
        subject: &HookSubject<'_>,
        value: &str,
    ) -> Result<HookAnswer, HookFailure> {
        let principal = subject.principal.map(Arc::from);
        let permit = self.gate.enter(&principal).await;
        let _permit = permit.map_err(|_| HookFailure::Busy)?;
        // A large request to a hook counts towards the memory limit of responses as long as it is in memory.
        let counted = value.len() >= COUNTED_FROM;
        let claim = counted.then(|| subject.answers.claim(value.len()));
        let _claim = claim.transpose().map_err(|_| HookFailure::Busy)?;
        let query = HookQuery {
            message: message::request(event, subject, value),
            request_id: subject.request_id,
            answer_max: ANSWER_MAX.max(2 * value.len() as u64),
            answers: subject.answers,
        };
        let answer = self.target.ask(query).await?;
        message::read(&answer, event).map_err(HookFailure::Invalid)
    }

    /// Logs the first of several failures, and the first success after them.
    fn log(&self, failure: Option<&HookFailure>) {
        let hook = &*self.label;
        let was_failing = self.is_failing.load(Ordering::Relaxed);
        if was_failing == failure.is_some() {
            return;
        }
        self.is_failing.store(failure.is_some(), Ordering::Relaxed);
        match (failure, self.fail) {
            (Some(failure), FailRule::Closed) => {
                tracing::warn!(
                    hook,
                    "the hook {hook} fails, and what it should see is refused: {failure}"
                );
            }
            (Some(failure), FailRule::Open) => {
                tracing::warn!(
                    hook,
                    "the hook {hook} fails, and what it should see goes on without it: {failure}"
                );
            }
            (None, _) => tracing::info!(hook, "the hook {hook} answers again"),
        }
    }
}

/// Message for a client whose event is refused because a hook failed.
fn withheld(event: HookEvent) -> &'static str {
    match event {
        HookEvent::Call => "The call was not made: the hook that must admit it has failed",
        HookEvent::Result => {
            "The tool has run, and its result is withheld: the hook that must see it has failed"
        }
        HookEvent::List => "The list is withheld: the hook that must see it has failed",
    }
}
