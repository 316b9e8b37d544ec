//! Finds and removes user names and passwords in the URLs of a text: addresses of package indexes and servers may contain them.

use std::ops::Range;

/// Removes `user:password@` from every URL, since index addresses may contain credentials.
pub fn redact_credentials(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut shown = 0;
    for found in url_logins(text) {
        clean.push_str(&text[shown..found.start]);
        clean.push_str("[redacted]");
        shown = found.end;
    }
    clean.push_str(&text[shown..]);
    clean
}

/// Byte ranges of the users and passwords in the URLs of a text: from after `://` to the `@`.
pub(crate) fn url_logins(text: &str) -> Vec<Range<usize>> {
    logins_by_words(text, |begin| UrlWord::at(text, begin))
}

/// The end and the last `@` of a word that contains a URL.
#[derive(Clone, Copy)]
struct UrlWord {
    /// Position at which the word ends, in bytes from the beginning of the text.
    end: usize,
    /// Position of the word's last `@`, in bytes from the beginning of the text.
    last_at: Option<usize>,
}

impl UrlWord {
    fn at(text: &str, begin: usize) -> Self {
        let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>');
        let word = &text[begin..];
        let word = &word[..word.find(is_end).unwrap_or(word.len())];
        Self {
            end: begin + word.len(),
            last_at: word.rfind('@').map(|at| begin + at),
        }
    }
}

/// Byte ranges of the logins in a text. `word_at` is called only once for each word, even if the word contains many URLs, since a
/// text may consist of one long word.
fn logins_by_words(text: &str, mut word_at: impl FnMut(usize) -> UrlWord) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut begin = 0;
    let mut word: Option<UrlWord> = None;
    while let Some(scheme) = text[begin..].find("://") {
        begin += scheme + 3;
        let after = &text[begin..];
        let end = after
            .find(|c: char| {
                c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>')
            })
            .unwrap_or(after.len());
        // If the text after the first colon is not a port, it is a password, which may contain a slash without percent-encoding.
        let end = match after[..end].split_once(':') {
            Some((_, port)) if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) => {
                let known = word.filter(|word| begin < word.end);
                let last_at = word.insert(known.unwrap_or_else(|| word_at(begin))).last_at;
                let last_at = last_at.filter(|at| *at >= begin);
                last_at.map_or(end, |at| end.max(at - begin + 1))
            }
            _ => end,
        };
        if let Some(at) = after[..end].rfind('@') {
            found.push(begin..begin + at);
            begin += at;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_urls_are_redacted() {
        for (text, clean) in [
            ("a https://u:p@h/x b", "a https://[redacted]@h/x b"),
            ("https://token@h", "https://[redacted]@h"),
            (
                "https://u:p@ss@h/x http://v:w@k",
                "https://[redacted]@h/x http://[redacted]@k",
            ),
            ("https://h/a@b", "https://h/a@b"),
            (
                "git+https://t@h/r.git://",
                "git+https://[redacted]@h/r.git://",
            ),
            ("https://u:pa/ss@h/x", "https://[redacted]@h/x"),
            ("https://h:8080/a@b", "https://h:8080/a@b"),
            ("no url: a@b", "no url: a@b"),
        ] {
            assert_eq!(redact_credentials(text), clean);
        }
    }

    #[test]
    fn each_word_is_read_once_however_many_urls_are_in_it() {
        let many = "://x:y".repeat(10_000);
        let behind_a_login = format!("https://u:p@h{many}");
        for (text, logins, words) in [
            (many.clone(), 0, 1),
            (format!("{many} {many}\"{many}"), 0, 3),
            (behind_a_login.clone(), 1, 1),
            (format!("{many}@h {behind_a_login}"), 2, 2),
            (format!("{many}/a@h://b:c"), 1, 1),
        ] {
            let mut read = 0;
            let found = logins_by_words(&text, |begin| {
                read += 1;
                UrlWord::at(&text, begin)
            });
            assert_eq!((found.len(), read), (logins, words), "{}", &text[..12]);
            let clean = redact_credentials(&text);
            assert_eq!(clean.matches("[redacted]@").count(), logins);
        }
    }
}
