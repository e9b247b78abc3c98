//! The words of PTX: names, numbers and opcodes with all that their dots and colons join, and single marks.

/// A word or a mark, and its line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

fn of_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// All tokens, without comments.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < bytes.len() {
        let (c, from) = (bytes[at], at);
        match c {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
                continue;
            }
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1;
                }
                at += 1;
            }
            // A sign belongs to the number behind it.
            b'-' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                at += 1;
                while at < bytes.len() && of_word(bytes[at]) {
                    at += 1;
                }
            }
            _ if of_word(c) => {
                while at < bytes.len() {
                    if of_word(bytes[at]) {
                        at += 1;
                    } else if bytes[at..].starts_with(b"::") {
                        at += 2;
                    } else {
                        break;
                    }
                }
            }
            _ if c.is_ascii_punctuation() => at += 1,
            _ => return Err(format!("line {line}: byte {c:#04x} is no PTX")),
        }
        found.push(Token { text: &text[from..at.min(bytes.len())], line });
    }
    Ok(found)
}
