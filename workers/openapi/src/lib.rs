//! OpenAPI documents as tools: a document becomes a list of tools, arguments become an HTTP request, and its response becomes the
//! result of the tool call.
//!
//! ```text
//! document ──▶ Api::read ──▶ Operation ──┬─▶ tool()      definition for tools/list
//!                                        ├─▶ request()   arguments → method, target, headers, body
//!                                        └─▶ result()    status, headers, body → CallToolResult
//! ```
//!
//! The crate does no I/O and knows neither addresses nor credentials: the target of a request is a path below the base path that
//! the caller passes. The caller sends the request, and passes the response back.
//!
//! Documents are read as plain JSON values, not through typed models. No typed parser reads versions 2.0, 3.0 and 3.1, typed
//! models refuse a whole document for one malformed operation, and they lose the schema keywords that they do not know.
//!
//! Start with [`Api`]. Modules, from the bottom to the top:
//!
//! | file | content |
//! |---|---|
//! | `budget.rs`, `names.rs` | limits of the memory and time that a document may take; names of tools and arguments |
//! | `document.rs`, `swagger.rs` | a document as a JSON value; conversion of version 2.0 |
//! | `schema.rs` | self-contained schemas: references inserted, older keywords converted |
//! | `output.rs` | schemas of results, and values that fit them |
//! | `selection.rs` | patterns that select operations |
//! | `encode.rs`, `multipart.rs` | parameter styles; bodies in parts |
//! | `parameter.rs`, `body.rs`, `pages.rs` | parameters and bodies of an operation; hints about further pages |
//! | `tool.rs`, `operation.rs`, `request.rs`, `response.rs` | a tool definition; an operation, its requests and results |
//! | `api.rs`, `fuzzing.rs` | all operations of a document; the fuzz target |

mod api;
mod body;
mod budget;
mod document;
mod encode;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod multipart;
mod names;
mod operation;
mod output;
mod pages;
mod parameter;
mod request;
mod response;
mod schema;
mod selection;
mod swagger;
mod tool;

#[cfg(test)]
mod tests;

pub use api::{Api, ApiSettings};
pub use document::{DOCUMENT_MAX, Document, DocumentError};
pub use names::NameSource;
pub use operation::Operation;
pub use request::{ApiRequest, ArgumentError};
pub use response::{ApiResponse, failed};
pub use selection::check_patterns;
