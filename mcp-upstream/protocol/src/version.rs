//! The supported protocol revisions and the integer codes of JSON-RPC errors.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

pub mod mirrored;

/// A legacy revision of MCP, which begins with `initialize`. Later revisions compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProtocolVersion {
    /// The revision with the transport HTTP+SSE. Only used in sessions of that transport, never on Streamable HTTP.
    #[serde(rename = "2024-11-05")]
    V2024_11_05,
    /// The revision with batches and optional sessions, but without structured content.
    #[serde(rename = "2025-03-26")]
    V2025_03_26,
    /// The first revision with `MCP-Protocol-Version` and structured content, and without batches.
    #[serde(rename = "2025-06-18")]
    V2025_06_18,
    /// The newest revision that begins with `initialize`.
    #[serde(rename = "2025-11-25")]
    V2025_11_25,
}

/// Error: the text is not the name of a supported revision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol version; known are 2025-11-25, 2025-06-18, 2025-03-26 and 2024-11-05")]
pub struct UnknownVersion;

/// Name of the modern revision, which has no `initialize`. Each request of it contains this name.
pub const MODERN: &str = "2026-07-28";

impl ProtocolVersion {
    /// Default version of a request that has neither a session nor a version header, as MCP prescribes it (MCP-12).
    pub const FALLBACK: Self = Self::V2025_03_26;

    /// The revision's name, as it is written in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// Returns true if the revision has `structuredContent`, `outputSchema` and `title`.
    pub const fn has_structured_content(self) -> bool {
        !matches!(self, Self::V2024_11_05 | Self::V2025_03_26)
    }

    /// Returns true if the revision allows calls as tasks.
    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// Returns true if streams begin with an event that has an id but no data. With its id, a client can resume the stream even
    /// before the first message (SEP-1699).
    pub const fn has_priming_events(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }
}

/// Maximum number of characters of a version in an error message. Longer ones are cut.
const SHOWN_MAX: usize = 40;

/// Parses the `protocolVersion` in a server's answer to `initialize`. `2024-10-07`, a draft of 2024-11-05, counts as 2024-11-05.
///
/// # Errors
///
/// The reason why the version is not supported. The text is used after the words "the server's answer to initialize".
pub fn negotiated(version: Option<&RawValue>) -> Result<ProtocolVersion, String> {
    let Some(version) = version else {
        return Err("names no protocol version".to_owned());
    };
    let raw = version.get();
    let text = serde_json::from_str::<String>(raw);
    let text = text.as_deref().map_or(raw, str::trim);
    if text == "2024-10-07" {
        return Ok(ProtocolVersion::V2024_11_05);
    }
    text.parse().map_err(|UnknownVersion| {
        let printable = |it: char| if it.is_control() { '?' } else { it };
        let shown: String = text.chars().take(SHOWN_MAX).map(printable).collect();
        let end = match text.chars().nth(SHOWN_MAX) {
            Some(_) => "…",
            None => "",
        };
        format!(
            "names the protocol version \"{shown}{end}\", which is not served; served are 2025-11-25, 2025-06-18, \
             2025-03-26 and 2024-11-05"
        )
    })
}

impl FromStr for ProtocolVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "2024-11-05" => Ok(Self::V2024_11_05),
            "2025-03-26" => Ok(Self::V2025_03_26),
            "2025-06-18" => Ok(Self::V2025_06_18),
            "2025-11-25" => Ok(Self::V2025_11_25),
            _ => Err(UnknownVersion),
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The era of MCP that a message or a connection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// The era with `initialize`, up to 2025-11-25.
    Legacy,
    /// The era of 2026-07-28: there is no `initialize`, and each request contains all metadata itself.
    Modern,
}

/// The eras that a server supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraSupport {
    /// The server supports only the legacy era, with `initialize`.
    Legacy,
    /// The server supports only the modern era, 2026-07-28.
    Modern,
    /// The server supports 2026-07-28; whether it also supports `initialize` is unknown. Servers do not declare it, and a process
    /// that has answered `server/discover` refuses `initialize`.
    ModernAtLeast,
    /// The server supports both eras, but each of its processes supports only one of them.
    Dual,
}

/// A server's description of itself, from the opening of a connection: the raw result of the method of its era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerInfo {
    /// Raw result of `initialize`.
    Legacy(Bytes),
    /// Raw result of `server/discover`.
    Modern(Bytes),
}

impl ServerInfo {
    /// The era in which the connection was opened.
    pub fn era(&self) -> Era {
        match self {
            Self::Legacy(_) => Era::Legacy,
            Self::Modern(_) => Era::Modern,
        }
    }
}

/// The client information that is sent to a server when a connection is opened. For a connection of a single client, it describes
/// that client. For a connection of several clients, it describes the gateway.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// The protocol revision that is requested in `initialize`.
    pub version: ProtocolVersion,
    /// The client's capabilities, as a JSON object.
    pub capabilities: Arc<RawValue>,
    /// The client's name and version (`clientInfo`), as a JSON object.
    pub info: Arc<RawValue>,
}

impl ClientIdentity {
    /// The gateway itself as a client, without capabilities.
    pub fn gateway() -> &'static Arc<Self> {
        static GATEWAY: LazyLock<Arc<ClientIdentity>> = LazyLock::new(|| {
            let raw = |text: &str| {
                let raw = RawValue::from_string(text.to_owned());
                raw.expect("an object of ours is JSON").into()
            };
            Arc::new(ClientIdentity {
                version: ProtocolVersion::V2025_11_25,
                capabilities: raw("{}"),
                info: raw(GATEWAY_INFO),
            })
        });
        &GATEWAY
    }

    /// The parameters of an `initialize` request of this client.
    pub fn initialize_params(&self) -> Box<RawValue> {
        raw(&serde_json::json!({
            "protocolVersion": self.version.as_str(),
            "capabilities": &*self.capabilities,
            "clientInfo": &*self.info,
        }))
    }

    /// The parameters of a `server/discover` request of this client.
    pub fn discover_params(&self) -> Box<RawValue> {
        raw(&serde_json::json!({ "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": &*self.capabilities,
            "io.modelcontextprotocol/clientInfo": &*self.info,
        }}))
    }
}

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    to_raw_value(value).expect("a value into memory")
}

/// The gateway's own `clientInfo`, as a JSON object. Used for connections that several clients share.
const GATEWAY_INFO: &str = concat!(
    r#"{"name":"tooldock","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

impl Era {
    /// The other of the two eras.
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }
}

impl EraSupport {
    /// The era in which a connection to the server is opened for a request of the era `wanted`. If it is unknown whether the
    /// server supports that era, it is tried.
    pub fn opened_for(self, wanted: Era) -> Era {
        match self {
            Self::Legacy => Era::Legacy,
            Self::Modern => Era::Modern,
            Self::Dual | Self::ModernAtLeast => wanted,
        }
    }
}

/// The clients that may receive a cached result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheScope {
    /// All clients may receive the cached result, since it does not depend on the caller.
    Public,
    /// Only the caller may receive the cached result, since it may depend on the caller. Used for results of functions, too.
    Private,
}

impl CacheScope {
    /// Name of the scope, as it is written in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
        }
    }
}

/// Names of methods that more than one module handles.
pub mod method {
    /// Method that calls a tool. Only these calls are counted and audited as tool calls.
    pub const TOOLS_CALL: &str = "tools/call";
    /// Method that lists the tools of a namespace.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Method that reads the contents of a resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Method of the skills extension that lists the skills of a namespace.
    pub const SKILLS_LIST: &str = "skills/list";
    /// Method of the skills extension that describes a skill.
    pub const SKILLS_GET: &str = "skills/get";
}

/// The method of a request to an upstream. Only known methods become labels of metrics, since clients could create any number of
/// labels with invented ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// A method that the protocol defines.
    Known(&'static str),
    /// Any other method, as the client wrote it.
    Other(Arc<str>),
}

/// The known methods: all that a client may send to a server.
const METHODS: [&str; 19] = [
    method::TOOLS_CALL,
    method::TOOLS_LIST,
    "resources/list",
    "resources/templates/list",
    method::RESOURCES_READ,
    "resources/directory/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    method::SKILLS_LIST,
    method::SKILLS_GET,
    "logging/setLevel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/cancel",
    "tasks/update",
];

/// Returns true if the method resembles `tools/call` in another spelling, such as other case. A server might accept it as
/// `tools/call`, and then the call would evade policy and limits.
pub fn is_misspelt_call(method: &str) -> bool {
    // Full-width characters have the same order as ASCII, so a fixed offset converts them.
    let plain = |letter: char| match letter {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(letter) - 0xfee0),
        letter => Some(letter),
    };
    let is_one = |text: &str| {
        let letters = text.chars().filter_map(plain);
        let letters = letters.filter(char::is_ascii_alphanumeric);
        letters
            .map(|letter| letter.to_ascii_lowercase())
            .eq("toolscall".chars())
    };
    method != method::TOOLS_CALL && is_one(method)
}

impl Method {
    /// Creates the value for a method's name.
    pub fn of(name: &str) -> Self {
        let known = METHODS.into_iter().find(|known| *known == name);
        known.map_or_else(|| Self::Other(name.into()), Self::Known)
    }

    /// The method's label in metrics and in the audit log. All unknown methods share one label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Known(name) => name,
            Self::Other(_) => "other",
        }
    }

    /// Returns true if the method is `tools/call`. Tool policy, and limits on tool calls, apply only to such calls.
    pub fn is_tool_call(&self) -> bool {
        **self == *method::TOOLS_CALL
    }
}

impl Deref for Method {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Known(name) => name,
            Self::Other(name) => name,
        }
    }
}

/// Integer codes of JSON-RPC errors that clients receive.
pub mod code {
    /// Error code: the body is not JSON.
    pub const PARSE: i32 = -32700;
    /// Error code: the request is malformed, or its headers, content type, size or version are refused.
    pub const INVALID_REQUEST: i32 = -32600;
    /// Error code: the method does not exist.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Error code: the parameters are not valid for the method.
    pub const INVALID_PARAMS: i32 = -32602;
    /// Error code: the gateway or an upstream failed.
    pub const INTERNAL: i32 = -32603;
    /// Error code: the namespace or session does not exist.
    pub const NOT_FOUND: i32 = -32012;
    /// Error code: a limit on requests or streams was reached.
    pub const LIMITED: i32 = -32013;
    /// Error code: the process or server that handles the request is unavailable or overloaded.
    pub const UNAVAILABLE: i32 = -32014;
    /// Error code: the credential does not allow the request.
    pub const FORBIDDEN: i32 = -32011;
    /// Error code: the resource does not exist. Used only before 2026-07-28.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;
    /// Error code of 2025-11-25: the client's user must open pages before the request can be repeated.
    pub const URL_ELICITATION_REQUIRED: i32 = -32042;
    /// Error code of 2026-07-28: a header and the body contradict each other.
    pub const HEADER_MISMATCH: i32 = -32020;
    /// Error code of 2026-07-28: the client did not declare a capability that the call needs.
    pub const MISSING_CAPABILITY: i32 = -32021;
    /// Error code of 2026-07-28: the protocol version in `_meta` is not supported.
    pub const UNSUPPORTED_VERSION: i32 = -32022;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_and_order_are_those_of_the_wire() {
        for version in [
            ProtocolVersion::V2024_11_05,
            ProtocolVersion::V2025_03_26,
            ProtocolVersion::V2025_06_18,
            ProtocolVersion::V2025_11_25,
        ] {
            assert_eq!(version.as_str().parse(), Ok(version));
            assert_eq!(
                serde_json::to_string(&version).expect("a string"),
                format!("\"{version}\"")
            );
        }
        assert!(ProtocolVersion::V2024_11_05 < ProtocolVersion::V2025_03_26);
        assert!(ProtocolVersion::V2025_03_26 < ProtocolVersion::V2025_06_18);
        assert!("2099-01-01".parse::<ProtocolVersion>().is_err());
    }

    #[test]
    fn a_version_that_is_not_served_is_named_short_and_printable() {
        let read = |raw: &str| negotiated(Some(serde_json::from_str(raw).expect("JSON")));
        assert_eq!(read("\"2025-06-18\""), Ok(ProtocolVersion::V2025_06_18));
        assert_eq!(read("\"2024-10-07\""), Ok(ProtocolVersion::V2024_11_05));
        for (raw, shown) in [
            ("\"1999-01-01\"", "version \"1999-01-01\","),
            ("\"\\u001b[1m\\n\"", "version \"?[1m\","),
            ("5", "version \"5\","),
            ("null", "version \"null\","),
            ("\"\"", "version \"\","),
        ] {
            let error = read(raw).expect_err(raw);
            assert!(error.contains(shown), "{error}");
        }
        let long = read(&format!("\"{}\"", "x".repeat(99))).expect_err("long");
        assert!(
            long.contains(&format!("\"{}…\"", "x".repeat(SHOWN_MAX))),
            "{long}"
        );
        assert_eq!(
            negotiated(None),
            Err("names no protocol version".to_owned())
        );
    }

    #[test]
    fn only_known_methods_become_labels() {
        assert_eq!(Method::of("tasks/get").label(), "tasks/get");
        assert_eq!(Method::of("x/anything").label(), "other");
        assert_eq!(&*Method::of("x/anything"), "x/anything");
    }
}
