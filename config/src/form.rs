//! What a key may hold: reading one TOML value, its bound in words, its JSON Schema.

use std::time::Duration;

use serde_json::json;
use toml::de::{DeInteger, DeValue};

use crate::bounds::MAX_PATHS;
use crate::nearest::nearest;
use crate::units::{format_duration, format_size, parse_duration, parse_size};
use crate::value::{Value, quoted};

/// Bounds of durations, in nanoseconds: a deadline of zero would fail everything, a day is for ever to an engine.
const TIME_NANOS: (u64, u64) = (1_000_000, 86_400 * SECOND);
/// One second in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Longest text.
const TEXT_BYTES: usize = 4096;
/// Longest list of texts.
const MAX_TEXTS: usize = 256;
/// Longest path (the kernel's own limit).
const PATH_BYTES: usize = 4095;
/// Longest name of a tier.
const NAME_BYTES: usize = 64;
/// Names that already mean something in statistics and events.
const RESERVED_NAMES: [&str; 2] = ["gpu", "primary"];

/// The values that a key may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// `true` or `false`.
    Flag,
    /// A whole number, both bounds included.
    Count { min: u64, max: u64 },
    /// Bytes, as a number or with a binary unit; both bounds included.
    Size { min: u64, max: u64 },
    /// A fraction, `0.0..=1.0`.
    Share,
    /// A duration with its unit.
    Time,
    /// A duration with bounds of its own, both included.
    TimeFrom { min_secs: u64, max_secs: u64 },
    /// One of a list.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
    /// A name of a tier.
    Name,
    /// A name that is somebody else's.
    Label,
    /// A list of texts, perhaps empty.
    Texts,
    /// Devices, perhaps none: numbers, or `GPU-` and a UUID.
    Devices,
    /// A file.
    Path,
    /// A directory.
    Directory,
    /// Directories.
    Paths,
}

/// Why a value was refused: the fault's fix. Its bound is [`Form::bound`].
type Refusal = String;

impl Form {
    /// The rule, `must be a whole number from 1 to 64`.
    pub fn bound(&self) -> String {
        let rule = match self {
            Self::Flag => "true or false".to_owned(),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Size { min, max } => format!("a size from {} to {}", format_size(*min), format_size(*max)),
            Self::Share => "a number from 0.0 to 1.0".to_owned(),
            Self::Time | Self::TimeFrom { .. } => {
                let (min, max) = self.nanos();
                format!("a duration from {} to {}", format_nanos(min), format_nanos(max))
            }
            Self::Word(words) => format!("one of {}", words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(", ")),
            Self::Text => format!("a string of at most {TEXT_BYTES} bytes"),
            Self::Name | Self::Label => format!("a string of 1 to {NAME_BYTES} letters, digits, '-', '_' or '.'"),
            Self::Texts => format!("a list of at most {MAX_TEXTS} strings"),
            Self::Devices => format!("a list of at most {MAX_TEXTS} numbers of devices or \"GPU-<uuid>\""),
            Self::Path => "the path of a file".to_owned(),
            Self::Directory => "the path of a directory".to_owned(),
            Self::Paths => format!("a list of 1 to {MAX_PATHS} directories"),
        };
        format!("must be {rule}")
    }

    /// The checked value, or what to write instead. `example` is a good TOML literal for this key.
    pub fn read(&self, value: &DeValue<'_>, example: &str) -> Result<Value, Refusal> {
        let as_example = || format!("write {example}");
        match (self, value) {
            (Self::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (Self::Count { min, max }, DeValue::Integer(number)) => {
                within(number, *min, *max, |n| n.to_string()).map(Value::Count)
            }
            (Self::Count { .. }, DeValue::String(text)) if text.parse::<u64>().is_ok() => {
                Err(format!("write {text} without quotes"))
            }
            (Self::Size { min, max }, DeValue::Integer(number)) => {
                within(number, *min, *max, size_literal).map(Value::Size)
            }
            (Self::Size { min, max }, DeValue::String(text)) => {
                clamp(parse_size(text)?.into(), *min, *max, size_literal).map(Value::Size)
            }
            (Self::Size { .. }, DeValue::Float(_)) => Err(format!("sizes are whole: {}", as_example())),
            (Self::Share, DeValue::Float(number)) => share(number.as_str(), example),
            (Self::Share, DeValue::Integer(number)) => share(number.as_str(), example),
            (Self::Share, DeValue::String(text)) => {
                match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
                    Some(percent) if (0.0..=100.0).contains(&percent) => Err(format!("write {:?}", percent / 100.0)),
                    _ => Err(as_example()),
                }
            }
            (Self::Time | Self::TimeFrom { .. }, DeValue::String(text)) => {
                let nanos = i128::try_from(parse_duration(text)?.as_nanos()).unwrap_or(i128::MAX);
                let (min, max) = self.nanos();
                clamp(nanos, min, max, |n| quoted(&format_nanos(n))).map(|n| Value::Time(Duration::from_nanos(n)))
            }
            (Self::Time | Self::TimeFrom { .. }, DeValue::Integer(n)) => {
                Err(format!("write the unit: \"{n}s\" or \"{n}ms\""))
            }
            (Self::Word(words), DeValue::String(text)) => {
                match words.iter().find(|word| *word == text) {
                    Some(word) => Ok(Value::Word(word)),
                    None => Err(nearest(text, words.iter().copied())
                        .map_or_else(as_example, |word| format!("write \"{word}\""))),
                }
            }
            (Self::Text, DeValue::String(text)) => match text.len() {
                0..=TEXT_BYTES => Ok(Value::Text(text.clone().into_owned())),
                bytes => Err(format!("shorten its {bytes} bytes, by a digest for example")),
            },
            (Self::Name, DeValue::String(text)) => name(text),
            (Self::Label, DeValue::String(text)) if is_label(text) => Ok(Value::Text(text.clone().into_owned())),
            (Self::Texts, DeValue::Array(items)) if items.len() <= MAX_TEXTS => {
                let text = |item: &DeValue<'_>| item.as_str().map(str::to_owned).ok_or_else(as_example);
                items.iter().map(|item| text(item.get_ref())).collect::<Result<_, _>>().map(Value::Texts)
            }
            (Self::Texts, DeValue::String(text)) => Err(format!("write [{}]", quoted(text))),
            (Self::Devices, DeValue::Array(items)) if items.len() <= MAX_TEXTS => {
                items.iter().map(|item| device(item.get_ref())).collect::<Result<_, _>>().map(Value::Texts)
            }
            (Self::Devices, item @ (DeValue::String(_) | DeValue::Integer(_))) => {
                device(item).and_then(|name| Err(format!("write [{}]", quoted(&name))))
            }
            (Self::Path | Self::Directory, item @ DeValue::String(_)) => path(item, example).map(Value::Path),
            (Self::Paths, DeValue::Array(items)) => {
                if items.is_empty() || items.len() > MAX_PATHS {
                    return Err(as_example());
                }
                items.iter().map(|item| path(item.get_ref(), example)).collect::<Result<_, _>>().map(Value::Paths)
            }
            (Self::Paths, DeValue::String(path)) => Err(format!("write [{}]", quoted(path))),
            _ => Err(as_example()),
        }
    }

    /// The JSON Schema of the value, without default and description.
    pub fn schema(&self) -> serde_json::Value {
        match self {
            Self::Flag => json!({ "type": "boolean" }),
            Self::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Size { min, max } => json!({ "anyOf": [
                { "type": "integer", "minimum": min, "maximum": max },
                { "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|TiB|PiB)$" },
            ] }),
            Self::Share => json!({ "type": "number", "minimum": 0.0, "maximum": 1.0 }),
            Self::Time | Self::TimeFrom { .. } => {
                json!({ "type": "string", "pattern": "^[0-9]+ ?(ns|us|ms|s|m|h|d)$" })
            }
            Self::Word(words) => json!({ "type": "string", "enum": words }),
            Self::Text => json!({ "type": "string", "maxLength": TEXT_BYTES }),
            Self::Name => {
                json!({ "type": "string", "pattern": label_pattern(), "not": { "enum": RESERVED_NAMES } })
            }
            Self::Label => json!({ "type": "string", "pattern": label_pattern() }),
            Self::Texts => json!({ "type": "array", "maxItems": MAX_TEXTS, "items": { "type": "string" } }),
            Self::Devices => json!({ "type": "array", "maxItems": MAX_TEXTS, "items": { "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": u32::MAX },
                { "type": "string", "pattern": "^([0-9]+|GPU-[0-9A-Fa-f-]{32,36})$" },
            ] } }),
            Self::Path | Self::Directory => json!({ "type": "string", "minLength": 1, "maxLength": PATH_BYTES }),
            Self::Paths => json!({
                "type": "array", "minItems": 1, "maxItems": MAX_PATHS,
                "items": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES },
            }),
        }
    }

    /// Bounds of a duration, in nanoseconds.
    fn nanos(&self) -> (u64, u64) {
        match self {
            Self::TimeFrom { min_secs, max_secs } => (min_secs.saturating_mul(SECOND), max_secs.saturating_mul(SECOND)),
            _ => TIME_NANOS,
        }
    }
}

fn format_nanos(nanos: u64) -> String {
    format_duration(Duration::from_nanos(nanos))
}

fn size_literal(bytes: u64) -> String {
    quoted(&format_size(bytes))
}

/// An integer within its bounds.
fn within(number: &DeInteger<'_>, min: u64, max: u64, format: impl Fn(u64) -> String) -> Result<u64, Refusal> {
    // i128 holds every u64 and every negative integer near it; what overflows even that is far off by its sign.
    let far = if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
    clamp(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(far), min, max, format)
}

fn clamp(number: i128, min: u64, max: u64, format: impl Fn(u64) -> String) -> Result<u64, Refusal> {
    match u64::try_from(number) {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ if number < i128::from(min) => Err(format!("write at least {}", format(min))),
        _ => Err(format!("write at most {}", format(max))),
    }
}

fn share(number: &str, example: &str) -> Result<Value, Refusal> {
    match number.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(Value::Share(share)),
        Ok(percent) if percent > 2.0 && percent <= 100.0 => {
            Err(format!("write {:?} for {number} percent", percent / 100.0))
        }
        Ok(share) if share > 1.0 => Err("write at most 1.0".to_owned()),
        Ok(share) if share < 0.0 => Err("write at least 0.0".to_owned()),
        _ => Err(format!("write {example}")),
    }
}

/// Whether `text` is 1 to 64 letters, digits, `-`, `_` or `.`.
fn is_label(text: &str) -> bool {
    (1..=NAME_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn label_pattern() -> String {
    format!("^[A-Za-z0-9._-]{{1,{NAME_BYTES}}}$")
}

fn name(text: &str) -> Result<Value, Refusal> {
    if RESERVED_NAMES.contains(&text) {
        Err(format!("\"{text}\" is taken: write another name"))
    } else if !is_label(text) {
        Err("write a name such as \"nvme-scratch\"".to_owned())
    } else {
        Ok(Value::Text(text.to_owned()))
    }
}

/// The name of a device: a number without leading zeros, or a UUID as NVIDIA's tools write it.
fn device(item: &DeValue<'_>) -> Result<String, Refusal> {
    let number = |text: &str| text.parse::<u32>().map(|number| number.to_string());
    let refused =
        || "write numbers such as 0, or \"GPU-\" and the 32 digits of a UUID as `nvidia-smi -L` shows them".to_owned();
    match item {
        DeValue::Integer(written) => number(written.as_str()).map_err(|_| refused()),
        DeValue::String(text) => match text.strip_prefix("GPU-") {
            Some(uuid) => {
                let digits = uuid.bytes().filter(u8::is_ascii_hexdigit).count();
                let dashes = uuid.bytes().filter(|byte| *byte == b'-').count();
                let is_uuid = digits == 32 && dashes <= 4 && digits + dashes == uuid.len();
                if is_uuid { Ok(text.clone().into_owned()) } else { Err(refused()) }
            }
            None => number(text).map_err(|_| refused()),
        },
        _ => Err(refused()),
    }
}

fn path(item: &DeValue<'_>, example: &str) -> Result<std::path::PathBuf, Refusal> {
    match item.as_str() {
        None => Err(format!("write each directory as a string: {example}")),
        Some("") => Err("name the directory: \"\" is none".to_owned()),
        Some(text) if text.contains('\0') => Err("remove the NUL character".to_owned()),
        Some(text) if text.len() > PATH_BYTES => Err(format!("write at most {PATH_BYTES} bytes")),
        Some(text) => Ok(text.into()),
    }
}
