//! `rate_limits`: limits on the rate of requests or tool calls per principal, namespace, tool or address.
//!
//! Requests are counted in two steps, as soon as the values that a limit counts by are known: limits that need no namespace are
//! applied before the namespace is looked up, all others after it. Tool calls are counted by the engine, since only it has parsed
//! the calls in a body; it calls [`RateLimits::check_tool_call`].
//!
//! Limits are applied one after the other. If a later limit refuses, the budget that earlier limits took is not returned. So a
//! client that keeps exceeding one limit also uses up its others.
//!
//! Replicas may share these limits and those of API keys, see `shared`.

mod shared;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use globset::{Glob, GlobMatcher};
use governor::clock::{Clock, MonotonicClock};
use tooldock_base::budget::Budget;
use tooldock_base::names::NamespaceName;
use tooldock_credentials::keys::{KeyLimit, KeyLimitUnit};

pub use self::shared::LimitUse;
use crate::budget::header_fields;
use crate::config::{LimitKey, LimitUnit, RateLimitConfig};
use crate::network::network_of;
use crate::rate::{KeyedLimiter, RetryAfter, SharedName};
use crate::rejection::Rejection;

/// Maximum number of different rate limits of API keys. When it is reached, the counts of all API keys are reset.
const OF_KEYS_MAX: usize = 4096;

/// The configured rate limits, grouped by the moment at which they are applied.
#[derive(Debug)]
pub(crate) struct RateLimits<C: Clock = MonotonicClock> {
    before_namespace: Vec<Arc<Rule<C>>>,
    after_namespace: Vec<Arc<Rule<C>>>,
    tool_calls: Vec<Arc<Rule<C>>>,
    /// Limits of API keys. All API keys with the same limit share an entry, which counts each key separately.
    of_keys: Mutex<HashMap<KeyLimit, Arc<Rule<C>>>>,
    clock: C,
    /// True if replicas share these limits; false if each replica counts alone.
    shared: bool,
}

/// A rate limit, with the budgets of all values that it counts by.
#[derive(Debug)]
pub(crate) struct Rule<C: Clock> {
    keys: Box<[LimitKey]>,
    /// The limit's name: its keys joined by `+`, such as `principal+tool`; `key` for a limit of API keys.
    name: Arc<str>,
    only: Option<NamespaceName>,
    /// True if the limit counts by namespace or by tool; false if it needs no namespace.
    of_namespace: bool,
    weights: Box<[(GlobMatcher, NonZeroU32)]>,
    rate: NonZeroU32,
    burst: NonZeroU32,
    limiter: KeyedLimiter<C>,
}

/// The values of a request or tool call that rate limits count by.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The principal's name.
    pub principal: &'a str,
    /// The client's address.
    pub client: IpAddr,
    /// The namespace of the request or tool call; `None` if it is not known yet, or if there is none.
    pub namespace: Option<&'a NamespaceName>,
    /// Name of the called tool; `None` for requests that are no tool call.
    pub tool: Option<&'a str>,
    /// The rate limits of the request's API key; empty for other credentials.
    pub own: &'a [KeyLimit],
    /// Id of the request's API key, by which the key's own rate limits count; `None` for other credentials.
    pub key: Option<&'a str>,
}

/// The rate limits that count a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    /// All rate limits that match the tool call count it.
    All,
    /// Only limits that count by namespace or tool, or count a single namespace, count the call. The called namespace is an
    /// aggregate, which passes the call on to a member; there, all limits that match count it.
    Namespace,
}

/// Error: a rate limit is exhausted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitExceeded {
    /// The time to wait until the limit would admit the same request or call.
    pub wait: RetryAfter,
    /// The exhausted limit, with its remaining budget.
    pub budget: Budget,
}

impl<C: Clock + Clone> RateLimits<C> {
    pub(crate) fn new(rules: &[RateLimitConfig], clock: &C) -> Self {
        Self::of(rules, clock, false)
    }

    /// Creates limits from these rules. Their counts are shared with other replicas.
    #[must_use]
    pub(crate) fn shared(&self, rules: &[RateLimitConfig]) -> Self {
        Self::of(rules, &self.clock, true)
    }

    fn of(rules: &[RateLimitConfig], clock: &C, shared: bool) -> Self {
        let mut limits = Self {
            before_namespace: Vec::new(),
            after_namespace: Vec::new(),
            tool_calls: Vec::new(),
            of_keys: Mutex::default(),
            clock: clock.clone(),
            shared,
        };
        for (at, rule) in rules.iter().enumerate() {
            let needs_no_namespace = |key: &LimitKey| !key.is_of_namespace();
            let place = match (rule.unit, &rule.namespace) {
                (LimitUnit::ToolCall, _) => &mut limits.tool_calls,
                (LimitUnit::Request, None) if rule.key.0.iter().all(needs_no_namespace) => {
                    &mut limits.before_namespace
                }
                (LimitUnit::Request, _) => &mut limits.after_namespace,
            };
            let equal_before = rules[..at].iter().filter(|it| *it == rule).count();
            let name = shared.then(|| shared_name(rule, equal_before));
            place.push(Arc::new(Rule::new(rule, clock.clone(), name)));
        }
        limits
    }

    /// Takes the use of these limits since the previous call of this function, to be sent to other replicas.
    pub(crate) fn take_use(&self) -> LimitUse<C> {
        let of_keys: Vec<_> = {
            let known = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
            known.values().cloned().collect()
        };
        let lists = [
            &self.before_namespace,
            &self.after_namespace,
            &self.tool_calls,
        ];
        LimitUse::of(lists.into_iter().flatten().cloned().chain(of_keys))
    }
}

/// The name by which replicas identify a shared limit. All replicas have the same configuration, so they derive the same name:
/// from the rule, and from the number of equal rules before it.
fn shared_name(rule: &RateLimitConfig, equal_before: usize) -> SharedName {
    let rule = serde_json::to_string(rule).expect("plain data");
    SharedName::new(&format!("{equal_before} {rule}"))
}

impl<C: Clock + Clone> RateLimits<C> {
    /// Counts a request against the limits that need no namespace. Returns the budget with the least remaining.
    pub(crate) fn check_request(&self, subject: Subject<'_>) -> Result<Option<Budget>, Rejection> {
        let budget = check(self.before_namespace.iter(), subject).map_err(refusal)?;
        self.check_own(KeyLimitUnit::Request, subject, budget)
            .map_err(refusal)
    }

    /// Counts a request against the limits on requests that count by namespace.
    pub(crate) fn check_namespace_request(
        &self,
        subject: Subject<'_>,
    ) -> Result<Option<Budget>, Rejection> {
        check(self.after_namespace.iter(), subject).map_err(refusal)
    }

    /// Counts a request against all limits on requests. For callers that know the namespace from the beginning.
    pub(crate) fn check_any_request(&self, subject: Subject<'_>) -> Result<(), LimitExceeded> {
        check(self.before_namespace.iter(), subject)?;
        self.check_own(KeyLimitUnit::Request, subject, None)?;
        check(self.after_namespace.iter(), subject).map(drop)
    }

    /// Counts a tool call against the limits on tool calls. Returns the budget with the least remaining.
    pub(crate) fn check_tool_call(
        &self,
        subject: Subject<'_>,
        counted: CountedBy,
    ) -> Result<Option<Budget>, LimitExceeded> {
        match counted {
            CountedBy::All => {
                let budget = check(self.tool_calls.iter(), subject)?;
                self.check_own(KeyLimitUnit::ToolCall, subject, budget)
            }
            CountedBy::Namespace => {
                let rules = self.tool_calls.iter();
                check(rules.filter(|it| it.is_of_one_namespace()), subject)
            }
        }
    }

    /// Counts a request or call against the limits of its API key. `budget` is the tightest budget of the limits applied before.
    fn check_own(
        &self,
        unit: KeyLimitUnit,
        subject: Subject<'_>,
        mut budget: Option<Budget>,
    ) -> Result<Option<Budget>, LimitExceeded> {
        for limit in subject.own.iter().filter(|limit| limit.unit == unit) {
            let rule = self.of_key(limit);
            if let Some(left) = rule.take(subject)? {
                budget = Some(Budget::tighter(budget, rule.budget(left)));
            }
        }
        Ok(budget)
    }

    fn of_key(&self, limit: &KeyLimit) -> Arc<Rule<C>> {
        let mut known = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        // Limits of revoked API keys stay in the table. When it is full, it is cleared: since limits work by the second,
        // resetting all counts gives clients little.
        if known.len() >= OF_KEYS_MAX && !known.contains_key(limit) {
            known.clear();
        }
        let new = || Arc::new(Rule::of_key(limit, self.clock.clone(), self.shared));
        Arc::clone(known.entry(*limit).or_insert_with(new))
    }

    /// Returns true if the configuration contains a limit on tool calls.
    pub(crate) fn count_tool_calls(&self) -> bool {
        !self.tool_calls.is_empty()
    }
}

/// Counts a request or call against all rules in order, up to the first exhausted one. Returns the budget with the least
/// remaining.
fn check<'r, C: Clock + 'r>(
    rules: impl Iterator<Item = &'r Arc<Rule<C>>>,
    subject: Subject<'_>,
) -> Result<Option<Budget>, LimitExceeded> {
    let mut tightest: Option<(&Rule<C>, u32)> = None;
    for rule in rules {
        let Some(left) = rule.take(subject)? else {
            continue;
        };
        let is_tighter = |(other, of_other): (&Rule<C>, u32)| {
            let part = |left: u32, of: NonZeroU32| u64::from(left) * u64::from(of.get());
            part(left, other.burst) < part(of_other, rule.burst)
        };
        if tightest.is_none_or(is_tighter) {
            tightest = Some((rule, left));
        }
    }
    // Only the tightest budget is computed: most requests are counted by several rules, and each computation costs time.
    Ok(tightest.map(|(rule, left)| rule.budget(left)))
}

fn refusal(exhausted: LimitExceeded) -> Rejection {
    let budget = &exhausted.budget;
    let mut rejection =
        Rejection::rate_limited(exhausted.wait, &budget.limit).because(cause(&budget.limit));
    rejection.headers.extend(header_fields(budget));
    rejection
}

/// Description of a limit in the log and metrics, by the limit's name.
fn cause(limit: &str) -> &'static str {
    match limit {
        "principal" => "per principal",
        "namespace" => "per namespace",
        "tool" => "per tool",
        "address" => "per client address",
        "key" => "of the API key",
        _ => "per combination",
    }
}

impl<C: Clock> Rule<C> {
    /// Returns true if the rule counts only requests or calls that belong to a namespace.
    fn is_of_one_namespace(&self) -> bool {
        self.of_namespace || self.only.is_some()
    }

    /// Creates the rule for all API keys that have this limit.
    fn of_key(limit: &KeyLimit, clock: C, shared: bool) -> Self {
        let name = shared.then(|| SharedName::new(&format!("key {limit}")));
        Self {
            keys: [].into(),
            name: "key".into(),
            only: None,
            of_namespace: false,
            weights: Box::default(),
            rate: limit.rate,
            burst: limit.burst,
            limiter: KeyedLimiter::new(limit.rate, limit.burst, clock, name),
        }
    }

    fn new(rule: &RateLimitConfig, clock: C, shared: Option<SharedName>) -> Self {
        let keys = &rule.key.0;
        let names: Vec<_> = keys.iter().map(|key| key.name()).collect();
        // Invalid patterns were refused when the configuration was validated; any that remain are skipped.
        let weights = rule.weights.iter().filter_map(|(pattern, weight)| {
            let glob = Glob::new(pattern).ok()?;
            Some((glob.compile_matcher(), *weight))
        });
        Self {
            keys: keys.as_slice().into(),
            name: names.join("+").into(),
            only: rule.namespace.clone(),
            of_namespace: keys.iter().any(|key| key.is_of_namespace()),
            weights: weights.collect(),
            rate: rule.rate,
            burst: rule.burst,
            limiter: KeyedLimiter::new(rule.rate, rule.burst, clock, shared),
        }
    }

    pub(crate) fn limiter(&self) -> &KeyedLimiter<C> {
        &self.limiter
    }

    /// Counts a request or call by its weight, and returns the number of events left in its budget. Returns `None` if the rule
    /// does not apply to it.
    fn take(&self, subject: Subject<'_>) -> Result<Option<u32>, LimitExceeded> {
        let is_of_others = self.only.is_some() && self.only.as_ref() != subject.namespace;
        // A rule that counts by namespace does not count requests that belong to no namespace.
        let lacks_namespace = self.of_namespace && subject.namespace.is_none();
        if is_of_others || lacks_namespace {
            return Ok(None);
        }
        let counted = SubjectKey {
            keys: &self.keys,
            subject,
        };
        let taken = match &*self.weights {
            [] => self.limiter.check(counted),
            weights => self.limiter.check_n(counted, weight(weights, subject.tool)),
        };
        taken.map(Some).map_err(|wait| LimitExceeded {
            wait,
            budget: self.budget(0),
        })
    }

    fn budget(&self, left: u32) -> Budget {
        Budget {
            limit: Arc::clone(&self.name),
            quota: self.burst.get(),
            rate: self.rate,
            left,
        }
    }
}

/// The cost of a call of this tool: the weight of the first matching pattern, else 1.
fn weight(weights: &[(GlobMatcher, NonZeroU32)], tool: Option<&str>) -> NonZeroU32 {
    let own = tool.and_then(|tool| weights.iter().find(|(glob, _)| glob.is_match(tool)));
    own.map_or(NonZeroU32::MIN, |(_, weight)| *weight)
}

impl LimitKey {
    /// Returns true if a limit by this key needs the request's namespace: `namespace` and `tool`.
    fn is_of_namespace(self) -> bool {
        matches!(self, Self::Namespace | Self::Tool)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Namespace => "namespace",
            Self::Tool => "tool",
            Self::Address => "address",
        }
    }
}

/// The values of a request or call that a rule counts by. Equal values share a budget.
struct SubjectKey<'a> {
    keys: &'a [LimitKey],
    subject: Subject<'a>,
}

impl Hash for SubjectKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let subject = &self.subject;
        // A rule without configured keys is a limit of API keys, which counts by the id of the API key.
        if self.keys.is_empty() {
            subject.key.hash(state);
        }
        for key in self.keys {
            match key {
                LimitKey::Principal => subject.principal.hash(state),
                LimitKey::Address => network_of(subject.client).hash(state),
                LimitKey::Namespace => subject.namespace.hash(state),
                LimitKey::Tool => (subject.namespace, subject.tool).hash(state),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::config::LimitKeys;
    use crate::rejection::Reason;

    fn rule(key: LimitKey, unit: LimitUnit, namespace: Option<&str>) -> RateLimitConfig {
        RateLimitConfig {
            key: LimitKeys(vec![key]),
            rate: NonZeroU32::new(5).unwrap(),
            burst: NonZeroU32::new(2).unwrap(),
            unit,
            namespace: namespace.map(|name| name.parse().unwrap()),
            weights: BTreeMap::new(),
        }
    }

    fn subject<'a>(principal: &'a str, namespace: Option<&'a NamespaceName>) -> Subject<'a> {
        Subject {
            principal,
            client: "192.0.2.1".parse().unwrap(),
            namespace,
            tool: None,
            own: &[],
            key: None,
        }
    }

    #[test]
    fn one_principals_excess_does_not_touch_another() {
        let clock = FakeRelativeClock::default();
        let rules = [rule(LimitKey::Principal, LimitUnit::Request, None)];
        let limits = RateLimits::new(&rules, &clock);
        let admitted = |principal| limits.check_request(subject(principal, None)).is_ok();
        assert!(admitted("ci") && admitted("ci") && !admitted("ci"));
        assert!(admitted("dev"));
        clock.advance(Duration::from_millis(200));
        assert!(admitted("ci") && !admitted("ci"));
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_and_which_limit_it_was() {
        let rules = [rule(LimitKey::Principal, LimitUnit::Request, None)];
        let limits = RateLimits::new(&rules, &FakeRelativeClock::default());
        let refused = (0..3)
            .find_map(|_| limits.check_request(subject("ci", None)).err())
            .unwrap();
        assert_eq!(refused.reason, Reason::RateLimited);
        assert!(refused.message.contains("per principal"), "{refused:?}");
        let fields: Vec<_> = refused
            .headers
            .iter()
            .map(|it| it.1.to_str().unwrap())
            .collect();
        assert!(fields.contains(&"\"principal\";r=0;t=1"), "{fields:?}");
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
        let limits = RateLimits::new(&rules, &FakeRelativeClock::default());
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
    fn several_keys_count_each_combination_apart() {
        let (github, shared) = ("github".parse().unwrap(), "shared".parse().unwrap());
        let mut rule = rule(LimitKey::Principal, LimitUnit::ToolCall, None);
        rule.key.0 = vec![LimitKey::Principal, LimitKey::Namespace, LimitKey::Tool];
        let limits = RateLimits::new(&[rule], &FakeRelativeClock::default());
        let call = |principal, namespace, tool| {
            let subject = Subject {
                tool: Some(tool),
                ..subject(principal, Some(namespace))
            };
            limits
                .check_tool_call(subject, CountedBy::All)
                .map(|left| left.unwrap())
        };
        let first = call("ci", &github, "a").unwrap();
        assert_eq!(&*first.limit, "principal+namespace+tool");
        assert_eq!((first.left, first.reset(), first.window()), (1, 1, 1));
        assert!(call("ci", &github, "a").is_ok() && call("ci", &github, "a").is_err());
        assert!(call("dev", &github, "a").is_ok());
        assert!(call("ci", &shared, "a").is_ok());
        assert!(call("ci", &github, "b").is_ok());
    }

    #[test]
    fn the_limits_of_a_key_count_beside_those_of_the_configuration() {
        let rules = [rule(LimitKey::Principal, LimitUnit::Request, None)];
        let limits = RateLimits::new(&rules, &FakeRelativeClock::default());
        let own = ["1/3".parse().unwrap(), "1:tool_call".parse().unwrap()];
        let namespace = "github".parse().unwrap();
        let of_key = |name, id| Subject {
            own: &own,
            key: Some(id),
            ..subject(name, Some(&namespace))
        };
        let request = |name, id| limits.check_request(of_key(name, id));
        let call = |name, id| limits.check_tool_call(of_key(name, id), CountedBy::All);
        let left = request("key:ci", "a").unwrap().unwrap();
        assert_eq!((&*left.limit, left.left), ("principal", 1));
        assert!(request("key:ci", "a").is_ok() && request("key:ci", "a").is_err());
        assert!(request("key:dev", "b").is_ok());
        assert!(call("key:ci", "a").is_ok());
        let refused = call("key:ci", "a").unwrap_err();
        assert_eq!(&*refused.budget.limit, "key");
        // Another key of the same name has a budget of its own.
        assert!(call("key:ci", "c").is_ok());
    }

    #[test]
    fn a_call_takes_what_its_tool_weighs() {
        let mut rule = rule(LimitKey::Principal, LimitUnit::ToolCall, None);
        rule.burst = NonZeroU32::new(10).unwrap();
        let weight = |weight| NonZeroU32::new(weight).unwrap();
        rule.weights = BTreeMap::from([
            ("search_*".into(), weight(4)),
            ("search_all".into(), weight(9)),
        ]);
        let limits = RateLimits::new(&[rule], &FakeRelativeClock::default());
        let namespace = "github".parse().unwrap();
        let left = |tool| {
            let subject = Subject {
                tool: Some(tool),
                ..subject("ci", Some(&namespace))
            };
            limits
                .check_tool_call(subject, CountedBy::All)
                .map(|left| left.unwrap().left)
        };
        assert_eq!(left("get"), Ok(9));
        assert_eq!(left("search_all"), Ok(5));
        assert_eq!(left("search_code"), Ok(1));
        assert!(left("search_code").is_err());
        assert_eq!(left("get"), Ok(0));
    }

    #[test]
    fn tool_calls_are_counted_apart_from_requests() {
        let rules = [rule(LimitKey::Tool, LimitUnit::ToolCall, None)];
        let limits = RateLimits::new(&rules, &FakeRelativeClock::default());
        let namespace = "github".parse().unwrap();
        let call = |tool| {
            let subject = Subject {
                tool: Some(tool),
                ..subject("ci", Some(&namespace))
            };
            limits.check_tool_call(subject, CountedBy::All).is_ok()
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
