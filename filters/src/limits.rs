//! `rate_limits`: so many requests or tool calls per principal, namespace, tool or address.
//!
//! Requests are counted in two places of the list, as soon as what they are counted by is known: rules that need no
//! namespace before it is looked at, all others after. Tool calls are counted by the engine, which is the only one to know
//! how many a body holds; it asks [`Limits::check_tool_call`].
//!
//! Several rules apply one after the other. What an earlier rule took is not given back when a later one refuses, so a
//! client that hammers one limit also uses up its others.

use std::net::IpAddr;

use governor::clock::{Clock, MonotonicClock};
use tooldock_workers::names::NamespaceName;

use crate::config::{LimitKey, LimitUnit, RateLimitConfig};
use crate::flood::network_of;
use crate::rate::{KeyedLimiter, RetryAfter};
use crate::rejection::Rejection;

/// The configured rules, sorted by where they are checked.
#[derive(Debug)]
pub(crate) struct Limits<C: Clock = MonotonicClock> {
    before_namespace: Vec<Rule<C>>,
    after_namespace: Vec<Rule<C>>,
    tool_calls: Vec<Rule<C>>,
}

#[derive(Debug)]
struct Rule<C: Clock> {
    key: LimitKey,
    only: Option<NamespaceName>,
    limiter: KeyedLimiter<C>,
}

/// What a request or call is counted by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) principal: &'a str,
    pub(crate) client: IpAddr,
    pub(crate) namespace: Option<&'a NamespaceName>,
    pub(crate) tool: Option<&'a str>,
}

impl<C: Clock + Clone> Limits<C> {
    pub(crate) fn new(rules: &[RateLimitConfig], clock: &C) -> Self {
        let mut limits = Self {
            before_namespace: Vec::new(),
            after_namespace: Vec::new(),
            tool_calls: Vec::new(),
        };
        for rule in rules {
            let place = match (rule.unit, rule.key, &rule.namespace) {
                (LimitUnit::ToolCall, _, _) => &mut limits.tool_calls,
                (LimitUnit::Request, LimitKey::Principal | LimitKey::Address, None) => {
                    &mut limits.before_namespace
                }
                (LimitUnit::Request, _, _) => &mut limits.after_namespace,
            };
            place.push(Rule {
                key: rule.key,
                only: rule.namespace.clone(),
                limiter: KeyedLimiter::new(rule.rate, rule.burst, clock.clone()),
            });
        }
        limits
    }
}

impl<C: Clock> Limits<C> {
    /// The limits on requests that need no namespace.
    pub(crate) fn check_request(&self, subject: Subject<'_>) -> Result<(), Rejection> {
        refuse_first(&self.before_namespace, subject)
    }

    /// The limits on requests to a namespace.
    pub(crate) fn check_namespace_request(&self, subject: Subject<'_>) -> Result<(), Rejection> {
        refuse_first(&self.after_namespace, subject)
    }

    /// The limits on tool calls.
    pub(crate) fn check_tool_call(&self, subject: Subject<'_>) -> Result<(), RetryAfter> {
        self.tool_calls
            .iter()
            .try_for_each(|rule| rule.check(subject))
    }
}

fn refuse_first<C: Clock>(rules: &[Rule<C>], subject: Subject<'_>) -> Result<(), Rejection> {
    rules.iter().try_for_each(|rule| {
        rule.check(subject)
            .map_err(|wait| Rejection::rate_limited(wait, rule.cause()))
    })
}

impl<C: Clock> Rule<C> {
    fn check(&self, subject: Subject<'_>) -> Result<(), RetryAfter> {
        if self.only.is_some() && self.only.as_ref() != subject.namespace {
            return Ok(());
        }
        match (self.key, subject.namespace) {
            (LimitKey::Principal, _) => self.limiter.check(subject.principal),
            (LimitKey::Address, _) => self.limiter.check(network_of(subject.client)),
            (LimitKey::Namespace, Some(namespace)) => self.limiter.check(namespace),
            (LimitKey::Tool, Some(namespace)) => self.limiter.check((namespace, subject.tool)),
            // A request that belongs to no namespace is not counted by one.
            (LimitKey::Namespace | LimitKey::Tool, None) => Ok(()),
        }
    }

    fn cause(&self) -> &'static str {
        match self.key {
            LimitKey::Principal => "per principal",
            LimitKey::Namespace => "per namespace",
            LimitKey::Tool => "per tool",
            LimitKey::Address => "per client address",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::rejection::Reason;

    fn rule(key: LimitKey, unit: LimitUnit, namespace: Option<&str>) -> RateLimitConfig {
        RateLimitConfig {
            key,
            rate: NonZeroU32::new(5).unwrap(),
            burst: NonZeroU32::new(2).unwrap(),
            unit,
            namespace: namespace.map(|name| name.parse().unwrap()),
        }
    }

    fn subject<'a>(principal: &'a str, namespace: Option<&'a NamespaceName>) -> Subject<'a> {
        Subject {
            principal,
            client: "192.0.2.1".parse().unwrap(),
            namespace,
            tool: None,
        }
    }

    #[test]
    fn one_principals_excess_does_not_touch_another() {
        let clock = FakeRelativeClock::default();
        let rules = [rule(LimitKey::Principal, LimitUnit::Request, None)];
        let limits = Limits::new(&rules, &clock);
        let admitted = |principal| limits.check_request(subject(principal, None)).is_ok();
        assert!(admitted("ci") && admitted("ci") && !admitted("ci"));
        assert!(admitted("dev"));
        clock.advance(Duration::from_millis(200));
        assert!(admitted("ci") && !admitted("ci"));
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_and_which_limit_it_was() {
        let rules = [rule(LimitKey::Principal, LimitUnit::Request, None)];
        let limits = Limits::new(&rules, &FakeRelativeClock::default());
        let refused = (0..3)
            .find_map(|_| limits.check_request(subject("ci", None)).err())
            .unwrap();
        assert_eq!(refused.reason, Reason::RateLimited);
        assert_eq!(refused.cause, Some("per principal"));
        assert!(
            refused
                .headers
                .contains(&(http::header::RETRY_AFTER, 1_u64.into()))
        );
    }

    #[test]
    fn a_rule_for_one_namespace_leaves_the_others_alone() {
        let rules = [rule(
            LimitKey::Namespace,
            LimitUnit::Request,
            Some("github"),
        )];
        let limits = Limits::new(&rules, &FakeRelativeClock::default());
        let (github, shared) = ("github".parse().unwrap(), "shared".parse().unwrap());
        let admitted = |namespace| {
            limits
                .check_namespace_request(subject("ci", Some(namespace)))
                .is_ok()
        };
        assert!(admitted(&github) && admitted(&github) && !admitted(&github));
        assert!((0..10).all(|_| admitted(&shared)));
        assert!(limits.check_request(subject("ci", None)).is_ok());
    }

    #[test]
    fn tool_calls_are_counted_apart_from_requests() {
        let rules = [rule(LimitKey::Tool, LimitUnit::ToolCall, None)];
        let limits = Limits::new(&rules, &FakeRelativeClock::default());
        let namespace = "github".parse().unwrap();
        let call = |tool| {
            limits
                .check_tool_call(Subject {
                    tool: Some(tool),
                    ..subject("ci", Some(&namespace))
                })
                .is_ok()
        };
        assert!(call("a") && call("a") && !call("a"));
        assert!(call("b"));
        assert!((0..10).all(|_| limits.check_request(subject("ci", None)).is_ok()));
        assert!((0..10).all(|_| {
            limits
                .check_namespace_request(subject("ci", Some(&namespace)))
                .is_ok()
        }));
    }
}
