//! The keys of a hook, an entry of the configuration key `hooks`.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tooldock_base::bounds::within;
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;
use tooldock_base::yaml::{self, Value};
use tooldock_credentials::secrets::Secrets;
use tooldock_workers::remote::{BackendConfig, RemoteServer, RemoteServerConfig, RemoteTimeouts};

/// Maximum number of hooks. Each hook delays the calls that it sees.
pub const HOOKS_MAX: usize = 64;
/// Time limit of a hook's answer if the configuration says none.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Allowed time limits of a hook's answer. Clients wait for a hook as long as for a slow tool.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// A hook: the events that it sees, and the service or tool that decides about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookConfig {
    /// Events that the hook sees.
    pub on: HookEvents,
    /// Names and patterns of the namespaces whose events the hook sees.
    #[serde(default = "every_namespace")]
    pub namespaces: Vec<String>,
    /// URL of the HTTP service that decides; `None` for a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The tool of this gateway that decides, as `NAMESPACE.TOOL`; `None` for an HTTP service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Value of the header `Authorization` in requests to the HTTP service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Template>,
    /// True if the host name of the URL may resolve to addresses that are not public; otherwise such addresses are refused.
    #[serde(default)]
    pub allow_private: bool,
    /// Time limit of an answer, which includes the wait for other requests to the same hook.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub timeout: Duration,
    /// Treatment of an event whose hook fails.
    #[serde(default)]
    pub fail: FailRule,
}

fn every_namespace() -> Vec<String> {
    vec!["*".to_owned()]
}

fn default_timeout() -> Duration {
    TIMEOUT
}

/// An event that a hook sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    /// A tool is called. The hook sees the arguments.
    Call,
    /// A tool has answered. The hook sees the result.
    Result,
    /// A list of tools is answered. The hook sees the definitions of the tools.
    List,
}

impl HookEvent {
    /// Name of the event in the configuration, in requests and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Result => "result",
            Self::List => "list",
        }
    }

    /// Name of the member that contains the value in requests and answers.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::Call => "arguments",
            Self::Result => "result",
            Self::List => "tools",
        }
    }
}

/// The events of a hook. The configuration contains one event, or a list of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookEvents(Vec<HookEvent>);

impl HookEvents {
    /// Returns true if the event is one of these.
    pub fn contains(&self, event: HookEvent) -> bool {
        self.0.contains(&event)
    }
}

impl Serialize for HookEvents {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &*self.0 {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for HookEvents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let refused = |_| de::Error::custom("must be call, result or list, or a list of these");
        let value = match Value::deserialize(deserializer)? {
            list @ Value::Sequence(_) => list,
            one => Value::Sequence(vec![one]),
        };
        yaml::from_value(value).map(Self).map_err(refused)
    }
}

/// Treatment of an event whose hook fails: it does not answer in time, cannot be reached, or answers something else than JSON of
/// the documented form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailRule {
    /// The event is refused.
    #[default]
    Closed,
    /// The event goes on as if the hook had passed it.
    Open,
}

/// The service or tool to which a hook's requests are sent.
#[derive(Debug, Clone, PartialEq)]
pub enum HookAddress {
    /// An HTTP service, with the settings of requests to it.
    Service(Box<RemoteServerConfig>),
    /// A tool of this gateway.
    Tool {
        /// The namespace of the tool.
        namespace: NamespaceName,
        /// Name of the tool in its namespace.
        tool: String,
    },
}

/// Error: the key of a hook that cannot be used, and the reason.
pub type InvalidHook = (&'static str, String);

impl HookConfig {
    /// Checks the keys, as far as possible without I/O. Returns the address of the service or tool.
    ///
    /// # Errors
    ///
    /// The first invalid key, and the remedy.
    pub fn validate(&self) -> Result<HookAddress, InvalidHook> {
        let events = &self.on.0;
        if events.is_empty() {
            return Err(("on", "is empty: write call, result or list".to_owned()));
        }
        let is_repeated = |at: usize| events[..at].contains(&events[at]);
        if let Some(at) = (0..events.len()).find(|at| is_repeated(*at)) {
            let name = events[at].as_str();
            return Err(("on", format!("has {name} twice: leave out one of them")));
        }
        self.scope()?;
        within(self.timeout, &TIMEOUTS).map_err(|reason| ("timeout", reason))?;
        match (&self.url, &self.tool) {
            (Some(url), None) => self.service(url),
            (None, Some(tool)) => self.own_tool(tool),
            (None, None) => Err((
                "url",
                "is missing: write the url of a service, or tool: NAMESPACE.TOOL".to_owned(),
            )),
            (Some(_), Some(_)) => Err((
                "tool",
                "stands beside url, and a hook asks one of them: leave out the other".to_owned(),
            )),
        }
    }

    /// Compiles the patterns of namespaces.
    ///
    /// # Errors
    ///
    /// The pattern that is neither a name nor a glob.
    pub fn scope(&self) -> Result<NamespaceScope, InvalidHook> {
        if self.namespaces.is_empty() {
            let reason =
                "is empty, so that the hook sees nothing: write [\"*\"] for every namespace";
            return Err(("namespaces", reason.to_owned()));
        }
        NamespaceScope::new(&self.namespaces).map_err(|reason| ("namespaces", reason))
    }

    /// Resolves the HTTP service of the hook at this index with the values of its variables; `None` for a tool.
    ///
    /// # Errors
    ///
    /// The key that cannot be used. The error contains no value of a variable.
    pub fn server(
        &self,
        index: usize,
        secrets: &Secrets,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Result<RemoteServer, InvalidServer>> {
        let Ok(HookAddress::Service(config)) = self.validate() else {
            return None;
        };
        // No namespace has this name, so that the service gets the global secrets and shares no connection with a server.
        let name = NamespaceName::global().member(&format!("hooks-{index}"));
        Some(RemoteServer::resolve(&name, &config, secrets, environment))
    }

    /// The namespace of the tool; `None` for an HTTP service.
    pub fn tool_namespace(&self) -> Option<NamespaceName> {
        match self.validate() {
            Ok(HookAddress::Tool { namespace, .. }) => Some(namespace),
            Ok(HookAddress::Service(_)) | Err(_) => None,
        }
    }

    /// Name of the hook in metrics and logs: the tool, or the service's host and port.
    pub fn label(&self) -> String {
        match self.validate() {
            Ok(HookAddress::Tool { namespace, tool }) => format!("{namespace}.{tool}"),
            Ok(HookAddress::Service(_)) | Err(_) => {
                let url = self.url.as_deref().unwrap_or_default();
                let parsed = tooldock_workers::remote::Backend::parse(url);
                parsed.map_or_else(|_| "invalid".to_owned(), |it| it.id().as_str().to_owned())
            }
        }
    }

    fn service(&self, url: &str) -> Result<HookAddress, InvalidHook> {
        if self.credentials.as_ref().is_some_and(|it| it.is("pass")) {
            let reason = "is pass, and no credential of a client is given to a hook: write \"Bearer ${NAME}\"";
            return Err(("credentials", reason.to_owned()));
        }
        if let Some(Err(error)) = self.credentials.as_ref().map(Template::check) {
            return Err(("credentials", error.to_string()));
        }
        let default = RemoteTimeouts::default();
        let config = RemoteServerConfig {
            backends: vec![BackendConfig::new(url)],
            credentials: self.credentials.clone(),
            allow_private: self.allow_private,
            timeouts: RemoteTimeouts {
                connect: default.connect.min(self.timeout),
                // The time limit of the hook ends first, so that a late answer is always counted as one.
                head: self.timeout * 2,
                idle: self.timeout * 2,
                call: self.timeout * 2,
            },
            ..RemoteServerConfig::default()
        };
        config.validate().map_err(|refused| match &*refused.key {
            "credentials" => ("credentials", refused.message),
            _ => ("url", refused.message),
        })?;
        Ok(HookAddress::Service(Box::new(config)))
    }

    fn own_tool(&self, text: &str) -> Result<HookAddress, InvalidHook> {
        for (key, is_set) in [
            ("credentials", self.credentials.is_some()),
            ("allow_private", self.allow_private),
        ] {
            if is_set {
                let reason = "is for requests to a url, and this hook asks a tool: leave it out";
                return Err((key, reason.to_owned()));
            }
        }
        let named = text.split_once('.').and_then(|(namespace, tool)| {
            let namespace: NamespaceName = namespace.parse().ok()?;
            (!tool.is_empty()).then(|| (namespace, tool.to_owned()))
        });
        let (namespace, tool) = named.ok_or_else(|| {
            let reason = format!("{text:?} is no tool: write NAMESPACE.TOOL, as in guard.check");
            ("tool", reason)
        })?;
        Ok(HookAddress::Tool { namespace, tool })
    }
}
