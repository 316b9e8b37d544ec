//! Fakes of workers, upstreams and limits, for tests of this crate and of others.

mod backend;
mod in_memory;
mod script;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tooldock_base::budget::Budget;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::Operation;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::testing::caller;
use tooldock_workers::registry::Namespace;

pub use backend::FakeBackend;
pub use in_memory::InMemory;

use crate::engine::{CountedBy, ExhaustedLimit, Limiter, UpstreamCall};
use crate::upstream::worker::{PreparedCall, WorkerPort, WorkerPorts};
use crate::upstream::{CallContext, Client};

/// Ports of workers that lead to one fake.
pub struct Only(pub Arc<FakeBackend>);

impl WorkerPorts for Only {
    fn of(&self, _namespace: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError> {
        Ok(Arc::clone(&self.0) as Arc<dyn WorkerPort>)
    }
}

/// A call of a function of the namespace, as a surface would prepare it for the usual caller. A function with a context gets no
/// facts about the caller.
pub fn function_call(
    backend: &Arc<FakeBackend>,
    namespace: &Arc<Namespace>,
    client: Client,
    operation: Operation,
) -> Arc<dyn UpstreamCall> {
    let talks = match &operation {
        Operation::CallTool { tool, .. } => {
            let mut tools = namespace.tools.iter();
            tools.any(|declared| declared.context && declared.name == *tool)
        }
        _ => false,
    };
    let caller_facts = talks.then(|| Bytes::from_static(b"null"));
    let ports: Arc<dyn WorkerPorts> = Arc::new(Only(Arc::clone(backend)));
    let cx = CallContext {
        caller: &caller(),
        body: &Bytes::new(),
        namespace: Arc::clone(namespace),
        upstream: &InMemory::default(),
        client,
        streams: true,
        depth: 0,
    };
    let call = PreparedCall::new(&ports, &cx, operation, caller_facts);
    Arc::new(call)
}

/// Limiter that refuses one tool, with a time to wait.
pub struct Refuses(pub &'static str, pub Mutex<Vec<String>>);

impl Limiter for Refuses {
    fn check(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
        tool: &str,
        _: CountedBy,
    ) -> Result<Option<Budget>, ExhaustedLimit> {
        let mut seen = self.1.lock().expect("not poisoned");
        let principal = caller.principal_name();
        seen.push(format!("{principal}/{namespace}/{tool}"));
        if tool == self.0 {
            Err(ExhaustedLimit {
                wait: Duration::from_millis(1500),
                budget: Budget {
                    limit: "tool".into(),
                    quota: 20,
                    rate: NonZeroU32::new(2).expect("not 0"),
                    left: 0,
                },
            })
        } else {
            Ok(None)
        }
    }
}

/// A limiter that never refuses.
pub struct Unlimited;

impl Limiter for Unlimited {
    fn check(
        &self,
        _: &Caller,
        _: &NamespaceName,
        _: &str,
        _: CountedBy,
    ) -> Result<Option<Budget>, ExhaustedLimit> {
        Ok(None)
    }
}
