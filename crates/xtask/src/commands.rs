//! Every command a document prints is run somewhere.
//!
//! A fenced block of shell commands names the file that runs it, from the root on:
//!
//! ````text
//! ```sh test=.ci/run
//! make test
//! ```
//! ````
//!
//! That file is tracked and holds every command of the block, word for word. A command may go over several lines with
//! `\`; comments and white space do not count. A block that nothing can run says why, in one word with hyphens:
//! `sh untested=needs-a-gpu`. Blocks in other languages (`text`, `toml`, `console`, …) are not commands.

use crate::markdown::Block;

/// What the information string of a block says about its commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tested {
    /// No commands.
    NoCommands,
    /// This file runs them.
    By(String),
    /// Nothing runs them, for this reason.
    Not(String),
    /// Commands, and nothing about who runs them.
    Unsaid,
}

/// Who runs the commands of a block.
pub(crate) fn tested(info: &str) -> Tested {
    let mut words = info.split_whitespace();
    if !matches!(words.next(), Some("sh" | "bash" | "shell")) {
        return Tested::NoCommands;
    }
    for word in words {
        match word.split_once('=') {
            Some(("test", file)) if !file.is_empty() => return Tested::By(file.to_owned()),
            Some(("untested", reason)) if !reason.is_empty() => return Tested::Not(reason.to_owned()),
            _ => {}
        }
    }
    Tested::Unsaid
}

/// The commands of a block: lines joined where they go on, comments dropped, white space squeezed.
pub(crate) fn commands(block: &Block<'_>) -> Vec<String> {
    let mut commands = Vec::new();
    let mut begun = String::new();
    for line in &block.lines {
        let line = line.split(" #").next().unwrap_or_default().trim();
        if begun.is_empty() && line.starts_with('#') {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => begun = format!("{begun}{part} "),
            None => {
                let command = squeezed(&format!("{begun}{line}"));
                begun.clear();
                if !command.is_empty() {
                    commands.push(command);
                }
            }
        }
    }
    commands
}

/// The commands of a block that do not stand in a text.
pub(crate) fn missing(block: &Block<'_>, text: &str) -> Vec<String> {
    let joined = squeezed(&text.replace("\\\n", " "));
    commands(block).into_iter().filter(|command| !joined.contains(command.as_str())).collect()
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block<'a>(lines: &[&'a str]) -> Block<'a> {
        Block { number: 1, info: "sh", lines: lines.to_vec() }
    }

    #[test]
    fn tested_reads_who_runs_a_block() {
        assert_eq!(tested("sh test=.ci/run"), Tested::By(".ci/run".to_owned()));
        assert_eq!(tested("sh untested=needs-a-gpu"), Tested::Not("needs-a-gpu".to_owned()));
        assert_eq!(tested("bash"), Tested::Unsaid);
        assert_eq!(tested("sh test="), Tested::Unsaid);
        assert_eq!(tested("toml"), Tested::NoCommands);
        assert_eq!(tested(""), Tested::NoCommands);
    }

    #[test]
    fn commands_are_joined_and_comments_dropped() {
        let block = block(&["# first", "make  test # all", "vramd --gpu \\", "    sim", "", "ls"]);
        assert_eq!(commands(&block), ["make test", "vramd --gpu sim", "ls"]);
    }

    #[test]
    fn missing_names_the_commands_that_nothing_runs() {
        let block = block(&["make test", "make \\", "  check", "make nonsense"]);
        assert_eq!(missing(&block, "set -e\nmake test\nmake \\\n   check\n"), ["make nonsense"]);
    }
}
