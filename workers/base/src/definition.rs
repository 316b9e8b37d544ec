//! Announcements of a worker: the common part of resources, templates and prompts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

/// An entry of a worker's ready line.
#[derive(Debug, Deserialize)]
pub(crate) struct ReadyEntry {
    /// The MCP object as lists show it.
    pub(crate) definition: Arc<RawValue>,
    #[serde(default)]
    pub(crate) filename: String,
    #[serde(default)]
    pub(crate) context: bool,
}

impl ReadyEntry {
    /// Reads the member that the gateway needs; the definition itself is not changed.
    ///
    /// # Errors
    ///
    /// The problem with the definition: it is not an object, or a member is missing or of the wrong kind.
    pub(crate) fn key<'a, T: Deserialize<'a>>(&'a self) -> Result<T, String> {
        let text = self.definition.get();
        // serde would read an array as a struct, member by member.
        if !text.trim_ascii_start().starts_with('{') {
            return Err("a definition must be an object".into());
        }
        serde_json::from_str(text).map_err(|error| format!("in a definition: {error}"))
    }
}

/// Declares a type that a worker may announce: an object that clients know by one member of its definition.
macro_rules! announced {
    ($(#[$about:meta])* $name:ident by $(#[$key_about:meta])* $key:ident, $member:literal) => {
        $(#[$about])*
        #[derive(Debug, Clone, ::serde::Deserialize)]
        #[serde(try_from = "crate::definition::ReadyEntry")]
        pub struct $name {
            $(#[$key_about])*
            pub $key: ::std::sync::Arc<str>,
            /// The MCP object exactly as its list shows it.
            pub definition: ::std::sync::Arc<::serde_json::value::RawValue>,
            /// The file that declares the object, relative to its namespace folder.
            pub filename: String,
            /// True if the object's function takes a context, and so may report progress, log and ask.
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
