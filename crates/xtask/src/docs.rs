//! What documents and sources say is true on any machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::commands::{self, Tested};
use crate::finding::Report;
use crate::workspace::Workspace;
use crate::{markdown, source};

/// Most lines of a source file, tests left out.
const MAX_LINES: usize = 600;

/// Hosts an address may name: specifications and manuals. Mirrors and registries are found at run time.
const HOSTS: &[&str] = &[
    "doc.rust-lang.org",
    "docs.kernel.org",
    "docs.nvidia.com",
    "docs.oasis-open.org",
    "docs.rs",
    "example.com",
    "keepachangelog.com",
    "localhost",
    "qemu.readthedocs.io",
    "semver.org",
    "spdx.org",
    "www.apache.org",
    "www.gnu.org",
    "www.kernel.org",
    "www.qemu.org",
];

/// Folders of single machines. In `integration` the last one is a guest's.
const MACHINE_FOLDERS: &[(&str, Option<&str>)] =
    &[("/work/", None), ("/home/", None), ("/root/", Some("integration/"))];

/// Words about how a text came to be; the text speaks for itself.
const NOT_OURS: &[&str] = &["subagent", "ai-generated", "ai assistant", "co-authored-by"];

/// What version control puts around both sides of a conflict.
const CONFLICT: &[&str] = &["<<<<<<< ", ">>>>>>> "];

/// Texts of others, word for word, and what programs write.
const FOREIGN: &[&str] = &["LICENSE", "COPYING", "Cargo.lock"];

/// These files hold the words that are looked for.
const OWN: &str = "crates/xtask/src/";

pub(crate) fn check(workspace: &Workspace) -> Result<Report> {
    let mut report = Report::default();
    let files = workspace.tracked_files()?;
    let tracked: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    let mut texts = BTreeMap::new();
    for file in &files {
        // What is not text has no words.
        if let Ok(text) = workspace.read(file) {
            texts.insert(file.as_str(), text);
        }
    }
    let mut untested = Vec::new();
    for (file, text) in &texts {
        if file.ends_with(".md") {
            check_links(
                file,
                text,
                &texts,
                &|path| tracked.contains(path) || is_folder(&tracked, path),
                &mut report,
            );
            check_commands(file, text, &texts, &mut untested, &mut report);
        }
        let conflict = |line: &&str| CONFLICT.iter().any(|mark| line.starts_with(mark));
        if let Some((number, _)) = (1..).zip(text.lines()).find(|(_, line)| conflict(line)) {
            report.finding(format!("{file}:{number}"), "A merge was not resolved.", "Resolve it.");
        }
        let foreign = FOREIGN.iter().any(|name| Path::new(file).ends_with(name));
        if !foreign && !file.starts_with(OWN) {
            report.absorb(words(file, text, &tracked));
        }
        let lines =
            if file.ends_with(".rs") && !is_test(file) { source::lines_without_tests(text) } else { 0 };
        if lines > MAX_LINES {
            let wrong =
                format!("{lines} lines without tests; {MAX_LINES} are what one can hold in one's head");
            report.finding(*file, wrong, "Split it by noun.");
        }
    }
    if !untested.is_empty() {
        report.note(format!("commands nothing runs: {}", untested.join(", ")));
    }
    Ok(report)
}

/// Whether tracked files lie below a folder.
fn is_folder(tracked: &BTreeSet<&str>, path: &str) -> bool {
    let below = format!("{path}/");
    path.is_empty() || tracked.range(below.as_str()..).next().is_some_and(|file| file.starts_with(&below))
}

fn is_test(file: &str) -> bool {
    let folders = ["tests", "benches"];
    let parts: Vec<&str> = file.split('/').collect();
    let (name, parents) = parts.split_last().unwrap_or((&"", &[]));
    // The crate of whole-daemon tests is a folder `tests` too.
    *name == "tests.rs" || parents.iter().any(|part| folders.contains(part))
}

/// The path a link leads to, from the root on; `None` if it leaves the checkout.
fn target(file: &str, link: &str) -> Option<String> {
    let joined = match link.strip_prefix('/') {
        Some(from_root) => PathBuf::from(from_root),
        None => Path::new(file).parent()?.join(link),
    };
    let mut parts: Vec<&str> = Vec::new();
    for component in joined.components() {
        match component {
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?),
            _ => {}
        }
    }
    Some(parts.join("/"))
}

fn check_links(
    file: &str,
    text: &str,
    texts: &BTreeMap<&str, String>,
    exists: &dyn Fn(&str) -> bool,
    report: &mut Report,
) {
    let (prose, _) = markdown::split(text);
    for line in prose {
        for link in markdown::links(line.text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let place = format!("{file}:{}", line.number);
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let path = if path.is_empty() { Some(file.to_owned()) } else { target(file, path) };
            let Some(path) = path.filter(|path| exists(path)) else {
                report.finding(
                    place,
                    format!("The link to {link} leads nowhere"),
                    "Correct it, or track the file.",
                );
                continue;
            };
            if fragment.is_empty() || !path.ends_with(".md") {
                continue;
            }
            let there = texts.get(path.as_str()).map(|text| markdown::split(text).0).unwrap_or_default();
            if !there.iter().any(|line| markdown::anchor(line.text).as_deref() == Some(fragment)) {
                report.finding(place, format!("{path} has no heading #{fragment}"), "Correct the link.");
            }
        }
    }
}

fn check_commands(
    file: &str,
    text: &str,
    texts: &BTreeMap<&str, String>,
    untested: &mut Vec<String>,
    report: &mut Report,
) {
    for block in markdown::split(text).1 {
        let place = format!("{file}:{}", block.number);
        match commands::tested(block.info) {
            Tested::NoCommands => {}
            Tested::Not(reason) => untested.push(format!("{place} ({reason})")),
            Tested::Unsaid => {
                let mend = "Write ```sh test=FILE with the file that runs them, or ```sh untested=REASON.";
                report.finding(place, "Commands, and nothing says what runs them", mend);
            }
            Tested::By(runner) => match texts.get(runner.as_str()) {
                None => report.finding(
                    place,
                    format!("{runner} is no tracked file"),
                    "Name the file that runs them.",
                ),
                Some(text) => {
                    for command in commands::missing(&block, text) {
                        let mend = "Run it there, word for word, or correct the document.";
                        report.finding(&place, format!("{runner} does not run `{command}`"), mend);
                    }
                }
            },
        }
    }
}

/// Addresses, paths and words that do not belong into a tracked file.
fn words(file: &str, text: &str, tracked: &BTreeSet<&str>) -> Report {
    let mut report = Report::default();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", index + 1);
        for host in hosts(line).into_iter().filter(|host| !HOSTS.contains(&host.as_str())) {
            let mend = format!("Find it at run time, or add the manual's host to {OWN}docs.rs.");
            report.finding(&place, format!("The address names the host {host}"), mend);
        }
        for (folder, except) in MACHINE_FOLDERS {
            if has_path(line, folder) && !except.is_some_and(|except| file.starts_with(except)) {
                report.finding(&place, format!("A path of one machine: {folder}"), "Find it at run time.");
            }
        }
        let lower = line.to_lowercase();
        for word in NOT_OURS.iter().filter(|word| lower.contains(**word)) {
            report.finding(&place, format!("'{word}' is not about the product"), "Take it out.");
        }
        for document in documents(line) {
            let is_there = |file: &&str| file.rsplit('/').next() == Some(document);
            if !tracked.iter().any(is_there) {
                report.finding(
                    &place,
                    format!("No tracked document is called {document}"),
                    "Name one that is.",
                );
            }
        }
    }
    report
}

/// The hosts of the addresses in a line.
fn hosts(line: &str) -> Vec<String> {
    let parts: Vec<&str> = line.split("://").collect();
    let addresses = parts.windows(2).filter_map(|pair| match pair {
        [scheme, rest] if scheme.ends_with("http") || scheme.ends_with("https") => Some(rest),
        _ => None,
    });
    let hosts =
        addresses.map(|rest| rest.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c))).next());
    hosts.flatten().filter(|host| !host.is_empty()).map(str::to_lowercase).collect()
}

/// Whether an absolute path below `folder` stands in a line.
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}*)/~".contains(c))
    })
}

/// Names of Markdown documents in a line, without their folders.
fn documents(line: &str) -> Vec<&str> {
    let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)));
    let names = words.filter_map(|word| word.trim_end_matches('.').rsplit('/').next());
    names.filter(|name| name.strip_suffix(".md").is_some_and(|stem| !stem.is_empty())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_taken_from_the_file_that_links() {
        assert_eq!(target("docs/a/b.md", "../c.md").as_deref(), Some("docs/c.md"));
        assert_eq!(target("README.md", "docs/").as_deref(), Some("docs"));
        assert_eq!(target("README.md", "../x"), None);
        assert_eq!(target("docs/a.md", "/README.md").as_deref(), Some("README.md"));
    }

    #[test]
    fn check_links_names_dead_files_and_headings() {
        let mut report = Report::default();
        let texts = BTreeMap::from([("a.md", "# One two\n".to_owned())]);
        let text = "[x](a.md#one-two) [y](a.md#three) [z](b.md) [w](https://localhost/)";
        check_links("c.md", text, &texts, &|path| path == "a.md", &mut report);
        let wrongs: Vec<_> = report.findings().iter().map(|finding| finding.wrong.as_str()).collect();
        assert_eq!(wrongs, ["a.md has no heading #three", "The link to b.md leads nowhere"]);
    }

    #[test]
    fn check_commands_wants_every_command_in_the_file_that_runs_it() {
        let mut report = Report::default();
        let texts = BTreeMap::from([("run", "make a\n".to_owned())]);
        let text = "```sh test=run\nmake a\nmake b\n```\n```sh\nx\n```\n```sh untested=slow\ny\n```\n";
        let mut untested = Vec::new();
        check_commands("r.md", text, &texts, &mut untested, &mut report);
        let wrongs: Vec<_> = report.findings().iter().map(|finding| finding.wrong.as_str()).collect();
        assert_eq!(wrongs, ["run does not run `make b`", "Commands, and nothing says what runs them"]);
        assert_eq!(untested, ["r.md:8 (slow)"]);
    }

    #[test]
    fn hosts_and_paths_are_found_where_they_are_whole() {
        assert_eq!(hosts("see https://Mirror.example.org:80/x and http://a"), ["mirror.example.org", "a"]);
        assert!(has_path("cd /home/x", "/home/") && has_path("\"/home/x\"", "/home/"));
        assert!(!has_path("$HOME/home/x", "/home/") && !has_path("tree/home/x", "/home/"));
    }

    #[test]
    fn documents_are_names_that_end_in_md() {
        assert_eq!(documents("see docs/a.md, `b-c.md` and *.md."), ["a.md", "b-c.md"]);
    }

    #[test]
    fn tests_are_known_by_their_folder_or_name() {
        assert!(
            is_test("crates/a/tests/b.rs")
                && is_test("crates/a/src/x/tests.rs")
                && is_test("tests/src/lib.rs")
        );
        assert!(!is_test("crates/testkit/src/lib.rs"));
    }
}
