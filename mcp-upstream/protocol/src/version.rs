//! The supported protocol revisions and the integer codes of JSON-RPC errors.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

pub mod mirrored;

/// A revision of MCP that is opened by `initialize`. Later revisions compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProtocolVersion {
    /// HTTP+SSE. Only in sessions of that transport: no profile offers it on Streamable HTTP.
    #[serde(rename = "2024-11-05")]
    V2024_11_05,
    /// Batches, sessions optional, no structured content.
    #[serde(rename = "2025-03-26")]
    V2025_03_26,
    /// The version without batches, and with `MCP-Protocol-Version` and structured content.
    #[serde(rename = "2025-06-18")]
    V2025_06_18,
    /// The newest revision with a handshake.
    #[serde(rename = "2025-11-25")]
    V2025_11_25,
}

/// Error: the text names no supported revision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol version; known are 2025-11-25, 2025-06-18, 2025-03-26 and 2024-11-05")]
pub struct UnknownVersion;

/// The revision without a handshake, in its wire format. Each of its requests names it.
pub const MODERN: &str = "2026-07-28";

impl ProtocolVersion {
    /// The version of a request without session and without version header (MCP-12).
    pub const FALLBACK: Self = Self::V2025_03_26;

    /// The revision in its wire format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// Returns true if answers may carry `structuredContent`, `outputSchema` and `title`.
    pub const fn has_structured_content(self) -> bool {
        !matches!(self, Self::V2024_11_05 | Self::V2025_03_26)
    }

    /// Returns true if calls may be made as tasks.
    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// Returns true if streams begin with an event that has an id and no data, so that a client can resume before the first
    /// message (SEP-1699).
    pub const fn has_priming_events(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }
}

/// Maximum length of a version that an error message quotes, in characters.
const SHOWN_MAX: usize = 40;

/// Reads the `protocolVersion` of a server's answer to `initialize`. `2024-10-07`, a draft of 2024-11-05, counts as 2024-11-05.
///
/// # Errors
///
/// The reason why the response names no supported version, worded to follow "the server's answer to initialize".
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

/// Era of MCP that a message or a connection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// The era opened by `initialize`.
    Legacy,
    /// 2026-07-28: connections are not opened, each request is complete in itself.
    Modern,
}

/// The eras that a server supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraSupport {
    /// Only the legacy era, opened by `initialize`.
    Legacy,
    /// Only the modern era, 2026-07-28.
    Modern,
    /// 2026-07-28, and perhaps `initialize`: servers do not declare it, and a process that answered `server/discover` refuses
    /// it.
    ModernAtLeast,
    /// Both eras, one for each process.
    Dual,
}

/// A server's description of itself from the opening of a connection: the raw result, and with it the era.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerInfo {
    /// The result of `initialize`.
    Legacy(Bytes),
    /// The result of `server/discover`.
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

/// The identity that a server gets when a connection is opened for one client. A connection for several clients is opened with
/// the gateway's identity.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// The revision that `initialize` requests.
    pub version: ProtocolVersion,
    /// The client's capabilities: a JSON object.
    pub capabilities: Arc<RawValue>,
    /// The client's name and version: a JSON object.
    pub info: Arc<RawValue>,
}

impl ClientIdentity {
    /// The identity of the gateway itself, without capabilities.
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

    /// The parameters of an `initialize` request with this identity.
    pub fn initialize_params(&self) -> Box<RawValue> {
        raw(&serde_json::json!({
            "protocolVersion": self.version.as_str(),
            "capabilities": &*self.capabilities,
            "clientInfo": &*self.info,
        }))
    }

    /// The parameters of a `server/discover` request with this identity.
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

/// The gateway's `clientInfo` for servers that get no client's identity: a JSON object.
const GATEWAY_INFO: &str = concat!(
    r#"{"name":"tooldock","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

impl Era {
    /// The opposite era.
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }
}

impl EraSupport {
    /// The era in which a server with this support is opened for a request of the era `wanted`. An unknown era is tried.
    pub fn opened_for(self, wanted: Era) -> Era {
        match self {
            Self::Legacy => Era::Legacy,
            Self::Modern => Era::Modern,
            Self::Dual | Self::ModernAtLeast => wanted,
        }
    }
}

/// The clients that may get a cached result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheScope {
    /// All clients: the result does not depend on the caller.
    Public,
    /// Only the caller. Also used for results of functions, which may depend on the caller.
    Private,
}

impl CacheScope {
    /// The scope in its wire format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
        }
    }
}

/// Names of methods that more than one module handles.
pub mod method {
    /// The method of the calls that are counted and audited as tool calls.
    pub const TOOLS_CALL: &str = "tools/call";
    /// The method that lists the tools of a namespace.
    pub const TOOLS_LIST: &str = "tools/list";
    /// The method that reads the current contents of a resource.
    pub const RESOURCES_READ: &str = "resources/read";
}

/// The method of a request to an upstream. Only known names become metric labels: clients must not be able to create metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// A method of the protocol.
    Known(&'static str),
    /// Any other method, in the client's spelling.
    Other(Arc<str>),
}

/// The methods that a server may get.
const METHODS: [&str; 16] = [
    method::TOOLS_CALL,
    method::TOOLS_LIST,
    "resources/list",
    "resources/templates/list",
    method::RESOURCES_READ,
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/cancel",
    "tasks/update",
];

/// Returns true if a method is `tools/call` in another spelling, which a server may accept as equal: such a call would evade
/// policy and limits.
pub fn is_misspelt_call(method: &str) -> bool {
    // Full-width forms have the order of ASCII.
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
    /// The method with this name.
    pub fn of(name: &str) -> Self {
        let known = METHODS.into_iter().find(|known| *known == name);
        known.map_or_else(|| Self::Other(name.into()), Self::Known)
    }

    /// The name as a label of metrics and of the audit log.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Known(name) => name,
            Self::Other(_) => "other",
        }
    }

    /// Returns true for a call of a tool: policy and limits counted in tool calls apply only to such calls.
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

/// Integer codes of JSON-RPC errors, as clients see them.
pub mod code {
    /// The body is not JSON.
    pub const PARSE: i32 = -32700;
    /// The request is malformed, or has a header, `Accept`, content type, size or version that is refused.
    pub const INVALID_REQUEST: i32 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The method's parameters are wrong.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The gateway or an upstream failed.
    pub const INTERNAL: i32 = -32603;
    /// The namespace or session does not exist.
    pub const NOT_FOUND: i32 = -32012;
    /// A limit on requests or streams was reached.
    pub const LIMITED: i32 = -32013;
    /// The responsible process or server is unavailable or overloaded.
    pub const UNAVAILABLE: i32 = -32014;
    /// The credential does not allow the request.
    pub const FORBIDDEN: i32 = -32011;
    /// The resource does not exist; used before 2026-07-28.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;
    /// 2026-07-28: a header and the body differ.
    pub const HEADER_MISMATCH: i32 = -32020;
    /// 2026-07-28: the client did not declare a capability that the call needs.
    pub const MISSING_CAPABILITY: i32 = -32021;
    /// 2026-07-28: `_meta` names a version that is not served.
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
