//! Known keys of messages, and keys that resemble a known key.
//!
//! The gateway matches a key by its exact spelling, after decoding escapes. Some servers ignore the case of keys and use the last
//! match, as Go's `encoding/json` does. They would read `Name` as the tool's name, or `Method` as the method, although the
//! gateway checked another value. So keys that differ from a known key only in case are recorded. Only objects whose keys are
//! defined by the protocol are searched.

use std::borrow::Cow;

/// An object in a message whose keys are defined by the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The message itself, the outermost object.
    Message,
    /// The object `params`.
    Params,
    /// The object `params._meta`.
    Meta,
    /// The object `params._meta["io.modelcontextprotocol/related-task"]`.
    RelatedTask,
}

macro_rules! keys {
    ($($level:ident { $($(#[$doc:meta])* $key:ident $name:literal,)* })*) => {
        /// A known key. A key of the same name in another object is another variant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            $($($(#[$doc])* #[doc = concat!("`", $name, "`.")] $key,)*)*
        }

        impl Key {
            /// The key's text, as it is written in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$key => $name,)*)*
                }
            }

            /// The object of a message that the key belongs to.
            pub const fn level(self) -> Level {
                match self {
                    $($(Self::$key => Level::$level,)*)*
                }
            }
        }

        impl Level {
            /// All known keys of this object.
            const fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$level => &[$(Key::$key,)*],)*
                }
            }

            /// The known key with exactly this spelling; `None` if there is none.
            #[inline]
            fn exactly(self, raw: &str) -> Option<Key> {
                match self {
                    $(Self::$level => match raw {
                        $($name => Some(Key::$key),)*
                        _ => None,
                    },)*
                }
            }
        }
    };
}

keys! {
    Message {
        JsonRpc "jsonrpc",
        Id "id",
        Method "method",
        Params "params",
        Result "result",
        Error "error",
    }
    Params {
        Name "name",
        Arguments "arguments",
        Uri "uri",
        Cursor "cursor",
        Meta "_meta",
        /// The id of the request that is cancelled, in a cancellation.
        RequestId "requestId",
        /// The progress token in a progress notification, which identifies the request.
        Progress "progressToken",
        RequestState "requestState",
        InputResponses "inputResponses",
        LogLevel "level",
        Task "task",
        Ref "ref",
        Argument "argument",
        TaskId "taskId",
    }
    Meta {
        /// The progress token in a request, which asks for progress notifications.
        ProgressToken "progressToken",
        ProtocolVersion "io.modelcontextprotocol/protocolVersion",
        Capabilities "io.modelcontextprotocol/clientCapabilities",
        ClientInfo "io.modelcontextprotocol/clientInfo",
        MinLogLevel "io.modelcontextprotocol/logLevel",
        Subscription "io.modelcontextprotocol/subscriptionId",
        RelatedTask "io.modelcontextprotocol/related-task",
    }
    RelatedTask {
        RelatedTaskId "taskId",
    }
}

/// Maximum length of a known key in raw JSON, in bytes: that of the longest key with each letter written as `\u` and four digits.
/// A longer key cannot be a known one.
const RAW_MAX: usize = 6 * Key::Capabilities.name().len();

/// Result of comparing a key in a message with the known keys.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyLookup<'a> {
    /// The key is a known one.
    Known(Key),
    /// A key that differs from a known key only in case. Contains the key's decoded text and the known key.
    Alike(Cow<'a, str>, Key),
    /// Any other key, which is unknown.
    Other,
}

impl Key {
    /// The object that is the value of this key; `None` unless the protocol defines the keys of that object.
    pub const fn below(self) -> Option<Level> {
        match self {
            Self::Params => Some(Level::Params),
            Self::Meta => Some(Level::Meta),
            Self::RelatedTask => Some(Level::RelatedTask),
            _ => None,
        }
    }
}

impl Level {
    /// Name of the object in error messages.
    pub const fn place(self) -> &'static str {
        match self {
            Self::Message => "the message",
            Self::Params => "params",
            Self::Meta | Self::RelatedTask => "params._meta",
        }
    }

    /// Looks up a key. `quoted` is the key as raw JSON, which has been validated before.
    pub fn find(self, quoted: &str) -> KeyLookup<'_> {
        let raw = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        if let Some(key) = self.exactly(raw) {
            return KeyLookup::Known(key);
        }
        let known = || self.keys().iter().copied();
        let same_length = || known().filter(|key| key.name().len() == raw.len());
        if raw.is_empty() || raw.len() > RAW_MAX {
            return KeyLookup::Other;
        }
        if raw.is_ascii() && !raw.contains('\\') {
            return match same_length().find(|key| raw.eq_ignore_ascii_case(key.name())) {
                Some(key) => KeyLookup::Alike(Cow::Borrowed(raw), key),
                None => KeyLookup::Other,
            };
        }
        // A key whose escapes cannot be decoded is no known key.
        let Ok(text) = serde_json::from_str::<Cow<'_, str>>(quoted) else {
            return KeyLookup::Other;
        };
        let alike = |key: &Key| {
            let name = key.name().chars().map(without_case);
            name.eq(text.chars().map(without_case))
        };
        match known().find(alike) {
            Some(key) if text == key.name() => KeyLookup::Known(key),
            Some(key) => KeyLookup::Alike(text, key),
            None => KeyLookup::Other,
        }
    }
}

/// Converts a character to lower case, as other parsers do when they ignore case. In addition to ASCII letters, these characters
/// are converted to an ASCII letter: the long s, the Kelvin sign, and both Turkish i.
fn without_case(character: char) -> char {
    match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        '\u{130}' | '\u{131}' => 'i',
        other => other.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_are_known_by_their_exact_spelling_and_only_where_they_belong() {
        for level in [
            Level::Message,
            Level::Params,
            Level::Meta,
            Level::RelatedTask,
        ] {
            for key in level.keys() {
                let quoted = format!("\"{}\"", key.name());
                assert_eq!(key.level(), level);
                assert_eq!(level.find(&quoted), KeyLookup::Known(*key));
                let escaped: String = key.name().chars().map(escape).collect();
                assert_eq!(
                    level.find(&format!("\"{escaped}\"")),
                    KeyLookup::Known(*key)
                );
                let upper = format!("\"{}\"", key.name().to_uppercase());
                assert!(matches!(level.find(&upper), KeyLookup::Alike(_, known) if known == *key));
            }
        }
        for other in ["\"\"", "\"names\"", "\"nam\"", "\"id\"", r#""\ud800ame""#] {
            assert_eq!(Level::Params.find(other), KeyLookup::Other, "{other}");
        }
    }

    fn escape(character: char) -> String {
        format!("\\u{:04x}", character as u32)
    }

    #[test]
    fn keys_are_compared_as_they_are_meant() {
        for (level, key, known) in [
            (Level::Params, "reque\u{17f}tId", Key::RequestId),
            (Level::Params, "progressTo\u{212a}En", Key::Progress),
            (Level::Params, r"\u004eame", Key::Name),
            (Level::Params, r"n\u0041me", Key::Name),
            (Level::Params, r"cur\u017for", Key::Cursor),
            (Level::Params, r"tas\u212A", Key::Task),
            (Level::Params, "ur\u{131}", Key::Uri),
            (Level::Params, r"UR\u0130", Key::Uri),
            (
                Level::Meta,
                r"progre\u017f\u017fTo\u212aen",
                Key::ProgressToken,
            ),
        ] {
            let quoted = format!("\"{key}\"");
            assert!(
                matches!(level.find(&quoted), KeyLookup::Alike(_, it) if it == known),
                "{key}"
            );
        }
    }
}
