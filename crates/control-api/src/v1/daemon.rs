//! The daemon itself.

use serde::{Deserialize, Serialize};

/// What is running, and on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Daemon {
    /// Version of `vramd`, as in its package.
    pub version: String,
    /// Kind of GPUs it runs on: `sim` or `cuda`.
    pub backend: String,
    /// Whether no GPU is really there.
    pub simulated: bool,
    /// Driver version or the like, for people.
    pub backend_version: String,
    /// The value guests see in their configuration space; another one means that their memory was lost. In JSON
    /// sixteen hexadecimal digits, because many readers of JSON lose digits of large numbers.
    #[serde(with = "hex_epoch")]
    #[cfg_attr(test, schema(value_type = String, pattern = "^[0-9a-f]{16}$"))]
    pub boot_epoch: u64,
    /// Whole seconds since it started.
    pub uptime_seconds: u64,
}

mod hex_epoch {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(epoch: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{epoch:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(de::Error::invalid_value(de::Unexpected::Str(&text), &"sixteen hexadecimal digits"));
        }
        u64::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(boot_epoch: u64) -> Daemon {
        Daemon {
            version: "0.1.0".into(),
            backend: "sim".into(),
            simulated: true,
            backend_version: "simulated GPUs".into(),
            boot_epoch,
            uptime_seconds: 7,
        }
    }

    #[test]
    fn daemon_epoch_of_any_size_travels_as_hexadecimal_digits() {
        for (epoch, text) in
            [(0, "0000000000000000"), (0xab, "00000000000000ab"), (u64::MAX, "ffffffffffffffff")]
        {
            let json = serde_json::to_value(daemon(epoch)).unwrap();

            assert_eq!(json["boot_epoch"], text);
            assert_eq!(serde_json::from_value::<Daemon>(json).unwrap(), daemon(epoch));
        }
    }

    #[test]
    fn daemon_wrong_epoch_is_refused() {
        for text in ["", "ab", "+00000000000000a", "00000000000000abc", "000000000000000g"] {
            let mut json = serde_json::to_value(daemon(0)).unwrap();
            json["boot_epoch"] = text.into();

            assert!(serde_json::from_value::<Daemon>(json).is_err(), "{text:?}");
        }
    }
}
