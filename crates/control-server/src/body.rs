//! Bodies of requests, taken at their word: what a field of an unknown name, or a second one, was meant to do is not
//! guessed.

use serde::de::DeserializeOwned;

/// Why a body is not what belongs there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is not JSON, or has fields that are unknown, missing, double, or of the wrong kind.
    #[error(transparent)]
    Fields(#[from] serde_json::Error),
    /// It is JSON, but not `{…}`.
    #[error("it is not a JSON object")]
    NotAnObject,
}

/// Reads a body into a type, which denies unknown fields.
pub(crate) fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    // A list of values in the right order would do for a structure.
    match body.trim_ascii_start().first() {
        Some(b'[') => Err(BodyError::NotAnObject),
        _ => Ok(serde_json::from_slice(body)?),
    }
}

#[cfg(test)]
mod tests {
    use vram_control_api::v1::SliceChange;

    use super::*;

    fn problem(body: &str) -> String {
        parse_object::<SliceChange>(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn parse_object_with_fields_or_none_is_read() {
        for (body, limit_bytes) in [(" {}\n", None), ("\t{\"limit_bytes\": 7}", Some(7))] {
            assert_eq!(parse_object::<SliceChange>(body.as_bytes()).unwrap().limit_bytes, limit_bytes);
        }
    }

    #[test]
    fn parse_object_field_given_twice_is_refused_by_name() {
        for body in [
            r#"{"limit_bytes":1,"limit_bytes":1}"#,
            r#"{"limit_bytes":null,"limit_bytes":1}"#,
            r#"{"limit_bytes":1,"\u006cimit_bytes":1}"#,
        ] {
            assert!(problem(body).contains("duplicate field `limit_bytes`"), "{body}");
        }
    }

    #[test]
    fn parse_object_unknown_fields_and_lists_are_refused() {
        assert!(problem(r#"{"limit":1}"#).contains("unknown field `limit`"));
        assert_eq!(problem(" [1, 2]"), "it is not a JSON object");
        for body in ["", "null", "7", "\"x\"", "{} {}"] {
            assert!(parse_object::<SliceChange>(body.as_bytes()).is_err(), "{body}");
        }
    }
}
