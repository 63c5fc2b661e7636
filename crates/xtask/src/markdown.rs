//! As much of Markdown as the documents here use.

/// A line and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Counted from one.
    pub(crate) number: usize,
    pub(crate) text: &'a str,
}

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// Line of the opening fence, counted from one.
    pub(crate) number: usize,
    /// What stands behind the opening fence.
    pub(crate) info: &'a str,
    pub(crate) lines: Vec<&'a str>,
}

/// Splits a document into the lines outside fences and the fenced blocks.
pub(crate) fn split(text: &str) -> (Vec<Line<'_>>, Vec<Block<'_>>) {
    let mut prose = Vec::new();
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open) {
            (Some(info), false) => {
                blocks.push(Block { number: index + 1, info: info.trim(), lines: Vec::new() });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                if let Some(block) = blocks.last_mut() {
                    block.lines.push(line);
                }
            }
            (None, false) => prose.push(Line { number: index + 1, text: line }),
        }
    }
    (prose, blocks)
}

/// The cells of a table's row; `None` if the line is none.
pub(crate) fn row(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// The code spans of a line, each with what follows it.
pub(crate) fn code_spans(line: &str) -> Vec<(&str, &str)> {
    let mut spans = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once('`') {
        let Some((span, after)) = after.split_once('`') else { break };
        spans.push((span, after));
        rest = after;
    }
    spans
}

/// The targets of the links of a line: `[text](target)`, `![text](target)`, `[name]: target`.
pub(crate) fn links(line: &str) -> Vec<String> {
    let plain = without_code(line);
    let mut targets = Vec::new();
    if let Some((_, target)) = plain.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        targets.push(target.trim().to_owned());
    }
    for part in plain.split("](").skip(1) {
        let target = part.split(')').next().unwrap_or_default();
        // A title may follow.
        targets.push(target.split_whitespace().next().unwrap_or_default().to_owned());
    }
    targets
}

fn without_code(line: &str) -> String {
    let outside = line.split('`').enumerate().filter(|(index, _)| index % 2 == 0).map(|(_, part)| part);
    outside.collect::<Vec<_>>().join("")
}

/// The anchor of a heading, as hosts of Git repositories make it; `None` if the line is no heading.
pub(crate) fn anchor(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#');
    if title.len() == line.len() || !title.starts_with(' ') {
        return None;
    }
    let lower = title.trim().to_lowercase();
    let kept = lower.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_separates_blocks_from_prose() {
        let (prose, blocks) = split("a\n```sh test=x\nls\n```\nb\n");
        assert_eq!(
            prose.iter().map(|line| (line.number, line.text)).collect::<Vec<_>>(),
            [(1, "a"), (5, "b")]
        );
        assert_eq!(blocks, [Block { number: 2, info: "sh test=x", lines: vec!["ls"] }]);
    }

    #[test]
    fn links_are_found_outside_code_only() {
        assert_eq!(links("see [a](b.md#c) and ![d](e.png \"t\"), `[no](no)`"), ["b.md#c", "e.png"]);
        assert_eq!(links("[x]: y.md"), ["y.md"]);
    }

    #[test]
    fn anchor_is_the_heading_in_small_letters_and_hyphens() {
        assert_eq!(anchor("## 3.1 HELLO, 0x0001: `a_b`").as_deref(), Some("31-hello-0x0001-a_b"));
        assert_eq!(anchor("#no heading"), None);
        assert_eq!(anchor("text"), None);
    }

    #[test]
    fn row_needs_both_ends() {
        assert_eq!(row("| a | b |"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(row("a | b"), None);
    }
}
