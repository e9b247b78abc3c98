//! The text of a config with some values changed: the others stay byte for byte, in their order, and with their spaces.

use std::ops::Range;

/// What becomes of an entry.
pub(super) enum Change {
    Keep,
    Drop,
    /// Another value, as text.
    To(String),
}

/// Where an entry of an object is in its text.
struct Entry {
    name: String,
    /// Where its name begins.
    start: usize,
    value: Range<usize>,
}

/// The object of this text with each entry as `change` has it. Nothing where all stay, or it is no object. The text is JSON.
pub(super) fn edited(text: &str, change: &mut dyn FnMut(&str, &str) -> Change) -> Option<String> {
    let entries = entries(text)?;
    let (first, last) = (entries.first()?.start, entries.last()?.value.end);
    let mut changed = false;
    let mut out = text[..first].to_string();
    let mut is_first = true;
    for (at, Entry { name, start, value }) in entries.iter().enumerate() {
        let (name_text, value_text) = (&text[*start..value.start], &text[value.clone()]);
        let value_text = match change(name, value_text) {
            Change::Keep => value_text.to_string(),
            Change::Drop => {
                changed = true;
                continue;
            }
            // Of entries with one name the last counts.
            Change::To(_) if entries[at + 1..].iter().any(|later| later.name == *name) => {
                changed = true;
                continue;
            }
            Change::To(new) => {
                changed |= new != value_text;
                new
            }
        };
        if !is_first {
            // The comma and the spaces before it.
            out += &text[entries[at - 1].value.end..*start];
        }
        is_first = false;
        out += name_text;
        out += &value_text;
    }
    if is_first {
        // Spaces between nothing are none.
        out = format!("{{}}{}", &text[text.rfind('}')? + 1..]);
        let before = &text[..text.find('{')?];
        return Some(format!("{before}{out}"));
    }
    out += &text[last..];
    changed.then_some(out)
}

/// The text of an object with one more entry at its end.
pub(super) fn with_entry(text: &str, name: &str, value: &str) -> String {
    let (inner, end) = text.split_at(text.rfind('}').unwrap_or(text.len()));
    let kept = inner.trim_end();
    let comma = if kept.ends_with('{') { "" } else { "," };
    let spaces = Some(&inner[kept.len()..]).filter(|spaces| spaces.contains('\n')).unwrap_or("\n");
    format!("{kept}{comma}\n  \"{name}\": {value}{spaces}{end}")
}

/// The entries of the object that a text of JSON is, in their order; nothing of what is none.
fn entries(text: &str) -> Option<Vec<Entry>> {
    let bytes = text.as_bytes();
    let spaces = |at: usize| at + bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let mut at = spaces(0);
    let mut entries = Vec::new();
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    loop {
        at = spaces(at + 1);
        if entries.is_empty() && bytes.get(at) == Some(&b'}') {
            return Some(entries);
        }
        let start = at;
        let end = value_end(bytes, start)?;
        let name = serde_json::from_str(text.get(start..end)?).ok()?;
        at = spaces(end);
        if bytes.get(at) != Some(&b':') {
            return None;
        }
        let begin = spaces(at + 1);
        let value = begin..value_end(bytes, begin)?;
        at = spaces(value.end);
        entries.push(Entry { name, start, value });
        match bytes.get(at)? {
            b',' => {}
            b'}' => return Some(entries),
            _ => return None,
        }
    }
}

/// Where the value that begins here ends.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth, mut in_string) = (start, 0usize, false);
    loop {
        match bytes.get(at)? {
            b'\\' if in_string => at += 1,
            b'"' => {
                in_string = !in_string;
                if !in_string && depth == 0 {
                    return Some(at + 1);
                }
            }
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            // The end of what is around a number or a word.
            b'}' | b']' | b',' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            byte if depth == 0 && at > start && byte.is_ascii_whitespace() => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(text: &str, dropped: &str) -> Option<String> {
        edited(text, &mut |name, _| if name == dropped { Change::Drop } else { Change::Keep })
    }

    #[test]
    fn what_is_not_changed_stays_byte_for_byte() {
        let text = "\r\n{ \"a\" :1,\t\"q\":{\"x\":[\"}\",\"\\\"\"]} ,\n\n \"b\": \"q\"   ,\"c\":-1e5 }\r\n";
        assert_eq!(without(text, "q").unwrap(), text.replace(",\t\"q\":{\"x\":[\"}\",\"\\\"\"]}", ""));
        assert_eq!(without(text, "a").unwrap(), text.replace("\"a\" :1,\t", ""));
        assert_eq!(without(text, "c").unwrap(), text.replace("   ,\"c\":-1e5", ""));
        assert_eq!(without(text, "x"), None);
        let to = edited(text, &mut |name, _| if name == "a" { Change::To("[]".into()) } else { Change::Keep });
        assert_eq!(to.unwrap(), text.replace(":1,", ":[],"));
        assert_eq!(without(" {\n \"q\": 1\n}\n", "q").unwrap(), " {}\n");
        // No object, or none of its entries.
        for text in ["{}", " { } ", "[1]", "1", "\"{\""] {
            assert_eq!(without(text, "q"), None, "{text}");
        }
    }

    #[test]
    fn of_entries_with_one_name_the_last_is_changed_and_all_go() {
        let text = r#"{"q": 1, "a": 2, "q": 3}"#;
        let to = edited(text, &mut |name, _| if name == "q" { Change::To("4".into()) } else { Change::Keep });
        assert_eq!(to.unwrap(), r#"{"a": 2, "q": 4}"#);
        assert_eq!(without(text, "q").unwrap(), r#"{"a": 2}"#);
    }

    #[test]
    fn an_entry_that_is_added_and_taken_away_leaves_the_text() {
        for text in ["{\n  \"a\": 1\n}\n", "{\"a\": {}\r\n}", "{\n\t\"a\": 1\n\n}"] {
            assert_eq!(without(&with_entry(text, "q", "{\"x\": 1}"), "q").unwrap(), text);
        }
    }
}
