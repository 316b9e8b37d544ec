//! Variables in the texts of client files, such as `${env:X}`, `${input:X}` and `${workspaceFolder}`.
//!
//! Variables for folders are replaced by their values. Other variables and inputs become `${NAME}` in the gateway's
//! configuration, which the gateway replaces by its secrets.

use std::path::Path;

use tooldock_base::mask;
use tooldock_credentials::secrets::check_new_key;

/// A text of a client file, split into literals and variables. It cannot be printed, since it may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(String),
    /// A variable: the name of a secret, or of an environment variable of the server.
    Variable(String),
}

/// The folders that variables of client files may refer to.
pub(crate) struct Folders<'a> {
    /// The folder of the project; if there is none, the folder of the client's file.
    pub(crate) project: &'a Path,
    pub(crate) home: Option<&'a Path>,
}

/// A variable that a text refers to and that has no value in the file.
pub(crate) struct Reference {
    pub(crate) name: String,
    /// The reference in the spelling of the file.
    pub(crate) spelled: String,
    /// The id of the input, if the reference is to an input that the client requests from its user.
    pub(crate) input: Option<String>,
}

/// A parsed text, the variables that it refers to, and its references that are not supported.
pub(crate) struct ParsedText {
    pub(crate) text: Text,
    pub(crate) references: Vec<Reference>,
    pub(crate) unknown: Vec<String>,
}

/// Splits a text into literals and variables.
pub(crate) fn parse(text: &str, folders: &Folders<'_>) -> ParsedText {
    let mut parsed = ParsedText {
        text: Text(Vec::new()),
        references: Vec::new(),
        unknown: Vec::new(),
    };
    // Gemini CLI and shells accept `$NAME` as a complete value.
    if let Some(name) = text.strip_prefix('$').filter(|it| is_upper_name(it)) {
        parsed.refer(name.to_owned(), text, None);
        return parsed;
    }
    let mut rest = text;
    while let Some((at, open, close)) = next_reference(rest) {
        let (before, from) = rest.split_at(at);
        let Some(end) = from.find(close) else { break };
        let (inner, after) = (&from[open.len()..end], &from[end + close.len()..]);
        parsed.text.literal(before);
        parsed.variable(inner.trim(), &from[..end + close.len()], open, folders);
        rest = after;
    }
    parsed.text.literal(rest);
    parsed
}

/// The first reference to a variable in a text: its byte offset, and the delimiters before and after the variable.
fn next_reference(text: &str) -> Option<(usize, &'static str, &'static str)> {
    let forms = [("${{", "}}"), ("${", "}"), ("{env:", "}")];
    let found = forms.map(|(open, close)| Some((text.find(open)?, open, close)));
    // `${{` and `${` may begin at the same byte. The longer one is listed first, and `min_by_key` returns the first of equals.
    found.into_iter().flatten().min_by_key(|it| it.0)
}

impl ParsedText {
    fn refer(&mut self, name: String, spelled: &str, input: Option<&str>) {
        self.text.0.push(Piece::Variable(name.clone()));
        self.references.push(Reference {
            name,
            spelled: spelled.to_owned(),
            input: input.map(str::to_owned),
        });
    }

    fn variable(&mut self, inner: &str, spelled: &str, open: &str, folders: &Folders<'_>) {
        let folder = |path: &Path| path.to_string_lossy().into_owned();
        let (kind, name) = match inner.split_once(':') {
            _ if open == "{env:" => ("env", inner),
            // Continue writes `${{ secrets.X }}`.
            _ if open == "${{" => ("env", inner.rsplit('.').next().unwrap_or(inner)),
            Some((name, default)) if default.starts_with('-') && is_name(name) => {
                // A variable with a default value is not reported as a missing secret, since the client would use the default.
                return self.text.literal(&default[1..]);
            }
            Some((kind, name)) => (kind, name),
            None => ("", inner),
        };
        match (kind, name) {
            ("" | "env", "HOME") | ("", "userHome") if folders.home.is_some() => {
                self.text
                    .literal(&folders.home.map(folder).unwrap_or_default());
            }
            ("", "workspaceFolder" | "workspaceRoot" | "cwd" | "extensionPath")
            | ("workspaceFolder", _) => self.text.literal(&folder(folders.project)),
            ("", "workspaceFolderBasename") => {
                let name = folders.project.file_name().unwrap_or_default();
                self.text.literal(&name.to_string_lossy());
            }
            ("", "pathSeparator" | "/") => self.text.literal("/"),
            ("input" | "promptString", id) => self.refer(variable_name(id), spelled, Some(id)),
            ("" | "env", name) => {
                // The reference may have a default value, as in `${env:X:-default}`.
                match name.split_once(":-") {
                    Some((_, default)) => self.text.literal(default),
                    None if is_name(name) => self.refer(name.to_owned(), spelled, None),
                    None => self.unknown(spelled),
                }
            }
            _ => self.unknown(spelled),
        }
    }

    fn unknown(&mut self, spelled: &str) {
        self.text.literal(spelled);
        self.unknown.push(spelled.to_owned());
    }
}

impl Text {
    /// Creates a text that consists of one literal.
    pub(crate) fn of(text: &str) -> Self {
        let mut made = Self(Vec::new());
        made.literal(text);
        made
    }

    /// Creates a text that consists of a literal, a variable and a literal.
    pub(crate) fn around(before: &str, variable: &str, after: &str) -> Self {
        let mut text = Self::of(before);
        text.0.push(Piece::Variable(variable.to_owned()));
        text.literal(after);
        text
    }

    /// Returns the text with the literal `before` inserted at its beginning.
    pub(crate) fn after(&self, before: &str) -> Self {
        let mut text = Self::of(before);
        for piece in &self.0 {
            match piece {
                Piece::Literal(more) => text.literal(more),
                variable => text.0.push(variable.clone()),
            }
        }
        text
    }

    /// Returns the text with literals replaced: each one for which `replaced` returns another text.
    pub(crate) fn with_literals(&self, mut replaced: impl FnMut(&str) -> Option<Self>) -> Self {
        let mut made = Self(Vec::new());
        for piece in &self.0 {
            let other = match piece {
                Piece::Literal(text) => replaced(text),
                Piece::Variable(_) => None,
            };
            for piece in other.map_or_else(|| vec![piece.clone()], |text| text.0) {
                match piece {
                    Piece::Literal(text) => made.literal(&text),
                    variable @ Piece::Variable(_) => made.0.push(variable),
                }
            }
        }
        made
    }

    fn literal(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Literal(before)) => before.push_str(text),
            _ => self.0.push(Piece::Literal(text.to_owned())),
        }
    }

    /// The text as a plain string; `None` if it contains a variable.
    pub(crate) fn plain(&self) -> Option<String> {
        match self.0.as_slice() {
            [] => Some(String::new()),
            [Piece::Literal(text)] => Some(text.clone()),
            _ => None,
        }
    }

    /// The literals of a text, without its variables.
    pub(crate) fn literals(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Literal(text) => Some(text.as_str()),
            Piece::Variable(_) => None,
        })
    }

    /// The names of the variables in a text.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Variable(name) => Some(name.as_str()),
        })
    }

    /// The text as a value of the gateway's configuration, with each variable as `${NAME}`.
    pub(crate) fn template(&self) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Literal(text) => text.replace("${", "$${"),
            Piece::Variable(name) => format!("${{{name}}}"),
        });
        pieces.collect()
    }

    /// Returns the text with variables replaced for which `value` returns a text (those of the server's own environment).
    pub(crate) fn filled(&self, value: impl Fn(&str) -> Option<Text>) -> Self {
        let mut filled = Self(Vec::new());
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => filled.literal(text),
                Piece::Variable(name) => match value(name) {
                    Some(text) => {
                        for piece in text.0 {
                            match piece {
                                Piece::Literal(text) => filled.literal(&text),
                                variable => filled.0.push(variable),
                            }
                        }
                    }
                    None => filled.0.push(piece.clone()),
                },
            }
        }
        filled
    }

    /// The text as a word of a shell command, in which the shell replaces the variables. `None` if this cannot be expressed.
    pub(crate) fn shell_word(&self) -> Option<String> {
        let mut word = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => word.push_str(&shlex::try_quote(text).ok()?),
                Piece::Variable(name) => word.push_str(&format!("\"${{{name}}}\"")),
            }
        }
        match word.is_empty() {
            true => Some("''".to_owned()),
            false => Some(word),
        }
    }

    pub(crate) fn strip_prefix(&self, prefix: &str) -> Option<Self> {
        let mut pieces = self.0.clone();
        let Some(Piece::Literal(first)) = pieces.first_mut() else {
            return None;
        };
        let rest = first.get(..prefix.len())?;
        if !rest.eq_ignore_ascii_case(prefix) {
            return None;
        }
        *first = first[prefix.len()..].trim_start().to_owned();
        pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
        Some(Self(pieces))
    }
}

/// Derives the name of a secret or variable from any text: `github-token` becomes `GITHUB_TOKEN`. Returns `VALUE` if no name can
/// be derived.
pub(crate) fn variable_name(text: &str) -> String {
    let mut name = String::new();
    for letter in text.chars() {
        match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => name.push(letter.to_ascii_uppercase()),
            _ if !name.ends_with('_') && !name.is_empty() => name.push('_'),
            _ => {}
        }
    }
    let name = name.trim_end_matches('_');
    let name = match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("V_{name}"),
        false => name.to_owned(),
    };
    match mask::looks_like_a_value(text) || check_new_key(&name).is_err() {
        true => "VALUE".to_owned(),
        false => name,
    }
}

/// Returns true if a text is a valid name of a variable. A text that is not may be a value that was written in place of a name.
pub(crate) fn is_name(text: &str) -> bool {
    check_new_key(text).is_ok()
}

fn is_upper_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !text.is_empty() && text.bytes().all(allowed) && is_name(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Vec<String>) {
        let folders = Folders {
            project: Path::new("/work/app"),
            home: Some(Path::new("/home/ada")),
        };
        let parsed = parse(text, &folders);
        (parsed.text.template(), parsed.unknown)
    }

    #[test]
    fn variables_of_every_client_become_those_of_the_gateway() {
        for (text, template) in [
            ("plain", "plain"),
            ("${env:TOKEN}", "${TOKEN}"),
            ("Bearer ${TOKEN}", "Bearer ${TOKEN}"),
            ("$TOKEN", "${TOKEN}"),
            ("${input:github-token}", "${GITHUB_TOKEN}"),
            ("${{ secrets.GITHUB_TOKEN }}", "${GITHUB_TOKEN}"),
            ("{env:TOKEN}", "${TOKEN}"),
            ("${PORT:-8080}", "8080"),
            ("${workspaceFolder}/data", "/work/app/data"),
            ("${workspaceFolderBasename}", "app"),
            ("${userHome}/x", "/home/ada/x"),
            ("${HOME}", "/home/ada"),
            ("a$5", "a$5"),
            ("${unclosed", "$${unclosed"),
        ] {
            assert_eq!(parsed(text).0, template, "{text}");
        }
        let (template, unknown) = parsed("${command:pick}");
        assert_eq!(
            (template.as_str(), unknown),
            ("$${command:pick}", vec!["${command:pick}".to_owned()])
        );
    }

    #[test]
    fn a_shell_gets_variables_in_quotes_and_literals_as_they_are() {
        let text = Text::around("--key=a b'", "KEY", "");
        let word = text.shell_word().expect("a word");
        assert_eq!(word, "\"--key=a b'\"\"${KEY}\"");
        let read = shlex::split(&word).expect("words");
        assert_eq!(read, ["--key=a b'${KEY}"]);
    }
}
