//! How a piece of work ended.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a piece of work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T> {
    /// It returned.
    Returned(T),
    /// It panicked, which the log already says.
    Panicked(Panic),
}

impl<T> Outcome<T> {
    /// What it returned, unless it panicked.
    pub fn returned(self) -> Option<T> {
        match self {
            Self::Returned(value) => Some(value),
            Self::Panicked(_) => None,
        }
    }

    /// Whether it panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, Self::Panicked(_))
    }
}

/// A panic that was contained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{work} panicked: {message}")]
pub struct Panic {
    /// The name of the thread or the piece of work.
    pub work: String,
    /// What the panic said. Where it happened is on the standard error output, from the panic hook.
    pub message: String,
}

impl Panic {
    fn new(work: &str, payload: Box<dyn Any + Send>) -> Self {
        let message = match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => match payload.downcast::<&'static str>() {
                Ok(text) => (*text).to_owned(),
                Err(payload) => {
                    discard(payload);
                    "(not a text)".to_owned()
                }
            },
        };
        Self { work: work.to_owned(), message }
    }
}

/// Drops a payload, whose destructor may panic too. The payload of *that* panic is leaked, or it could go on for ever.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// Does a piece of work; a panic in it is logged as an error and returned. `work` is its name, for people.
///
/// What the work had borrowed mutably or locked when it panicked may be half changed: give it up, or see to it that
/// its invariants hold at every step.
pub fn contain<T>(work: &str, run: impl FnOnce() -> T) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Outcome::Returned(value),
        Err(payload) => {
            let panic = Panic::new(work, payload);
            tracing::error!(work = panic.work, reason = panic.message, "Contained a panic");
            Outcome::Panicked(panic)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contain_good_work_returns() {
        let outcome = contain("sum", || 1 + 1);

        assert_eq!(outcome, Outcome::Returned(2));
        assert_eq!(outcome.returned(), Some(2));
    }

    #[test]
    fn contain_panic_keeps_name_and_message() {
        let outcome: Outcome<()> = contain("lift", || panic!("floor {} is missing", 13));

        let expected = Panic { work: "lift".into(), message: "floor 13 is missing".into() };
        assert_eq!(expected.to_string(), "lift panicked: floor 13 is missing");
        assert_eq!(outcome, Outcome::Panicked(expected));
    }

    #[test]
    fn contain_plain_text_and_other_payloads_are_panics() {
        struct Grudge;
        impl Drop for Grudge {
            fn drop(&mut self) {
                std::panic::panic_any(3);
            }
        }

        let text: Outcome<()> = contain("w", || panic!("plain"));
        let number: Outcome<()> = contain("w", || std::panic::panic_any(7));
        let grudge: Outcome<()> = contain("w", || std::panic::panic_any(Grudge));

        assert!(matches!(text, Outcome::Panicked(panic) if panic.message == "plain"));
        assert!(matches!(number, Outcome::Panicked(panic) if panic.message == "(not a text)"));
        assert!(grudge.is_panic());
    }
}
