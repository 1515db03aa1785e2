//! One row of the table of keys, and the place in a draft that it fills.

use std::path::PathBuf;
use std::time::Duration;

use crate::bounds::MAX_BLOCKS;
use crate::copy::{CopyChoice, CopyPath};
use crate::draft::Kind;
use crate::form::Form;
use crate::model::{Choice, Collector, Credentials, LogFormat, Policy};
use crate::value::Value;

/// One key of a section: what the parser, the writer, the schema and the example know of it.
pub(crate) struct Key<S: 'static> {
    pub name: &'static str,
    /// What it does, for the example and the schema.
    pub doc: &'static str,
    pub form: Form,
    pub preset: Preset,
    /// Where the value lives in the draft of its section.
    pub place: for<'a> fn(&'a mut S) -> Place<'a>,
}

/// What holds if the key is not written.
pub(crate) enum Preset {
    /// This value.
    Is(Value),
    /// Nothing: it must be written. A TOML literal as an example.
    Required(&'static str),
    /// Nothing, and that is fine or follows from other keys. A TOML literal as an example.
    Unset(&'static str),
}

impl<S: 'static> Key<S> {
    /// A good TOML literal: the default where there is one.
    pub fn example(&self) -> String {
        match &self.preset {
            Preset::Is(value) => value.to_toml(),
            Preset::Required(example) | Preset::Unset(example) => (*example).to_owned(),
        }
    }

    /// Writes its default where there is one.
    pub fn put_default(&self, section: &mut S) {
        if let Preset::Is(value) = &self.preset {
            (self.place)(section).put(value.clone());
        }
    }
}

/// Upper bound of queues and tables that hold small entries.
pub(crate) const MAX_ENTRIES: u64 = 1 << 24;

/// A number of blocks.
pub(crate) const BLOCKS: Form = count(1, MAX_BLOCKS as u64);
/// A facility that may be missing.
pub(crate) const CHOICE: Form = Form::Word(Choice::WORDS);

pub(crate) const fn count(min: u64, max: u64) -> Form {
    Form::Count { min, max }
}

pub(crate) const fn secs(secs: u64) -> Preset {
    Preset::Is(Value::Time(Duration::from_secs(secs)))
}

pub(crate) const fn number(number: u64) -> Preset {
    Preset::Is(Value::Count(number))
}

pub(crate) const fn share(share: f64) -> Preset {
    Preset::Is(Value::Share(share))
}

pub(crate) const fn word(word: &'static str) -> Preset {
    Preset::Is(Value::Word(word))
}

pub(crate) const fn row<S: 'static>(
    name: &'static str,
    form: Form,
    preset: Preset,
    place: for<'a> fn(&'a mut S) -> Place<'a>,
    doc: &'static str,
) -> Key<S> {
    Key { name, doc, form, preset, place }
}

/// A borrowed field of a draft.
pub(crate) enum Place<'a> {
    Flag(&'a mut bool),
    Byte(&'a mut u8),
    Count(&'a mut u32),
    CountOrUnset(&'a mut Option<u32>),
    Size(&'a mut u32),
    LongSize(&'a mut u64),
    SizeOrUnset(&'a mut Option<u64>),
    Share(&'a mut f64),
    Time(&'a mut Duration),
    TimeOrUnset(&'a mut Option<Duration>),
    Policy(&'a mut Policy),
    Choice(&'a mut Choice),
    Collector(&'a mut Collector),
    Credentials(&'a mut Credentials),
    Kind(&'a mut Option<Kind>),
    Text(&'a mut String),
    TextOrUnset(&'a mut Option<String>),
    Texts(&'a mut Vec<String>),
    Path(&'a mut PathBuf),
    PathOrUnset(&'a mut Option<PathBuf>),
    LogFormat(&'a mut LogFormat),
    CopyChoice(&'a mut CopyChoice),
    CopyPath(&'a mut CopyPath),
    Paths(&'a mut Vec<PathBuf>),
}

impl Place<'_> {
    /// Stores `value`. A value that does not fit the place is left out and reported by `false`: a fault of the table,
    /// which its test finds.
    pub fn put(self, value: Value) -> bool {
        match (self, value) {
            (Self::Flag(place), Value::Flag(value)) => *place = value,
            (Self::Byte(place), Value::Count(value)) => return put_number(place, value),
            (Self::Count(place), Value::Count(value)) => return put_number(place, value),
            (Self::CountOrUnset(place), Value::Count(value)) => return put_number(place.insert(0), value),
            (Self::Size(place), Value::Size(value)) => return put_number(place, value),
            (Self::LongSize(place), Value::Size(value)) => *place = value,
            (Self::SizeOrUnset(place), Value::Size(value)) => *place = Some(value),
            (Self::Share(place), Value::Share(value)) => *place = value,
            (Self::Time(place), Value::Time(value)) => *place = value,
            (Self::TimeOrUnset(place), Value::Time(value)) => *place = Some(value),
            (Self::Policy(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::Choice(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::Collector(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::Credentials(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::Kind(place), Value::Word(word)) => {
                *place = Kind::from_word(word);
                return place.is_some();
            }
            (Self::Text(place), Value::Text(value)) => *place = value,
            (Self::Text(place), Value::PlainText(value)) => *place = value.to_owned(),
            (Self::TextOrUnset(place), Value::Text(value)) => *place = Some(value),
            (Self::Texts(place), Value::Texts(value)) => *place = value,
            (Self::Path(place), Value::Path(value)) => *place = value,
            (Self::Path(place), Value::PlainPath(value)) => *place = value.into(),
            (Self::PathOrUnset(place), Value::Path(value)) => *place = Some(value),
            (Self::LogFormat(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::CopyChoice(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::CopyPath(place), Value::Word(word)) => return word.parse().map(|value| *place = value).is_ok(),
            (Self::Paths(place), Value::Paths(value)) => *place = value,
            _ => return false,
        }
        true
    }

    /// The value that stands here; `None` if it is unset.
    pub fn get(self) -> Option<Value> {
        Some(match self {
            Self::Flag(place) => Value::Flag(*place),
            Self::Byte(place) => Value::Count(u64::from(*place)),
            Self::Count(place) => Value::Count(u64::from(*place)),
            Self::CountOrUnset(place) => Value::Count(u64::from((*place)?)),
            Self::Size(place) => Value::Size(u64::from(*place)),
            Self::LongSize(place) => Value::Size(*place),
            Self::SizeOrUnset(place) => Value::Size((*place)?),
            Self::Share(place) => Value::Share(*place),
            Self::Time(place) => Value::Time(*place),
            Self::TimeOrUnset(place) => Value::Time((*place)?),
            Self::Policy(place) => Value::Word(place.word()),
            Self::Choice(place) => Value::Word(place.word()),
            Self::Collector(place) => Value::Word(place.word()),
            Self::Credentials(place) => Value::Word(place.word()),
            Self::Kind(place) => Value::Word((*place)?.word()),
            Self::Text(place) => Value::Text(place.clone()),
            Self::TextOrUnset(place) => Value::Text(place.clone()?),
            Self::Texts(place) => Value::Texts(place.clone()),
            Self::Path(place) => Value::Path(place.clone()),
            Self::PathOrUnset(place) => Value::Path(place.clone()?),
            Self::LogFormat(place) => Value::Word(place.word()),
            Self::CopyChoice(place) => Value::Word(place.word()),
            Self::CopyPath(place) => Value::Word(place.word()),
            Self::Paths(place) => Value::Paths(place.clone()),
        })
    }
}

fn put_number<N: TryFrom<u64>>(place: &mut N, value: u64) -> bool {
    N::try_from(value).map(|value| *place = value).is_ok()
}
