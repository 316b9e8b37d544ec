//! Translation between clients and servers of different eras. No other module handles both eras.
//!
//! *Legacy* is the era with `initialize` (up to 2025-11-25), *modern* is 2026-07-28. If client and server are of the same era,
//! messages are forwarded as they are; only request ids, progress tokens and subscription ids are replaced. Between different
//! eras the same is true for everything that this list does not mention. Each entry has a test in `upstream::client`.
//!
//! - **Opening**
//!   - Modern client, legacy server: the answer to `server/discover` is built from the `initialize` result of a shared process
//!     ([`server_info::discover`]).
//!   - Legacy client, modern server: the answer to `initialize` is built from the `server/discover` result
//!     ([`server_info::initialize`]).
//!   - Same era: the server's answer, with the versions that the listener serves.
//! - **`_meta` of requests**
//!   - Modern client, legacy server: the keys of the protocol are removed ([`params::to_legacy`]).
//!   - Legacy client, modern server: version, capabilities, client and log level are added ([`params::to_modern`]).
//!   - Same era: unchanged.
//! - **Results**
//!   - Modern client, legacy server: `resultType`, `ttlMs`, `cacheScope` and `serverInfo` are added ([`reply::to_modern`]).
//!   - Legacy client, modern server: the first three are removed ([`reply::to_legacy`]).
//!   - Same era: unchanged.
//! - **Tool schemas that do not describe an object; `structuredContent` that is not an object**
//!   - Modern client, legacy server: unchanged.
//!   - Legacy client, modern server: wrapped as the member `result`, or the schema is omitted (`schemas`).
//!   - Same era: unchanged.
//! - **Optional members with the value `null`, in results of calls, prompts and resources, and in a server's description of
//!   itself**
//!   - Modern client, legacy server: removed ([`nulls`]).
//!   - Legacy client, modern server: removed.
//!   - Same era: removed.
//! - **Results of calls whose content is not a list of complete blocks, or whose `isError` is not a boolean; resources, prompts
//!   and completions without their list**
//!   - Modern client, legacy server: corrected ([`shapes`]).
//!   - Legacy client, modern server: corrected.
//!   - Same era: corrected.
//! - **Error: unknown resource**
//!   - Modern client, legacy server: −32002 becomes −32602.
//!   - Legacy client, modern server: −32602 with a `uri` becomes −32002.
//!   - Same era: unchanged.
//! - **Errors that are not valid in JSON-RPC**
//!   - Modern client, legacy server: corrected ([`errors`]).
//!   - Legacy client, modern server: corrected.
//!   - Same era: corrected.
//! - **Results that are not objects**
//!   - Modern client, legacy server: replaced by an `upstream_error`.
//!   - Legacy client, modern server: replaced.
//!   - Same era: replaced.
//! - **Other errors, unknown members, numbers**
//!   - In all cases: unchanged.
//! - **Elicitation, sampling, roots**
//!   - Modern client, legacy server: a request of the server suspends the call. The client gets `input_required` with all
//!     questions that are open at that moment; its retry continues the call.
//!   - Legacy client, modern server: `input_required` becomes requests to the client; its answers are sent in a retry
//!     ([`rounds`]).
//!   - Same era: forwarded: requests and responses in the session's own process; `input_required` and retries.
//! - **Elicitation in URL mode** ([`links`])
//!   - Modern client, legacy server: `elicitationId` is removed; the error −32042 becomes `input_required`, and the request is
//!     repeated until the user has completed the page; `notifications/elicitation/complete` is not forwarded.
//!   - Legacy client, modern server: an `elicitationId` is added, and `notifications/elicitation/complete` follows.
//!   - Same era: forwarded.
//!   - Client that does not declare URL mode: the call fails, and its error contains the link.
//! - **A question that the server asks while its process is being opened for a call**
//!   - Modern client, legacy server: the client is asked as part of that call, which is sent to the server after the answer.
//!   - Same era: sent to the session.
//! - **A question that the server cancels**
//!   - Modern client, legacy server: the call continues; the client learns of it when it answers.
//!   - Same era: `notifications/cancelled` is forwarded.
//! - **`input_required` that a server sends itself**
//!   - Modern client, legacy server: forwarded, with its state sealed ([`state`]).
//!   - Legacy client, modern server: becomes requests ([`rounds`]).
//!   - Same era: forwarded.
//! - **A client without capabilities**
//!   - Modern client, legacy server: uses a shared process that was opened without capabilities; questions are refused.
//!   - Legacy client, modern server: the call fails, since the client cannot be asked.
//!   - Same era: as for a modern client with a legacy server.
//! - **Progress**
//!   - In all cases: forwarded; only the token is replaced.
//! - **Log messages**
//!   - Modern client, legacy server: the process is set to the most verbose level that any client wants; messages are filtered
//!     for each request.
//!   - Legacy client, modern server: each request contains the session's level.
//!   - Same era: `logging/setLevel` is forwarded (own process), or stored per session (shared process).
//! - **`ping`, `initialize`, `logging/setLevel`, `resources/(un)subscribe`**
//!   - Modern client, legacy server: −32601: the client's era does not have them.
//!   - Legacy client, modern server: answered by the gateway.
//!   - Same era: the first two are answered by the gateway, the others by the server.
//! - **`subscriptions/listen`**
//!   - Modern client, legacy server: implemented by the gateway with `resources/subscribe` and the notifications of the shared
//!     process.
//!   - Same era: one subscription at the server for all listening clients.
//! - **`resources/subscribe`**
//!   - Legacy client, modern server: one subscription at the server for all sessions.
//!   - Same era: counted on a shared process, forwarded to an own process.
//! - **`*/list_changed`, `resources/updated`**
//!   - Modern client, legacy server: the gateway sends its own notification to listening clients, with their subscription ids.
//!   - Legacy client, modern server: the gateway sends its own notification to sessions.
//!   - Same era: both; from the session's own process forwarded, without the gateway's subscription id
//!     ([`crate::jsonrpc::notification::untagged`]).
//! - **Cancellation**
//!   - Modern client, legacy server: if the client closes the response, `notifications/cancelled` is sent.
//!   - Legacy client, modern server: the client's `notifications/cancelled` is forwarded.
//!   - Same era: as defined by the era.
//! - **Completion, pagination, unknown methods**
//!   - In all cases: forwarded.
//! - **Tasks**
//!   - In all cases: a request that names a task is forwarded to the process on which its principal started the task, else
//!     refused with −32602.
//! - **`tasks/list`**
//!   - In all cases: forwarded; the result contains only the principal's tasks, and a sealed cursor if several principals share
//!     the process.
//! - **`notifications/roots/list_changed`**
//!   - Legacy client, modern server: dropped, since roots are requested anew each time.
//!   - Same era: forwarded in the session's own process.
//! - **Other notifications of the client**
//!   - Legacy client, modern server: forwarded.
//!   - Same era: forwarded.
//!
//! Some features have no counterpart in the other era. The task methods of 2025-11-25 and the task extension of 2026-07-28 are
//! different methods: each is forwarded under its own name, and only servers that know it respond. A modern client receives a
//! legacy server's notification that belongs to no request only through `subscriptions/listen`.

pub mod errors;
pub mod links;
pub mod nulls;
pub mod params;
pub mod reply;
pub mod rounds;
mod schemas;
pub mod server_info;
pub mod shapes;
pub mod state;

/// Key in `_meta` under which results of modern servers contain the `serverInfo`.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
