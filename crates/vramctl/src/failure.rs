//! Why something asked for is not done, for people and for programs.

use serde::Serialize;
use vram_control_api::ClientError;
use vram_control_api::v1::ErrorCode;

use crate::args::Output;
use crate::show;

/// An error of the API, or one that looks like it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    code: Code,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Code {
    /// What the daemon says.
    Refused(ErrorCode),
    /// What this program says.
    Own(OwnCode),
}

/// What went wrong on this side, beside the words of [`ErrorCode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum OwnCode {
    /// No daemon answers.
    Unreachable,
    /// What answers is not the daemon this program knows.
    BadAnswer,
    /// Anything else.
    Failed,
}

impl Failure {
    pub(crate) fn new(error: &anyhow::Error) -> Self {
        let client_error = error.downcast_ref::<ClientError>();
        Self {
            code: client_error.map_or(Code::Own(OwnCode::Failed), code),
            message: format!("{error:#}"),
            hint: client_error.and_then(ClientError::hint),
        }
    }

    /// Lines for the standard error output.
    pub(crate) fn shown(&self, output: Output) -> String {
        let json = match output {
            Output::Table => None,
            // Strings can always be written.
            Output::Json => show::json(self).ok(),
        };
        json.unwrap_or_else(|| {
            let hint = self.hint.iter().map(|hint| show::line("hint", hint));
            show::line("error", &self.message) + &hint.collect::<String>()
        })
    }
}

fn code(error: &ClientError) -> Code {
    match error {
        ClientError::Refused { body, .. } => Code::Refused(body.code),
        ClientError::SocketMissing { .. }
        | ClientError::PermissionDenied { .. }
        | ClientError::NobodyListens { .. }
        | ClientError::Connect { .. }
        | ClientError::TimedOut { .. } => Code::Own(OwnCode::Unreachable),
        ClientError::Http { .. } | ClientError::Body { .. } | ClientError::NotVram { .. } => {
            Code::Own(OwnCode::BadAnswer)
        }
        ClientError::Encode { .. } | ClientError::Start { .. } => Code::Own(OwnCode::Failed),
    }
}
