//! Translation between clients and servers of different eras. No other module handles both eras.
//!
//! *Legacy* is the era that `initialize` opens (up to 2025-11-25), *modern* is 2026-07-28. Between equal eras nothing is
//! translated: complete messages are forwarded, and only their request ids, progress tokens and subscription ids are replaced.
//! Between different eras the same holds for everything that this table does not name. There is a test for each cell in
//! `upstream::client`.
//!
//! | feature | modern client → legacy server | legacy client → modern server | like → like |
//! |---|---|---|---|
//! | opening | `server/discover` from the `initialize` result of a shared process ([`server_info::discover`]) | `initialize` from the `server/discover` result ([`server_info::initialize`]) | the server's own, with the versions the listener serves |
//! | `_meta` of requests | the protocol's own keys are taken out ([`params::to_legacy`]) | version, capabilities, client, log level are put in ([`params::to_modern`]) | untouched |
//! | results | `resultType`, `ttlMs`, `cacheScope`, `serverInfo` are added ([`reply::to_modern`]) | the first three are taken out ([`reply::to_legacy`]) | untouched |
//! | tool schemas that are not of an object, such `structuredContent` | untouched | wrapped as the member `result`, or the schema is left out (`schemas`) | untouched |
//! | optional members that are `null`, in results of calls, prompts and resources, and in a server's description of itself | left out ([`nulls`]) | the same | the same |
//! | results of calls whose content is no list of whole blocks, or whose `isError` is no boolean; resources, prompts and completions without their list | mended ([`shapes`]) | the same | the same |
//! | a resource that is not there | −32002 becomes −32602 | −32602 with a `uri` becomes −32002 | untouched |
//! | errors that are not valid in JSON-RPC | mended ([`errors`]) | the same | the same |
//! | results that are not objects | replaced by an `upstream_error` | the same | the same |
//! | other errors, unknown members, numbers | untouched | untouched | untouched |
//! | elicitation, sampling, roots | the server's requests suspend the call, the client gets `input_required` with all questions of one moment together; its retry resumes it | `input_required` becomes requests to the client, their answers the retry ([`rounds`]) | requests and responses pass whole in the session's own process; `input_required` and retries pass |
//! | a question to the client before the call that the process was opened for | asked as part of the call, which goes up once the question is answered | — | to the session |
//! | a question that the server takes back | the call goes on; its client hears of that with the answer | — | `notifications/cancelled` passes |
//! | `input_required` of the server itself | passes, with the state sealed ([`state`]) | becomes requests ([`rounds`]) | passes |
//! | a client that declares no capabilities | shares a process whose server is told of none; questions are refused | the call fails: the client cannot be asked | the same as on the left |
//! | progress | by token, whole but for the token | the same | the same |
//! | log messages | the most verbose level wanted is set on the process, each request filters by its own | the session's level goes with each request | `logging/setLevel` passes (own process), or is kept per session (shared) |
//! | `ping`, `initialize`, `logging/setLevel`, `resources/(un)subscribe` | −32601: the era does not have them | answered here | the first two here, the others by the server |
//! | `subscriptions/listen` | kept here over `resources/subscribe` and the announcements of the shared process | — | one upstream subscription for all listeners |
//! | `resources/subscribe` | — | one upstream subscription for all sessions | counted by reference on a shared process, untouched on an own one |
//! | `*/list_changed`, `resources/updated` | to the listeners, in our words, with their subscription's id | to the sessions, in our words | to both, in our words; from the session's own process whole, without the gateway's subscription ([`crate::jsonrpc::notification::untagged`]) |
//! | cancelling | closing the response sends `notifications/cancelled` | the client's own `notifications/cancelled` passes | as the client's era does it |
//! | completion, pagination, unknown methods | pass | pass | pass |
//! | tasks | a request that names a task passes to the process on which its principal began that task, and is −32602 otherwise | the same | the same |
//! | `tasks/list` | passes; its result holds the principal's own tasks, and on a process of several a sealed cursor | the same | the same |
//! | `notifications/roots/list_changed` | — | dropped: roots are asked for anew each time | passes in the session's own process |
//! | other notifications of the client | — (the era has none) | pass whole | pass whole |
//!
//! Some features have no counterpart: the task methods of 2025-11-25 and the task extension of 2026-07-28 are different
//! methods; each is forwarded under its own name, and only servers that know it respond. A legacy server's notification that
//! belongs to no request reaches a modern client only through `subscriptions/listen`.

pub mod errors;
pub mod nulls;
pub mod params;
pub mod reply;
pub mod rounds;
mod schemas;
pub mod server_info;
pub mod shapes;
pub mod state;

/// The `_meta` key that contains the `serverInfo` in results of modern servers.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
