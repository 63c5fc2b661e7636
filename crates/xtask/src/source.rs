//! Just enough of Rust's grammar to tell code from comments, strings and tests.

/// The text with comments, strings and character literals blanked out; every line keeps its number.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        let end = match c {
            '/' if next == Some('/') => line_end(&chars, at),
            '/' if next == Some('*') => comment_end(&chars, at),
            '"' => string_end(&chars, at + 1),
            'r' if !in_word(&chars, at) => raw_string_end(&chars, at + 1).unwrap_or(at),
            '\'' => char_end(&chars, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            code.push(c);
            at += 1;
            continue;
        }
        for c in chars.get(at..end).unwrap_or_default() {
            code.push(if *c == '\n' { '\n' } else { ' ' });
        }
        at = end;
    }
    code
}

fn line_end(chars: &[char], from: usize) -> usize {
    let rest = chars.iter().skip(from).position(|c| *c == '\n');
    rest.map_or(chars.len(), |length| from + length)
}

fn comment_end(chars: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < chars.len() {
        match (chars.get(at), chars.get(at + 1)) {
            (Some('/'), Some('*')) => (depth, at) = (depth + 1, at + 2),
            (Some('*'), Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(chars.len())
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of a raw string whose `r` stands just before `from`; `None` if it is no raw string.
fn raw_string_end(chars: &[char], from: usize) -> Option<usize> {
    let hashes = chars.iter().skip(from).take_while(|c| **c == '#').count();
    if chars.get(from + hashes) != Some(&'"') {
        return None;
    }
    let mut at = from + hashes + 1;
    while at < chars.len() {
        let closing = chars.iter().skip(at + 1).take(hashes).filter(|c| **c == '#').count();
        if chars.get(at) == Some(&'"') && closing == hashes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(chars: &[char], from: usize) -> Option<usize> {
    match (chars.get(from + 1)?, chars.get(from + 2)) {
        ('\\', Some(_)) => {
            let closing = chars.iter().skip(from + 3).position(|c| *c == '\'')?;
            Some(from + 3 + closing + 1)
        }
        (_, Some('\'')) => Some(from + 3),
        _ => None,
    }
}

fn in_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is a raw string too, but `for"…"` is not one.
    let before = at.checked_sub(1).and_then(|at| chars.get(at)).copied();
    before.is_some_and(|c| is_word(c) && c != 'b')
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The lines, counted from one, on which `word` stands as a whole word.
pub(crate) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let has = |line: &str| line.split(|c| !is_word(c)).any(|part| part == word);
    code.lines().enumerate().filter(|(_, line)| has(line)).map(|(index, _)| index + 1).collect()
}

/// The inner attributes of a file, without white space: `forbid(unsafe_code)`.
pub(crate) fn inner_attributes(code: &str) -> Vec<String> {
    let parts = code.split("#![").skip(1);
    parts.map(|part| balanced(part, '[', ']').chars().filter(|c| !c.is_whitespace()).collect()).collect()
}

/// The lints an inner attribute of this level (`deny`, `forbid`) names, in any of the file's attributes.
pub(crate) fn lints_at(code: &str, levels: &[&str]) -> Vec<String> {
    let mut lints = Vec::new();
    for attribute in inner_attributes(code) {
        let Some((level, names)) = attribute.split_once('(') else { continue };
        if levels.contains(&level) {
            lints.extend(names.trim_end_matches(')').split(',').map(str::to_owned));
        }
    }
    lints
}

/// What stands before the bracket that closes the one just before `text`.
fn balanced(text: &str, open: char, close: char) -> &str {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
        }
        if depth == 0 {
            return text.get(..at).unwrap_or(text);
        }
    }
    text
}

/// The number of lines outside modules for tests.
pub(crate) fn lines_without_tests(text: &str) -> usize {
    let code = code_only(text);
    let mut tests = 0;
    let mut rest = code.as_str();
    while let Some((_, after)) = rest.split_once("#[cfg(test)]") {
        rest = after;
        let item = after.trim_start();
        let (Some(brace), true) = (after.find('{'), item.starts_with("mod ")) else { continue };
        if after.find(';').is_some_and(|semicolon| semicolon < brace) {
            continue;
        }
        let body = balanced(after.get(brace + 1..).unwrap_or_default(), '{', '}');
        tests +=
            after.get(..brace).map_or(0, |head| head.matches('\n').count()) + body.matches('\n').count() + 1;
    }
    text.lines().count().saturating_sub(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_only_blanks_comments_strings_and_characters_and_keeps_lines() {
        let text = "let a = \"x // \\\" y\"; // unsafe\n/* a /* b */ c */ let b = 'q'; let c: &'static str = r#\"\"unsafe\"#;\n";
        let code = code_only(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.chars().count(), text.chars().count());
        assert!(!code.contains("unsafe") && !code.contains('q') && !code.contains('y'), "{code}");
        assert!(code.contains("let b =") && code.contains("&'static str"), "{code}");
    }

    #[test]
    fn code_only_knows_escapes_from_lifetimes() {
        let code = code_only("let a = '\\''; fn f<'a>(x: &'a u8) {} let b = '\\u{1F}'; end");
        assert!(code.contains("fn f<'a>(x: &'a u8) {}") && code.ends_with("; end"), "{code}");
    }

    #[test]
    fn lines_with_word_finds_whole_words_only() {
        assert_eq!(lines_with_word("unsafe_code\nunsafe {\nxunsafe\n(unsafe)", "unsafe"), [2, 4]);
    }

    #[test]
    fn lints_at_reads_attributes_over_several_lines() {
        let text =
            "#![forbid(unsafe_code)]\n#![deny(\n    clippy::panic,\n    clippy::unwrap_used,\n)]\nmod a;";
        assert_eq!(lints_at(text, &["forbid"]), ["unsafe_code"]);
        let both = lints_at(text, &["deny", "forbid"]);
        assert!(
            both.contains(&"clippy::panic".to_owned()) && both.contains(&"clippy::unwrap_used".to_owned())
        );
        assert!(lints_at("#![cfg_attr(x, deny(clippy::panic))]", &["deny"]).is_empty());
    }

    #[test]
    fn lines_without_tests_leaves_out_the_module_and_no_more() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n";
        assert_eq!(lines_without_tests(text), 2);
        assert_eq!(lines_without_tests("#[cfg(test)]\nmod tests;\nfn a() {}\n"), 3);
    }
}
