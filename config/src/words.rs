//! Values that are one word out of a list.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;
use crate::model::{Choice, Collector, Credentials, LogFormat, Policy, TierKind};

impl Policy {
    /// The words of all policies, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["lru", "arc"];

    /// The word that names the policy in a configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
        }
    }
}

impl FromStr for Policy {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "lru" => Ok(Self::Lru),
            "arc" => Ok(Self::Arc),
            _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl LogFormat {
    /// The words of all formats, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["text", "json"];

    /// The word that names the format in a configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
        }
    }
}

impl Choice {
    /// The words of all choices, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["auto", "require", "off"];

    /// The word that names the choice in a configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Off => "off",
        }
    }
}

impl FromStr for Choice {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "off" => Ok(Self::Off),
            _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Collector {
    /// The words of all choices, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["auto", "always", "never"];

    /// The word that names the choice in a configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

impl FromStr for Collector {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Credentials {
    /// The words of all sources, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["chain", "environment", "file", "none"];

    /// The word that names the source in a configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Environment => "environment",
            Self::File => "file",
            Self::None => "none",
        }
    }
}

impl FromStr for Credentials {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "chain" => Ok(Self::Chain),
            "environment" => Ok(Self::Environment),
            "file" => Ok(Self::File),
            "none" => Ok(Self::None),
            _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
        }
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl TierKind {
    /// The words of all kinds, in the order of the variants: values of `type`.
    pub const WORDS: &'static [&'static str] = &["nvme", "memory", "object"];

    /// The `type` of the tier.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Nvme(_) => "nvme",
            Self::Memory(_) => "memory",
            Self::Object(_) => "object",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_parse_to_what_they_name() {
        for word in Policy::WORDS {
            assert_eq!(word.parse::<Policy>().map(Policy::word).ok(), Some(*word));
        }
        for word in Choice::WORDS {
            assert_eq!(word.parse::<Choice>().map(Choice::word).ok(), Some(*word));
        }
        for word in Collector::WORDS {
            assert_eq!(word.parse::<Collector>().map(Collector::word).ok(), Some(*word));
        }
        for word in Credentials::WORDS {
            assert_eq!(word.parse::<Credentials>().map(Credentials::word).ok(), Some(*word));
        }
        let error = "fifo".parse::<Policy>().map_err(|error| error.to_string());
        assert_eq!(error, Err("\"fifo\" is none of: lru, arc".to_owned()));
    }
}
