//! The text that models are measured with, as `scripts/perplexity.py` has it.

use std::fs;
use std::path::Path;

use regex::Regex;
use tokenizers::Tokenizer;

use crate::{Outcome, ensure};

/// Tokens of a window.
pub const WINDOW: usize = 512;

/// Paragraphs of a folder's Markdown: neither tables nor code nor headings.
///
/// # Errors
/// A folder that cannot be read.
pub fn prose(folder: &Path) -> Outcome<String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Outcome<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "md"));
    paths.sort();
    let code = Regex::new(r"(?s)```.*?```")?;
    let between = Regex::new(r"\n\s*\n")?;
    let mut paragraphs = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let text = code.replace_all(&text, "");
        let kept = between.split(&text).filter(|p| {
            let first = p.trim_start().chars().next();
            first.is_some_and(|first| !"|#<".contains(first))
        });
        paragraphs.extend(kept.map(str::to_string));
    }
    Ok(paragraphs.join("\n\n"))
}

/// The first windows of a text, whole ones only.
///
/// # Errors
/// A text that is too short for as many.
pub fn windows(tokenizer: &Tokenizer, text: &str, count: usize) -> Outcome<Vec<Vec<u32>>> {
    let tokens = tokenizer.encode(text, true)?;
    let all = tokens.get_ids().chunks_exact(WINDOW);
    ensure(count > 0 && all.len() >= count, || {
        format!("the text has {} windows of {WINDOW} tokens, and {count} were asked for", all.len())
    })?;
    Ok(all.take(count).map(<[u32]>::to_vec).collect())
}
