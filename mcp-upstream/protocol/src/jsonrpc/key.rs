//! Known keys of a message, and keys that resemble a known one.
//!
//! A key is read by its exact spelling, with escapes decoded. Some servers ignore the case of keys, and use the last one (Go's
//! `encoding/json` does): they would read `Name` as the tool, and with `Method` another message than the one that was checked.
//! So a key that differs from a known one only in case is recorded. Only objects whose keys the protocol defines are searched.

use std::borrow::Cow;

/// An object of a message whose keys are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The message itself.
    Message,
    /// `params`.
    Params,
    /// `params._meta`.
    Meta,
    /// `params._meta["io.modelcontextprotocol/related-task"]`.
    RelatedTask,
}

macro_rules! keys {
    ($($level:ident { $($(#[$doc:meta])* $key:ident $name:literal,)* })*) => {
        /// A known key, on its level.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            $($($(#[$doc])* #[doc = concat!("`", $name, "`.")] $key,)*)*
        }

        impl Key {
            /// The spelling of the key.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$key => $name,)*)*
                }
            }

            /// The object that contains the key.
            pub const fn level(self) -> Level {
                match self {
                    $($(Self::$key => Level::$level,)*)*
                }
            }
        }

        impl Level {
            /// The known keys of this level.
            const fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$level => &[$(Key::$key,)*],)*
                }
            }

            /// The key with exactly this spelling.
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
        /// The id of the request that a cancellation is about.
        RequestId "requestId",
        /// The progress token of the request that a progress notification is about.
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
        /// The token for progress notifications of this request.
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

/// Maximum length of the raw form of a known key: each letter of the longest key as `\u` and four digits. Longer raw keys are
/// unknown.
const RAW_MAX: usize = 6 * Key::Capabilities.name().len();

/// The result of looking up a key.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyLookup<'a> {
    /// A known key.
    Known(Key),
    /// A key that differs from a known one only in case, with its decoded text.
    Alike(Cow<'a, str>, Key),
    /// Any other key.
    Other,
}

impl Key {
    /// The level of the object that is this key's value, if its keys are searched, too.
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
    /// The name of the object in error messages.
    pub const fn place(self) -> &'static str {
        match self {
            Self::Message => "the message",
            Self::Params => "params",
            Self::Meta | Self::RelatedTask => "params._meta",
        }
    }

    /// Looks up a key. `quoted` is raw JSON that was parsed before.
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
        // A key that cannot be decoded is unknown.
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

/// A character without its case, as other readers fold it: in addition to the letters of ASCII, the characters that fold to one
/// of them, which are the long s, the Kelvin sign, and both Turkish i.
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
