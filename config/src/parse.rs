//! Text to a draft: every key against its own form.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::bounds::{MAX_TENANTS, MAX_TIERS};
use crate::draft::{Draft, Kind, TierDraft};
use crate::error::{ConfigError, Fault};
use crate::key::{Key, Preset};
use crate::keys::SECTIONS;
use crate::model::{Config, TenantConfig};
use crate::nearest::nearest;
use crate::relations;
use crate::report::{Mark, Report};
use crate::secrets::{self, NOT_SHOWN, is_secret};
use crate::tenant_keys::{TENANT, TENANT_KEYS};
use crate::tier_keys::{TIER, tier_keys};
use crate::value::quoted;

/// Largest text. The example with every key has 10 KiB.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// The configuration in `text`, or all faults of it.
pub(crate) fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(invalid(file, vec![too_long()]));
    }
    let mut report = Report::new(text);
    let (root, errors) = DeTable::parse_recoverable(text);
    // A bare word is read as the string that was meant. After any other error, what the rest of the text means is a
    // guess: keys are still checked one by one, but nothing is said about what is missing or does not fit together.
    let mut whole = true;
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let word = text.get(span.clone()).unwrap_or("");
        let bare = error.message().starts_with("string values must be quoted") && !word.is_empty();
        let fix = if bare { format!("write {}", quoted(word)) } else { "correct the TOML here".to_owned() };
        whole &= bare;
        report.syntax(span.start, error.message(), bare, fix);
    }
    let mut draft = read(&mut report, root.get_ref());
    if whole {
        relations::check(&mut draft, &mut report);
    }
    match report.finish() {
        faults if faults.is_empty() => Ok(draft.finish()),
        faults => Err(invalid(file, faults)),
    }
}

/// A text that is too long to be read.
pub(crate) fn too_long() -> Fault {
    Fault {
        line: None,
        key: String::new(),
        value: String::new(),
        bound: format!("must have at most {MAX_TEXT_BYTES} bytes"),
        fix: "check that this is the right file".to_owned(),
    }
}

pub(crate) fn invalid(file: &str, faults: Vec<Fault>) -> ConfigError {
    ConfigError::Invalid { file: file.to_owned(), faults }
}

fn read(report: &mut Report<'_>, root: &DeTable<'_>) -> Draft {
    let mut draft = Draft::blank();
    for section in &SECTIONS {
        let table = match root.get_key_value(section.name) {
            Some((key, value)) => {
                mark(report, section.name.to_owned(), key.span().start, value);
                let table = value.get_ref().as_table();
                if table.is_none() {
                    let fix = format!("write [{}] on a line of its own, its keys below", section.name);
                    report.fault(section.name, "must be a table", fix);
                }
                table
            }
            None => None,
        };
        read_keys(report, section.name, table, section.keys.iter(), &mut draft);
        for (key, value) in unknown(table, section.keys.iter()) {
            let at = mark(report, format!("{}.{}", section.name, key.get_ref()), key.span().start, value);
            let fix = elsewhere(key.get_ref(), section.keys.iter().map(|key| key.name));
            report.fault(&at, format!("is no key of [{}]", section.name), fix);
        }
    }
    if let Some((key, value)) = root.get_key_value(TIER) {
        mark(report, TIER.to_owned(), key.span().start, value);
        read_tiers(report, value, &mut draft);
    }
    if let Some((key, value)) = root.get_key_value(TENANT) {
        mark(report, TENANT.to_owned(), key.span().start, value);
        read_tenants(report, value, &mut draft);
    }
    for (key, value) in root {
        let name = key.get_ref().as_ref();
        if name != TIER && name != TENANT && SECTIONS.iter().all(|section| section.name != name) {
            let at = mark(report, name.to_owned(), key.span().start, value);
            let sections = SECTIONS.iter().map(|section| section.name).chain([TIER, TENANT]);
            report.fault(&at, "is no table of the configuration", elsewhere(name, sections));
        }
    }
    draft
}

fn read_tiers(report: &mut Report<'_>, value: &Spanned<DeValue<'_>>, draft: &mut Draft) {
    let Some(items) = value.get_ref().as_array() else {
        report.fault(TIER, "must be an array of tables", "write [[tier]] in front of the keys of each tier");
        return;
    };
    for (i, item) in items.iter().enumerate() {
        let path = format!("{TIER}[{i}]");
        mark(report, path.clone(), item.span().start, item);
        if i == MAX_TIERS {
            report.fault(&path, format!("must be one of at most {MAX_TIERS} tiers"), "remove tiers");
            return;
        }
        let Some(table) = item.get_ref().as_table() else {
            report.fault(&path, "must be a table", "write [[tier]] in front of the keys of each tier");
            continue;
        };
        let kind = table.get("type").and_then(|value| value.get_ref().as_str()).and_then(Kind::from_word);
        let mut tier = TierDraft::blank();
        read_keys(report, &path, Some(table), tier_keys(kind), &mut tier);
        for (key, value) in unknown(Some(table), tier_keys(kind)) {
            let name = key.get_ref().as_ref();
            let at = mark(report, format!("{path}.{name}"), key.span().start, value);
            let of = kind.map_or_else(String::new, |kind| format!(" of type \"{}\"", kind.word()));
            let fix = match tier_keys(None).any(|key| key.name == name) {
                true => "remove it, or change the type".to_owned(),
                false => elsewhere(name, tier_keys(kind).map(|key| key.name)),
            };
            report.fault(&at, format!("is no key of a tier{of}"), fix);
        }
        draft.tiers.push(tier);
    }
}

fn read_tenants(report: &mut Report<'_>, value: &Spanned<DeValue<'_>>, draft: &mut Draft) {
    const FIX: &str = "write [[tenant]] in front of the keys of each tenant";
    let Some(items) = value.get_ref().as_array() else {
        report.fault(TENANT, "must be an array of tables", FIX);
        return;
    };
    for (i, item) in items.iter().enumerate() {
        let path = format!("{TENANT}[{i}]");
        mark(report, path.clone(), item.span().start, item);
        if i == MAX_TENANTS {
            report.fault(&path, format!("must be one of at most {MAX_TENANTS} tenants"), "remove tenants");
            return;
        }
        let Some(table) = item.get_ref().as_table() else {
            report.fault(&path, "must be a table", FIX);
            continue;
        };
        let mut tenant = TenantConfig::default();
        read_keys(report, &path, Some(table), TENANT_KEYS.iter(), &mut tenant);
        for (key, value) in unknown(Some(table), TENANT_KEYS.iter()) {
            let name = key.get_ref().as_ref();
            let at = mark(report, format!("{path}.{name}"), key.span().start, value);
            let fix = match is_secret(name) {
                true => secrets::TENANT_FIX.to_owned(),
                false => elsewhere(name, TENANT_KEYS.iter().map(|key| key.name)),
            };
            report.fault(&at, "is no key of a tenant", fix);
        }
        draft.config.tenants.push(tenant);
    }
}

/// Reads what is written of `keys` into `draft`, and presets for what is not.
fn read_keys<S: 'static>(
    report: &mut Report<'_>,
    path: &str,
    table: Option<&DeTable<'_>>,
    keys: impl Iterator<Item = &'static Key<S>>,
    draft: &mut S,
) {
    for key in keys {
        let at = format!("{path}.{}", key.name);
        let value = match table.and_then(|table| table.get_key_value(key.name)) {
            Some((name, value)) => {
                mark(report, at.clone(), name.span().start, value);
                key.form.read(value.get_ref(), &key.example())
            }
            None => match &key.preset {
                Preset::Is(preset) => Ok(preset.clone()),
                Preset::Required(_) | Preset::Unset(_) => continue,
            },
        };
        match value {
            Ok(value) => {
                if !(key.place)(draft).put(value) {
                    report.fault(&at, key.form.bound(), format!("write {}", key.example()));
                }
            }
            Err(fix) => report.fault(&at, key.form.bound(), fix),
        }
    }
}

/// Marks a key, and the elements of its value if that is an array. Gives the path back.
fn mark(report: &mut Report<'_>, path: String, offset: usize, value: &Spanned<DeValue<'_>>) -> String {
    let shown = match value.get_ref() {
        DeValue::Table(_) => String::new(),
        _ if path.rsplit('.').next().is_some_and(is_secret) => NOT_SHOWN.to_owned(),
        _ => report.excerpt(value.span()),
    };
    report.mark(path.clone(), Mark { line: report.line(offset), value: shown });
    for (i, item) in value.get_ref().as_array().into_iter().flatten().enumerate() {
        if item.get_ref().is_str() {
            let mark = Mark { line: report.line(item.span().start), value: report.excerpt(item.span()) };
            report.mark(format!("{path}[{i}]"), mark);
        }
    }
    path
}

/// Entries of `table` that are none of `keys`.
fn unknown<'t, 'i, S: 'static>(
    table: Option<&'t DeTable<'i>>,
    keys: impl Iterator<Item = &'static Key<S>>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let names: Vec<&str> = keys.map(|key| key.name).collect();
    let entries = table.into_iter().flatten();
    entries.filter(|(key, _)| !names.contains(&key.get_ref().as_ref())).collect()
}

/// What to do with the unknown `name`: the key here that is like it, else the table that has such a key.
fn elsewhere(name: &str, here: impl Iterator<Item = &'static str>) -> String {
    if is_secret(name) {
        return secrets::FIX.to_owned();
    }
    if let Some(meant) = nearest(name, here) {
        return format!("write {meant}");
    }
    match SECTIONS.iter().find(|section| section.keys.iter().any(|key| key.name == name)) {
        Some(section) => format!("write it under [{}]", section.name),
        None if tier_keys(None).any(|key| key.name == name) => "write it under a [[tier]]".to_owned(),
        None => "remove it".to_owned(),
    }
}
