//! The pages of the documentation, and the blocks of code in them that readers paste.

use std::fs;

use super::programs::root;

/// A fenced block of code.
pub struct Block {
    /// The nearest heading above the block, without its `#`.
    pub heading: String,
    /// Text behind the opening fence.
    pub language: String,
    pub text: String,
}

/// The fenced blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut heading = String::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block {
                    heading: heading.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) if line.starts_with('#') => {
                line.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The first block of a language below a heading, of a page named by its path in the repository.
///
/// # Panics
///
/// When there is no such block.
pub fn block(page: &str, heading: &str, language: &str) -> String {
    let text = fs::read_to_string(root().join(page)).expect("the page");
    let found = blocks(&text)
        .into_iter()
        .find(|block| block.heading == heading && block.language == language);
    found
        .unwrap_or_else(|| panic!("{page} has no {language} below {heading}"))
        .text
}
