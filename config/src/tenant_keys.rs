//! The table of keys, for `[[tenant]]`, and what must hold between them.

use crate::form::Form;
use crate::key::*;
use crate::model::TenantConfig;
use crate::report::Report;
use crate::value::Value;

/// Name of the array of tables that holds the tenants.
pub(crate) const TENANT: &str = "tenant";
/// What `[[tenant]]` is.
pub(crate) const TENANT_DOC: &str = "What holds for one tenant's namespaces. Tenants that are not named here have no key. Of keys only the place is written here.";
/// Most keys of one tenant: a lookup of what is absent asks for a name under each.
const MAX_KEYS: usize = 4;

/// Keys of a tenant.
pub(crate) static TENANT_KEYS: [Key<TenantConfig>; 4] = [
    row(
        "name",
        Form::Text,
        Preset::Required("\"acme\""),
        |t| Place::Text(&mut t.name),
        "The tenant, as its engines say it in their namespace.",
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
pub(crate) fn check(tenants: &[TenantConfig], report: &mut Report<'_>) {
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
        if tenant.encrypt && tenant.key_files.is_empty() && tenant.key_commands.is_empty() {
            let fix = "write key_files = [\"/etc/terrace/acme.key\"]";
            report.fault(&at("encrypt"), "must not be true without a key", fix);
        }
    }
}
