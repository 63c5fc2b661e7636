//! The fields of a tier as they are written, each taken once by what needs it.

use std::fmt;
use std::path::PathBuf;

use toml::{Table, Value};
use vram_control_api::ByteSize;
use vram_tier::TierKind;

use super::problem::TierProblem;
use crate::config::slice::absolute_path;
use crate::config::{ConfigError, Origin, Setting};

/// A value before it is known what it is to be.
#[derive(Clone)]
pub(in crate::config) enum Written {
    /// On the command line.
    Text(String),
    /// In the file.
    Toml(Value),
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a secret.
        f.write_str("Written")
    }
}

impl Written {
    /// As it was written, for messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Toml(Value::String(text)) => format!("{text:?}"),
            Self::Toml(Value::Array(_)) => "a list".to_owned(),
            Self::Toml(Value::Table(_)) => "a table".to_owned(),
            Self::Toml(value) => value.to_string(),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Toml(Value::String(text)) => Some(text),
            Self::Toml(_) => None,
        }
    }

    fn integer(&self) -> Option<i64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(value) => value.as_integer(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(Value::Float(number)) => Some(*number),
            Self::Toml(Value::Integer(number)) => i32::try_from(*number).ok().map(f64::from),
            Self::Toml(_) => None,
        }
    }

    fn flag(&self) -> Option<bool> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(value) => value.as_bool(),
        }
    }
}

/// The fields of one tier that nobody has taken yet.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    kind: TierKind,
    /// Where the tier stands.
    origin: Origin,
    written: Vec<(String, Setting<Written>)>,
    /// The names of those that were asked for, there or not: all its kind has.
    known: Vec<&'static str>,
}

impl Fields {
    pub(super) fn new(kind: TierKind, origin: Origin, written: Vec<(String, Setting<Written>)>) -> Self {
        Self { kind, origin, written, known: Vec::new() }
    }

    pub(super) fn kind(&self) -> TierKind {
        self.kind
    }

    /// Refuses the tier as a whole.
    pub(super) fn refuse_tier(&self, problem: TierProblem) -> ConfigError {
        Setting::new((), self.origin.clone()).refuse(problem.into())
    }

    /// Refuses fields nobody asked for.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        match self.written.into_iter().next() {
            None => Ok(()),
            Some((found, setting)) => {
                let problem = TierProblem::UnknownField { kind: self.kind, found, fields: self.known };
                Err(setting.refuse(problem.into()))
            }
        }
    }

    pub(super) fn required<T>(
        &self,
        field: &'static str,
        example: &'static str,
        value: Option<T>,
    ) -> Result<T, ConfigError> {
        value.ok_or_else(|| self.refuse_tier(TierProblem::Missing { kind: self.kind, field, example }))
    }

    /// A size of at least one byte and at most `most`.
    pub(super) fn size(
        &mut self,
        field: &'static str,
        most: ByteSize,
    ) -> Result<Option<ByteSize>, ConfigError> {
        let expected = format!("a size of more than 0 and at most {most}");
        self.size_as(field, expected, |size| Some(size).filter(|size| *size > ByteSize(0) && *size <= most))
    }

    /// A size that stands for something.
    pub(super) fn size_as<T>(
        &mut self,
        field: &'static str,
        expected: String,
        accept: impl FnOnce(ByteSize) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let kind = self.kind;
        let Some(setting) = self.take(field) else { return Ok(None) };
        let size = match (setting.value.text(), setting.value.integer()) {
            (Some(text), _) => match text.parse() {
                Ok(size) => Some(size),
                Err(error) => return Err(setting.refuse(TierProblem::Size { kind, field, error }.into())),
            },
            (None, bytes) => bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(ByteSize),
        };
        match size.and_then(accept) {
            Some(accepted) => Ok(Some(accepted)),
            None => Err(self.refuse(field, &setting, expected)),
        }
    }

    /// Refuses a field the tier's other settings leave no place for.
    pub(super) fn absent(&mut self, field: &'static str, problem: TierProblem) -> Result<(), ConfigError> {
        match self.take(field) {
            None => Ok(()),
            Some(setting) => Err(setting.refuse(problem.into())),
        }
    }

    /// True or false.
    pub(super) fn flag(&mut self, field: &'static str) -> Result<Option<bool>, ConfigError> {
        self.value(field, "true or false", Written::flag)
    }

    /// A whole number from one to another.
    pub(super) fn whole(
        &mut self,
        field: &'static str,
        (least, most): (i64, i64),
    ) -> Result<Option<i64>, ConfigError> {
        let expected = format!("a whole number from {least} to {most}");
        self.value(field, &expected, |written| {
            written.integer().filter(|number| (least..=most).contains(number))
        })
    }

    /// A number from one to another, with decimals or without.
    pub(super) fn number(
        &mut self,
        field: &'static str,
        (least, most): (f64, f64),
    ) -> Result<Option<f64>, ConfigError> {
        let expected = format!("a number from {least} to {most}");
        self.value(field, &expected, |written| {
            written.number().filter(|number| (least..=most).contains(number))
        })
    }

    /// What one of some words stands for.
    pub(super) fn word<T: Copy>(
        &mut self,
        field: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        self.value(field, &expected, |written| {
            let text = written.text()?;
            words.iter().find(|(name, _)| *name == text).map(|(_, meaning)| *meaning)
        })
    }

    /// Any text but an empty one.
    pub(super) fn text(&mut self, field: &'static str) -> Result<Option<String>, ConfigError> {
        self.value(field, "a text", |written| {
            written.text().filter(|text| !text.is_empty()).map(ToOwned::to_owned)
        })
    }

    /// A path that does not depend on where the daemon stands later.
    pub(super) fn path(&mut self, field: &'static str) -> Result<Option<Setting<PathBuf>>, ConfigError> {
        let Some(setting) = self.take(field) else { return Ok(None) };
        let Some(path) = setting.value.text().map(PathBuf::from) else {
            return Err(self.refuse(field, &setting, "a path".to_owned()));
        };
        let what = format!("The {field} of the {} tier", self.kind);
        absolute_path(&what, setting.map(|_| path)).map(Some)
    }

    /// A table, of which no message says anything.
    pub(super) fn secret_table(
        &mut self,
        field: &'static str,
    ) -> Result<Option<Setting<Table>>, ConfigError> {
        let Some(Setting { value, origin }) = self.take(field) else { return Ok(None) };
        match value {
            Written::Toml(Value::Table(table)) => Ok(Some(Setting::new(table, origin))),
            Written::Toml(_) | Written::Text(_) => {
                Err(Setting::new((), origin).refuse(TierProblem::Options.into()))
            }
        }
    }

    fn value<T>(
        &mut self,
        field: &'static str,
        expected: &str,
        read: impl FnOnce(&Written) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(setting) = self.take(field) else { return Ok(None) };
        match read(&setting.value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.refuse(field, &setting, expected.to_owned())),
        }
    }

    fn refuse(&self, field: &'static str, setting: &Setting<Written>, expected: String) -> ConfigError {
        let found = setting.value.shown();
        setting.refuse(TierProblem::Value { kind: self.kind, field, expected, found }.into())
    }

    fn take(&mut self, field: &'static str) -> Option<Setting<Written>> {
        self.known.push(field);
        let place = self.written.iter().position(|(name, _)| name == field)?;
        Some(self.written.swap_remove(place).1)
    }
}
