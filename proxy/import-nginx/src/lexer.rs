//! Splits an nginx configuration into words as nginx itself does: quotes, escapes, comments, and `${name}`, whose brace opens
//! no block. Other modules interpret the words.
//!
//! Errors quote no text of the file, which may contain secrets.

/// A token of the text, with the line on which it begins.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) line: u32,
}

/// The kind of a token. It does not implement `Debug`, since a word may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// The name of a directive or an argument, without its quotes and escapes.
    Word(String),
    /// A semicolon, which ends a directive.
    Semicolon,
    /// An opening brace, which begins a block.
    Open,
    /// A closing brace, which ends a block.
    Close,
    /// The end of the text.
    End,
}

/// A syntax error in an nginx configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) line: u32,
    pub(crate) what: String,
}

/// Maximum length of a word, in bytes. nginx itself allows 4 KiB, but some configurations contain certificates as words.
const WORD_BYTES_MAX: usize = 64 * 1024;

/// Reads a text token by token.
pub(crate) struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        // Some editors write a byte order mark at the beginning of a file.
        let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rest, line: 1 }
    }

    /// Reads the next token.
    pub(crate) fn next(&mut self) -> Result<Token, SyntaxError> {
        self.skip_blanks_and_comments();
        let line = self.line;
        let token = |kind| Ok(Token { kind, line });
        match self.peek() {
            None => token(TokenKind::End),
            Some(next @ (';' | '{' | '}')) => {
                self.take();
                token(match next {
                    ';' => TokenKind::Semicolon,
                    '{' => TokenKind::Open,
                    _ => TokenKind::Close,
                })
            }
            Some(quote @ ('"' | '\'')) => {
                self.take();
                token(TokenKind::Word(self.quoted(quote, line)?))
            }
            Some(_) => token(TokenKind::Word(self.unquoted(line)?)),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += u32::from(next == '\n');
        Some(next)
    }

    fn skip_blanks_and_comments(&mut self) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' => {
                    self.take();
                }
                '#' => while self.take().is_some_and(|c| c != '\n') {},
                _ => return,
            }
        }
    }

    fn quoted(&mut self, quote: char, line: u32) -> Result<String, SyntaxError> {
        let mut word = String::new();
        loop {
            match self.take() {
                None => return Err(error(line, "a quote is not closed")),
                Some(c) if c == quote => break,
                Some('\\') => self.escape(&mut word),
                Some(c) => word.push(c),
            }
            check_length(&word, line)?;
        }
        match self.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | ';' | '{' | ')') => Ok(word),
            Some(_) => Err(error(
                self.line,
                "a quote is closed in the middle of a word: nginx wants a space, \";\", \"{\" or \")\" there",
            )),
        }
    }

    fn unquoted(&mut self, line: u32) -> Result<String, SyntaxError> {
        let mut word = String::new();
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' | '{' => break,
                '\\' => {
                    self.take();
                    self.escape(&mut word);
                }
                '$' => {
                    self.take();
                    word.push('$');
                    if self.rest.starts_with('{') {
                        self.take();
                        word.push('{');
                    }
                }
                c => {
                    self.take();
                    word.push(c);
                }
            }
            check_length(&word, line)?;
        }
        Ok(word)
    }

    /// Reads the character that a backslash escapes. As in nginx, a backslash before any other character is kept, since regular
    /// expressions contain many backslashes.
    fn escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }

    /// Skips a block of Lua code up to its closing brace. The opening brace was already read. Braces in Lua's strings and
    /// comments do not count.
    pub(crate) fn skip_lua(&mut self) -> Result<(), SyntaxError> {
        let opened = self.line;
        let mut depth = 1_u32;
        while depth > 0 {
            if self.skip_long_bracket() {
                continue;
            }
            match self.take() {
                None => return Err(error(opened, "a block of Lua is not closed")),
                Some('{') => depth += 1,
                Some('}') => depth -= 1,
                Some(quote @ ('"' | '\'')) => self.skip_lua_string(quote),
                Some('-') if self.rest.starts_with('-') => {
                    self.take();
                    if !self.skip_long_bracket() {
                        while self.take().is_some_and(|c| c != '\n') {}
                    }
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn skip_lua_string(&mut self, quote: char) {
        // A Lua string without a closing quote ends at the end of its line.
        while let Some(next) = self.take().filter(|it| *it != quote && *it != '\n') {
            if next == '\\' {
                self.take();
            }
        }
    }

    /// Skips a long string or comment of Lua, `[[ … ]]` or `[==[ … ]==]`. Returns false if the text is not such a string.
    fn skip_long_bracket(&mut self) -> bool {
        let Some(after) = self.rest.strip_prefix('[') else {
            return false;
        };
        let text = after.trim_start_matches('=');
        if !text.starts_with('[') {
            return false;
        }
        let close = format!("]{}]", &after[..after.len() - text.len()]);
        let end = text.find(&close).map_or(text.len(), |at| at + close.len());
        self.line += text[..end].matches('\n').count() as u32;
        self.rest = &text[end..];
        true
    }
}

fn error(line: u32, what: &str) -> SyntaxError {
    SyntaxError {
        line,
        what: what.to_owned(),
    }
}

fn check_length(word: &str, line: u32) -> Result<(), SyntaxError> {
    if word.len() <= WORD_BYTES_MAX {
        return Ok(());
    }
    let what = format!("a word is longer than {WORD_BYTES_MAX} bytes: is a quote not closed?");
    Err(SyntaxError { line, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens as a line of text, each word in angle brackets.
    fn shown(text: &str) -> String {
        let mut lexer = Lexer::new(text);
        let mut shown = String::new();
        loop {
            let Ok(token) = lexer.next() else {
                return shown + "!";
            };
            match token.kind {
                TokenKind::Word(word) => shown += &format!("<{word}>"),
                TokenKind::Semicolon => shown.push(';'),
                TokenKind::Open => shown.push('{'),
                TokenKind::Close => shown.push('}'),
                TokenKind::End => return shown,
            }
        }
    }

    #[test]
    fn words_are_cut_as_nginx_cuts_them() {
        for (text, tokens) in [
            ("a b;", "<a><b>;"),
            ("a 'b c' \"d;e\"; # x {\nf{}", "<a><b c><d;e>;<f>{}"),
            (
                r#"a "b\"c" 'd\'e' f\"g h\ni;"#,
                "<a><b\"c><d'e><f\"g><h\ni>;",
            ),
            (r"a ~ \.php$;", r"<a><~><\.php$>;"),
            ("a ${b}c$d;", "<a><${b}c$d>;"),
            ("a \"x{y}\";", "<a><x{y}>;"),
            ("a b#c;", "<a><b#c>;"),
            ("if ($a = \"b\") {", "<if><($a><=><b><)>{"),
            ("\u{feff}a;", "<a>;"),
            ("a \"b\"c;", "<a>!"),
            ("a \"b", "<a>!"),
            ("", ""),
        ] {
            assert_eq!(shown(text), tokens, "{text}");
        }
    }

    #[test]
    fn lines_are_counted_in_quotes_and_comments() {
        let mut lexer = Lexer::new("# one\na 'two\nthree' b;");
        let mut lines = Vec::new();
        for _ in 0..4 {
            lines.extend(lexer.next().ok().map(|token| token.line));
        }
        assert_eq!(lines, [2, 2, 3, 3]);
    }

    #[test]
    fn a_block_of_lua_ends_at_its_own_brace() {
        let lua =
            "local a = {x = '}'} -- }\n--[[ } ]] b = [==[ } ]] } ]==] if a[1] then end } next;";
        let mut lexer = Lexer::new(lua);
        assert_eq!(lexer.skip_lua(), Ok(()));
        assert!(
            lexer
                .next()
                .is_ok_and(|it| it.kind == TokenKind::Word("next".into()))
        );
        assert!(Lexer::new("x = '}'").skip_lua().is_err());
    }
}
