//! The effective configuration as TOML: every key with the value in force.

use std::fmt::Write;

use crate::draft::Draft;
use crate::key::Key;
use crate::keys::SECTIONS;
use crate::model::Config;
use crate::tenant_keys::{TENANT, TENANT_KEYS};
use crate::tier_keys::{TIER, tier_keys};

/// All keys of `config`; parses back to an equal one.
pub(crate) fn to_toml(config: &Config) -> String {
    let mut draft = Draft::of(config);
    let mut out = String::new();
    for section in &SECTIONS {
        let _ = writeln!(out, "[{}]", section.name);
        write_keys(&mut out, section.keys.iter(), &mut draft);
        out.push('\n');
    }
    for mut tier in draft.tiers {
        let _ = writeln!(out, "[[{TIER}]]");
        write_keys(&mut out, tier_keys(tier.kind), &mut tier);
        out.push('\n');
    }
    for mut tenant in draft.config.tenants {
        let _ = writeln!(out, "[[{TENANT}]]");
        write_keys(&mut out, TENANT_KEYS.iter(), &mut tenant);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

// Writing to a String cannot fail.
fn write_keys<S: 'static>(out: &mut String, keys: impl Iterator<Item = &'static Key<S>>, draft: &mut S) {
    for key in keys {
        if let Some(value) = (key.place)(draft).get() {
            let _ = writeln!(out, "{} = {}", key.name, value.to_toml());
        }
    }
}
