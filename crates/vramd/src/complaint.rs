//! What is said on standard error before the log begins and after it ends.

use std::fmt;
use std::io::{Write, stderr};

/// Says it in one line. Where nobody can hear it, nothing happens: the exit status says it too.
pub fn complain(error: &anyhow::Error) {
    let _ = writeln!(stderr(), "vramd: {}", Printable(&format!("{error:#}")));
}

/// Says what is wrong with the command line, in lines.
pub fn complain_of_arguments(error: &clap::Error) {
    for line in error.render().to_string().lines() {
        let _ = writeln!(stderr(), "{}", Printable(line));
    }
}

/// A text that leaves terminals and logs as they are: control characters are written as `\n`, `\u{1b}`.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let mut rest = part.chars();
            match rest.next_back().filter(|last| last.is_control()) {
                Some(control) => write!(f, "{}{}", rest.as_str(), control.escape_default())?,
                None => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_control_characters_and_nothing_else() {
        let cases = [
            ("", ""),
            ("GPU „a“ \\ 'b'", "GPU „a“ \\ 'b'"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\r\u{9b}", "a\\nb\\r\\u{9b}"),
        ];
        for (text, printed) in cases {
            assert_eq!(Printable(text).to_string(), printed);
        }
    }
}
