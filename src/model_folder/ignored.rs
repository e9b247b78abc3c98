//! [`Ignored`]: the modules that the `quantization_config` of a model leaves alone.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};

/// Patterns accepted, and their bytes together. Published lists have some ten; a pattern of a few bytes may stand for a program of
/// megabytes.
const MOST_PATTERNS: usize = 256;
const MOST_PATTERN_BYTES: usize = 16 << 10;
/// What they may become together.
const MOST_PROGRAM_BYTES: usize = 8 << 20;

/// What an earlier quantization left alone.
#[derive(Debug, Clone, Default)]
pub(super) struct Ignored {
    /// Modules, and all within them. Lists may name each of a hundred thousand.
    modules: HashSet<String>,
    /// Names that begin so.
    beginnings: Vec<String>,
    patterns: Vec<Regex>,
}

impl Ignored {
    /// The entries of a list of modules that are not quantized; `Err` is the reason why it is not read.
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let (mut ignored, mut patterns) = (Self::default(), Vec::new());
        for text in texts {
            if let Some(pattern) = text.strip_prefix("re:") {
                patterns.push(pattern);
            } else if let Some(beginning) = text.strip_suffix('*') {
                ignored.beginnings.push(beginning.into());
            } else {
                ignored.modules.insert(text.into());
            }
        }
        let bytes: usize = patterns.iter().map(|pattern| pattern.len()).sum();
        if patterns.len() > MOST_PATTERNS || bytes > MOST_PATTERN_BYTES {
            let found = format!("leaves modules alone by {} patterns of {bytes} bytes", patterns.len());
            return Err(format!("{found}; {MOST_PATTERNS} of {MOST_PATTERN_BYTES} are read"));
        }
        let most = MOST_PROGRAM_BYTES / patterns.len().max(1);
        // Python has patterns that are none here; what they leave alone is not known.
        let built = |pattern| RegexBuilder::new(&format!("^(?:{pattern})")).size_limit(most).build().ok();
        ignored.patterns = patterns.into_iter().filter_map(built).collect();
        Ok(ignored)
    }

    pub(super) fn contains(&self, module: &str) -> bool {
        let mut around = module.match_indices('.').map(|(at, _)| &module[..at]).chain([module]);
        around.any(|name| self.modules.contains(name))
            || self.beginnings.iter().any(|beginning| module.starts_with(beginning.as_str()))
            || self.patterns.iter().any(|pattern| pattern.is_match(module))
    }
}
