//! [`Ignored`]: the modules that the `quantization_config` of a model leaves alone.

use std::collections::HashSet;

use regex::{Error, Regex, RegexBuilder};

/// Patterns accepted, and their bytes together. Published lists have some ten; a pattern of a few bytes may stand for a program of
/// megabytes.
const MOST_PATTERNS: usize = 256;
const MOST_PATTERN_BYTES: usize = 16 << 10;
/// What they may become together, and one of them: of as many patterns as may be, each has room for several `\w`, which is all
/// of Unicode.
const MOST_PROGRAM_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_ONE: usize = 8 << 20;

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
        let most = MOST_BYTES_OF_ONE.min(MOST_PROGRAM_BYTES / patterns.len().max(1));
        for pattern in patterns {
            match RegexBuilder::new(&format!("^(?:{pattern})")).size_limit(most).build() {
                Ok(built) => ignored.patterns.push(built),
                // What it protects would be quantized without a word.
                Err(Error::CompiledTooBig(_)) => {
                    let short: String = pattern.chars().take(80).collect();
                    return Err(format!(
                        "leaves modules alone by the pattern {short}, whose program is over {most} bytes"
                    ));
                }
                // Python has patterns that are none here; what they leave alone is not known.
                Err(_) => {}
            }
        }
        Ok(ignored)
    }

    /// True if the list has this module itself, and not by a pattern.
    pub(super) fn names(&self, module: &str) -> bool {
        self.modules.contains(module)
    }

    pub(super) fn contains(&self, module: &str) -> bool {
        let mut around = module.match_indices('.').map(|(at, _)| &module[..at]).chain([module]);
        around.any(|name| self.modules.contains(name))
            || self.beginnings.iter().any(|beginning| module.starts_with(beginning.as_str()))
            || self.patterns.iter().any(|pattern| pattern.is_match(module))
    }
}
