//! Words of others, made safe to show. Nothing else in this program writes them.

use std::fmt::Write;

use serde::Serialize;
use vram_control_api::{Printable, is_printable};

/// A line for people: what it is, and what it says.
pub(crate) fn line(what: &str, words: &str) -> String {
    format!("{what}: {}\n", Printable(words))
}

/// JSON that says the same as any other, in which what a terminal would obey is escaped.
pub(crate) fn json<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let plain = serde_json::to_string_pretty(value)?;
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        // Line feeds outside of strings; those within are escaped already.
        if c == '\n' || is_printable(c) {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped.push('\n');
    Ok(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_one_line_whatever_it_says() {
        assert_eq!(line("note", "a\nerror: b\u{1b}[2J"), "note: a\\nerror: b\\u{1b}[2J\n");
    }

    #[test]
    fn json_has_no_controls_and_means_the_same() {
        let words = "\u{1b}\n\u{7f}\u{9b}\u{202e}\u{2069}é🙂\"\\";

        let shown = json(&[words]).unwrap();

        assert!(shown.contains(r"\u001b\n\u007f\u009b\u202e\u2069é🙂"), "{shown}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [words]);
    }
}
