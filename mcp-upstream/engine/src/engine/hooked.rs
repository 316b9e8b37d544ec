//! Hooks of a call: they see the arguments before the call starts, and its result before the client does. Lists of tools pass
//! here, too.
//!
//! Hooks see a call where it runs, so a call through an aggregate is seen once, in the namespace of the member. Questions to the
//! client are no results. A task's result is seen when the client fetches it.

use std::sync::Arc;

use bytes::Bytes;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_sessions::caller::Caller;

use super::record::CallProgress;
use super::{CallOutcome, Engine, UpstreamCall, UpstreamReply};
use crate::hooks::{HookEvent, HookNote, HookPath, HookSet, HookSubject};
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::version::method::TOOLS_LIST;

mod result;

use result::ShownResult;

/// A call that hooks see, with the hooks for it.
pub(super) struct HookedCall<'a> {
    hooks: Arc<HookSet>,
    caller: &'a Caller,
    call: &'a Arc<dyn UpstreamCall>,
    path: HookPath<'a>,
    answers: AnswerAccount,
    note: &'a HookNote,
}

impl Engine {
    /// Returns the hooks that see a call; `None` if there are none.
    #[inline]
    pub(super) fn hooks_of<'a>(
        &self,
        caller: &'a Caller,
        call: &'a Arc<dyn UpstreamCall>,
        progress: &'a CallProgress,
        path: HookPath<'a>,
    ) -> Option<HookedCall<'a>> {
        let hooks = self.hooks.of(&call.facts().namespace.name, path)?;
        if call.delegate().is_some() || !call.is_seen_by_hooks() {
            return None;
        }
        Some(HookedCall {
            hooks,
            caller,
            call,
            path,
            answers: self.account_of(caller),
            note: progress.hooks(),
        })
    }

    /// Shows the result of `tools/list` to hooks. Returns the result as it is to be sent; `None` if it stays unchanged.
    ///
    /// # Errors
    ///
    /// The refusal or the failure of a hook.
    pub async fn hook_list(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
        result: &str,
        note: &HookNote,
    ) -> Result<Option<String>, CallError> {
        let Some(hooks) = self.hooks.of(namespace, HookPath::Direct) else {
            return Ok(None);
        };
        let Some(tools) = spans::find(result, "tools") else {
            return Ok(None);
        };
        let answers = self.account_of(caller);
        let subject = HookSubject {
            namespace,
            path: HookPath::Direct,
            tool: None,
            principal: caller.principal.as_deref(),
            request_id: &caller.request_id,
            answers: &answers,
        };
        let changed = hooks.run(HookEvent::List, &subject, tools, note).await?;
        let mut edits = Vec::new();
        if let Some(changed) = &changed {
            let tools = String::from_utf8_lossy(changed);
            edits.push(MemberEdit::Set("tools", tools));
        }
        // A hook may answer each principal differently, so that the list must not be cached for others.
        if note.word().is_some() && spans::find(result, "cacheScope").is_some() {
            edits.push(MemberEdit::Set("cacheScope", "\"private\"".into()));
        }
        Ok((!edits.is_empty()).then(|| spans::edit(result, &edits)))
    }
}

impl HookedCall<'_> {
    fn subject(&self) -> HookSubject<'_> {
        let facts = self.call.facts();
        HookSubject {
            namespace: &facts.namespace.name,
            path: self.path,
            tool: facts.method.is_tool_call().then_some(&*facts.subject),
            principal: self.caller.principal.as_deref(),
            request_id: &self.caller.request_id,
            answers: &self.answers,
        }
    }

    /// Shows the arguments to the hooks, and replaces them if a hook has changed them.
    ///
    /// # Errors
    ///
    /// The refusal or the failure of a hook.
    pub(super) async fn arguments(&self) -> Result<(), CallError> {
        let facts = self.call.facts();
        if !facts.method.is_tool_call() {
            return Ok(());
        }
        let subject = self.subject();
        if !self
            .hooks
            .sees(HookEvent::Call, subject.namespace, subject.path)
        {
            return Ok(());
        }
        let coerces = self.call.coerced_arguments();
        let is_coerced = coerces.is_some();
        let coerced = match coerces {
            Some(coerces) => coerces.await,
            None => None,
        };
        let given = coerced.as_deref().unwrap_or(facts.named_arguments());
        let arguments = std::str::from_utf8(given).map_err(|_| {
            let reason = "The arguments are not UTF-8";
            CallError::new(CallErrorCode::InvalidArguments, reason)
        })?;
        let run = self
            .hooks
            .run(HookEvent::Call, &subject, arguments, self.note);
        match run.await? {
            Some(changed) => {
                self.call.replace_arguments(changed.clone())?;
                self.note.replaced(changed);
            }
            // The call runs with exactly the arguments that the hooks have seen. A second conversion could change them.
            None if is_coerced => {
                let seen = Bytes::copy_from_slice(given);
                self.call.replace_arguments(seen)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Shows the outcome of a call to the hooks: its result, its list, or the failure of its tool. Returns the outcome as the
    /// hooks have changed it.
    ///
    /// # Errors
    ///
    /// The failure of the call, as the hooks have changed it; the refusal or the failure of a hook.
    pub(super) async fn outcome(&self, engine: &Engine, outcome: CallOutcome) -> CallOutcome {
        match outcome {
            Ok(reply) => self.reply(engine, reply).await,
            Err(error) => Err(self.failure(error).await),
        }
    }

    /// Shows the failure of a tool to the hooks, as the result that clients get. Returns the failure as the hooks have changed it,
    /// or the refusal or the failure of a hook.
    async fn failure(&self, error: CallError) -> CallError {
        let subject = self.subject();
        let is_seen = self
            .hooks
            .sees(HookEvent::Result, subject.namespace, subject.path);
        if !is_seen || subject.tool.is_none() || !result::has_words_of_tool(error.code) {
            return error;
        }
        let shown = result::of_failure(&error);
        let run = self
            .hooks
            .run(HookEvent::Result, &subject, &shown, self.note);
        match run.await {
            Ok(None) => error,
            Ok(Some(changed)) => result::changed_failure(error, &changed),
            Err(refused) => refused,
        }
    }

    /// Shows the result or the list of a reply to the hooks. Returns the reply as the hooks have changed it.
    async fn reply(
        &self,
        engine: &Engine,
        reply: UpstreamReply,
    ) -> Result<UpstreamReply, CallError> {
        let facts = self.call.facts();
        if *facts.method == *TOOLS_LIST {
            return self.list(engine, reply).await;
        }
        let subject = self.subject();
        // A result that no hook sees is not written for hooks.
        if !self
            .hooks
            .sees(HookEvent::Result, subject.namespace, subject.path)
        {
            return Ok(reply);
        }
        let Some(shown) = ShownResult::of(&facts.method, &reply) else {
            return Ok(reply);
        };
        let run = self
            .hooks
            .run(HookEvent::Result, &subject, shown.text(), self.note);
        match run.await? {
            None => Ok(reply),
            Some(changed) => shown.replaced(&reply, &changed),
        }
    }

    async fn list(
        &self,
        engine: &Engine,
        reply: UpstreamReply,
    ) -> Result<UpstreamReply, CallError> {
        let UpstreamReply::Response(response) = reply else {
            return Ok(reply);
        };
        let changed = match std::str::from_utf8(response.payload()) {
            Ok(result) if !response.is_error() => {
                let namespace = &self.call.facts().namespace.name;
                let list = engine.hook_list(self.caller, namespace, result, self.note);
                list.await?
            }
            _ => None,
        };
        Ok(UpstreamReply::Response(match changed {
            Some(result) => response.with_payload(result.into()),
            None => response,
        }))
    }
}
