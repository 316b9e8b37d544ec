//! Creates the namespace of an aggregate, with one hidden namespace for each server of its file.
//!
//! Nothing is started here. An unchanged member is the same `Arc` in the next aggregate, so that a change of one server does
//! not affect the processes of the others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tooldock_base::config::NamespacesConfig;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::server_failure::INVALID;
use tooldock_credentials::secrets::Secrets;

use super::super::{content_hash, gate, nobody, of_external, parking, same_namespace};
use crate::aggregate::{AggregateSpec, Member, MemberKind};
use crate::external::StdioServerConfig;
use crate::manifest::effective_limits;
use crate::registry::{
    Aggregate, AggregateMember, Attachment, Namespace, SecretsStatus, UpstreamKind,
};
use crate::servers;

/// Time limit that never expires in practice: an aggregate's member process is never stopped for being unused or old.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Minimum time limit for the start of a member's process. A longer `connect_timeout` of the member takes precedence.
const CONNECT_MAX: Duration = Duration::from_secs(600);

/// Inputs for the creation of aggregates' namespaces, in addition to the aggregates' files.
pub struct AggregateInputs<'a> {
    /// The operator's limits for all namespaces.
    pub config: &'a NamespacesConfig,
    /// Secrets to which `${NAME}` may refer.
    pub secrets: &'a Secrets,
    /// Returns a variable of the gateway's environment; `None` if it is not set.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Creates the namespace of an aggregate. `read` is the content of its file, or the reason why the file cannot be used. In the
/// second case the current aggregate stays in force; if there is none, the namespace fails with that reason.
pub fn namespace(
    name: &NamespaceName,
    read: Result<AggregateSpec, String>,
    current: Option<&Namespace>,
    around: &AggregateInputs<'_>,
) -> Namespace {
    let serving = current.and_then(|current| match &current.upstream {
        UpstreamKind::Aggregate(serving) => Some(serving),
        _ => None,
    });
    let mut issues = Vec::new();
    let upstream = match (read, serving) {
        (Ok(spec), serving) => {
            let next = aggregate(name, spec, serving.map(|it| &**it), around);
            UpstreamKind::Aggregate(match serving {
                Some(serving) if serving.is_same(&next) => Arc::clone(serving),
                _ => Arc::new(next),
            })
        }
        (Err(message), serving) => {
            issues.push(Issue {
                code: INVALID,
                subject: "config".into(),
                message: match serving {
                    Some(_) => format!("the last change is not served: {message}"),
                    None => message.clone(),
                },
            });
            match serving {
                Some(serving) => UpstreamKind::Aggregate(Arc::clone(serving)),
                None => {
                    UpstreamKind::Failed(CallError::new(CallErrorCode::WorkerUnavailable, message))
                }
            }
        }
    };
    let (limits, tool_limits, found) = effective_limits(
        &tooldock_base::config::LimitsPatch::default(),
        None,
        name,
        around.config,
    );
    issues.extend(found);
    let mut hash = Sha256::new();
    if let UpstreamKind::Aggregate(aggregate) = &upstream {
        // The aggregate's file is hashed as text, and each of its servers by the hash of the server's namespace.
        hash.update(format!("{:?}", aggregate.spec));
        for own in aggregate.own_namespaces() {
            hash.update(own.content_hash);
        }
    }
    Namespace {
        name: name.clone(),
        description: String::new(),
        version: String::new(),
        secrets: Vec::new(),
        secrets_status: SecretsStatus::NoSecretsNeeded,
        has_requirements: false,
        policy: ToolPolicy::new(&limits).unwrap_or_else(|_| nobody()),
        tools: Vec::new(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
        completions: false,
        files: Vec::new(),
        issues,
        gate: gate(current, limits.max_concurrency.local(), limits.queue),
        parked: parking(current, &limits),
        content_hash: content_hash(&hash.finalize().into(), &limits, &tool_limits, None),
        upstream,
        attached: Attachment::default(),
        recovering: Weak::new(),
        limits,
        tool_limits,
    }
}

fn aggregate(
    name: &NamespaceName,
    spec: AggregateSpec,
    serving: Option<&Aggregate>,
    around: &AggregateInputs<'_>,
) -> Aggregate {
    let labels = spec.labels();
    let members = spec.members.iter().zip(&labels).map(|(member, label)| {
        let own = name.member(label);
        let current = serving.and_then(|serving| serving.member(own.as_str()));
        one(&own, member, current, around)
    });
    let members = members.collect();
    Aggregate { spec, members }
}

fn one(
    name: &NamespaceName,
    member: &Member,
    current: Option<&Arc<Namespace>>,
    around: &AggregateInputs<'_>,
) -> AggregateMember {
    let external = match &member.kind {
        MemberKind::Namespace(served) => return AggregateMember::Served(served.clone()),
        MemberKind::Stdio(config) => {
            let config = StdioServerConfig {
                // A list of tools waits for the member only up to the member's own limit. If the process takes longer to
                // start, its tools are listed later.
                connect_timeout: member.connect_timeout.max(CONNECT_MAX),
                idle_stop: FOR_EVER,
                max_lifetime: FOR_EVER,
                // An aggregate may have dozens of servers, so spare processes would cost too much memory.
                warm: 0,
                ..(**config).clone()
            };
            let allowed = &around.config.env_allowed;
            servers::stdio_member(name, &config, around.secrets, around.environment, allowed)
        }
        MemberKind::Remote(config) => {
            servers::remote_member(name, config, around.secrets, around.environment)
        }
    };
    let next = of_external(external, current.map(|it| &**it), around.config);
    AggregateMember::Own(match current {
        Some(current) if same_namespace(current, &next) => Arc::clone(current),
        _ => Arc::new(next),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::{ActivePatterns, AggregateOptions};

    fn stdio(prefix: &str, command: &str) -> Member {
        Member {
            prefix: prefix.into(),
            kind: MemberKind::Stdio(Box::new(StdioServerConfig {
                command: "sh".into(),
                args: vec!["-c".into(), command.into()],
                ..StdioServerConfig::default()
            })),
            connect_timeout: Duration::from_secs(30),
            pin: None,
        }
    }

    fn spec(members: Vec<Member>) -> AggregateSpec {
        AggregateSpec {
            file: "tools.toml".into(),
            members,
            active: ActivePatterns::default(),
            options: AggregateOptions::default(),
        }
    }

    fn served(read: Result<AggregateSpec, String>, current: Option<&Namespace>) -> Namespace {
        let around = AggregateInputs {
            config: &NamespacesConfig::default(),
            secrets: &Secrets::default(),
            environment: &|_| None,
        };
        namespace(&"all".parse().unwrap(), read, current, &around)
    }

    fn aggregate_of(namespace: &Namespace) -> &Arc<Aggregate> {
        match &namespace.upstream {
            UpstreamKind::Aggregate(aggregate) => aggregate,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_of_one_server_leaves_the_others_as_they_are() {
        let first = served(Ok(spec(vec![stdio("a", "x"), stdio("b", "y")])), None);
        let same = served(
            Ok(spec(vec![stdio("a", "x"), stdio("b", "y")])),
            Some(&first),
        );
        assert!(Arc::ptr_eq(aggregate_of(&first), aggregate_of(&same)));
        assert_eq!(first.content_hash, same.content_hash);
        let next = served(
            Ok(spec(vec![stdio("a", "x"), stdio("b", "z")])),
            Some(&first),
        );
        let own = |of: &Namespace, name| Arc::clone(aggregate_of(of).member(name).unwrap());
        assert!(Arc::ptr_eq(&own(&first, "all.a"), &own(&next, "all.a")));
        assert!(!Arc::ptr_eq(&own(&first, "all.b"), &own(&next, "all.b")));
        assert_ne!(first.content_hash, next.content_hash);
    }

    #[test]
    fn servers_with_one_prefix_are_namespaces_of_their_own() {
        let first = served(Ok(spec(vec![stdio("a", "x"), stdio("a", "y")])), None);
        let names = |of: &Namespace| {
            let own = aggregate_of(of).own_namespaces();
            own.map(|it| it.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&first), ["all.a", "all.a~2"]);
        let same = served(
            Ok(spec(vec![stdio("a", "x"), stdio("a", "y")])),
            Some(&first),
        );
        assert!(Arc::ptr_eq(aggregate_of(&first), aggregate_of(&same)));
    }

    #[test]
    fn a_file_that_cannot_be_used_changes_nothing_that_serves() {
        let failed = served(Err("tools.toml:3:1: unknown key".into()), None);
        let UpstreamKind::Failed(error) = &failed.upstream else {
            panic!("{failed:?}");
        };
        assert_eq!(error.message, "tools.toml:3:1: unknown key");
        let first = served(Ok(spec(vec![stdio("a", "x")])), None);
        let kept = served(Err("tools.toml:3:1: unknown key".into()), Some(&first));
        assert!(Arc::ptr_eq(aggregate_of(&first), aggregate_of(&kept)));
        assert!(kept.issues[0].message.contains("tools.toml:3:1"));
    }
}
