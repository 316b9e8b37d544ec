//! The common fields of resources, templates and prompts in the message by which a worker announces them.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

/// An entry in the message with which a worker reports that it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct ReadyEntry {
    /// The MCP object as it appears in lists.
    pub(crate) definition: Arc<RawValue>,
    #[serde(default)]
    pub(crate) filename: String,
    #[serde(default)]
    pub(crate) context: bool,
}

impl ReadyEntry {
    /// Reads the one JSON field of the definition that the gateway needs. The definition itself is not changed.
    ///
    /// # Errors
    ///
    /// The problem with the definition: it is not an object, or a field is missing or of the wrong kind.
    pub(crate) fn key<'a, T: Deserialize<'a>>(&'a self) -> Result<T, String> {
        let text = self.definition.get();
        // Arrays are refused here, because serde would accept an array in place of a struct.
        if !text.trim_ascii_start().starts_with('{') {
            return Err("a definition must be an object".into());
        }
        serde_json::from_str(text).map_err(|error| format!("in a definition: {error}"))
    }
}

/// Declares a type of objects that a worker may announce. One JSON field of the definition is the key by which clients refer to
/// the object.
macro_rules! announced {
    ($(#[$about:meta])* $name:ident by $(#[$key_about:meta])* $key:ident, $member:literal) => {
        $(#[$about])*
        #[derive(Debug, Clone, ::serde::Deserialize)]
        #[serde(try_from = "crate::definition::ReadyEntry")]
        pub struct $name {
            $(#[$key_about])*
            pub $key: ::std::sync::Arc<str>,
            /// The MCP object exactly as it appears in lists.
            pub definition: ::std::sync::Arc<::serde_json::value::RawValue>,
            /// The file that declares the object, relative to the folder of its namespace.
            pub filename: String,
            /// True if the object's function takes a context, with which it can report progress, log, and ask the client.
            pub context: bool,
        }

        impl TryFrom<crate::definition::ReadyEntry> for $name {
            type Error = String;

            fn try_from(announced: crate::definition::ReadyEntry) -> Result<Self, String> {
                #[derive(::serde::Deserialize)]
                struct DefinitionKey<'a> {
                    #[serde(borrow, rename = $member)]
                    key: ::std::borrow::Cow<'a, str>,
                }
                let $key = ::std::sync::Arc::from(announced.key::<DefinitionKey<'_>>()?.key);
                Ok(Self {
                    $key,
                    definition: announced.definition,
                    filename: announced.filename,
                    context: announced.context,
                })
            }
        }
    };
}

pub(crate) use announced;
