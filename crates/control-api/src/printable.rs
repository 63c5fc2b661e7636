//! Text of others on a terminal.

use std::fmt::{self, Write};

/// A text as it may be shown to a person: what a terminal would obey instead of showing is escaped, as in `\u{1b}`.
///
/// Names, paths and messages come from whoever chose them. Control characters move the cursor, rewrite lines and
/// worse; directional formatting shows a text in another order than it has; both would let one thing look like
/// another.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_printable(c) {
                f.write_char(c)?;
            } else {
                write!(f, "{}", c.escape_default())?;
            }
        }
        Ok(())
    }
}

/// Whether a terminal shows a character rather than obeys it. Not so: the control characters (C0, DEL, C1), the
/// directional formatting characters of the Unicode bidirectional algorithm (UAX #9), and the separators of lines and
/// paragraphs.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_words_of_any_language_stay() {
        for text in ["", "tenant-a", "a b", "Größe", "日本", "שלום", "🙂", "it's \"x\" \\"] {
            assert_eq!(Printable(text).to_string(), text);
        }
    }

    #[test]
    fn printable_what_a_terminal_obeys_is_escaped() {
        let cases = [
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\tc\rd\0", "a\\nb\\tc\\rd\\u{0}"),
            ("\u{7f}\u{80}\u{9b}\u{9f}", "\\u{7f}\\u{80}\\u{9b}\\u{9f}"),
            ("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c"),
        ];
        for (text, expected) in cases {
            assert_eq!(Printable(text).to_string(), expected);
        }
    }

    #[test]
    fn is_printable_is_false_for_each_control_and_direction() {
        let controls = (0..0x20).chain(0x7f..0xa0);
        let directions = (0x202a..=0x202e).chain(0x2066..=0x2069).chain([0x61c, 0x200e, 0x200f]);
        for code in controls.chain(directions).chain([0x2028, 0x2029]) {
            assert!(!is_printable(char::from_u32(code).unwrap()), "{code:x}");
        }
    }
}
