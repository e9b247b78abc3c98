//! The text of a config with some values changed: the others stay as they are written, in their order, and with their spaces.

use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::checkpoint::{Words, each_entry};

/// What becomes of an entry.
pub(super) enum Change {
    Keep,
    Drop,
    /// Another value, as text.
    To(String),
}

/// The object of this text, at this depth of another, with each entry as `change` has it. Nothing where all stay, or it is no object.
pub(super) fn edited<'t>(text: &'t str, depth: usize, change: &mut dyn FnMut(&str, &str) -> Change) -> Option<String> {
    let mut entries: Vec<(String, &'t str)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let words = Words { object: "an object", key: "entry", value: "a value" };
    let mut reader = serde_json::Deserializer::from_str(text);
    each_entry(&mut reader, words, |name: String, value: &'t RawValue| {
        // Of entries with one name the last counts.
        match places.get(&name) {
            Some(at) => entries[*at].1 = value.get(),
            None => {
                places.insert(name.clone(), entries.len());
                entries.push((name, value.get()));
            }
        }
        Ok(())
    })
    .ok()?;
    let (mut changed, mut lines) = (false, Vec::with_capacity(entries.len()));
    for (name, value) in entries {
        let name_text = serde_json::Value::from(name.as_str());
        match change(&name, value) {
            Change::Keep => lines.push(format!("{name_text}: {value}")),
            Change::Drop => changed = true,
            Change::To(text) => {
                changed |= text != value;
                lines.push(format!("{name_text}: {text}"));
            }
        }
    }
    changed.then(|| object(&lines, depth))
}

/// The text of an object with one more entry at its end.
pub(super) fn with_entry(text: &str, name: &str, value: &str) -> String {
    let text = text.trim_end();
    let inner = text.strip_suffix('}').unwrap_or(text).trim_end();
    let comma = if inner.ends_with('{') { "" } else { "," };
    format!("{inner}{comma}\n  \"{name}\": {value}\n}}")
}

fn object(lines: &[String], depth: usize) -> String {
    if lines.is_empty() {
        return "{}".into();
    }
    let indent = "  ".repeat(depth);
    format!("{{\n{indent}  {}\n{indent}}}", lines.join(&format!(",\n{indent}  ")))
}
