//! What the server says when it cannot answer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// What went wrong, for programs.
    pub code: ErrorCode,
    /// What went wrong, for people: one sentence without a full stop.
    pub message: String,
    /// What to do next, if something helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The thing asked for does not exist (404).
    NotFound,
    /// No such path (404).
    UnknownRoute,
    /// The path exists, this method on it does not (405).
    MethodNotAllowed,
    /// The body is not what belongs there (400).
    BadRequest,
    /// It cannot be done as things are (409).
    Conflict,
    /// The request has a larger body than the server reads (413).
    TooLarge,
    /// Too many connections are open, of this user or of all (503). Nothing was done; ask again.
    Busy,
    /// The server failed; its log says more (500).
    Internal,
    /// A code this program does not know yet.
    #[serde(other)]
    Unknown,
}
