//! The directives of an nginx configuration as a tree, each with its position in the files.
//!
//! Every word of the configuration may be a secret, even the name of a directive: in a `map` of tokens each line begins with a
//! token. No code of this module writes a word to a log or an error.

use std::fmt;
use std::sync::Arc;

use crate::lexer::{Lexer, SyntaxError, TokenKind};

/// Maximum depth of nested blocks; real configurations have six at most. Deeper files are refused.
pub(crate) const DEPTH_MAX: usize = 64;

/// The position of a directive: file and line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirectivePosition {
    pub(crate) file: Arc<str>,
    /// Line number from 1; 0 means the complete file.
    pub(crate) line: u32,
}

impl fmt::Display for DirectivePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A word of the configuration, which may be a secret: it prints as `[redacted]`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Word(String);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A directive with its arguments and its block, if it has one.
#[derive(Debug)]
pub(crate) struct Directive {
    name: Word,
    args: Vec<Word>,
    block: Option<Vec<Directive>>,
    /// Name of the table directive, such as `map`, that contains this line; `None` if this is an ordinary directive.
    pub(crate) table: Option<&'static str>,
    pub(crate) place: DirectivePosition,
}

/// Directives whose block is a table: the first word of a line is a key, and not the name of a directive.
const TABLES: [&str; 4] = ["map", "geo", "split_clients", "types"];

impl Directive {
    /// The directive's name. In the block of a `map` it may be a secret.
    pub(crate) fn name(&self) -> &str {
        &self.name.0
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.0 == name
    }

    /// Returns the argument at an index, counted from 0.
    pub(crate) fn arg(&self, index: usize) -> Option<&str> {
        self.args.get(index).map(|word| word.0.as_str())
    }

    /// Returns the directive's first argument; an empty text if it has none.
    pub(crate) fn first(&self) -> &str {
        self.arg(0).unwrap_or_default()
    }

    pub(crate) fn args(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.args.iter().map(|word| word.0.as_str())
    }

    /// Returns the value of the argument `KEY=VALUE` with this key.
    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        self.args()
            .find_map(|arg| arg.strip_prefix(key)?.strip_prefix('='))
    }

    /// Returns true if an argument equals `word`.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.args().any(|arg| arg == word)
    }

    /// Returns the directives in the block; an empty list for a directive without a block.
    pub(crate) fn block(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// A fault in a file that prevents the import, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Failure {
    pub(crate) place: DirectivePosition,
    pub(crate) what: String,
}

impl Failure {
    pub(crate) fn at(place: &DirectivePosition, what: impl Into<String>) -> Self {
        let (place, what) = (place.clone(), what.into());
        Self { place, what }
    }
}

/// Reader of included files, for the parser.
pub(crate) trait Includes {
    /// Reads the directives that replace an `include`. `depth` is the number of blocks around it.
    fn include(&mut self, include: &Directive, depth: usize) -> Result<Vec<Directive>, Failure>;

    /// The number of directives that may still be read.
    fn left(&mut self) -> &mut usize;
}

/// A block whose closing brace has not been read yet: its directive, and the content read so far.
struct OpenBlock {
    directive: Directive,
    before: Vec<Directive>,
}

/// Parses the directives of a text. `depth` is the number of blocks around it.
///
/// # Errors
///
/// The first syntax error, or the failure of an include.
pub(crate) fn parse(
    text: &str,
    file: &Arc<str>,
    depth: usize,
    includes: &mut impl Includes,
) -> Result<Vec<Directive>, Failure> {
    let at = |line| DirectivePosition {
        file: Arc::clone(file),
        line,
    };
    let fails = |line, what: &str| Err(Failure::at(&at(line), what));
    let failure = |error: SyntaxError| Failure::at(&at(error.line), error.what);
    let mut lexer = Lexer::new(text);
    let mut opened: Vec<OpenBlock> = Vec::new();
    let mut block: Vec<Directive> = Vec::new();
    let mut words: Vec<Word> = Vec::new();
    let mut begun = 1;
    loop {
        let token = lexer.next().map_err(failure)?;
        let line = token.line;
        match token.kind {
            TokenKind::Word(word) => {
                if words.is_empty() {
                    begun = line;
                }
                words.push(Word(word));
                continue;
            }
            TokenKind::End if !words.is_empty() => {
                return fails(begun, "the file ends before the \";\" of this directive");
            }
            TokenKind::End => {
                return match opened.pop().map(|open| open.directive.place.line) {
                    None => Ok(block),
                    Some(line) => fails(line, "the file ends before the \"}\" of this block"),
                };
            }
            TokenKind::Close if !words.is_empty() => {
                return fails(begun, "a \"}\" stands before the \";\" of this directive");
            }
            TokenKind::Close => {
                let Some(OpenBlock {
                    mut directive,
                    before,
                }) = opened.pop()
                else {
                    return fails(line, "a \"}\" closes no block");
                };
                directive.block = Some(std::mem::replace(&mut block, before));
                block.push(directive);
                continue;
            }
            TokenKind::Semicolon if words.is_empty() => return fails(line, "a \";\" ends nothing"),
            TokenKind::Open if words.is_empty() => {
                return fails(line, "a \"{\" opens a block without a name");
            }
            TokenKind::Semicolon | TokenKind::Open => {}
        }
        let mut taken = words.drain(..);
        let Some(name) = taken.next() else { continue };
        let around = opened.last().map(|open| open.directive.name());
        let table = TABLES.into_iter().find(|table| around == Some(table));
        let directive = Directive {
            name,
            args: taken.collect(),
            block: None,
            table,
            place: at(begun),
        };
        let left = includes.left();
        *left = match left.checked_sub(1) {
            Some(left) => left,
            None => return fails(begun, "the configuration has too many directives"),
        };
        if token.kind == TokenKind::Open {
            if directive.name().ends_with("_by_lua_block") {
                lexer.skip_lua().map_err(failure)?;
                block.push(directive);
                continue;
            }
            if depth + opened.len() >= DEPTH_MAX {
                return fails(line, "more than 64 blocks stand in each other");
            }
            let before = std::mem::take(&mut block);
            opened.push(OpenBlock { directive, before });
        } else if directive.is("include") {
            let mut included = includes.include(&directive, depth + opened.len())?;
            included.iter_mut().for_each(|line| line.table = table);
            block.append(&mut included);
        } else {
            block.push(directive);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    struct NoFiles(usize);

    impl Includes for NoFiles {
        fn include(&mut self, _: &Directive, _: usize) -> Result<Vec<Directive>, Failure> {
            Ok(Vec::new())
        }

        fn left(&mut self) -> &mut usize {
            &mut self.0
        }
    }

    /// Parses a text that contains no `include`.
    pub(crate) fn parsed(text: &str) -> Result<Vec<Directive>, Failure> {
        parse(text, &"nginx.conf".into(), 0, &mut NoFiles(usize::MAX))
    }

    #[test]
    fn blocks_stand_in_blocks_and_keep_their_order() {
        let tree = parsed("a 1;\nb { c 'x y' z=1; d { } }\ne;").expect("valid");
        let names: Vec<_> = tree.iter().map(Directive::name).collect();
        assert_eq!(names, ["a", "b", "e"]);
        let c = &tree[1].block()[0];
        assert_eq!(
            (c.first(), c.option("z"), c.place.line),
            ("x y", Some("1"), 2)
        );
    }

    #[test]
    fn a_mistake_names_its_line_and_quotes_nothing() {
        for (text, expected) in [
            ("a {\n b;\n", "nginx.conf:1: the file ends before the \"}\""),
            (
                "a\n hunter2",
                "nginx.conf:1: the file ends before the \";\"",
            ),
            ("a;\n}", "nginx.conf:2: a \"}\" closes no block"),
            ("a { hunter2 }", "nginx.conf:1: a \"}\" stands before"),
            (";", "nginx.conf:1: a \";\" ends nothing"),
            ("{", "nginx.conf:1: a \"{\" opens a block"),
            ("a 'hunter2", "nginx.conf:1: a quote is not closed"),
            ("a 'hunter2'x;", "nginx.conf:1: a quote is closed"),
            (
                "access_by_lua_block { hunter2",
                "nginx.conf:1: a block of Lua",
            ),
        ] {
            let error = parsed(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = |blocks: usize| "a {".repeat(blocks) + &"}".repeat(blocks);
        assert!(parsed(&deep(DEPTH_MAX)).is_ok());
        assert!(parsed(&deep(DEPTH_MAX + 1)).is_err());
        assert!(parsed(&"a {".repeat(1_000_000)).is_err());
    }

    #[test]
    fn printing_a_directive_shows_no_word() {
        let text =
            "map $http_authorization $ok { 'Bearer hunter2' 1; } hunter2 hunter2 { hunter2; }";
        let tree = parsed(text).expect("valid");
        let shown = format!("{tree:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
