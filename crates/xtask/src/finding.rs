//! What a check reports.

use std::fmt::Write;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File, or file and line.
    pub(crate) place: String,
    /// What is wrong.
    pub(crate) wrong: String,
    /// What to do.
    pub(crate) mend: String,
}

/// What a check found, and what it looked at.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
}

impl Report {
    /// Something is wrong at `place`; `mend` says what to do.
    pub(crate) fn finding(
        &mut self,
        place: impl Into<String>,
        wrong: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.findings.push(Finding { place: place.into(), wrong: wrong.into(), mend: mend.into() });
    }

    /// Something worth knowing that is not wrong.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Takes over what another report says.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.notes.extend(other.notes);
    }

    /// The text for a person.
    pub(crate) fn render(&self, check: &str) -> String {
        let mut text = String::new();
        for Finding { place, wrong, mend } in &self.findings {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{check}: {place}: {wrong}\n    {mend}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "{check}: {note}");
        }
        let _ = match self.findings.len() {
            0 => writeln!(text, "{check}: ok"),
            count => writeln!(text, "{check}: {count} to mend"),
        };
        text
    }
}
