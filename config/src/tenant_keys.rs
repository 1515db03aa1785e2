//! The table of keys, for `[[tenant]]`, and what must hold between them.

use crate::form::Form;
use crate::key::*;
use crate::model::TenantConfig;
use crate::report::Report;
use crate::value::Value;

/// Name of the array of tables that holds the tenants.
pub(crate) const TENANT: &str = "tenant";
/// What `[[tenant]]` is.
pub(crate) const TENANT_DOC: &str = "What holds for one tenant's namespaces. Tenants that are not named here have no key, and the share that is left. Of keys only the place is written here.";
/// The name that stands for all tenants without a share of their own.
pub(crate) const OTHERS: &str = "*";
/// Most keys of one tenant: a lookup of what is absent asks for a name under each.
const MAX_KEYS: usize = 4;

/// Keys of a tenant.
pub(crate) static TENANT_KEYS: [Key<TenantConfig>; 6] = [
    row(
        "name",
        Form::Text,
        Preset::Required("\"acme\""),
        |t| Place::Text(&mut t.name),
        "The tenant, as its engines say it in their namespace. \"*\": the share of every namespace whose tenant has none of its own.",
    ),
    row(
        "guaranteed",
        Form::Share,
        share(0.0),
        |t| Place::Share(&mut t.guaranteed),
        "Part of the primary and of every tier that its namespace in a daemon can have at any time. 0.0: none of its own. With it, server.pools \
         are a place for one namespace of each tenant that has a part, and the rest for all others, which have an equal part each of what \
         is left unless a tenant \"*\" says theirs. Without it anywhere all namespaces have equal parts.",
    ),
    row(
        "maximum",
        Form::Share,
        share(1.0),
        |t| Place::Share(&mut t.maximum),
        "The most that it can have. Of NVMe tiers it has more than is guaranteed as long as others do not need it; all else is divided when \
         the daemon starts, in the proportion of what is guaranteed.",
    ),
    row(
        "key_files",
        Form::Texts,
        Preset::Is(Value::Texts(Vec::new())),
        |t| Place::Texts(&mut t.key_files),
        "Files with a secret each. Below the primary, block hashes are hidden under it: who can list a store cannot tell what is stored. The \
         first is written with, all are read with: to rotate, put a new one in front.",
    ),
    row(
        "key_commands",
        Form::Texts,
        Preset::Is(Value::Texts(Vec::new())),
        |t| Place::Texts(&mut t.key_commands),
        "Commands that print a secret each within ten seconds, instead of key_files; run by the shell when a namespace opens. They are shown in \
         logs: no secret may stand in them.",
    ),
    row(
        "encrypt",
        Form::Flag,
        Preset::Is(Value::Flag(false)),
        |t| Place::Flag(&mut t.encrypt),
        "Blocks below the primary are sealed (AES-256-GCM) with keys from the secret. Another key, or changed bytes, is a miss.",
    ),
];

/// Checks what must hold between the keys of tenants.
pub(crate) fn check(tenants: &[TenantConfig], pools: u32, report: &mut Report<'_>) {
    check_shares(tenants, pools, report);
    for (i, tenant) in tenants.iter().enumerate() {
        let at = |key: &str| format!("{TENANT}[{i}].{key}");
        if tenant.name.is_empty() && report.good(&[&at("name")]) {
            report.fault(&at("name"), "must be the name of a tenant", "write name = \"acme\"");
        } else if tenants[..i].iter().any(|other| other.name == tenant.name) {
            report.fault(&at("name"), "must be named once", "put its keys together under one [[tenant]]");
        }
        if !tenant.key_files.is_empty() && !tenant.key_commands.is_empty() {
            let fix = "write the files as commands: \"cat /etc/terrace/acme.key\"";
            report.fault(&at("key_commands"), "must not stand beside key_files", fix);
        }
        for (key, list) in [("key_files", &tenant.key_files), ("key_commands", &tenant.key_commands)] {
            if list.len() > MAX_KEYS || list.iter().any(String::is_empty) {
                report.fault(&at(key), format!("must be at most {MAX_KEYS}, none empty"), "remove the last");
            }
        }
        if tenant.name == OTHERS && !(tenant.key_files.is_empty() && tenant.key_commands.is_empty()) {
            report.fault(&at("name"), "must be one tenant's where there are keys", "write a [[tenant]] for each");
        }
        if tenant.encrypt && tenant.key_files.is_empty() && tenant.key_commands.is_empty() {
            let fix = "write key_files = [\"/etc/terrace/acme.key\"]";
            report.fault(&at("encrypt"), "must not be true without a key", fix);
        }
    }
}

/// Checks that what is guaranteed can be had.
fn check_shares(tenants: &[TenantConfig], pools: u32, report: &mut Report<'_>) {
    /// What sums of fractions may be off.
    const ROUNDING: f64 = 1e-9;
    let (mut named, mut sum) = (0_u32, 0.0);
    for (i, tenant) in tenants.iter().enumerate() {
        let [guaranteed, maximum] = ["guaranteed", "maximum"].map(|key| format!("{TENANT}[{i}].{key}"));
        if !report.good(&[&guaranteed, &maximum, "server.pools"]) {
            return;
        }
        if tenant.guaranteed > tenant.maximum {
            let fix = format!("write at most {:?}", tenant.maximum);
            return report.fault(&guaranteed, format!("must be at most maximum, {:?}", tenant.maximum), fix);
        }
        if tenant.maximum == 0.0 {
            return report.fault(&maximum, "must be above 0.0", "write maximum = 1.0");
        }
        if tenant.guaranteed > 0.0 && tenant.name != OTHERS {
            named += 1;
            sum += tenant.guaranteed;
            if named > pools {
                let rule = format!("must have a place of its own, and server.pools is {pools}");
                return report.fault(&guaranteed, rule, "raise [server] pools");
            }
            if sum > 1.0 + ROUNDING {
                let rule = format!("must leave all of them at most 1.0 together: they are {sum:.3}");
                return report.fault(&guaranteed, rule, format!("lower it by {:.3}", sum - 1.0));
            }
        }
    }
    let others = tenants.iter().position(|tenant| tenant.name == OTHERS);
    if let Some((i, tenant)) = others.and_then(|i| Some((i, tenants.get(i)?))) {
        let (count, left) = (pools - named, 1.0 - sum);
        if tenant.guaranteed * f64::from(count) > left + ROUNDING {
            let rule = format!("must fit {count} times, for server.pools is {pools}, into {left:.3}");
            let fix = format!("write at most {:.3}", left / f64::from(count));
            report.fault(&format!("{TENANT}[{i}].guaranteed"), rule, fix);
        }
    }
}
